// Products of rows of bytes by the stages of a ring: by 4-bit codes, and those of one row.
#pragma once
#include "staged_products.cuh"

namespace ost {

// Codes by bytes -----------------------------------------------------------------------------------

// Elements of a row of codes in a stage, two to a byte; behind those of all rows are the scales of
// their blocks, row by row.
constexpr int stage_codes = ring::piece;

// Where the scale of a block of a row is in a stage of so many rows.
template <int Block, class Scale, int Rows = ring::rows>
constexpr int scale_place(int row, int block) {
    return Rows * stage_codes / 2 + (row * (stage_codes / Block) + block) * (int)sizeof(Scale);
}

// A sum of products of 4-bit numbers, 16 times too large, as a float. It was added to the bits of
// `code_offset`, whose last digit stands for 1.
constexpr float code_offset = 12582912.0f;
inline float sum_of_codes(unsigned sum) {
    return fmaf(bits_as<float>(sum), 0.0625f, code_offset * -0.0625f);
}

// The products of a tile of codes, of so many to a scale, by rows of signed bytes with scales of
// their own: `left` and `scales` have `depth` and `depth / Block` elements in a row. See
// `multiply_tile`. Codes are numbers from 0, of which 8 stands for 0.
//
// A word of codes has eight elements: four are in the lower halves of its bytes, four in the upper
// ones. With 8 taken off, either are the upper halves of signed bytes, 16 times as large. Of the left
// operand, the bytes that belong to them are every other one of eight.
template <class Format, int Block, int Rows, bool Wide, class Ring>
static OST_PRODUCT ring_place multiply_codes(
    Ring shared_ring, const signed char* left, long long pitch, const float* scales, int rows,
    int depth, int there, float (*parts)[Rows][tile_columns<Wide> + 1]
) {
    __syncwarp();
    using stored = typename Format::stored;
    constexpr int all = stage_codes, own = all / ring::sharing, step = 128, blocks = step / Block;
    constexpr int halves = Rows > 8 ? 2 : 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int member = warp % ring::sharing, group = warp / ring::sharing;
    const int tile_there = there;
    if (Wide) there -= group * ring::rows;
    const int place = ring::offset(lane % 8, member * (own / 32) + lane / 8);
    Ring from = shared_ring;
    from.advance(group);
    float sums[4] = {};
    const signed char* at[halves];
    const float* left_scales[halves];
    const int first = (Wide ? member : warp) * own;
#pragma unroll
    for (int half = 0; half < halves; half++) {
        const int row = min(8 * half + g, rows - 1);
        at[half] = left + row * pitch + first + 8 * t;
        left_scales[half] = scales + row * (depth / Block) + first / Block;
    }
    const int begin = Wide ? 0 : group * all, end = !Wide || there > 0 ? depth : 0;
    for (int start = begin; start < end; start += ring::groups * all) {
        const int depths = depth - start - member * own;
        const unsigned char* const stage = from.await();
#pragma unroll 2
        for (int k = 0; k < own; k += step) {
            if (k >= depths) break;
            unsigned codes[4];
            load_matrices(codes, (const unsigned short*)(stage + ring::further(place, k / 32)));
            vector<stored, blocks> right_scales[2];
            vector<float, blocks> row_scales[halves];
#pragma unroll
            for (int i = 0; i < 2; i++)
                right_scales[i] = *(const vector<stored, blocks>*)(
                    stage + scale_place<Block, stored>(2 * t + i, (member * own + k) / Block)
                );
#pragma unroll
            for (int half = 0; half < halves; half++)
                row_scales[half] = *(const vector<float, blocks>*)(left_scales[half] + k / Block);
#pragma unroll
            for (int block = 0; block < blocks; block++) {
                const unsigned offset = bits_as<unsigned>(code_offset);
                unsigned found[4] = {offset, offset, offset, offset};
#pragma unroll
                for (int i = block * (4 / blocks); i < (block + 1) * (4 / blocks); i++) {
                    unsigned a[4] = {};
#pragma unroll
                    for (int half = 0; half < halves; half++) {
                        const vector<unsigned, 2> eight =
                            *(const vector<unsigned, 2>*)(at[half] + k + i * 32);
                        a[half] = even_bytes(eight.at[0], eight.at[1]);
                        a[half + 2] = odd_bytes(eight.at[0], eight.at[1]);
                    }
                    const unsigned low = (codes[i] << 4 ^ 0x80808080u) & 0xF0F0F0F0u;
                    const unsigned high = (codes[i] ^ 0x80808080u) & 0xF0F0F0F0u;
                    multiply_bytes<true, true>(found, a, low, high);
                }
#pragma unroll
                for (int e = 0; e < 2 * halves; e++) {
                    const float right = Format::value(right_scales[e % 2].at[block]);
                    const float scale = row_scales[e / 2].at[block] * right;
                    sums[e] = fmaf(sum_of_codes(found[e]), scale, sums[e]);
                }
            }
        }
        from.release();
        from.advance(ring::groups);
#pragma unroll
        for (int half = 0; half < halves; half++) {
            at[half] += ring::groups * all;
            left_scales[half] += ring::groups * all / Block;
        }
    }
#pragma unroll
    for (int e = 0; e < 2 * halves; e++) {
        const int m = g + e / 2 * 8, n = t * 2 + e % 2;
        if (m < Rows) parts[Wide ? member : warp][m][Wide ? group * ring::rows + n : n] = sums[e];
    }
    shared_ring.advance(stages_of<Wide>(tile_there, depth, all));
    return shared_ring.here();
}

// One row -----------------------------------------------------------------------------------------

// What a lane has of a row of bytes, and its products by a column of bytes: a quarter of the elements
// of a stage that its warp has. Whole: all of them are there.
template <class Format, bool Whole>
struct bytes_of_row {
    using sum = unsigned;
    static constexpr int all = ring::piece, quarter = all / ring::sharing / 4, rows = ring::rows;

    const unsigned char* left;
    vector<unsigned, 4> words[quarter / 16];
    int there = 0;

    bytes_of_row(const void* left, const float*) : left((const unsigned char*)left) {}

    // `first`: of the row; `depths` are there from it on.
    void load(int first, int depths) {
        there = depths;
        const unsigned char* const row = in_shared_memory(left + first);
#pragma unroll
        for (int i = 0; i < quarter / 16; i++)
            if (Whole || i * 16 < depths) words[i] = *(const vector<unsigned, 4>*)(row + i * 16);
    }

    // `inside`: of the lane's elements in the stage's row of its column.
    sum times(const unsigned char* stage, int column, int inside, sum before) const {
        const int place = ring::offset(column, inside / 16);
        unsigned sums[4] = {before};
#pragma unroll
        for (int i = 0; i < quarter / 16; i++) {
            if (!Whole && i * 16 >= there) break;
            const vector<unsigned, 4> b =
                *(const vector<unsigned, 4>*)(stage + ring::further(place, i));
#pragma unroll
            for (int w = 0; w < 4; w++) sums[w] = Format::dot(words[i].at[w], b.at[w], sums[w]);
        }
        return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
};

// The upper halves of bytes. The compiler does not know that it is a number: it would move the number
// to a register for each use.
inline unsigned upper_halves() {
    unsigned halves = 0xF0F0F0F0u;
#ifdef __CUDA_ARCH__
    asm("{ .reg .u32 none; mov.u32 none, %%tid.x; shr.u32 none, none, 16; or.b32 %0, none, 0xF0F0F0F0; }"
        : "=r"(halves));
#endif
    return halves;
}

// The same of signed bytes by codes, with the scales of their blocks; see `multiply_codes`. A stage has
// so many rows.
template <class Format, int Block, bool Whole, int Rows>
struct bytes_by_codes {
    using sum = float;
    using stored = typename Format::stored;
    static constexpr int all = stage_codes, quarter = all / ring::sharing / 4, rows = Rows;
    static constexpr int blocks = quarter / Block;

    const signed char* left;
    const float* left_scales;
    unsigned even[quarter / 8], odd[quarter / 8], upper = upper_halves();
    vector<float, blocks> scales;
    int there = 0;

    bytes_by_codes(const void* left, const float* scales)
        : left((const signed char*)left), left_scales(scales) {}

    void load(int first, int depths) {
        there = depths;
        if (depths <= 0) return;
        const signed char* const row = in_shared_memory(left + first);
        scales = *(const vector<float, blocks>*)in_shared_memory(left_scales + first / Block);
#pragma unroll
        for (int i = 0; i < quarter / 16; i++) {
            if (!Whole && i * 16 >= depths) break;
            const vector<unsigned, 4> words = *(const vector<unsigned, 4>*)(row + i * 16);
#pragma unroll
            for (int w = 0; w < 2; w++) {
                even[2 * i + w] = even_bytes(words.at[2 * w], words.at[2 * w + 1]);
                odd[2 * i + w] = odd_bytes(words.at[2 * w], words.at[2 * w + 1]);
            }
        }
    }

    sum times(const unsigned char* stage, int column, int inside, sum before) const {
        if (there <= 0) return before;
        const int place = ring::offset<Rows>(column, inside / 32);
        const vector<stored, blocks> right_scales = *(const vector<stored, blocks>*)(
            stage + scale_place<Block, stored, Rows>(column, inside / Block)
        );
#pragma unroll
        for (int block = 0; block < blocks; block++) {
            if (!Whole && block * Block >= there) break;
            unsigned found = bits_as<unsigned>(code_offset);
#pragma unroll
            for (int i = block * (Block / 32); i < (block + 1) * (Block / 32); i++) {
                const vector<unsigned, 4> codes =
                    *(const vector<unsigned, 4>*)(stage + ring::further<Rows>(place, i));
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    const unsigned low = (codes.at[w] << 4 ^ 0x80808080u) & upper;
                    const unsigned high = (codes.at[w] ^ 0x80808080u) & upper;
                    found = dot_bytes<true, true>(even[4 * i + w], low, found);
                    found = dot_bytes<true, true>(odd[4 * i + w], high, found);
                }
            }
            const float scale = scales.at[block] * Format::value(right_scales.at[block]);
            before = fmaf(sum_of_codes(found), scale, before);
        }
        return before;
    }
};

// The products of up to `Together` tiles, `step` apart, of one row in shared memory: see
// `multiply_tile`. A lane has every eighth column of a stage, and a quarter of the warp's elements; that
// takes fewer instructions than tensor cores, whose other rows would be wasted. Wide: it has them in
// registers.
template <class Row, bool Wide, int Together, class Ring>
static OST_PRODUCT ring_place multiply_row(
    Ring shared_ring, const void* left, const float* scales, int depth, int first_tile, int step,
    int columns,
    typename Row::sum (*parts)[Wide ? ring::sharing : computing / 32][1]
                              [tile_columns<Wide, Row::rows> + 1]
) {
    __syncwarp();
    constexpr int all = Row::all, rows = Row::rows, width = tile_columns<Wide, rows>;
    constexpr int each = rows / 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int member = warp % ring::sharing, group = warp / ring::sharing;
    const int inside = member * (all / ring::sharing) + lane / 8 * Row::quarter;
    const int first_column = lane % 8 + (Wide ? group * rows : 0);
    Ring next = shared_ring;
    Row row(left, scales);
    if (Wide) row.load(inside, depth - inside);
#pragma unroll 1
    for (int t = 0; t < Together; t++) {
        const int rest = columns - (first_tile + t * step) * width;
        if (rest <= 0) break;
        const int tile_there = min(rest, width);
        const int there = Wide ? tile_there - group * rows : tile_there;
        Ring from = next;
        from.advance(group);
        typename Row::sum sums[each] = {};
        const int begin = Wide ? 0 : group * all, end = !Wide || there > 0 ? depth : 0;
        for (int start = begin; start < end; start += ring::groups * all) {
            if (!Wide) row.load(start + inside, depth - start - inside);
            const unsigned char* const stage = in_shared_memory(from.await());
#pragma unroll
            for (int i = 0; i < each; i++)
                sums[i] = row.times(stage, lane % 8 + i * 8, inside, sums[i]);
            from.release();
            from.advance(ring::groups);
        }
#pragma unroll
        for (int i = 0; i < each; i++) sums[i] = sum_of_quarters(sums[i]);
        if (lane < 8)
#pragma unroll
            for (int i = 0; i < each; i++)
                parts[t][Wide ? member : warp][0][first_column + i * 8] = sums[i];
        next.advance(stages_of<Wide, rows>(tile_there, depth, all));
    }
    return next.here();
}

}  // namespace ost
