// Barriers in shared memory whose phases end with arrivals and with the bytes of copies.
#pragma once
#include "base.cuh"

namespace ost {

// A phase ends with so many arrivals, once all bytes that were announced are there.
struct alignas(8) phased_barrier {
    unsigned words[2];  // of a host: the arrivals; the arrivals of a phase, and 1024 for each byte
};

// The 32-bit address of what is in shared memory.
inline unsigned shared_address(const void* p) {
#ifdef __CUDA_ARCH__
    return (unsigned)__cvta_generic_to_shared(p);
#else
    return 0;
#endif
}

inline void barrier_start(phased_barrier* barrier, unsigned arrivals) {
#ifdef __CUDA_ARCH__
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
#else
    barrier->words[0] = 0;
    barrier->words[1] = arrivals;
#endif
}

// Makes barriers that were started known to the copies that arrive at them.
inline void barriers_started() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

inline void barrier_arrive(phased_barrier* barrier) {
#ifdef __CUDA_ARCH__
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#else
    atomicAdd(&barrier->words[0], 1u);
#endif
}

// Arrives, and announces the bytes of copies.
inline void barrier_expect(phased_barrier* barrier, unsigned bytes) {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
#endif
#else
    atomicAdd(&barrier->words[1], bytes * 1024u);
    atomicAdd(&barrier->words[0], 1u);
#endif
}

// Whether the phase of a parity has ended. Suspends: the thread may rest for a while if it has not.
template <bool Suspends = true>
inline bool barrier_passed(phased_barrier* barrier, unsigned parity) {
#ifdef __CUDA_ARCH__
    unsigned passed = 0;
#if __CUDA_ARCH__ >= 900
    if (Suspends)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(passed)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    else
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(passed)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
#endif
    return passed != 0;
#else
    unsigned arrived = atomicAdd(&barrier->words[0], 0u);
    unsigned expected = atomicAdd(&barrier->words[1], 0u);
    return ((arrived / (expected % 1024u) - (expected >= 1024u)) & 1u) != parity;
#endif
}

// Waits until the phase of a parity has ended; false: it never does.
inline bool barrier_await(phased_barrier* barrier, unsigned parity) {
    unsigned polls = 0;
#pragma unroll 1
    while (!barrier_passed(barrier, parity)) {
#ifndef __CUDA_ARCH__
        __nanosleep(0);
#endif
        if (++polls == 1u << 24) return false;
    }
    return true;
}

// What a thread writes before it arrives, and others read behind the phase: of whole words.
template <class T>
inline void tell(T* to, const T& value) {
#ifdef __CUDA_ARCH__
    *to = value;
#else
    for (int i = 0; i < (int)(sizeof(T) / 4); i++)
        relaxed_store((unsigned*)to + i, ((const unsigned*)&value)[i]);
#endif
}
template <class T>
inline T told(const T* from) {
#ifdef __CUDA_ARCH__
    return *from;
#else
    T value;
    for (int i = 0; i < (int)(sizeof(T) / 4); i++)
        ((unsigned*)&value)[i] = relaxed_load((const unsigned*)from + i);
    return value;
#endif
}

}  // namespace ost
