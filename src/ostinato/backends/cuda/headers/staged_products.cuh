// Products of rows by the stages of a ring, which have pieces of eight columns.
#pragma once
#include "packets.cuh"
#include "products.cuh"
#include "rings.cuh"

namespace ost {

// Of a function that multiplies stages: called, or part of what calls it.
#ifdef OST_PRODUCTS_IN_PLACE
#define OST_PRODUCT __forceinline__
#else
#define OST_PRODUCT OST_APART
#endif

// Elements of a stage's row.
template <class T>
constexpr int stage_elements = ring::piece / (int)sizeof(T);

// The left operand's fragments of two steps of 16 elements, for eight rows: rows that are not there
// are the last one again, and what is made of them is not used. `row` is the lane's own of
// `load_matrices`.
inline void load_left(unsigned (&a)[2][4], int half, const unsigned short* row) {
    unsigned found[4];
    load_matrices(found, row);
    a[0][half] = found[0], a[0][half + 2] = found[1];
    a[1][half] = found[2], a[1][half + 2] = found[3];
}

// A pointer into shared memory, as the compiler may take it for.
template <class T>
inline const T* in_shared_memory(const T* pointer) {
#ifdef __CUDA_ARCH__
    __builtin_assume(__isShared(pointer));
#endif
    return pointer;
}

// The sum of the values of the four lanes of a warp that have the same column of eight.
template <class T>
inline T sum_of_quarters(T value) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, 16);
    return value + __shfl_xor_sync(0xFFFFFFFFu, value, 8);
}

// Columns of a tile, where a stage has so many of them. Wide: those of a stage for each group of
// warps, else those of one stage.
template <bool Wide, int Rows = ring::rows>
constexpr int tile_columns = Wide ? Rows * ring::groups : Rows;

// Stages of a tile of so many columns.
template <bool Wide, int Rows = ring::rows>
inline int stages_of(int columns, int depth, int piece) {
    static_assert(ring::groups == 2, "a stage for each group");
    if (Wide) return columns > Rows ? 2 : 1;
    return (depth + piece - 1) / piece;
}

// The left operand's part of a stage that a warp has, on its way from global memory: it is loaded a
// stage ahead, and written to shared memory, where rows are a vector further apart than they are long.
template <int Rows>
struct left_part {
    static constexpr int own = stage_elements<unsigned short> / ring::sharing, pitch = own + 8;

    vector<unsigned, 4> rows[Rows];

    // Elements beyond `depths` are not read.
    void load(const unsigned short* left, long long pitch, int rows_there, int depths) {
        const int k = threadIdx.x % 32 * 8;
#pragma unroll
        for (int row = 0; row < Rows; row++)
            if (row < rows_there && k < depths)
                rows[row] = *(const vector<unsigned, 4>*)(left + row * pitch + k);
    }
    // Packets may not be there yet: `settle` waits for them.
    void load(inbox<unsigned short> left, long long pitch, int rows_there, int depths) {
        const int k = threadIdx.x % 32 * 8;
#pragma unroll
        for (int row = 0; row < Rows; row++)
            if (row < rows_there && k < depths)
                rows[row] = load_packets((const vector<unsigned, 4>*)(left.packets + row * pitch + k));
    }
    void settle(const unsigned short*, long long, int, int) {}
    void settle(inbox<unsigned short> left, long long pitch, int rows_there, int depths) {
        const int k = threadIdx.x % 32 * 8;
#pragma unroll
        for (int row = 0; row < Rows; row++)
            if (row < rows_there && k < depths && !are_there<unsigned short>(rows[row]))
                rows[row] = await_packets<unsigned short>(
                    (const vector<unsigned, 4>*)(left.packets + row * pitch + k)
                );
    }
    void store(unsigned short* staged) const {
        __syncwarp();
#pragma unroll
        for (int row = 0; row < Rows; row++)
            *(vector<unsigned, 4>*)(staged + row * pitch + threadIdx.x % 32 * 8) = rows[row];
        __syncwarp();
    }
};

// The products of a tile: the next stages of the ring by the rows of the left operand, in pairs of
// bytes or in elements of 16 bits. `parts` gets, by warp, row and column, the sums of the elements
// that the warp has. Whole: stages are full. Shared: the left operand is in shared memory; if not,
// `staged` has room for the `left_part` of each warp. Polled: its elements are packets. Wide: all of a
// column is in one stage, and each group of warps has columns of its own.
template <class Format, int Rows, bool Whole, bool Shared, bool Wide, bool Polled = false, class Ring>
static OST_PRODUCT ring_place multiply_tile(
    Ring shared_ring,
    typename choice<Polled, inbox<unsigned short>, const unsigned short*>::type left,
    long long pitch, int rows, int depth, int there,
    typename Format::sum (*parts)[Rows][tile_columns<Wide> + 1], unsigned short* staged = nullptr
) {
    __syncwarp();
    using part = left_part<Shared ? 1 : Rows>;
    constexpr int all = stage_elements<unsigned short>, own = all / ring::sharing;
    constexpr int steps = own / 16, halves = Rows > 8 ? 2 : 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int member = warp % ring::sharing, group = warp / ring::sharing, column = lane % 8;
    const int tile_there = there;
    if (Wide) there -= group * ring::rows;
    const int place = ring::offset(column, member * (own / 8) + lane / 8);
    Ring from = shared_ring;
    from.advance(group);
    typename Format::sum sums[4][4] = {};  // of every fourth step: neighbours do not wait for each other
    const unsigned short* at[halves];
    left = left + (Wide ? member : warp) * own;
    if (!Shared) staged += warp * Rows * part::pitch;
#pragma unroll
    for (int half = 0; half < halves; half++) {
        const int row = min(8 * half + lane % 8, rows - 1);
        if constexpr (Shared) at[half] = left + row * pitch + lane / 8 * 8;
        else at[half] = staged + row * part::pitch + lane / 8 * 8;
    }
    const int begin = Wide ? 0 : group * all, end = !Wide || there > 0 ? depth : 0;
    part next = {};
    if (!Shared && begin < end) next.load(left, pitch, rows, depth - begin - member * own);
    for (int start = begin; start < end; start += ring::groups * all) {
        const int depths = depth - start - member * own;
        if (!Shared) next.settle(left, pitch, rows, depths);
        left = left + ring::groups * all;
        if (!Shared) {
            next.store(staged);
            const int following = depths - ring::groups * all;
            if (start + ring::groups * all < end) next.load(left, pitch, rows, following);
        }
        const unsigned char* const stage = from.await();
#pragma unroll 2
        for (int step = 0; step < steps; step += 4) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const int k = (step + i) * 16;
                if (!Whole && k >= depths) break;
                const bool beyond = !Whole && k + lane / 8 * 8 >= depths;
                const int from_k = beyond ? k - 16 : k;
                unsigned a[2][4] = {}, b[4];
                load_matrices(b, (const unsigned short*)(stage + ring::further(place, k / 8)));
#pragma unroll
                for (int half = 0; half < halves; half++) load_left(a, half, at[half] + from_k);
                multiply_tiles(sums[i], a[0], b[0], b[1], Format());
                if (Whole || k + 16 < depths)
                    multiply_tiles(sums[i + 1], a[1], b[2], b[3], Format());
            }
        }
        from.release();
        from.advance(ring::groups);
        if (Shared) {
#pragma unroll
            for (int half = 0; half < halves; half++) at[half] += ring::groups * all;
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int m = g + e / 2 * 8, n = t * 2 + e % 2;
        const auto sum = (sums[0][e] + sums[1][e]) + (sums[2][e] + sums[3][e]);
        if (m < Rows) parts[Wide ? member : warp][m][Wide ? group * ring::rows + n : n] = sum;
    }
    shared_ring.advance(stages_of<Wide>(tile_there, depth, all));
    return shared_ring.here();
}

// The products of up to `Together` tiles, `tile_step` apart, of up to 8 rows of elements of 16 bits in
// shared memory: see `multiply_tile`, whose sums these are. A warp keeps its elements of the rows in
// registers. `Depth` is a multiple of the elements of a stage. Two tiles are the 16 rows of a tensor
// core's tile; the last one may be alone.
template <class Format, int Rows, int Depth, int Together, class Ring>
static OST_PRODUCT ring_place multiply_tiles_of_rows(
    Ring shared_ring, const unsigned short* left, long long pitch, int rows, int first_tile,
    int tile_step, int columns, float (*parts)[computing / 32][Rows][ring::rows + 1]
) {
    static_assert(Rows <= 8, "columns of a fragment");
    __syncwarp();
    constexpr int all = stage_elements<unsigned short>, own = all / ring::sharing;
    constexpr int steps = own / 16, stages = Depth / all;
    constexpr int rounds = (stages + ring::groups - 1) / ring::groups;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int member = warp % ring::sharing, group = warp / ring::sharing;
    const int own_rounds = (stages - group + ring::groups - 1) / ring::groups;
    const unsigned short* const row =
        left + min(lane % 8, rows - 1) * pitch + warp * own + lane / 8 * 8;
    unsigned b[rounds][steps / 2][4] = {};
#pragma unroll
    for (int round = 0; round < rounds; round++) {
        if (round < own_rounds) {
#pragma unroll
            for (int step = 0; step < steps; step += 2)
                load_matrices(b[round][step / 2], row + round * ring::groups * all + step * 16);
        }
    }
    // Lanes give the addresses of eight columns of either tile, then of the next eight elements.
    const bool second = lane / 8 % 2;
    const int place = ring::offset(lane % 8, member * (own / 8)), next_vector = lane / 16 * 16;
    Ring next = shared_ring;
    const bool pairs = shared_ring.has_room_for(2 * stages);
#pragma unroll 1
    for (int first = 0; first < Together;) {
        const int rest = columns - (first_tile + first * tile_step) * ring::rows;
        if (rest <= 0) break;
        const bool both = pairs && first + 1 < Together && rest > tile_step * ring::rows;
        Ring from = next;
        from.advance(group);
        float sums[4][4] = {};  // of every fourth step: neighbours do not wait for each other
#pragma unroll
        for (int round = 0; round < rounds; round++) {
            if (round < own_rounds) {
                Ring other = from;
                if (both) other.advance(stages);
                const unsigned char *const stage = from.await(), *const beside = other.await();
                const unsigned char* const elements = second ? beside : stage;
                unsigned a[steps][4];
#pragma unroll
                for (int step = 0; step < steps; step++)
                    load_matrices(
                        a[step],
                        (const unsigned short*)(
                            elements + (ring::further(place, step * 2) ^ next_vector)
                        )
                    );
                from.release();
                if (both) other.release();
#pragma unroll
                for (int step = 0; step < steps; step++) {
                    const unsigned* const pair = b[round][step / 2] + step % 2 * 2;
                    multiply_tiles(sums[step % 4], a[step], pair[0], pair[1], Format());
                }
                from.advance(ring::groups);
            }
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int m = t * 2 + e % 2;
            if (m < Rows && (e < 2 || both))
                parts[first + e / 2][warp][m][g] =
                    (sums[0][e] + sums[1][e]) + (sums[2][e] + sums[3][e]);
        }
        next.advance(both ? 2 * stages : stages);
        first += both ? 2 : 1;
    }
    return next.here();
}

// The same of floats: a lane has a column, and a quarter of the warp's elements.
template <class Format, int Rows, bool Whole, bool Shared, bool Wide, class Ring>
static OST_PRODUCT ring_place multiply_tile(
    Ring shared_ring, const float* left, long long pitch, int rows, int depth, int there,
    float (*parts)[Rows][tile_columns<Wide> + 1]
) {
    static_assert(!Wide, "floats have tiles of a stage");
    __syncwarp();
    constexpr int all = stage_elements<float>, own = all / ring::sharing, quarter = own / 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = lane % 8;
    const int first = warp * own + lane / 8 * quarter;
    const int place = ring::offset(column, (warp % ring::sharing * own + lane / 8 * quarter) / 4);
    Ring from = shared_ring;
    from.advance(warp / ring::sharing);
    float sums[Rows] = {};
    left += first;
    for (int start = warp / ring::sharing * all; start < depth; start += ring::groups * all) {
        const int depths = depth - start - warp % ring::sharing * own - lane / 8 * quarter;
        const unsigned char* const stage = from.await();
#pragma unroll 4
        for (int k = 0; k < quarter; k += 4) {
            if (Whole || k < depths) {
                const vector<float, 4> right =
                    *(const vector<float, 4>*)(stage + ring::further(place, k / 4));
#pragma unroll
                for (int r = 0; r < Rows; r++) {
                    if (r < rows) {
                        const vector<float, 4> a = *(const vector<float, 4>*)(left + r * pitch + k);
#pragma unroll
                        for (int i = 0; i < 4; i++) sums[r] = fmaf(a.at[i], right.at[i], sums[r]);
                    }
                }
            }
        }
        from.release();
        from.advance(ring::groups);
        left += ring::groups * all;
    }
#pragma unroll
    for (int m = 0; m < Rows; m++) {
        const float sum = sum_of_quarters(sums[m]);
        if (lane < 8) parts[warp][m][lane] = sum;
    }
    shared_ring.advance(stages_of<Wide>(there, depth, all));
    return shared_ring.here();
}

}  // namespace ost
