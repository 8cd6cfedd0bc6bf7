// A ring of slots in shared memory, through which some warps of a block bring the rows of matrices
// to all others: bulk copies that run ahead, across the barriers of those who wait for them.
#pragma once
#include "barriers.cuh"
#include "segments.cuh"
#include "stamps.cuh"

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

}  // namespace ost
