// Elementary functions of float32 and float64, accurate over the whole range.
#pragma once
#include "base.cuh"

namespace ost {

#define OST_FUNCTION(NAME, SINGLE, DOUBLE)               \
    inline float NAME(float x) { return ::SINGLE(x); }   \
    inline double NAME(double x) { return ::DOUBLE(x); }

OST_FUNCTION(exp, expf, exp)
OST_FUNCTION(exp2, exp2f, exp2)
OST_FUNCTION(expm1, expm1f, expm1)
OST_FUNCTION(log, logf, log)
OST_FUNCTION(log2, log2f, log2)
OST_FUNCTION(log10, log10f, log10)
OST_FUNCTION(log1p, log1pf, log1p)
OST_FUNCTION(sin, sinf, sin)
OST_FUNCTION(cos, cosf, cos)
OST_FUNCTION(tan, tanf, tan)
OST_FUNCTION(asin, asinf, asin)
OST_FUNCTION(acos, acosf, acos)
OST_FUNCTION(atan, atanf, atan)
OST_FUNCTION(sinh, sinhf, sinh)
OST_FUNCTION(cosh, coshf, cosh)
OST_FUNCTION(tanh, tanhf, tanh)
OST_FUNCTION(asinh, asinhf, asinh)
OST_FUNCTION(acosh, acoshf, acosh)
OST_FUNCTION(atanh, atanhf, atanh)
OST_FUNCTION(erf, erff, erf)
OST_FUNCTION(sqrt, sqrtf, sqrt)
OST_FUNCTION(floor, floorf, floor)
OST_FUNCTION(ceil, ceilf, ceil)
OST_FUNCTION(round, rintf, rint)
OST_FUNCTION(trunc, truncf, trunc)
#undef OST_FUNCTION

inline float atan2(float y, float x) { return ::atan2f(y, x); }
inline double atan2(double y, double x) { return ::atan2(y, x); }
inline float copysign(float x, float y) { return ::copysignf(x, y); }
inline double copysign(double x, double y) { return ::copysign(x, y); }

// By way of float64: the single-precision function is off by several units of the last place.
inline float float_power(float x, float y) { return (float)::pow((double)x, (double)y); }
inline double float_power(double x, double y) { return ::pow(x, y); }

// The normal distribution's cumulative at x: half the complementary error function at -x / sqrt(2),
// corrected for the rounding of that argument, which counts the more the smaller the result is.
inline float normal_cdf(float x) {
    float argument = -x * 0.70710677f;
    float rest = ::fmaf(-x, 0.70710677f, -argument) - x * 1.21016175e-8f;
    float result = ::erfcf(argument);
    if (argument > 0.0f && argument < 15.0f)
        result -= 1.1283792f * ::expf(-argument * argument) * rest;
    return 0.5f * result;
}

inline double normal_cdf(double x) {
    double argument = -x * 0.7071067811865476;
    double rest = ::fma(-x, 0.7071067811865476, -argument) + x * 4.833646656726457e-17;
    double result = ::erfc(argument);
    if (argument > 0.0 && argument < 30.0)
        result -= 1.1283791670955126 * ::exp(-argument * argument) * rest;
    return 0.5 * result;
}

// The same within 2e-5 of itself, for results that are rounded to 16 bits. Half the complementary
// error function is P(t) exp(-x^2 / 2), with t = 1 / (1 + 0.3 sqrt(2) |x|) and a polynomial P, the
// best of its degree for |x| up to 14. The power of two is 2^24 times as large, and P as much
// smaller, so that no power that counts is denormal.
inline float short_normal_cdf(float x) {
    const float divisor = ::fmaf(::fabsf(x), 0.42426407f, 1.0f);
    const float exponent = ::fmaf(x * -0.72134752f, x, 24.0f);
    const float t = near_reciprocal(divisor), power = near_exp2(exponent);
    float p = ::fmaf(t, 3.6569758e-09f, -1.4555482e-08f);
    p = ::fmaf(t, p, 1.5796225e-08f);
    p = ::fmaf(t, p, 3.8771595e-09f);
    p = ::fmaf(t, p, 1.1040592e-08f);
    p = ::fmaf(t, p, 9.9819442e-09f);
    p = ::fmaf(t, p, 4.781133e-12f);
    const float tail = p * power;
    return x > 0.0f ? 1.0f - tail : tail;
}

// x times its logistic function, 1 / (1 + exp(-x)). The power is that of -|x|, which cannot overflow,
// and the reciprocal is of a number between 1 and 2.
inline float silu(float x) {
    const float power = ::expf(-::fabsf(x)), divisor = 1.0f + power;
    const float near = near_reciprocal(divisor);
    const float reciprocal = ::fmaf(near, ::fmaf(-divisor, near, 1.0f), near);
    return (x > 0.0f ? x : x * power) * reciprocal;
}

inline double silu(double x) { return x / (1.0 + ::exp(-x)); }

// The same within 8e-6 of itself, for results that are rounded to 16 bits. As in `short_normal_cdf`,
// the power is 2^24 times as large.
inline float short_silu(float x) {
    const float power = near_exp2(::fmaf(::fabsf(x), -1.4426950f, 24.0f));
    const float reciprocal = near_reciprocal(::fmaf(power, 0x1p-24f, 1.0f));
    return (x > 0.0f ? x : x * power * 0x1p-24f) * reciprocal;
}

}  // namespace ost
