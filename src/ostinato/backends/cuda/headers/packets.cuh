// Values that are passed from block to block, each element of which shows that it is there.
#pragma once
#include "packs.cuh"
#include "products.cuh"
#include "stamps.cuh"

namespace ost {

// A packet is an element, all of whose bits are ones until it is there. As a float that is a NaN;
// one that is sent has another sign. Signed bytes are sent with all bits but that of the sign inverted,
// and -128 never is. So packets are no longer than elements, and a load brings many.
template <class T>
constexpr unsigned empty_packet = (unsigned)((1ULL << 8 * sizeof(T)) - 1);

// Whether all packets in a word, or the only one in a shorter integer, are there.
template <class T, class Word>
inline bool are_there(Word word) {
    static_assert(sizeof(T) <= 4, "bytes, and floats of 16 or 32 bits");
    if (sizeof(T) == sizeof(Word)) return (unsigned)word != empty_packet<T>;
    if (sizeof(T) == 1) return (((~word - 0x01010101u) & word) & 0x80808080u) == 0;
    return (word & 0xFFFFu) != 0xFFFFu && (unsigned)word >> 16 != 0xFFFFu;
}

// Loads and stores that see, and are seen by, other blocks.
#ifndef __CUDA_ARCH__
template <int Count>
inline vector<unsigned, Count> relaxed_load(const vector<unsigned, Count>* from) {
    vector<unsigned, Count> found;
    for (int i = 0; i < Count; i++) found.at[i] = relaxed_load(&from->at[i]);
    return found;
}
template <int Count>
inline void relaxed_store(vector<unsigned, Count>* to, const vector<unsigned, Count>& value) {
    for (int i = 0; i < Count; i++) relaxed_store(&to->at[i], value.at[i]);
}
#endif
inline unsigned short load_packets(const unsigned short* from) {
#ifdef __CUDA_ARCH__
    unsigned short found;
    asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(found) : "l"(from) : "memory");
    return found;
#else
    return relaxed_load(from);
#endif
}
inline unsigned load_packets(const unsigned* from) {
#ifdef __CUDA_ARCH__
    unsigned found;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(from) : "memory");
    return found;
#else
    return relaxed_load(from);
#endif
}
inline vector<unsigned, 2> load_packets(const vector<unsigned, 2>* from) {
#ifdef __CUDA_ARCH__
    vector<unsigned, 2> found;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(found.at[0]), "=r"(found.at[1])
                 : "l"(from)
                 : "memory");
    return found;
#else
    return relaxed_load(from);
#endif
}
inline vector<unsigned, 4> load_packets(const vector<unsigned, 4>* from) {
#ifdef __CUDA_ARCH__
    vector<unsigned, 4> found;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.at[0]), "=r"(found.at[1]), "=r"(found.at[2]), "=r"(found.at[3])
                 : "l"(from)
                 : "memory");
    return found;
#else
    return relaxed_load(from);
#endif
}
template <class T, int Count>
inline bool are_there(const vector<unsigned, Count>& words) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < Count; i++) all &= are_there<T>(words.at[i]);
    return all;
}
// Stores that bring many packets, none of which is empty.
inline void store_packets(unsigned* packets, unsigned words) {
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(packets), "r"(words) : "memory");
#else
    relaxed_store(packets, words);
#endif
}
inline void store_packets(vector<unsigned, 2>* packets, const vector<unsigned, 2>& words) {
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(packets), "r"(words.at[0]),
                 "r"(words.at[1])
                 : "memory");
#else
    relaxed_store(packets, words);
#endif
}
inline void store_packets(vector<unsigned, 4>* packets, const vector<unsigned, 4>& words) {
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(packets),
                 "r"(words.at[0]), "r"(words.at[1]), "r"(words.at[2]), "r"(words.at[3])
                 : "memory");
#else
    relaxed_store(packets, words);
#endif
}

// An element that is sent has one bit pattern less.
inline unsigned short sent(unsigned short element) { return element == 0xFFFFu ? 0x7FFFu : element; }
inline float sent(float element) {
    return bits_as<unsigned>(element) == ~0u ? bits_as<float>(0x7FFFFFFFu) : element;
}

inline signed char sent(signed char element) { return (signed char)(element ^ 0x7F); }

// Packets of type T as the elements that were sent.
template <class T, class Word>
inline Word opened(Word word) {
    return sizeof(T) == 1 ? (Word)(word ^ 0x7F7F7F7Fu) : word;
}
template <class T, int Count>
inline vector<unsigned, Count> opened(vector<unsigned, Count> words) {
#pragma unroll
    for (int i = 0; i < Count; i++) words.at[i] = opened<T>(words.at[i]);
    return words;
}

inline void store_packet(signed char* packet, signed char element) {
    element = sent(element);
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.s8 [%0], %1;" ::"l"(packet), "h"((short)element) : "memory");
#else
    relaxed_store(packet, element);
#endif
}
inline void store_packet(unsigned short* packet, unsigned short element) {
    element = sent(element);
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(packet), "h"(element) : "memory");
#else
    relaxed_store(packet, element);
#endif
}
inline void store_packet(float* packet, float element) {
    element = sent(element);
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(packet), "f"(element) : "memory");
#else
    relaxed_store((unsigned*)packet, bits_as<unsigned>(element));
#endif
}

// Whether a lane of the warp says so: called by all of its lanes, which go on together. Lanes that
// leave a loop one after the other may stay apart: what a warp does together then, a reduction for
// example, goes the long way.
inline bool any_lane(bool says) { return __any_sync(0xFFFFFFFFu, says) != 0; }

// The integers that packets of type T are.
template <class T>
using packet_bits = typename choice<sizeof(T) == 2, unsigned short, unsigned>::type;

// What is at an address, once all packets of type T in it are there.
template <class T, class Word>
inline Word await_packets(const Word* from) {
    const waiting timed(&waits::values);
    Word found = load_packets(from);
    unsigned polls = 0;
#pragma unroll 1
    while (!are_there<T>(found)) {
        looked(false, polls, "values of other blocks");
        found = load_packets(from);
    }
    return found;
}

// An array whose elements are sent as they are written.
template <class T>
struct outbox {
    struct element {
        T* packet;
        void operator=(T value) const { store_packet(packet, value); }
    };

    T* packets;

    explicit outbox(const void* packets) : packets((T*)packets) {}
    element operator[](long long i) const { return {packets + i}; }
    outbox operator+(long long i) const { return outbox(packets + i); }
};

// An array whose elements are waited for where they are read.
template <class T>
struct inbox {
    const T* packets;

    explicit inbox(const void* packets) : packets((const T*)packets) {}
    T operator[](long long i) const {
        return bits_as<T>(await_packets<T>((const packet_bits<T>*)packets + i));
    }
    inbox operator+(long long i) const { return inbox(packets + i); }
};

// A copy of packets in four bytes, some of which may not be there yet.
inline void copy_packets(void* shared, const void* packets) {
#ifdef __CUDA_ARCH__
    copy_word(shared, packets);
#else
    *(unsigned*)shared = relaxed_load((const unsigned*)packets);
#endif
}

// An element that was copied before it was needed; it is waited for if it was not there then.
template <class T>
inline T settled(T copied, inbox<T> from, long long i) {
    return are_there<T>(bits_as<packet_bits<T>>(copied)) ? copied : from[i];
}

// The words of a pack: of 4, 8 or 16 bytes.
template <int Bytes>
using packet_words = typename choice<
    Bytes == 4, unsigned, typename choice<Bytes == 8, vector<unsigned, 2>, vector<unsigned, 4>>::type
>::type;

template <class T, int Count>
inline pack<T, Count> pack<T, Count>::load(inbox<T> from) {
    using words = packet_words<sizeof(part)>;
    words found[parts];
#pragma unroll
    for (int i = 0; i < parts; ++i) found[i] = await_packets<T>((const words*)from.packets + i);
    pack result;
    memcpy(result.at, found, sizeof found);
    return result;
}

template <class T, int Count>
inline void pack<T, Count>::store(outbox<T> to) const {
    using words = packet_words<sizeof(part)>;
    T elements[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) elements[i] = sent(at[i]);
    words given[parts];
    memcpy(given, elements, sizeof given);
#pragma unroll
    for (int i = 0; i < parts; ++i) store_packets((words*)to.packets + i, given[i]);
}

// A row of elements of other blocks, and the memory of the block that gets it.
template <class T>
struct received {
    const T* packets;
    T* held;

    received operator+(long long i) const { return {packets + i, held + i}; }
};

// The packs of a thread once all of its warp's are there: they are on their way together. Called by
// all lanes of a warp.
template <int Step, int Extent, class T, int Count, int Packs>
inline void await_row(pack<T, Count> (&row)[Packs], const T* packets, int first) {
    using part = pack<T, Count>;
    using words = packet_words<sizeof(typename part::part)>;
    constexpr int each = part::parts;
    words found[Packs][each];
    unsigned polls = 0;
    bool complete;
    const waiting timed(&waits::values);
#pragma unroll 1
    do {
        complete = true;
#pragma unroll
        for (int i = 0; i < Packs * each; ++i) {
            const int at = first + i / each * Step < Extent ? i / each * Step : -first;
            found[i / each][i % each] = load_packets((const words*)(packets + at) + i % each);
        }
#pragma unroll
        for (int i = 0; i < Packs * each; ++i) complete &= are_there<T>(found[i / each][i % each]);
        looked(complete, polls, "values of other blocks");
    } while (any_lane(!complete));
#pragma unroll
    for (int i = 0; i < Packs; ++i) memcpy(row[i].at, found[i], sizeof found[i]);
}

// See `load_row` of memory. Where elements are received, the block has them once its threads have
// met; of several threads with the same pack, one keeps it.
template <int Step, int Extent, class T, int Count, int Packs>
inline void load_row(pack<T, Count> (&row)[Packs], inbox<T> from, int first, bool = true) {
    await_row<Step, Extent>(row, from.packets, first);
}
template <int Step, int Extent, class T, int Count, int Packs>
inline void load_row(pack<T, Count> (&row)[Packs], received<T> from, int first, bool keeps = true) {
    await_row<Step, Extent>(row, from.packets, first);
#pragma unroll
    for (int i = 0; i < Packs; ++i)
        if (keeps && first + i * Step < Extent) row[i].store(from.held + i * Step);
}

// Elements that are so many apart, and two neighbours, once all of the warp's are there: they are on
// their way together. Called by all lanes of a warp.
template <int Step, class T, int Count>
inline void load_apart(T (&found)[Count], T (&pair)[2], const T* first, const T* both) {
#pragma unroll
    for (int i = 0; i < Count; i++) found[i] = first[i * Step];
#pragma unroll
    for (int i = 0; i < 2; i++) pair[i] = both[i];
}
template <int Step, class T, int Count>
inline void load_apart(T (&found)[Count], T (&pair)[2], inbox<T> first, inbox<T> both) {
    using bits = packet_bits<T>;
    const bits *const elements = (const bits*)first.packets, *const others = (const bits*)both.packets;
    bits packets[Count + 2];
    unsigned polls = 0;
    bool complete;
    const waiting timed(&waits::values);
#pragma unroll 1
    do {
        complete = true;
#pragma unroll
        for (int i = 0; i < Count + 2; i++)
            packets[i] = load_packets(i < Count ? elements + i * Step : others + (i - Count));
#pragma unroll
        for (int i = 0; i < Count + 2; i++) complete &= are_there<T>(packets[i]);
        looked(complete, polls, "values of other blocks");
    } while (any_lane(!complete));
#pragma unroll
    for (int i = 0; i < Count; i++) found[i] = bits_as<T>(packets[i]);
#pragma unroll
    for (int i = 0; i < 2; i++) pair[i] = bits_as<T>(packets[Count + i]);
}

// Elements of tiles of `Group` each, one tile behind the other, whose places in an array are those of
// tiles `step` apart from `first` on.
template <int Group, class Array>
struct tile_elements {
    Array array;
    int first, step;

    auto operator[](int i) const -> decltype(array[0]) { return array[place(i)]; }
    auto operator+(int i) const -> decltype(array + 0) { return array + place(i); }

   private:
    int place(int i) const { return (first + i / Group * step) * Group + i % Group; }
};
template <int Group, class Array>
inline tile_elements<Group, Array> elements_of_tiles(Array array, int first, int step) {
    return {array, first, step};
}

// An array of one element, whatever its number.
template <class T>
struct one_element {
    T* element;
    T& operator[](long long) const { return *element; }
};

template <class T>
inline one_element<T> element_at(T* element) {
    return {element};
}

// Empties units of two bytes, of which there are a multiple of eight.
inline void clear_packets(unsigned short* packets, int count, place own, place all) {
    const vector<unsigned, 4> none = {~0u, ~0u, ~0u, ~0u};
    for (int i = own.x * computing + threadIdx.x; i < count / 8; i += all.x * computing)
        ((vector<unsigned, 4>*)packets)[i] = none;
}

// Hands on units of packets of type T, each once it is there: called by all computing threads of a
// block. `from` gives the place of a unit, `put` takes its packets.
template <class T, int Count, class From, class Put>
inline void receive_packets(From from, Put put) {
    constexpr int each = (Count + (int)computing - 1) / (int)computing;
    constexpr int batch = each < 8 ? each : 8;
    constexpr bool whole = Count % ((int)computing * batch) == 0;
#pragma unroll 1
    for (int start = threadIdx.x / 32 * 32; start < Count; start += computing * batch) {
        const int first = start + threadIdx.x % 32;
        decltype(load_packets(from(0))) found[batch];
        unsigned polls = 0;
        bool complete;
        const waiting timed(&waits::values);
#pragma unroll 1
        do {
            complete = true;
#pragma unroll
            for (int i = 0; i < batch; i++) {
                const int at = first + i * (int)computing;
                if (whole || at < Count) found[i] = load_packets(from(at));
            }
#pragma unroll
            for (int i = 0; i < batch; i++) {
                const bool wanted = whole || first + i * (int)computing < Count;
                complete &= !wanted || are_there<T>(found[i]);
            }
            looked(complete, polls, "values of other blocks");
        } while (any_lane(!complete));
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const int at = first + i * (int)computing;
            if (whole || at < Count) put(at, opened<T>(found[i]));
        }
    }
}

// The unit in which so many packets of type T are received.
template <class T, int Count>
using packet_unit =
    typename choice<Count * sizeof(T) % 16 == 0, vector<unsigned, 4>, packet_bits<T>>::type;

// Copies elements into memory of the block: called by all computing threads.
template <int Count, class T>
inline void gather(const T* from, T* to) {
    for (int i = threadIdx.x; i < Count; i += computing) to[i] = from[i];
}
template <int Count, class T>
inline void gather(inbox<T> from, T* to) {
    using unit = packet_unit<T, Count>;
    receive_packets<T, Count * (int)sizeof(T) / (int)sizeof(unit)>(
        [&](int i) { return (const unit*)from.packets + i; },
        [&](int i, const unit& found) { ((unit*)to)[i] = found; }
    );
}

// The elements where they are, once all of them are there: called by all computing threads.
template <int Count, class T>
inline const T* awaited(inbox<T> from) {
    using unit = packet_unit<T, Count>;
    receive_packets<T, Count * (int)sizeof(T) / (int)sizeof(unit)>(
        [&](int i) { return (const unit*)from.packets + i; }, [](int, const unit&) {}
    );
#ifdef __CUDA_ARCH__
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
    OST_SYNC();
    return from.packets;
}

}  // namespace ost
