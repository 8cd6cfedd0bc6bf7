// Floats as bytes: whole numbers of steps, between two bounds.
#pragma once
#include "arithmetic.cuh"
#include "conversion.cuh"

namespace ost {

// The number nearest to x / y, halves to even, plus `zero`, between `low` and `high`; the quotient is
// rounded as a float first.
static OST_APART int quantised(float x, float y, float zero, float low, float high) {
    return to_integer<int>(minimum(maximum(round_of_quotient(x, y) + zero, low), high));
}

// The same of several numbers. `zero` is whole, and so are the bounds, which are those of bytes or
// narrower.
//
// Where the numbers are moderate, adding 1.5 * 2^23 rounds to a whole number, whose last byte is that
// of the sum's bits. A conversion takes eight times as long as an addition.
template <class Byte, int Count>
inline void quantise(
    Byte (&found)[Count], const float (&x)[Count], float y, float zero, float low, float high
) {
    constexpr float rounding = 12582912.0f;
    const float reciprocal = reciprocal_of(y), magnitude = ::fabsf(y);
    bool usual = magnitude >= 0x1p-100f && magnitude <= 0x1p100f && ::fabsf(zero) <= 0x1p20f;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
        const float near = x[i] * reciprocal;
        usual &= ::fabsf(near) <= 0x1p20f;
        const float nearest = ::fmaf(::fmaf(-y, near, x[i]), reciprocal, near);
        const float steps = ((nearest + rounding) - rounding) + zero;
        found[i] = (Byte)bits_as<unsigned>(minimum(maximum(steps, low), high) + rounding);
    }
    if (__builtin_expect(usual, 1)) return;
#pragma unroll
    for (int i = 0; i < Count; ++i) found[i] = (Byte)quantised(x[i], y, zero, low, high);
}

}  // namespace ost
