// Neighbouring elements that are loaded and stored together.
#pragma once
#include "base.cuh"

namespace ost {

template <int Bytes>
struct word;
template <>
struct word<4> {
    typedef unsigned type;
};
template <>
struct word<8> {
    typedef uint2 type;
};
template <>
struct word<16> {
    typedef uint4 type;
};

// Values that other blocks send and receive: see packets.cuh.
template <class T>
struct inbox;
template <class T>
struct outbox;

// `Count` elements, which take 4, 8 or a multiple of 16 bytes; their address is as aligned.
template <class T, int Count>
struct pack {
    static constexpr int bytes = Count * sizeof(T);
    typedef typename word<(bytes < 16 ? bytes : 16)>::type part;
    static constexpr int parts = bytes / sizeof(part);

    T at[Count];

    static pack load(const T* from) {
        part words[parts];
#pragma unroll
        for (int i = 0; i < parts; ++i) words[i] = reinterpret_cast<const part*>(from)[i];
        pack result;
        memcpy(result.at, words, sizeof words);
        return result;
    }

    void store(T* to) const {
        part words[parts];
        memcpy(words, at, sizeof words);
#pragma unroll
        for (int i = 0; i < parts; ++i) reinterpret_cast<part*>(to)[i] = words[i];
    }

    static pack load(inbox<T> from);
    void store(outbox<T> to) const;
};

// The packs of a row that a thread has: those `Step` elements apart, of `Extent` in all, from the one
// that begins at element `first` on, which is the one at `from`.
template <int Step, int Extent, class T, int Count, int Packs>
inline void load_row(pack<T, Count> (&row)[Packs], const T* from, int first, bool = true) {
#pragma unroll
    for (int i = 0; i < Packs; ++i)
        if (Packs * Step == Extent || first + i * Step < Extent)
            row[i] = pack<T, Count>::load(from + i * Step);
}

// Exchanges words of four lanes that follow each other: the one with the number j gets of each lane
// what that has at j. All lanes of a warp call it.
inline void exchange_words(unsigned (&words)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const unsigned given = __shfl_xor_sync(0xFFFFFFFFu, odd ? words[i] : words[i + 1], 1);
        words[i] = odd ? given : words[i];
        words[i + 1] = odd ? words[i + 1] : given;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned given = __shfl_xor_sync(0xFFFFFFFFu, high ? words[i] : words[i + 2], 2);
        words[i] = high ? given : words[i];
        words[i + 2] = high ? words[i + 2] : given;
    }
}

}  // namespace ost
