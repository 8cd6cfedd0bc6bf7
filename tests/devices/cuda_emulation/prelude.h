/* CUDA C++ as host C++: what kernels find declared when the emulator compiles their text. */
#pragma once
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ const
#define __grid_constant__
#define __shared__ static __attribute__((section("emu_shared")))

#define warpSize 32
#define threadIdx (emu_state.thread)
#define blockIdx (emu_state.block)
#define blockDim (emu_state.block_size)
#define gridDim (emu_state.grid_size)

/* -- barriers and warps ------------------------------------------------------------------------ */

#define __syncthreads() ((void)emu_barrier(__COUNTER__ + 1, 0))
#define __barrier_sync_count(id, threads) ((void)emu_barrier_of(__COUNTER__ + 1, 0, threads))
#define __syncthreads_count(p) ((int)emu_barrier(__COUNTER__ + 1, (p) != 0))
#define __syncthreads_or(p) ((int)(emu_barrier(__COUNTER__ + 1, (p) != 0) != 0))
#define __syncthreads_and(p) ((int)(emu_barrier(__COUNTER__ + 1, (p) == 0) == 0))
#define EMU_FIRST(mask, ...) mask
#define __syncwarp(...)                                                                            \
    ((void)emu_warp(EMU_SYNC, __COUNTER__ + 1, EMU_FIRST(__VA_ARGS__ __VA_OPT__(, ) 0xffffffffu),  \
                    0, 0))
#define __ballot_sync(mask, p)                                                                     \
    ((unsigned)emu_warp(EMU_BALLOT, __COUNTER__ + 1, (mask), (p) != 0, 0))
#define __any_sync(mask, p) ((int)(__ballot_sync(mask, p) != 0))
#define __all_sync(mask, p) ((int)(__ballot_sync(mask, !(p)) == 0))
#define __shfl_sync(mask, value, source, ...)                                                      \
    emu_shuffle(__COUNTER__ + 1, (mask), (value), 0, (int)(source), EMU_WIDTH(__VA_ARGS__))
#define __shfl_up_sync(mask, value, delta, ...)                                                    \
    emu_shuffle(__COUNTER__ + 1, (mask), (value), 1, (int)(delta), EMU_WIDTH(__VA_ARGS__))
#define __shfl_down_sync(mask, value, delta, ...)                                                  \
    emu_shuffle(__COUNTER__ + 1, (mask), (value), 2, (int)(delta), EMU_WIDTH(__VA_ARGS__))
#define __shfl_xor_sync(mask, value, lanes, ...)                                                   \
    emu_shuffle(__COUNTER__ + 1, (mask), (value), 3, (int)(lanes), EMU_WIDTH(__VA_ARGS__))
#define EMU_WIDTH(...) EMU_FIRST(__VA_ARGS__ __VA_OPT__(, ) 32)

template <class T>
static inline T emu_shuffle(int site, unsigned mask, T value, int kind, int by, int width) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    int lane = (int)(emu_state.thread.x & 31), start = lane & ~(width - 1), last = start + width - 1;
    int source = kind == 0 ? start + (by & (width - 1))
                 : kind == 1 ? lane - by
                 : kind == 2 ? lane + by
                             : lane ^ by;
    if (source < start || source > last) source = lane;
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = emu_warp(EMU_SHUFFLE, site, mask, bits, source);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

static inline void __threadfence() { emu_fence(); }
static inline void __threadfence_block() {}
static inline void __threadfence_system() { emu_fence(); }
static inline void __trap() { emu_fail("traps"); }
static inline void __nanosleep(unsigned) { emu_yield(); }
static long long emu_cycles;
__attribute__((no_sanitize_thread)) static inline long long clock64() { return ++emu_cycles; }
static inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes) {
    emu_copy(to, from, bytes);
}

/* -- atomics: integers only, since the order of updates must not show ---------------------------- */

#define EMU_ATOMIC(name, result)                                                                   \
    template <class T>                                                                             \
    __attribute__((noinline, no_sanitize_thread)) static T name(T *p, T value) {                   \
        static_assert(T(0.5) == T(0), "atomics of floats depend on the order of threads");         \
        emu_atomic(p, sizeof(T));                                                                  \
        T old = *p;                                                                                \
        *p = (result);                                                                             \
        return old;                                                                                \
    }
EMU_ATOMIC(emu_atomic_add, T(old + value))
EMU_ATOMIC(emu_atomic_max, old > value ? old : value)
EMU_ATOMIC(emu_atomic_min, old < value ? old : value)
EMU_ATOMIC(emu_atomic_or, T(old | value))
EMU_ATOMIC(emu_atomic_and, T(old & value))
EMU_ATOMIC(emu_atomic_xor, T(old ^ value))
EMU_ATOMIC(emu_atomic_set, value)
template <class T>
__attribute__((noinline, no_sanitize_thread)) static T emu_atomic_swap(T *p, T expected, T value) {
    emu_atomic(p, sizeof(T));
    T old = *p;
    if (old == expected) *p = value;
    return old;
}
template <class T> struct emu_same {
    using type = T;
};
template <class T> using emu_of = typename emu_same<T>::type; /* its argument decides no template */
template <class T> static inline T atomicAdd(T *p, emu_of<T> v) { return emu_atomic_add(p, v); }
template <class T> static inline T atomicMax(T *p, emu_of<T> v) { return emu_atomic_max(p, v); }
template <class T> static inline T atomicMin(T *p, emu_of<T> v) { return emu_atomic_min(p, v); }
template <class T> static inline T atomicOr(T *p, emu_of<T> v) { return emu_atomic_or(p, v); }
template <class T> static inline T atomicAnd(T *p, emu_of<T> v) { return emu_atomic_and(p, v); }
template <class T> static inline T atomicXor(T *p, emu_of<T> v) { return emu_atomic_xor(p, v); }
template <class T> static inline T atomicExch(T *p, emu_of<T> v) { return emu_atomic_set(p, v); }
template <class T> static inline T atomicCAS(T *p, emu_of<T> e, emu_of<T> v) {
    return emu_atomic_swap(p, e, v);
}

/* -- vectors ------------------------------------------------------------------------------------ */

#define EMU_VECTORS(T, name)                                                                       \
    struct __align__(2 * sizeof(T)) name##2 { T x, y; };                                           \
    struct __align__(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };           \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                              \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTORS(signed char, char)
EMU_VECTORS(unsigned char, uchar)
EMU_VECTORS(short, short)
EMU_VECTORS(unsigned short, ushort)
EMU_VECTORS(int, int)
EMU_VECTORS(unsigned, uint)
EMU_VECTORS(long long, longlong)
EMU_VECTORS(unsigned long long, ulonglong)
EMU_VECTORS(float, float)
EMU_VECTORS(double, double)

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T value) { *p = value; }
template <class T> static inline void __stcg(T *p, T value) { *p = value; }

/* -- bits and integers --------------------------------------------------------------------------- */

template <class To, class From> static inline To emu_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
static inline int __float_as_int(float x) { return emu_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return emu_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return emu_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return emu_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return emu_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emu_bits<double>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)(((unsigned long long)a * b) >> 32);
}
__extension__ typedef __int128 emu_int128;
__extension__ typedef unsigned __int128 emu_uint128;
static inline long long __mul64hi(long long a, long long b) {
    return (long long)(((emu_int128)a * b) >> 64);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((emu_uint128)a * b) >> 64);
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (signed char)(a >> 8 * i) * (signed char)(b >> 8 * i);
    return c;
}
#define EMU_LEAST_AND_GREATEST(T)                                                                  \
    static inline T min(T a, T b) { return b < a ? b : a; }                                        \
    static inline T max(T a, T b) { return a < b ? b : a; }
EMU_LEAST_AND_GREATEST(int)
EMU_LEAST_AND_GREATEST(unsigned)
EMU_LEAST_AND_GREATEST(long)
EMU_LEAST_AND_GREATEST(unsigned long)
EMU_LEAST_AND_GREATEST(long long)
EMU_LEAST_AND_GREATEST(unsigned long long)
static inline float min(float a, float b) { return __builtin_fminf(a, b); }
static inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
static inline double min(double a, double b) { return __builtin_fmin(a, b); }
static inline double max(double a, double b) { return __builtin_fmax(a, b); }

/* -- mathematics ---------------------------------------------------------------------------------- */

/* The host's functions of doubles, and those whose names end in f, are declared in math.h. */
#define EMU_MATH(name)                                                                             \
    static inline float name(float x) { return __builtin_##name##f(x); }
EMU_MATH(acos) EMU_MATH(acosh) EMU_MATH(asin) EMU_MATH(asinh) EMU_MATH(atan) EMU_MATH(atanh)
EMU_MATH(cbrt) EMU_MATH(ceil) EMU_MATH(cos) EMU_MATH(cosh) EMU_MATH(erf) EMU_MATH(erfc)
EMU_MATH(exp) EMU_MATH(exp2) EMU_MATH(expm1) EMU_MATH(fabs) EMU_MATH(floor) EMU_MATH(lgamma)
EMU_MATH(log) EMU_MATH(log10) EMU_MATH(log1p) EMU_MATH(log2) EMU_MATH(nearbyint) EMU_MATH(rint)
EMU_MATH(round) EMU_MATH(sin) EMU_MATH(sinh) EMU_MATH(sqrt) EMU_MATH(tan) EMU_MATH(tanh)
EMU_MATH(tgamma) EMU_MATH(trunc)

#define EMU_MATH2(name)                                                                            \
    static inline float name(float x, float y) { return __builtin_##name##f(x, y); }
EMU_MATH2(atan2) EMU_MATH2(copysign) EMU_MATH2(fdim) EMU_MATH2(fmax) EMU_MATH2(fmin)
EMU_MATH2(fmod) EMU_MATH2(hypot) EMU_MATH2(nextafter) EMU_MATH2(pow) EMU_MATH2(remainder)

static inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
static inline float rsqrtf(float x) { return (float)(1.0 / __builtin_sqrt((double)x)); }
static inline float abs(float x) { return __builtin_fabsf(x); }
static inline double abs(double x) { return __builtin_fabs(x); }
#undef isnan
#undef isinf
#undef isfinite
#undef signbit
static inline bool isnan(float x) { return __builtin_isnan(x); }
static inline bool isnan(double x) { return __builtin_isnan(x); }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isinf(double x) { return __builtin_isinf(x); }
static inline bool isfinite(float x) { return __builtin_isfinite(x); }
static inline bool isfinite(double x) { return __builtin_isfinite(x); }
static inline bool signbit(float x) { return __builtin_signbit(x); }
static inline bool signbit(double x) { return __builtin_signbit(x); }
#define EMU_ROUNDED(prefix, T, fma_name)                                                           \
    static inline T prefix##add_rn(T x, T y) { return x + y; }                                     \
    static inline T prefix##sub_rn(T x, T y) { return x - y; }                                     \
    static inline T prefix##mul_rn(T x, T y) { return x * y; }                                     \
    static inline T prefix##div_rn(T x, T y) { return x / y; }                                     \
    static inline T fma_name(T x, T y, T z) { return fma(x, y, z); }
EMU_ROUNDED(__f, float, __fmaf_rn)
EMU_ROUNDED(__d, double, __fma_rn)
static inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
static inline double __dsqrt_rn(double x) { return __builtin_sqrt(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline double __drcp_rn(double x) { return 1.0 / x; }
static inline float __double2float_rn(double x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __ull2float_rn(unsigned long long x) { return (float)x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline double __ull2double_rn(unsigned long long x) { return (double)x; }

/* -- calls from the engine ------------------------------------------------------------------------ */

template <int...> struct emu_numbers {};
template <class... A, int... I>
__attribute__((no_sanitize_thread)) static void emu_call(void (*kernel)(A...), void **arguments, emu_numbers<I...>) {
    kernel((A)arguments[I]...);
}
#define EMU_ENTRY(name)                                                                            \
    template <class... A> static void name##_count(void (*kernel)(A...), void **arguments) {       \
        emu_call(kernel, arguments, emu_numbers<__integer_pack(int(sizeof...(A)))...>());          \
    }                                                                                              \
    extern "C" __attribute__((visibility("default"))) void name##_call(void **arguments) { name##_count(name, arguments); }
