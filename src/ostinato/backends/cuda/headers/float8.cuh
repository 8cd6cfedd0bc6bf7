// Pairs of 8-bit floats as pairs of float16, which all of their numbers are.
#pragma once
#include "conversion.cuh"

namespace ost {

// The pair of codes in the low (0) or the high half (1) of a word.
template <int Half>
inline unsigned halves_of(unsigned codes, float8_e5m2) {
    // The code is the upper byte of the float16.
    codes >>= 16 * Half;
    return (codes & 0xFFu) << 8 | (codes & 0xFF00u) << 16;
}

template <int Half>
inline unsigned halves_of(unsigned codes, float8_e4m3fn) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned found;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(found) : "h"((unsigned short)(codes >> 16 * Half)));
    return found;
#elif defined(__CUDA_ARCH__)
    // As the bits of float16 they have exponents that are 8 too small, subnormal numbers too.
    unsigned spread = (codes >> 16 * Half & 0xFFu) << 8 | (codes >> 16 * Half & 0xFF00u) << 16, found;
    unsigned magnitudes = spread >> 1 & 0x3F803F80u;
    asm("mul.f16x2 %0, %1, %2;"
        : "=r"(found) : "r"((spread & 0x80008000u) | magnitudes), "r"(0x5C005C00u));
    unsigned nan = (magnitudes + 0x00800080u) & 0x40004000u;
    return found | nan | (nan - (nan >> 4));
#else
    unsigned low = float16_bits(from_narrow<float8_e4m3fn>((unsigned char)(codes >> 16 * Half)));
    unsigned high = float16_bits(from_narrow<float8_e4m3fn>((unsigned char)(codes >> (16 * Half + 8))));
    return low | high << 16;
#endif
}

}  // namespace ost
