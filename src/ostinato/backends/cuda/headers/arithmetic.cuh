// Arithmetic with every case defined, as in NumPy: integers wrap, division by zero gives 0, and
// what is shifted out is gone (a negative integer shifted right becomes -1).
#pragma once
#include "base.cuh"

namespace ost {

template <class T>
inline T add(T x, T y) {
    typedef typename number<T>::wide U;
    return (T)((U)x + (U)y);
}

template <class T>
inline T subtract(T x, T y) {
    typedef typename number<T>::wide U;
    return (T)((U)x - (U)y);
}

template <class T>
inline T multiply(T x, T y) {
    typedef typename number<T>::wide U;
    return (T)((U)x * (U)y);
}

inline float add(float x, float y) { return x + y; }
inline double add(double x, double y) { return x + y; }
inline bool add(bool x, bool y) { return x | y; }
inline float subtract(float x, float y) { return x - y; }
inline double subtract(double x, double y) { return x - y; }
inline bool subtract(bool x, bool y) { return x ^ y; }
inline float multiply(float x, float y) { return x * y; }
inline double multiply(double x, double y) { return x * y; }
inline bool multiply(bool x, bool y) { return x & y; }

template <class T>
inline T negate(T x) {
    return subtract((T)0, x);
}

inline float negate(float x) { return -x; }
inline double negate(double x) { return -x; }

template <class T>
inline T absolute(T x) {
    return x < (T)0 ? negate(x) : x;
}

inline float absolute(float x) { return ::fabsf(x); }
inline double absolute(double x) { return ::fabs(x); }

// A product and a sum, rounded once.
inline float multiply_add(float x, float y, float z) { return ::fmaf(x, y, z); }
inline double multiply_add(double x, double y, double z) { return ::fma(x, y, z); }

template <class T>
inline T multiply_add(T x, T y, T z) {
    return add(multiply(x, y), z);
}

// Division ----------------------------------------------------------------------------------------

// A power of two that brings a number that is neither 0 nor infinite to between 2^-86 and 2^65, and
// its reciprocal.
inline float moderation(float x) {
    const float magnitude = ::fabsf(x);
    return magnitude < 0x1p-32f ? 0x1p63f : magnitude > 0x1p32f ? 0x1p-63f : 1.0f;
}
inline float inverse_moderation(float power) { return float_of(0x7F000000u - bits_as<unsigned>(power)); }

inline bool is_usual(float x) {
    return ::fabsf(x) > 0.0f && ::fabsf(x) <= number<float>::greatest_finite();
}

// One of two numbers that are computed anyway, without a branch that would keep them in a loop.
inline float selected(bool condition, float x, float y) {
#ifdef __CUDA_ARCH__
    float found;
    asm("{ .reg .pred p; setp.ne.u32 p, %3, 0; selp.f32 %0, %1, %2, p; }"
        : "=f"(found)
        : "f"(x), "f"(y), "r"((unsigned)condition));
    return found;
#else
    return condition ? x : y;
#endif
}

// The reciprocal of a number between 2^-100 and 2^100, so close that one correction of a quotient
// rounds it to nearest; of 0 and of infinity, too.
inline float reciprocal_of(float b) {
    const float guess = near_reciprocal(b);
    return selected(is_usual(b), ::fmaf(guess, ::fmaf(-b, guess, 1.0f), guess), guess);
}

// The quotient, rounded to nearest, a subnormal one twice. The operator's code has a branch, behind
// which nothing else goes on; this has none, and most of it is done once for all that is divided by y.
inline float divide(float x, float y) {
    const float y_power = moderation(y), b = y * y_power, reciprocal = reciprocal_of(b);
    const float x_power = moderation(x), a = x * x_power, near = a * reciprocal;
    const float nearest = ::fmaf(::fmaf(-b, near, a), reciprocal, near);
    return (is_usual(near) ? nearest : near) * (y_power * inverse_moderation(x_power));
}
inline double divide(double x, double y) { return x / y; }

// One over the square root, off by less than one unit of the last place. What is left of 1 is computed
// as if the product had all of its bits.
inline float rsqrt(float x) {
    const float near = near_rsqrt(x), root = x * near, rest = ::fmaf(x, near, -root);
    const float error = ::fmaf(-rest, near, ::fmaf(-root, near, 1.0f));
    return is_usual(near) ? ::fmaf(0.5f * near, error, near) : near;
}

// A quotient that becomes a whole number next. Most of `divide` is not needed: quotients that are too
// small for an exact remainder are rounded to 0 all the same, of either sign if that does not matter.
template <bool KeepsSignOfZero>
inline float quotient_to_round(float x, float y) {
    const float magnitude = ::fabsf(y);
    const float power = magnitude < 0x1p-100f ? 0x1p63f : magnitude > 0x1p100f ? 0x1p-63f : 1.0f;
    const float b = y * power, a = x * power, reciprocal = reciprocal_of(b), near = a * reciprocal;
    const float nearest = ::fmaf(::fmaf(-b, near, a), reciprocal, near);
    const bool usual =
        KeepsSignOfZero ? is_usual(near) : ::fabsf(near) <= number<float>::greatest_finite();
    return usual ? nearest : near;
}

// The quotient, rounded to nearest and then to a whole number, halves to even.
inline float round_of_quotient(float x, float y) { return ::rintf(quotient_to_round<true>(x, y)); }

// The divisor, or 1 where dividing by it has no result.
template <class T>
inline T safe_divisor(T x, T y) {
    bool undefined = y == (T)0;
    if (number<T>::is_signed) undefined |= x == number<T>::least() && y == (T)-1;
    return undefined ? (T)1 : y;
}

template <class T>
inline T divide_truncated(T x, T y) {
    T quotient = (T)(x / safe_divisor(x, y));
    return y == (T)0 ? (T)0 : quotient;
}

template <class T>
inline T remainder_truncated(T x, T y) {
    T remainder = (T)(x % safe_divisor(x, y));
    return y == (T)0 ? (T)0 : remainder;
}

template <class T>
inline T floor_divide(T x, T y) {
    T divisor = safe_divisor(x, y);
    T quotient = (T)(x / divisor), remainder = (T)(x % divisor);
    if (number<T>::is_signed && remainder != (T)0 && (remainder < (T)0) != (divisor < (T)0))
        quotient = (T)(quotient - (T)1);
    return y == (T)0 ? (T)0 : quotient;
}

template <class T>
inline T floor_remainder(T x, T y) {
    T divisor = safe_divisor(x, y);
    T remainder = (T)(x % divisor);
    if (number<T>::is_signed && remainder != (T)0 && (remainder < (T)0) != (divisor < (T)0))
        remainder = (T)(remainder + divisor);
    return y == (T)0 ? (T)0 : remainder;
}

// The quotient and remainder of indices that are not negative.
inline int index_divide(int x, int y) { return (int)((unsigned)x / (unsigned)y); }
inline int index_remainder(int x, int y) { return (int)((unsigned)x % (unsigned)y); }
inline long long index_divide(long long x, long long y) {
    return (long long)((unsigned long long)x / (unsigned long long)y);
}
inline long long index_remainder(long long x, long long y) {
    return (long long)((unsigned long long)x % (unsigned long long)y);
}

inline float remainder_of(float x, float y) { return ::fmodf(x, y); }
inline double remainder_of(double x, double y) { return ::fmod(x, y); }
inline float floor_of(float x) { return ::floorf(x); }
inline double floor_of(double x) { return ::floor(x); }
inline float with_sign(float x, float y) { return ::copysignf(x, y); }
inline double with_sign(double x, double y) { return ::copysign(x, y); }

template <class T>
inline T float_floor_divide(T x, T y) {
    if (y == (T)0) return x / y;
    T remainder = remainder_of(x, y);
    T quotient = (x - remainder) / y;
    if (remainder != (T)0 && (y < (T)0) != (remainder < (T)0)) quotient = quotient - (T)1;
    // The quotient is an integer but for rounding; one just below it must not be floored away.
    T floored = floor_of(quotient);
    if (quotient - floored > (T)0.5) floored = floored + (T)1;
    return quotient == (T)0 ? with_sign((T)0, x / y) : floored;
}

template <class T>
inline T float_floor_remainder(T x, T y) {
    T remainder = remainder_of(x, y);
    if (y == (T)0) return remainder;
    if (remainder == (T)0) return with_sign((T)0, y);
    return (y < (T)0) != (remainder < (T)0) ? remainder + y : remainder;
}

inline float floor_divide(float x, float y) { return float_floor_divide(x, y); }
inline double floor_divide(double x, double y) { return float_floor_divide(x, y); }
inline float floor_remainder(float x, float y) { return float_floor_remainder(x, y); }
inline double floor_remainder(double x, double y) { return float_floor_remainder(x, y); }
inline float remainder_truncated(float x, float y) { return ::fmodf(x, y); }
inline double remainder_truncated(double x, double y) { return ::fmod(x, y); }

// Shifts and powers -------------------------------------------------------------------------------

template <class T>
inline T shift_left(T x, T count) {
    typedef typename number<T>::bits B;
    typedef typename number<T>::wide U;
    return (B)count < (B)number<T>::width ? (T)((U)x << (int)(B)count) : (T)0;
}

template <class T>
inline T shift_right(T x, T count) {
    typedef typename number<T>::bits B;
    bool defined = (B)count < (B)number<T>::width;
    if (number<T>::is_signed) return (T)(x >> (defined ? (int)(B)count : number<T>::width - 1));
    return defined ? (T)(x >> (int)(B)count) : (T)0;
}

// x ** y by repeated squaring. A negative exponent gives the exact result where that is an integer
// (bases 1 and -1), and 0 elsewhere.
template <class T>
inline T power(T x, T y) {
    if (y < (T)0) {
        if (x == (T)1) return (T)1;
        if (number<T>::is_signed && x == (T)-1) return y & (T)1 ? (T)-1 : (T)1;
        return (T)0;
    }
    T result = (T)1;
    for (T base = x; y != (T)0; y = (T)(y >> 1), base = multiply(base, base))
        if (y & (T)1) result = multiply(result, base);
    return result;
}

// Extremes ----------------------------------------------------------------------------------------

// NaN where either is NaN.
template <class T>
inline T maximum(T x, T y) {
    return x != x ? x : (x < y || y != y ? y : x);
}

template <class T>
inline T minimum(T x, T y) {
    return x != x ? x : (x > y || y != y ? y : x);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <>
inline float maximum(float x, float y) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
    return result;
}
template <>
inline float minimum(float x, float y) {
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
    return result;
}
#endif

template <class T>
inline T sign(T x) {
    return x > (T)0 ? (T)1 : x < (T)0 ? (T)-1 : x == (T)0 ? (T)0 : x;  // -0 becomes 0, NaN stays
}

// Bytes of numbers that are rounded ---------------------------------------------------------------

// The whole number that is nearest, halves to even, within limits; 0 for a NaN. Numbers of 24 bits
// between 2^23 and 2^24 are whole: this one is in the low bits of such a sum. Instructions that round
// and convert take the time of eight others.
template <class To, int Least, int Greatest>
inline To byte_of(float x) {
    const float within = minimum(maximum(x == x ? x : 0.0f, (float)Least), (float)Greatest);
    return (To)bits_as<unsigned>(within + 0x1.8p23f);
}
template <class To, int Least, int Greatest>
inline To byte_of_quotient(float x, float y) {
    return byte_of<To, Least, Greatest>(quotient_to_round<false>(x, y));
}

}  // namespace ost
