// A ring of slots in shared memory, through which a thread of a block brings the rows of matrices to
// the warps that multiply: copies that run ahead, across the barriers of those who wait for them.
#pragma once
#include "segments.cuh"
#include "stamps.cuh"
#include "tensor_maps.cuh"

namespace ost {

// Waits for weights: until the phase of a parity has ended.
inline void barrier_wait(phased_barrier* barrier, unsigned parity) {
    const waiting timed(&waits::weights);
    if (!barrier_await(barrier, parity)) waited_in_vain("weights");
}

// The ring ----------------------------------------------------------------------------------------

// A matrix whose rows are brought tile by tile, each from end to end, and another one beside it.
struct staged_rows {
    const tensor_map* map;
    int rows, lines;  // and lines of 128 bytes of a row
    int width, step;  // rows of a tile; lines of a row in a stage
    int together;     // rows of a stage
    bool apart;       // each line is a copy of its own: the last one is shorter
    const tensor_map* beside = nullptr;
    int beside_words = 0;  // of a row in a stage, behind all lines
};

// The slot of the next stage, and the parity of its phase.
struct ring_place {
    int slot;
    unsigned parity;
};

// The constants that all rings have in common.
struct ring {
    // A stage: so many bytes of neighbouring rows, eight of them or as many as a product says, the first
    // line of 128 bytes of each, then the next ones, swizzled, so that the same vectors of eight rows
    // are in different banks.
    static constexpr int rows = 8, piece = 2048, line = 128;

    // Where a vector of 16 bytes of a row is in a stage.
    template <int Rows = rows>
    static constexpr int offset(int row, int vector) {
        return vector / 8 * line * Rows + row * line + ((vector ^ row) & 7) * 16;
    }

    // From the offset of a vector that is the first of four, or of eight, that of one so many behind it.
    template <int Rows = rows>
    static constexpr int further(int offset, int vectors) {
        return (offset ^ vectors % 8 * 16) + vectors / 8 * line * Rows;
    }

    // Warps that read a stage; so many groups of them read as many stages at a time. To wait for a
    // stage takes as long as to multiply much of it.
    static constexpr int sharing = 4, groups = computing / 32 / sharing;
};

// A ring: each thread has its own. Functions that are called get a copy, and return the place behind
// what they have read: what no function has the address of is in registers.
//
// All but its place are constants of the code of a segment, the fields of the ring's form:
//     memory()           the shared memory of the block
//     barriers, begin    bytes of it before the barriers, and before the first slot
//     count, bytes       slots, and bytes of each
//     ahead              stages under way, at most: more of them delay every other access to memory
//     spare              empty slots with no more of which one stage is under way: there is no hurry
//     scarce             with more, one more than `ahead`
//     drained            with more, two more: the block is about to wait
template <class Form>
struct ring_of : ring {
    static constexpr int count = Form::count;

    int slot = 0;
    unsigned parity = 0;

    // The barriers at which stages arrive, and those at which slots are empty again.
    static phased_barrier* arrived() { return (phased_barrier*)(Form::memory() + Form::barriers); }
    static phased_barrier* emptied() { return arrived() + count; }

    // Starts the barriers: called by one thread, before all others use them.
    static void start() {
        for (int i = 0; i < count; i++) {
            barrier_start(arrived() + i, 1);
            barrier_start(emptied() + i, sharing);
        }
        barriers_started();
    }

    void advance(int stages = 1) {
#pragma unroll 1
        for (; stages > count; stages -= count) parity ^= 1;
        slot += stages;
        const bool wraps = slot >= count;
        slot -= wraps ? count : 0;
        parity ^= wraps;
    }

    // Whether so many stages may be held at a time: others are on their way behind them.
    static constexpr bool has_room_for(int stages) { return stages <= count / 2; }

    ring_place here() const { return {slot, parity}; }
    void go_to(ring_place next) { slot = next.slot, parity = next.parity; }

    // The next stage, once it has arrived.
    const unsigned char* await() {
        barrier_wait(arrived() + slot, parity);
        __syncwarp();
        return memory();
    }

    // Called by each of the warps that have read the stage.
    void release() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(emptied() + slot);
    }

    // Whether more than so many slots are empty, where the next one is; of all of them, no.
    bool empty_beyond(int many) const {
        const bool wraps = slot + many >= count;
        phased_barrier* const later = emptied() + slot + many - (wraps ? count : 0);
        return barrier_passed<false>(later, wraps ? parity : parity ^ 1);
    }

    // Stages that may be under way, once the next one is.
    int under_way() const {
        if (Form::spare > 0 && !empty_beyond(Form::spare)) return 1;
        if (Form::scarce >= count || !empty_beyond(Form::scarce)) return Form::ahead;
        return Form::ahead + (Form::drained < count && empty_beyond(Form::drained) ? 2 : 1);
    }

    // The barrier at which the last stage arrives that has to before one more is under way, and the
    // parity of its phase.
    phased_barrier* earlier(unsigned& its_parity) const {
        const int most = under_way();
        const bool wrapped = slot < most;
        its_parity = wrapped ? parity ^ 1 : parity;
        return arrived() + (wrapped ? slot + count - most : slot - most);
    }

    // Fills slots with the stages of a block's tiles: called by the only thread that does.
    void fetch(place own, place all, const staged_rows& those) {
        const unsigned long long policy = read_once();
        const int lines = those.together * line, bytes = those.step * lines;
        const int all_bytes = bytes + 4 * those.together * those.beside_words;
#pragma unroll 1
        for (int first = own.x * those.width; first < those.rows; first += all.x * those.width) {
            const int last = min(first + those.width, those.rows);
            int beside = 0;
#pragma unroll 1
            for (int number = 0; number < those.lines; number += those.step) {
#pragma unroll 1
                for (int row = first; row < last; row += those.together) {
                    unsigned char* const to = next_slot(all_bytes);
                    phased_barrier* const barrier = arrived() + slot;
                    if (!those.apart) copy_tensor(to, those.map, 0, row, number, barrier, policy);
                    else
                        for (int i = 0; i < those.step; i++)
                            copy_tensor(
                                to + i * lines, those.map, (number + i) * 32, row, 0, barrier, policy
                            );
                    if (those.beside_words > 0)
                        copy_tensor(to + bytes, those.beside, beside, row, 0, barrier, policy);
                    advance();
                }
                beside += those.beside_words;
            }
        }
    }

    // The same with a stage of so many bytes.
    void fetch_bytes(const void* from, unsigned bytes) {
        unsigned char* const to = next_slot(bytes);
        copy_bulk(to, from, bytes, arrived() + slot, read_once());
        advance();
    }

   private:
    // The memory of the slot.
    unsigned char* memory() const { return Form::memory() + Form::begin + slot * Form::bytes; }

    // The next slot, once it is empty and a further stage may be under way: one of so many bytes.
    unsigned char* next_slot(unsigned bytes_under_way) {
        barrier_wait(emptied() + slot, parity ^ 1);
        unsigned its_parity;
        phased_barrier* const before = earlier(its_parity);
        barrier_wait(before, its_parity);
        barrier_expect(arrived() + slot, bytes_under_way);
        return memory();
    }
};

static_assert(
    ring::offset(5, 11) == swizzled(13 * ring::line + 3 * 16) &&
        ring::offset<16>(13, 11) == swizzled(29 * ring::line + 3 * 16),
    "where copies bring vectors"
);

}  // namespace ost
