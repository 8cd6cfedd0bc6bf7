// Pairs of 8-bit floats as pairs of float16, which all of their numbers are.
#pragma once
#include "conversion.cuh"
#include "products.cuh"

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

// The formats of pairs of 8-bit floats, whose products are summed in float32.
template <class Left, class Right>
struct float8_format {
    using sum = float;
};

// Adds the products of a tile of 16 by 8 sums, and of 32 elements of 8 bits along them, as
// `multiply_bytes` has them: first those of the lower halves of words, then those of the upper ones.
template <class Left, class Right>
inline void multiply_tiles(
    float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float8_format<Left, Right>
) {
    unsigned low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        low[i] = halves_of<0>(a[i], Left()), high[i] = halves_of<1>(a[i], Left());
    multiply_tiles(
        sums, low, halves_of<0>(b0, Right()), halves_of<0>(b1, Right()), float16_format()
    );
    multiply_tiles(
        sums, high, halves_of<1>(b0, Right()), halves_of<1>(b1, Right()), float16_format()
    );
}

}  // namespace ost
