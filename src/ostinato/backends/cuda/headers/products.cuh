// Products of matrices: vectors of elements, asynchronous copies, tensor cores.
#pragma once
#include "conversion.cuh"

namespace ost {

// Consecutive elements, loaded and stored at once.
template <class T, int N>
struct alignas(sizeof(T) * N) vector {
    T at[N];
};

// Sums --------------------------------------------------------------------------------------------

inline float add_product(float x, float y, float sum) { return fmaf(x, y, sum); }
inline double add_product(double x, double y, double sum) { return fma(x, y, sum); }
inline unsigned add_product(unsigned x, unsigned y, unsigned sum) { return x * y + sum; }
inline unsigned long long add_product(
    unsigned long long x, unsigned long long y, unsigned long long sum
) {
    return x * y + sum;
}

// The sum of a value over the lanes of a warp, in a fixed order; every lane gets it.
template <class T>
inline T sum_of_warp(T value) {
    for (int step = 16; step > 0; step /= 2)
        value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    return value;
}

// Bytes, four to a word ---------------------------------------------------------------------------

// The sum of the products of four bytes each, which are signed or not, and of `sum`; it wraps.
template <bool SignedLeft, bool SignedRight>
inline unsigned dot_bytes(unsigned left, unsigned right, unsigned sum) {
#ifdef __CUDA_ARCH__
    if (SignedLeft && SignedRight)
        asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(left), "r"(right));
    else if (SignedLeft)
        asm("dp4a.s32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(left), "r"(right));
    else if (SignedRight)
        asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(left), "r"(right));
    else
        asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(left), "r"(right));
    return sum;
#else
    for (int shift = 0; shift < 32; shift += 8) {
        unsigned x = left >> shift & 0xFFu, y = right >> shift & 0xFFu;
        x = SignedLeft ? (unsigned)(int)(signed char)x : x;
        sum += x * (SignedRight ? (unsigned)(int)(signed char)y : y);
    }
    return sum;
#endif
}

// Bytes 0 and 2 of `low`, then those of `high`.
inline unsigned even_bytes(unsigned low, unsigned high) {
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, 0x6420);
#else
    return (low & 0xFFu) | (low >> 8 & 0xFF00u) | (high & 0xFFu) << 16 | (high << 8 & 0xFF000000u);
#endif
}

// Bytes 1 and 3 of `low`, then those of `high`.
inline unsigned odd_bytes(unsigned low, unsigned high) {
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, 0x7531);
#else
    return even_bytes(low >> 8, high >> 8);
#endif
}

// Codes 0 to 15 in the bytes of a word as signed bytes -8 to 7.
inline unsigned signed_codes(unsigned codes) {
    return ((codes | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
}

#ifndef __CUDA_ARCH__
// The words of a product of tiles that a lane's sums are of, in the order of the sums: those of rows
// g and g + 8, and of columns 2t and 2t + 1; see below.
struct tile_words {
    unsigned rows[2][8], columns[2][8];

    tile_words(const unsigned (&a)[4], unsigned b0, unsigned b1) {
        const int lane = threadIdx.x % 32;
        for (int t = 0; t < 4; t++)
            for (int i = 0; i < 2; i++) {
                const int row = lane / 4 * 4 + t, column = (lane % 4 * 2 + i) * 4 + t;
                exchange(rows[i], t, a[i], a[2 + i], row);
                exchange(columns[i], t, b0, b1, column);
            }
    }

    static void exchange(unsigned (&words)[8], int t, unsigned low, unsigned high, int lane) {
        const unsigned long long both = low | (unsigned long long)high << 32;
        const unsigned long long found = __shfl_sync(0xFFFFFFFFu, both, lane);
        words[t] = (unsigned)found;
        words[4 + t] = (unsigned)(found >> 32);
    }
};
#endif

#ifdef __CUDA_ARCH__
#define OST_MULTIPLY_BYTES(LEFT, RIGHT)                                                     \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." LEFT "." RIGHT ".s32 "                     \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                   \
        : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])                        \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
#endif

// A tile of 16 by 8 sums, which wrap: adds the product of 16 by 32 bytes `a` and 32 by 8 bytes `b`.
// With g = lane / 4 and t = lane % 4, a lane holds sums (g, 2t), (g, 2t + 1) and the same of row
// g + 8; of `a`, four bytes from column 4t of row g, then of g + 8, then both again from 4t + 16; of
// `b`, four bytes from row 4t of column g, then from row 4t + 16.
template <bool SignedLeft, bool SignedRight>
inline void multiply_bytes(
    unsigned (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1
) {
#ifdef __CUDA_ARCH__
    if (SignedLeft && SignedRight) OST_MULTIPLY_BYTES("s8", "s8");
    else if (SignedLeft) OST_MULTIPLY_BYTES("s8", "u8");
    else if (SignedRight) OST_MULTIPLY_BYTES("u8", "s8");
    else OST_MULTIPLY_BYTES("u8", "u8");
#else
    const tile_words tile(a, b0, b1);
    for (int w = 0; w < 8; w++)
        for (int i = 0; i < 4; i++)
            sums[i] = dot_bytes<SignedLeft, SignedRight>(
                tile.rows[i / 2][w], tile.columns[i % 2][w], sums[i]
            );
#endif
}
#ifdef __CUDA_ARCH__
#undef OST_MULTIPLY_BYTES
#endif

// Copies into shared memory that run while the thread goes on -----------------------------------------

// A copy of 16 bytes. Zeros instead where `inside` is false; the source is not read then.
inline void copy_async(void* shared, const void* source, bool inside) {
#ifdef __CUDA_ARCH__
    unsigned target = (unsigned)__cvta_generic_to_shared(shared);
    int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes)
                 : "memory");
#else
    vector<unsigned, 4> none = {};
    *(vector<unsigned, 4>*)shared = inside ? *(const vector<unsigned, 4>*)source : none;
#endif
}

// The same for threads that wait at a phased barrier for it.
inline void copy_ahead(void* shared, const void* source, bool inside) {
#ifdef __CUDA_ARCH__
    copy_async(shared, source, inside);
#else
    const vector<unsigned, 4> none = {};
    __pipeline_memcpy_async(shared, inside ? source : &none, 16);
#endif
}

// Transposes four by four values, one row of them in each of four neighbouring lanes.
inline void transpose_lanes(float (&row)[4]) {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int step = 2; step > 0; step /= 2) {
        const bool upper = (lane & step) != 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int low = step == 2 ? i : 2 * i, high = low + step;
            const float given = upper ? row[low] : row[high];
            const float taken = __shfl_xor_sync(0xFFFFFFFFu, given, step);
            row[low] = upper ? taken : row[low];
            row[high] = upper ? row[high] : taken;
        }
    }
}

// A copy of 4 bytes.
inline void copy_word(void* shared, const void* source) {
#ifdef __CUDA_ARCH__
    unsigned target = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
#else
    *(unsigned*)shared = *(const unsigned*)source;
#endif
}

// Ends a group of copies.
inline void copy_commit() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most N groups of copies are under way.
template <int N>
inline void copy_wait() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// Tensor cores ------------------------------------------------------------------------------------

// Four matrices of 8 by 8 elements of 16 bits; lane i has the address of row i % 8 of matrix i / 8.
// Of each matrix a lane gets the elements 2 (lane % 4) and the next of row lane / 4.
inline void load_matrices(unsigned (&found)[4], const unsigned short* row) {
#ifdef __CUDA_ARCH__
    unsigned address = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
                 : "r"(address)
                 : "memory");
#else
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        unsigned long long from =
            __shfl_sync(0xFFFFFFFFu, (unsigned long long)row, i * 8 + lane / 4);
        const unsigned short* elements = (const unsigned short*)from + lane % 4 * 2;
        found[i] = elements[0] | (unsigned)elements[1] << 16;
    }
#endif
}

// The same of the transposed matrices.
inline void load_transposed(unsigned (&found)[4], const unsigned short* row) {
#ifdef __CUDA_ARCH__
    unsigned address = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
                 : "r"(address)
                 : "memory");
#else
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        unsigned pair = 0;
        for (int half = 0; half < 2; half++) {
            unsigned long long from = __shfl_sync(
                0xFFFFFFFFu, (unsigned long long)row, i * 8 + lane % 4 * 2 + half
            );
            pair |= (unsigned)((const unsigned short*)from)[lane / 4] << 16 * half;
        }
        found[i] = pair;
    }
#endif
}

// The formats of elements: the type that memory has them in, that of sums, and an element's value.
struct float16_format {
    using stored = unsigned short;
    using sum = float;
    static float value(unsigned bits) { return from_float16((unsigned short)bits); }
};
struct float32_format {
    using stored = float;
    using sum = float;
    static float value(float element) { return element; }
};
struct bfloat16_format {
    using stored = unsigned short;
    using sum = float;
    static float value(unsigned bits) { return from_bfloat16((unsigned short)bits); }
};
template <bool SignedLeft, bool SignedRight>
struct byte_format {
    using sum = unsigned;
    static unsigned dot(unsigned left, unsigned right, unsigned sum) {
        return dot_bytes<SignedLeft, SignedRight>(left, right, sum);
    }
};

// Single rows -------------------------------------------------------------------------------------

// Words that are read once: the cache of the multiprocessor does not keep them.
inline vector<unsigned, 4> load_once(const unsigned short* from) {
#ifdef __CUDA_ARCH__
    vector<unsigned, 4> found;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.at[0]), "=r"(found.at[1]), "=r"(found.at[2]), "=r"(found.at[3])
                 : "l"(from));
    return found;
#else
    return *(const vector<unsigned, 4>*)from;
#endif
}

// The place of four elements of a row in shared memory: those with even numbers come first, so that
// neighbouring lanes, which have eight elements each, read from different banks.
template <int Depth>
inline int part_of_row(int element) {
    return element % 8 / 4 * (Depth / 8) + element / 8;
}

// The words of columns that a warp multiplies one after the other, some of which are under way.
template <class Format, int Depth>
struct columns_ahead {
    static constexpr int steps = (Depth + 255) / 256;
    static constexpr int together = steps % 8 == 0 ? 8 : steps % 7 == 0 ? 7 : 4;

    vector<unsigned, 4> next[together] = {};

    // Requests the words from a step on.
    void request(const unsigned short* column, int step = 0) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < together; i++) {
            const int first = ((step + i) * 32 + lane) * 8;
            if (first < Depth) next[i] = load_once(column + first);
        }
    }

    // The sum of the products of a column, whose first words were requested, and a row, see
    // `part_of_row`: all lanes of the warp have it then. The first words of the column that follows
    // are requested on the way; null: there is none.
    float multiply(
        const unsigned short* column, const unsigned short* following, const vector<float, 4>* row
    ) {
        const int lane = threadIdx.x % 32;
        float sums[4] = {};
#pragma unroll 1
        for (int step = 0; step < steps; step += together) {
            vector<unsigned, 4> words[together];
#pragma unroll
            for (int i = 0; i < together; i++) words[i] = next[i];
            const bool last = step + together >= steps;
            const unsigned short* const from = last ? following : column;
            if (from != nullptr) request(from, last ? 0 : step + together);
#pragma unroll
            for (int i = 0; i < together; i++) {
                const int first = ((step + i) * 32 + lane) * 8;
                if (first < Depth) {
                    const vector<float, 4> low = row[first / 8], high = row[Depth / 8 + first / 8];
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const unsigned word = words[i].at[e];
                        const vector<float, 4>& part = e < 2 ? low : high;
                        float& sum = sums[e];
                        sum = ::fmaf(Format::value(word & 0xFFFFu), part.at[e % 2 * 2], sum);
                        sum = ::fmaf(Format::value(word >> 16), part.at[e % 2 * 2 + 1], sum);
                    }
                }
            }
        }
        return sum_of_warp((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
};

// The bits of two elements, the first one in the lower half.
inline unsigned pair_bits(float low, float high, float16_format) {
#ifdef __CUDA_ARCH__
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return float16_bits(low) | (unsigned)float16_bits(high) << 16;
#endif
}
inline unsigned pair_bits(float low, float high, bfloat16_format) {
#ifdef __CUDA_ARCH__
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return bfloat16_bits(low) | (unsigned)bfloat16_bits(high) << 16;
#endif
}

// A pair of numbers, rounded to bfloat16; it takes what it has from them, so that another pair has
// their bits below.
inline unsigned take_pair(float& low, float& high) {
    const unsigned pair = pair_bits(low, high, bfloat16_format());
    low -= from_bfloat16((unsigned short)pair);
    high -= from_bfloat16((unsigned short)(pair >> 16));
    return pair;
}

// The lower halves of two words, the first one's below; and the upper halves.
inline unsigned low_halves(unsigned first, unsigned second) {
#ifdef __CUDA_ARCH__
    return __byte_perm(first, second, 0x5410);
#else
    return (first & 0xFFFFu) | second << 16;
#endif
}
inline unsigned high_halves(unsigned first, unsigned second) {
#ifdef __CUDA_ARCH__
    return __byte_perm(first, second, 0x7632);
#else
    return first >> 16 | (second & 0xFFFF0000u);
#endif
}

// Transposes eight by eight elements of 16 bits: a lane has a pair of a row, four lanes a row.
inline unsigned transposed(unsigned pair) {
#ifdef __CUDA_ARCH__
    unsigned result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
#else
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const unsigned first = __shfl_sync(0xFFFFFFFFu, pair, 8 * t + g / 2);
    const unsigned second = __shfl_sync(0xFFFFFFFFu, pair, 8 * t + 4 + g / 2);
    return g % 2 ? high_halves(first, second) : low_halves(first, second);
#endif
}

#ifdef __CUDA_ARCH__
#define OST_MULTIPLY(FORMAT, NAME)                                                              \
    inline void multiply_tiles(                                                                 \
        float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, FORMAT              \
    ) {                                                                                         \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 "                      \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                   \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                        \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                    \
    }
OST_MULTIPLY(float16_format, "f16")
OST_MULTIPLY(bfloat16_format, "bf16")
#undef OST_MULTIPLY
#else
// A tile of 16 by 8 sums: adds the product of 16 by 16 elements `a` and 16 by 8 elements `b`. With
// g = lane / 4 and t = lane % 4, a lane holds sums (g, 2t), (g, 2t + 1) and the same of row g + 8;
// of `a`, pairs of elements from column 2t of row g, then of g + 8, then both again from 2t + 8; of
// `b`, pairs of rows from 2t of column g, then from 2t + 8.
template <class Format>
inline void multiply_tiles(
    float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Format
) {
    const tile_words tile(a, b0, b1);
    for (int w = 0; w < 8; w++)
        for (int i = 0; i < 4; i++)
            for (int shift = 0; shift < 32; shift += 16) {
                const float x = Format::value(tile.rows[i / 2][w] >> shift & 0xFFFFu);
                const float y = Format::value(tile.columns[i % 2][w] >> shift & 0xFFFFu);
                sums[i] = fmaf(x, y, sums[i]);
            }
}
#endif

// The same of bytes, twice as many along the sums; see `multiply_bytes`.
template <bool SignedLeft, bool SignedRight>
inline void multiply_tiles(
    unsigned (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
    byte_format<SignedLeft, SignedRight>
) {
    multiply_bytes<SignedLeft, SignedRight>(sums, a, b0, b1);
}

}  // namespace ost
