// A ring of slots in shared memory, through which some warps of a block bring the rows of matrices
// to all others: bulk copies that run ahead, across the barriers of those who wait for them.
#pragma once
#include "barriers.cuh"
#include "packets.cuh"
#include "products.cuh"
#include "segments.cuh"

namespace ost {

// Waits for weights: until the phase of a parity has ended.
inline void barrier_wait(phased_barrier* barrier, unsigned parity) {
    const waiting timed(&waits::weights);
    if (!barrier_await(barrier, parity)) waited_in_vain("weights");
}

// How the cache treats what is read once: it is the first to leave.
inline unsigned long long read_once() {
    unsigned long long policy = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

// A copy into shared memory that arrives at a barrier; both addresses and the size are multiples of
// 16 bytes.
inline void copy_bulk(
    void* to, const void* from, unsigned bytes, phased_barrier* barrier, unsigned long long policy
) {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory"
    );
#endif
#else
    __pipeline_memcpy_async(to, from, bytes);
    atomicAdd(&barrier->words[1], 0u - bytes * 1024u);
#endif
}

// Whether this is the thread of its warp that acts for all of them: called by a whole warp. The
// compiler knows that it is one thread, and needs no loop over those that copy in bulk.
inline bool is_chosen() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    unsigned chosen;
    asm volatile("{ .reg .pred p; .reg .b32 lane; elect.sync lane|p, 0xFFFFFFFF;\n"
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(chosen));
    return chosen != 0;
#else
    return threadIdx.x % 32 == 0;
#endif
}

// The ring ----------------------------------------------------------------------------------------

// Rows of memory that are brought tile by tile: those of a matrix, and of another one beside it.
struct rows_of_memory {
    const unsigned char* from;
    long long total, length;  // rows, and bytes of each
    int piece, pitch, width;  // bytes of a row in a stage, from one to the next; rows of a tile
    const unsigned char* beside = nullptr;
    int beside_length = 0, beside_piece = 0;  // its bytes are behind those of the same row
};

// A stage: the first piece of its rows, and of what is beside them; rows, and bytes of each piece.
struct stage_of_rows {
    const unsigned char *from, *beside;
    int there, size, beside_size;
};

// The slot of the next stage, and the parity of its phase.
struct ring_place {
    int slot;
    unsigned parity;
};

// Each thread has its own. Functions that are called get a copy, and return the place behind what
// they have read: what no function has the address of is in registers.
struct ring {
    // A stage: pieces of neighbouring rows, each as far from the next that columns of 16 bytes are
    // in different banks.
    static constexpr int rows = 8, piece = 2048, pitch = piece + 16;

    // Warps that read a stage; so many groups of them read as many stages at a time. To wait for a
    // stage takes as long as to multiply much of it.
    static constexpr int sharing = 4, groups = computing / 32 / sharing;

    phased_barrier *arrived, *emptied;
    unsigned char* slots;
    int count, bytes;  // slots, and bytes of each
    int ahead;         // stages under way, at most: more of them delay every other access to memory
    int spare;         // empty slots with no more of which one stage is under way: there is no hurry
    int scarce;        // with more, one more than `ahead`: the block is about to wait
    int fetchers;      // warps that fill slots: a power of two
    int slot = 0;
    unsigned parity = 0;

    // Starts the barriers: called by one thread, before all others use them.
    void start() {
        for (int i = 0; i < count; i++) {
            barrier_start(arrived + i, 1);
            barrier_start(emptied + i, sharing);
        }
        barriers_started();
    }

    void advance(int stages) {
        for (slot += stages; slot >= count; slot -= count) parity ^= 1;
    }

    void advance() {
        if (++slot == count) slot = 0, parity ^= 1;
    }

    ring_place here() const { return {slot, parity}; }
    void go_to(ring_place next) { slot = next.slot, parity = next.parity; }

    // The next stage, once it has arrived.
    const unsigned char* await() {
        barrier_wait(arrived + slot, parity);
        __syncwarp();
        return slots + slot * bytes;
    }

    // Called by each of the warps that have read the stage.
    void release() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(emptied + slot);
    }

    // Whether more than so many slots are empty, where the next one is; of all of them, no.
    bool empty_beyond(int many) const {
        const bool wraps = slot + many >= count;
        phased_barrier* const later = emptied + slot + many - (wraps ? count : 0);
        return barrier_passed<false>(later, wraps ? parity : parity ^ 1);
    }

    // Stages that may be under way, once the next one is.
    int under_way() const {
        if (!empty_beyond(spare)) return 1;
        return empty_beyond(scarce) ? ahead + 1 : ahead;
    }

    // The barrier at which the last stage arrives that has to before one more is under way, and the
    // parity of its phase.
    phased_barrier* earlier(unsigned& its_parity) const {
        const int most = under_way();
        const bool wrapped = slot < most;
        its_parity = wrapped ? parity ^ 1 : parity;
        return arrived + (wrapped ? slot + count - most : slot - most);
    }

    // Fills slots with the stages of a block's tiles: called by the only warp that does. Its lanes copy
    // a piece each, and take turns, so that requests come one after the other.
    void fetch(place own, place all, const rows_of_memory& those) {
        const unsigned long long policy = read_once();
        const int lane = threadIdx.x % 32;
        each_stage(own, all, those, [&](const stage_of_rows& stage) {
            barrier_wait(emptied + slot, parity ^ 1);
            unsigned its_parity;
            phased_barrier* const before = earlier(its_parity);
            barrier_wait(before, its_parity);
            if (lane == 0) barrier_expect(arrived + slot, stage.there * stage.size);
            __syncwarp();
            if (lane < stage.there)
                copy_bulk(
                    slots + slot * bytes + lane * those.pitch, stage.from + lane * those.length,
                    stage.size, arrived + slot, policy
                );
            advance();
        });
    }

    // The same, called by the chosen thread of each of several warps, for its own slots: where stages are
    // many short pieces, one warp would need longer for them than the memory. What one thread copies
    // takes it less time than the lanes of a warp.
    void fetch_own(place own, place all, const rows_of_memory& those) {
        const unsigned long long policy = read_once();
        each_stage(own, all, those, [&](const stage_of_rows& stage) {
            // Each slot is filled by the same warp at all times, so its phases are seen in order.
            if (((slot ^ threadIdx.x / 32) & (fetchers - 1)) == 0) {
                barrier_wait(emptied + slot, parity ^ 1);
                // Not for long: another warp may have filled that slot again since.
                unsigned its_parity;
                phased_barrier* const before = earlier(its_parity);
#pragma unroll 1
                for (int polls = 0; polls < 16; polls++)
                    if (barrier_passes_within(500, before, its_parity)) break;
                unsigned char* const to = slots + slot * bytes;
                barrier_expect(arrived + slot, stage.there * (stage.size + stage.beside_size));
                copy_pieces(to, stage.from, those.length, those.pitch, stage.size, stage.there, policy);
                if (stage.beside_size > 0)
                    copy_pieces(
                        to + those.piece, stage.beside, those.beside_length, those.pitch,
                        stage.beside_size, stage.there, policy
                    );
            }
            advance();
        });
    }

   private:
    // Copies pieces of so many rows.
    void copy_pieces(
        unsigned char* to, const unsigned char* from, long long length, int pitch, int bytes, int there,
        unsigned long long policy
    ) const {
        if (there == rows) {
#pragma unroll
            for (int i = 0; i < rows; i++)
                copy_bulk(to + i * pitch, from + i * length, bytes, arrived + slot, policy);
        } else {
#pragma unroll 1
            for (int i = 0; i < there; i++)
                copy_bulk(to + i * pitch, from + i * length, bytes, arrived + slot, policy);
        }
    }

    // Calls `put` with each stage of a block's tiles, tile by tile, each from end to end.
    template <class Put>
    static void each_stage(place own, place all, const rows_of_memory& those, Put put) {
        const int length = (int)those.length, beside_length = those.beside_length;
#pragma unroll 1
        for (long long first = (long long)own.x * those.width; first < those.total;
             first += (long long)all.x * those.width) {
            const long long rest = those.total - first;
            const int last = rest < those.width ? (int)rest : those.width;
            const unsigned char* from = those.from + first * length;
            const unsigned char* beside = those.beside + first * beside_length;
            int beside_left = beside_length;
#pragma unroll 1
            for (int left = length; left > 0; left -= those.piece) {
#pragma unroll 1
                for (int row = 0; row < last; row += rows)
                    put(stage_of_rows{
                        from + (long long)row * length, beside + (long long)row * beside_length,
                        min(last - row, rows), min(left, those.piece),
                        min(beside_left, those.beside_piece)
                    });
                from += those.piece;
                beside += those.beside_piece;
                beside_left -= those.beside_piece;
            }
        }
    }
};

// Brings bytes into the cache that all multiprocessors share: called by a warp.
inline void bring_bytes(const void* from, int bytes) {
    for (int i = threadIdx.x % 32 * 128; i < bytes; i += 32 * 128)
        prefetch_line((const unsigned char*)from + i);
}

// Products with stages ---------------------------------------------------------------------------

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

// Columns of a tile. Wide: those of one stage for each group of warps, else those of a stage.
template <bool Wide>
constexpr int tile_columns = Wide ? ring::rows * ring::groups : ring::rows;

// Stages of a tile of so many columns.
template <bool Wide>
inline int stages_of(int columns, int depth, int piece) {
    return Wide ? (columns + ring::rows - 1) / ring::rows : (depth + piece - 1) / piece;
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
// `staged` has room for the `left_part` of each warp. Polled: its elements are packets. Wide: all of a column is in one stage, and each
// group of warps has columns of its own.
template <class Format, int Rows, bool Whole, bool Shared, bool Wide, bool Polled = false>
static OST_PRODUCT ring_place multiply_tile(
    ring shared_ring,
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
    const int place = (column < there ? column : 0) * ring::pitch + member * own * 2 + lane / 8 * 16;
    ring from = shared_ring;
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
        const unsigned char* const stage = from.await() + place;
#pragma unroll 2
        for (int step = 0; step < steps; step += 4) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const int k = (step + i) * 16;
                if (!Whole && k >= depths) break;
                const bool beyond = !Whole && k + lane / 8 * 8 >= depths;
                const int from_k = beyond ? k - 16 : k;
                unsigned a[2][4] = {}, b[4];
                load_matrices(b, (const unsigned short*)stage + from_k);
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

// The products of up to `Together` tiles, `step` apart, of up to 8 rows of elements of 16 bits in
// shared memory: see `multiply_tile`, whose sums these are. A warp keeps its elements of the rows in
// registers. `Depth` is a multiple of the elements of a stage.
template <class Format, int Rows, int Depth, int Together>
static OST_PRODUCT ring_place multiply_tiles_of_rows(
    ring shared_ring, const unsigned short* left, long long pitch, int rows, int first_tile,
    int tile_step, int columns, float (*parts)[computing / 32][Rows][ring::rows + 1]
) {
    static_assert(Rows <= 8, "rows of a fragment");
    __syncwarp();
    constexpr int all = stage_elements<unsigned short>, own = all / ring::sharing;
    constexpr int steps = own / 16, stages = Depth / all;
    constexpr int rounds = (stages + ring::groups - 1) / ring::groups;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int member = warp % ring::sharing, group = warp / ring::sharing, column = lane % 8;
    const int own_rounds = (stages - group + ring::groups - 1) / ring::groups;
    const unsigned short* const row =
        left + min(column, rows - 1) * pitch + warp * own + lane / 8 * 8;
    unsigned a[rounds][steps][4] = {};
#pragma unroll
    for (int round = 0; round < rounds; round++) {
        if (round < own_rounds) {
#pragma unroll
            for (int step = 0; step < steps; step += 2) {
                unsigned found[4];
                load_matrices(found, row + round * ring::groups * all + step * 16);
                a[round][step][0] = found[0], a[round][step][2] = found[1];
                a[round][step + 1][0] = found[2], a[round][step + 1][2] = found[3];
            }
        }
    }
    ring next = shared_ring;
#pragma unroll 1
    for (int tile = 0; tile < Together; tile++) {
        const int there = columns - (first_tile + tile * tile_step) * ring::rows;
        if (there <= 0) break;
        const int place = (column < there ? column : 0) * ring::pitch + member * own * 2;
        ring from = next;
        from.advance(group);
        float sums[4][4] = {};
#pragma unroll
        for (int round = 0; round < rounds; round++) {
            if (round < own_rounds) {
                const unsigned char* const stage = from.await() + place + lane / 8 * 16;
                unsigned b[steps / 2][4];
#pragma unroll
                for (int step = 0; step < steps; step += 2)
                    load_matrices(b[step / 2], (const unsigned short*)stage + step * 16);
#pragma unroll
                for (int step = 0; step < steps; step++) {
                    const unsigned* const pair = b[step / 2] + step % 2 * 2;
                    multiply_tiles(sums[step % 4], a[round][step], pair[0], pair[1], Format());
                }
                from.release();
                from.advance(ring::groups);
            }
        }
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (g < Rows)
                parts[tile][warp][g][t * 2 + e] =
                    (sums[0][e] + sums[1][e]) + (sums[2][e] + sums[3][e]);
        next.advance(stages);
    }
    return next.here();
}

// The same of floats: a lane has a column, and a quarter of the warp's elements.
template <class Format, int Rows, bool Whole, bool Shared, bool Wide>
static OST_PRODUCT ring_place multiply_tile(
    ring shared_ring, const float* left, long long pitch, int rows, int depth, int there,
    float (*parts)[Rows][tile_columns<Wide> + 1]
) {
    static_assert(!Wide, "floats have tiles of a stage");
    __syncwarp();
    constexpr int all = stage_elements<float>, own = all / ring::sharing, quarter = own / 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = lane % 8;
    const int first = warp * own + lane / 8 * quarter;
    const int place = (column < there ? column : 0) * ring::pitch +
                      (warp % ring::sharing * own + lane / 8 * quarter) * 4;
    ring from = shared_ring;
    from.advance(warp / ring::sharing);
    float sums[Rows] = {};
    left += first;
    for (int start = warp / ring::sharing * all; start < depth; start += ring::groups * all) {
        const int depths = depth - start - warp % ring::sharing * own - lane / 8 * quarter;
        const float* const stage = (const float*)(from.await() + place);
#pragma unroll 4
        for (int k = 0; k < quarter; k += 4) {
            if (Whole || k < depths) {
                const vector<float, 4> right = *(const vector<float, 4>*)(stage + k);
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

// Codes by bytes -----------------------------------------------------------------------------------

// Elements of a row of codes in a stage, two to a byte; behind them are the scales of its blocks.
constexpr int stage_codes = ring::piece;

// Bytes from one row of codes to the next in a stage: an odd number of 16.
template <int Block, class Scale>
constexpr int code_pitch = stage_codes / 2 + (stage_codes / Block * (int)sizeof(Scale) / 32 * 2 + 1) * 16;

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
template <class Format, int Block, int Rows, bool Wide>
static OST_PRODUCT ring_place multiply_codes(
    ring shared_ring, const signed char* left, long long pitch, const float* scales, int rows,
    int depth, int there, float (*parts)[Rows][tile_columns<Wide> + 1]
) {
    __syncwarp();
    using stored = typename Format::stored;
    constexpr int all = stage_codes, own = all / ring::sharing, step = 128, blocks = step / Block;
    constexpr int row_pitch = code_pitch<Block, stored>, halves = Rows > 8 ? 2 : 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int member = warp % ring::sharing, group = warp / ring::sharing;
    const int tile_there = there;
    if (Wide) there -= group * ring::rows;
    const int last = there - 1;
    const int place = min(lane % 8, last) * row_pitch + member * own / 2 + lane / 8 * 16;
    int scale_place[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        scale_place[i] = min(2 * t + i, last) * row_pitch + all / 2 +
                         member * (own / Block) * (int)sizeof(stored);
    ring from = shared_ring;
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
            load_matrices(codes, (const unsigned short*)(stage + place + k / 2));
            vector<stored, blocks> right_scales[2];
            vector<float, blocks> row_scales[halves];
#pragma unroll
            for (int i = 0; i < 2; i++)
                right_scales[i] = *(const vector<stored, blocks>*)(
                    stage + scale_place[i] + k / Block * (int)sizeof(stored)
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
    static constexpr int all = ring::piece, quarter = all / ring::sharing / 4, pitch = ring::pitch;

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

    // `inside`: of the lane's elements in the stage's row.
    sum times(const unsigned char* stage, int inside, sum before) const {
        unsigned sums[4] = {before};
#pragma unroll
        for (int i = 0; i < quarter / 16; i++) {
            if (!Whole && i * 16 >= there) break;
            const vector<unsigned, 4> b = *(const vector<unsigned, 4>*)(stage + inside + i * 16);
#pragma unroll
            for (int w = 0; w < 4; w++) sums[w] = Format::dot(words[i].at[w], b.at[w], sums[w]);
        }
        return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
};

// The same of signed bytes by codes, with the scales of their blocks; see `multiply_codes`.
template <class Format, int Block, bool Whole>
struct bytes_by_codes {
    using sum = float;
    using stored = typename Format::stored;
    static constexpr int all = stage_codes, quarter = all / ring::sharing / 4;
    static constexpr int blocks = quarter / Block, pitch = code_pitch<Block, stored>;

    const signed char* left;
    const float* left_scales;
    unsigned even[quarter / 8], odd[quarter / 8];
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

    sum times(const unsigned char* stage, int inside, sum before) const {
        if (there <= 0) return before;
        const vector<stored, blocks> right_scales = *(const vector<stored, blocks>*)(
            stage + all / 2 + inside / Block * (int)sizeof(stored)
        );
#pragma unroll
        for (int block = 0; block < blocks; block++) {
            if (!Whole && block * Block >= there) break;
            unsigned found = bits_as<unsigned>(code_offset);
#pragma unroll
            for (int i = block * (Block / 32); i < (block + 1) * (Block / 32); i++) {
                const vector<unsigned, 4> codes =
                    *(const vector<unsigned, 4>*)(stage + inside / 2 + i * 16);
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    const unsigned low = (codes.at[w] << 4 ^ 0x80808080u) & 0xF0F0F0F0u;
                    const unsigned high = (codes.at[w] ^ 0x80808080u) & 0xF0F0F0F0u;
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
// `multiply_tile`. A lane has a column, and a quarter of the warp's elements; that takes fewer
// instructions than tensor cores, whose other rows would be wasted. Wide: it has them in registers.
template <class Row, bool Wide, int Together>
static OST_PRODUCT ring_place multiply_row(
    ring shared_ring, const void* left, const float* scales, int depth, int first_tile, int step,
    int columns,
    typename Row::sum (*parts)[Wide ? ring::sharing : computing / 32][1][tile_columns<Wide> + 1]
) {
    __syncwarp();
    constexpr int all = Row::all, width = tile_columns<Wide>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = lane % 8;
    const int member = warp % ring::sharing, group = warp / ring::sharing;
    const int inside = member * (all / ring::sharing) + lane / 8 * Row::quarter;
    ring next = shared_ring;
    Row row(left, scales);
    if (Wide) row.load(inside, depth - inside);
#pragma unroll 1
    for (int t = 0; t < Together; t++) {
        const int rest = columns - (first_tile + t * step) * width;
        if (rest <= 0) break;
        const int tile_there = min(rest, width);
        const int there = Wide ? tile_there - group * ring::rows : tile_there;
        const int place = (column < there ? column : 0) * Row::pitch;
        ring from = next;
        from.advance(group);
        typename Row::sum sum = 0;
        const int begin = Wide ? 0 : group * all, end = !Wide || there > 0 ? depth : 0;
        for (int start = begin; start < end; start += ring::groups * all) {
            if (!Wide) row.load(start + inside, depth - start - inside);
            sum = row.times(in_shared_memory(from.await() + place), inside, sum);
            from.release();
            from.advance(ring::groups);
        }
        sum = sum_of_quarters(sum);
        if (lane < 8) parts[t][Wide ? member : warp][0][(Wide ? group * ring::rows : 0) + lane] = sum;
        next.advance(stages_of<Wide>(tile_there, depth, all));
    }
    return next.here();
}

}  // namespace ost
