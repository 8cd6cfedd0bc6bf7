// Building blocks of all headers: bit patterns, fixed-width types, extremes of element types.
#pragma once

#ifndef __CUDA_ARCH__
#include <math.h>
#include <string.h>
#endif

// Of a function: called, however short it is.
#ifdef __CUDA_ARCH__
#define OST_APART __noinline__
#else
#define OST_APART __attribute__((noinline))
#endif

namespace ost {

template <class To, class From>
inline To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From), "a bit pattern keeps its width");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

// One of two types.
template <bool First, class A, class B>
struct choice {
    using type = A;
};
template <class A, class B>
struct choice<false, A, B> {
    using type = B;
};

// A reciprocal, that of a square root, and a power of two, as the processor has them: within 1, 2 and 2
// units in the last place; the first and the last are 0 where they would be subnormal.
inline float near_reciprocal(float x) {
#ifdef __CUDA_ARCH__
    float found;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
#else
    return 1.0f / x;
#endif
}
inline float near_rsqrt(float x) {
#ifdef __CUDA_ARCH__
    float found;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
#else
    return 1.0f / ::sqrtf(x);
#endif
}
inline float near_exp2(float x) {
#ifdef __CUDA_ARCH__
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
#else
    return x < -126.0f ? 0.0f : ::exp2f(x);
#endif
}

inline float float_of(unsigned bits) { return bits_as<float>(bits); }
inline double float_of(unsigned long long bits) { return bits_as<double>(bits); }

// Traits of the types in registers. `wide` is the unsigned type in which arithmetic wraps.
template <class T>
struct number;

template <>
struct number<bool> {
    typedef unsigned bits;
    typedef unsigned wide;
    static constexpr bool is_float = false, is_signed = false;
    static constexpr bool least() { return false; }
    static constexpr bool greatest() { return true; }
};

#define OST_INTEGER(TYPE, BITS, WIDE, SIGNED)                                       \
    template <>                                                                     \
    struct number<TYPE> {                                                           \
        typedef BITS bits;                                                          \
        typedef WIDE wide;                                                          \
        static constexpr bool is_float = false, is_signed = SIGNED;                 \
        static constexpr int width = 8 * sizeof(TYPE);                              \
        static constexpr TYPE greatest() { return (TYPE)((BITS)(~(BITS)0) >> SIGNED); } \
        static constexpr TYPE least() { return (TYPE)(SIGNED ? -greatest() - 1 : 0); } \
    };

OST_INTEGER(signed char, unsigned char, unsigned, true)
OST_INTEGER(unsigned char, unsigned char, unsigned, false)
OST_INTEGER(short, unsigned short, unsigned, true)
OST_INTEGER(unsigned short, unsigned short, unsigned, false)
OST_INTEGER(int, unsigned, unsigned, true)
OST_INTEGER(unsigned, unsigned, unsigned, false)
OST_INTEGER(long long, unsigned long long, unsigned long long, true)
OST_INTEGER(unsigned long long, unsigned long long, unsigned long long, false)
#undef OST_INTEGER

template <>
struct number<float> {
    typedef unsigned bits;
    static constexpr bool is_float = true, is_signed = true;
    static float least() { return float_of(0xFF800000u); }
    static float greatest() { return float_of(0x7F800000u); }
    static float greatest_finite() { return float_of(0x7F7FFFFFu); }
};

template <>
struct number<double> {
    typedef unsigned long long bits;
    static constexpr bool is_float = true, is_signed = true;
    static double least() { return float_of(0xFFF0000000000000ULL); }
    static double greatest() { return float_of(0x7FF0000000000000ULL); }
};

// A number of blocks, or the number of one of them.
struct place {
    unsigned x;
};

// Threads of a segment's block that compute; warps behind them fetch what they read.
// No other block that waits by `OST_SYNC` has between 256 and 512 threads.
constexpr unsigned computing = 256;

// Threads of a block, but for those that fetch for the others.
inline unsigned computing_threads() {
    return blockDim.x > computing && blockDim.x < 2 * computing ? computing : blockDim.x;
}

// A barrier of the threads of a block that compute. The lanes of a warp may come from different
// branches: they arrive together.
#define OST_SYNC() (__syncwarp(), __barrier_sync_count(0, ost::computing_threads()))

// Stops the kernel: what a thread waits for never comes.
#ifdef __CUDA_ARCH__
[[noreturn]] static __device__ __noinline__ void waited_in_vain(const char* what) {
    printf("ostinato: block %u, thread %u waited in vain for %s\n", blockIdx.x, threadIdx.x, what);
    __trap();
    __builtin_unreachable();
}
#else
inline void waited_in_vain(const char*) { __trap(); }
#endif

// Called after each look at what a thread waits for; it may not wait for ever.
inline void looked([[maybe_unused]] bool there, unsigned& looks, const char* what) {
#ifndef __CUDA_ARCH__
    if (!there) __nanosleep(0);
#endif
    if (++looks == 1u << 24) waited_in_vain(what);
}

// Waits until all kernels in front of this one have ended, where it may start before. From then on
// the next one may start, once all blocks of this one run: it waits here for the end of this one.
inline void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <class T>
inline bool is_nan(T x) {
    return x != x;
}

#ifndef __CUDA_ARCH__
// Of a host: accesses to what other threads access meanwhile.
template <class T>
inline T relaxed_load(const T* from) {
    return __atomic_load_n(from, __ATOMIC_RELAXED);
}
template <class T>
inline void relaxed_store(T* to, T value) {
    __atomic_store_n(to, value, __ATOMIC_RELAXED);
}
#endif

}  // namespace ost
