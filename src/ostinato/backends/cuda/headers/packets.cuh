// Values that are passed from block to block, each element with a flag of its own.
#pragma once
#include "base.cuh"

namespace ost {

// A packet has an element in its lower half; its upper half is 0 until the element is there. Both
// are written and read at once, so that nothing else has to be waited for.
inline unsigned long long load_packet(const unsigned long long* packet) {
#ifdef __CUDA_ARCH__
    unsigned long long found;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(packet) : "memory");
    return found;
#else
    return *packet;
#endif
}

inline void store_packet(unsigned long long* packet, unsigned element) {
    const unsigned long long both = 1ULL << 32 | element;
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(packet), "l"(both) : "memory");
#else
    *packet = both;
#endif
}

// Elements as 32 bits.
inline unsigned packed(unsigned char element) { return element; }
inline unsigned packed(unsigned short element) { return element; }
inline unsigned packed(unsigned element) { return element; }
inline unsigned packed(int element) { return (unsigned)element; }
inline unsigned packed(float element) { return bits_as<unsigned>(element); }

template <class T>
inline T unpacked(unsigned bits) {
    if constexpr (sizeof(T) == 4)
        return bits_as<T>(bits);
    else
        return (T)bits;
}

// An array whose elements are sent as they are written.
template <class T>
struct outbox {
    struct element {
        unsigned long long* packet;
        void operator=(T value) const { store_packet(packet, packed(value)); }
    };

    unsigned long long* packets;

    explicit outbox(const void* packets) : packets((unsigned long long*)packets) {}
    element operator[](long long i) const { return {packets + i}; }
    outbox operator+(long long i) const { return outbox(packets + i); }
};

// An array whose elements are waited for where they are read.
template <class T>
struct inbox {
    const unsigned long long* packets;

    explicit inbox(const void* packets) : packets((const unsigned long long*)packets) {}
    inbox operator+(long long i) const { return inbox(packets + i); }
};

inline void clear_packets(unsigned long long* packets, int count, place own, place all) {
    for (int i = own.x * computing + threadIdx.x; i < count; i += all.x * computing) packets[i] = 0;
}

// Hands on elements, each once it is there: called by all computing threads of a block.
template <int Count, class Packet, class Put>
inline void receive_packets(Packet packet, Put put) {
    constexpr int count = Count, each = (Count + (int)computing - 1) / (int)computing;
    constexpr int batch = each < 16 ? each : 16;
#pragma unroll 1
    for (int first = threadIdx.x; first < count; first += computing * batch) {
        unsigned long long found[batch];
        unsigned polls = 0;
        bool complete;
#pragma unroll 1
        do {
            complete = true;
#pragma unroll
            for (int i = 0; i < batch; i++) {
                const int at = first + i * (int)computing;
                found[i] = at < count ? load_packet(packet(at)) : ~0ULL;
            }
#pragma unroll
            for (int i = 0; i < batch; i++) complete &= (found[i] >> 32) != 0;
            if (++polls == 1u << 24) waited_in_vain("values of other blocks");
        } while (!complete);
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const int at = first + i * (int)computing;
            if (at < count) put(at, (unsigned)found[i]);
        }
    }
}

// Copies elements into memory of the block: called by all computing threads.
template <int Count, class T>
inline void gather(const T* from, T* to) {
    for (int i = threadIdx.x; i < Count; i += computing) to[i] = from[i];
}
template <int Count, class T>
inline void gather(inbox<T> from, T* to) {
    receive_packets<Count>(
        [&](int i) { return from.packets + i; },
        [&](int i, unsigned element) { to[i] = unpacked<T>(element); }
    );
}

}  // namespace ost
