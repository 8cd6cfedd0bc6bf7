// Values that are passed from block to block, each element of which shows that it is there.
#pragma once
#include "products.cuh"

namespace ost {

// A packet is an element, all of whose bits are ones until it is there. As a float that is a NaN;
// one that is sent has another sign. So packets are no longer than elements, and a load brings many.
template <class T>
constexpr unsigned empty_packet = (unsigned)((1ULL << 8 * sizeof(T)) - 1);

// Whether all packets in a word, or the only one in a shorter integer, are there.
template <class T, class Word>
inline bool are_there(Word word) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "floats of 16 or 32 bits");
    if (sizeof(T) == sizeof(Word)) return (unsigned)word != empty_packet<T>;
    return (word & 0xFFFFu) != 0xFFFFu && (unsigned)word >> 16 != 0xFFFFu;
}

// Loads and stores that see, and are seen by, other blocks.
inline unsigned short load_packets(const unsigned short* from) {
#ifdef __CUDA_ARCH__
    unsigned short found;
    asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(found) : "l"(from) : "memory");
    return found;
#else
    return *from;
#endif
}
inline unsigned load_packets(const unsigned* from) {
#ifdef __CUDA_ARCH__
    unsigned found;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(from) : "memory");
    return found;
#else
    return *from;
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
    return *from;
#endif
}
template <class T>
inline bool are_there(const vector<unsigned, 4>& words) {
    return are_there<T>(words.at[0]) && are_there<T>(words.at[1]) && are_there<T>(words.at[2]) &&
           are_there<T>(words.at[3]);
}

inline void store_packet(unsigned short* packet, unsigned short element) {
    if (element == 0xFFFFu) element = 0x7FFFu;
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(packet), "h"(element) : "memory");
#else
    *packet = element;
#endif
}
inline void store_packet(float* packet, float element) {
    unsigned bits = bits_as<unsigned>(element);
    if (bits == ~0u) bits = 0x7FFFFFFFu;
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(packet), "r"(bits) : "memory");
#else
    *packet = bits_as<float>(bits);
#endif
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
    inbox operator+(long long i) const { return inbox(packets + i); }
};

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
#pragma unroll 1
    for (int first = threadIdx.x; first < Count; first += computing * batch) {
        decltype(load_packets(from(0))) found[batch];
        unsigned polls = 0;
        bool complete;
#pragma unroll 1
        do {
            complete = true;
#pragma unroll
            for (int i = 0; i < batch; i++) {
                const int at = first + i * (int)computing;
                found[i] = load_packets(from(at < Count ? at : first));
            }
#pragma unroll
            for (int i = 0; i < batch; i++) complete &= are_there<T>(found[i]);
            if (++polls == 1u << 24) waited_in_vain("values of other blocks");
        } while (!complete);
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const int at = first + i * (int)computing;
            if (at < Count) put(at, found[i]);
        }
    }
}

// The integers that packets of type T are, and the unit in which so many of them are received.
template <class T>
using packet_bits = typename choice<sizeof(T) == 2, unsigned short, unsigned>::type;
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

}  // namespace ost
