// Conversions between element types, and between memory and registers. In registers, floats of 16
// bits and less are float, bools are bool, narrow integers are bytes.
#pragma once
#include "base.cuh"

namespace ost {

// Numbers -----------------------------------------------------------------------------------------

// Truncates floats, saturating at the ends of the range with NaN giving 0; integers wrap.
template <class To, class From>
inline To to_integer(From x) {
    if (!number<From>::is_float) return (To)x;
#ifdef __CUDA_ARCH__
    // The conversion does all that, to 8 bits and to 32.
    if constexpr (sizeof(From) == 4 && sizeof(To) == 1) {
        int found;
        if constexpr (number<To>::is_signed) asm("cvt.rzi.s8.f32 %0, %1;" : "=r"(found) : "f"((float)x));
        else asm("cvt.rzi.u8.f32 %0, %1;" : "=r"(found) : "f"((float)x));
        return (To)found;
    }
    if constexpr (sizeof(From) == 4 && (sizeof(To) < 4 || (sizeof(To) == 4 && number<To>::is_signed))) {
        int found;
        asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(found) : "f"((float)x));
        return (To)min(max(found, (int)number<To>::least()), (int)number<To>::greatest());
    }
#endif
    // The greatest integer may round up to a power of two, which is out of range itself.
    const From low = (From)number<To>::least(), high = (From)number<To>::greatest();
    if (x != x) return (To)0;
    if (x <= low) return number<To>::least();
    return x >= high ? number<To>::greatest() : (To)x;
}

// A float64 as a float32 that a further rounding cannot tell from the original: rounding twice to
// nearest can be off by one, unless an inexact first result is given an odd last bit.
inline float round_to_odd(double x) {
    float nearest = (float)x;
    double back = (double)nearest;
    if (back == x || back != back) return nearest;
    unsigned bits = bits_as<unsigned>(nearest);
    if (::fabs(back) > ::fabs(x)) bits -= 1;
    return float_of(bits | 1u);
}

// Floats of 16 bits -------------------------------------------------------------------------------

inline unsigned short float16_bits(float x) {
#ifdef __CUDA_ARCH__
    unsigned short result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
    return result;
#else
    unsigned bits = bits_as<unsigned>(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return (unsigned short)(sign | 0x7E00u);
    if (magnitude >= 0x477FF000u) return (unsigned short)(sign | 0x7C00u);
    if (magnitude < 0x38800000u) {
        // A sum that has no room for the bits beyond the last of a subnormal number.
        float sum = float_of(magnitude) + 0.5f;
        return (unsigned short)(sign | (bits_as<unsigned>(sum) - 0x3F000000u));
    }
    unsigned rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
    return (unsigned short)(sign | ((rounded - 0x38000000u) >> 13));
#endif
}

inline float from_float16(unsigned short code) {
#ifdef __CUDA_ARCH__
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(code));
    return result;
#else
    unsigned sign = (code & 0x8000u) << 16, magnitude = code & 0x7FFFu;
    if (magnitude >= 0x7C00u) {
        unsigned quiet = magnitude > 0x7C00u ? 0x400000u : 0u;
        return float_of(sign | 0x7F800000u | quiet | (magnitude & 0x3FFu) << 13);
    }
    // As the bits of a float it has an exponent that is too small, subnormal numbers too.
    float small = float_of(magnitude << 13);
    return float_of(sign | bits_as<unsigned>(small * 5.192296858534828e33f));
#endif
}

inline unsigned short bfloat16_bits(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned pair;  // conversions of pairs are the fast ones
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(x));
    return (unsigned short)pair;
#else
    unsigned bits = bits_as<unsigned>(x);
    unsigned rounded = bits + 0x7FFFu + (bits >> 16 & 1u);
    return (unsigned short)((x != x ? bits | 0x400000u : rounded) >> 16);
#endif
}

// The bits of a number that is a bfloat16.
inline unsigned short high_bits(float x) { return (unsigned short)(bits_as<unsigned>(x) >> 16); }

inline float from_bfloat16(unsigned short code) { return float_of((unsigned)code << 16); }

inline float round_float16(float x) { return from_float16(float16_bits(x)); }
inline float round_bfloat16(float x) { return from_bfloat16(bfloat16_bits(x)); }

// Narrow types ------------------------------------------------------------------------------------

// The bits of a narrow float; `nan` and `infinity` are codes, -1 where the format has none.
template <int Exponent, int Mantissa, int Bias, bool Signed, int Nan, int Infinity, bool OneZero>
struct narrow {
    static constexpr int exponent = Exponent, mantissa = Mantissa, bias = Bias;
    static constexpr int nan = Nan, infinity = Infinity, width = Exponent + Mantissa;
    static constexpr bool has_sign = Signed, one_zero = OneZero;
    static constexpr unsigned magnitudes = (1u << width) - 1u;
    static constexpr unsigned greatest =
        Infinity >= 0 ? Infinity - 1 : magnitudes - (Nan == (int)magnitudes);
    static constexpr unsigned beyond = Infinity >= 0 ? Infinity : Nan >= 0 ? Nan : greatest;
    static constexpr unsigned quiet = Infinity >= 0 ? Infinity | 1 << (Mantissa - 1) : Nan;
};

typedef narrow<4, 3, 7, true, 0x7F, -1, false> float8_e4m3fn;
typedef narrow<4, 3, 8, true, 0x80, -1, true> float8_e4m3fnuz;
typedef narrow<5, 2, 15, true, 0x7D, 0x7C, false> float8_e5m2;
typedef narrow<5, 2, 16, true, 0x80, -1, true> float8_e5m2fnuz;
typedef narrow<2, 1, 1, true, -1, -1, false> float4_e2m1fn;

template <class Format>
inline float from_narrow(unsigned char code) {
    unsigned magnitude = code & Format::magnitudes;
    // As the bits of a float it has an exponent that is too small, subnormal numbers too.
    float small = float_of(magnitude << (23 - Format::mantissa));
    unsigned bits = bits_as<unsigned>(small * float_of((unsigned)(254 - Format::bias) << 23));
    if (Format::infinity >= 0 && magnitude == (unsigned)Format::infinity) bits = 0x7F800000u;
    bits |= (unsigned)code << (31 - Format::width) & 0x80000000u;
    unsigned compared = Format::one_zero ? code : magnitude;
    bool nan = Format::one_zero ? compared == (unsigned)Format::nan
                                : Format::nan >= 0 && compared >= (unsigned)Format::nan;
    return float_of(nan ? 0x7FC00000u : bits);
}

// The code of E5M2 is the upper byte of a float16.
template <>
inline float from_narrow<float8_e5m2>(unsigned char code) {
    return from_float16((unsigned short)(code << 8));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
template <>
inline float from_narrow<float8_e4m3fn>(unsigned char code) {
    unsigned pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)code));
    return from_float16((unsigned short)pair);
}
#endif

template <class Format>
inline unsigned char narrow_bits(float x) {
    unsigned bits = bits_as<unsigned>(x), magnitude = bits & 0x7FFFFFFFu, code;
    if (magnitude < (unsigned)(128 - Format::bias) << 23) {
        // A sum that has no room for the bits beyond the last of a subnormal number.
        const unsigned offset = (unsigned)(151 - Format::bias - Format::mantissa) << 23;
        code = bits_as<unsigned>(float_of(magnitude) + float_of(offset)) - offset;
    } else {
        const int dropped = 23 - Format::mantissa;
        unsigned rounded = magnitude + ((magnitude >> dropped & 1u) + (1u << (dropped - 1)) - 1u);
        code = (rounded >> dropped) - ((unsigned)(127 - Format::bias) << Format::mantissa);
    }
    if (code > Format::greatest) code = Format::beyond;
    unsigned sign = bits >> (31 - Format::width) & 1u << Format::width;
    if (Format::one_zero) {
        // The code of a negative zero is the NaN: neither has another sign.
        if ((code & Format::magnitudes) == 0) sign = 0;
        return (unsigned char)(x != x ? (unsigned)Format::nan : code | sign);
    }
    if (x == x) return (unsigned char)(code | sign);
    return (unsigned char)(Format::nan >= 0 ? Format::quiet | sign : 1u << Format::width);
}

// Powers of two: the exponent alone, without a sign. 255 is NaN.
inline float from_float8_e8m0fnu(unsigned char code) {
    if (code == 0xFFu) return float_of(0x7FC00000u);
    return float_of(code == 0 ? 1u << 22 : (unsigned)code << 23);
}

// The nearest power of two, the greater of two; NaN for what has none.
inline unsigned char float8_e8m0fnu_bits(float x) {
    unsigned bits = bits_as<unsigned>(x);
    unsigned rounded = bits < 3u << 21 ? 0u : (bits + (1u << 22)) >> 23;
    return (unsigned char)(x > 0.0f && rounded < 0xFFu ? rounded : 0xFFu);
}

// The integer that the low bits of a byte stand for.
template <int Bits>
inline signed char low_bits(signed char x) {
    return (signed char)((signed char)((unsigned char)x << (8 - Bits)) >> (8 - Bits));
}

template <int Bits>
inline unsigned char low_bits(unsigned char x) {
    return (unsigned char)(x & ((1 << Bits) - 1));
}

}  // namespace ost
