// Kernels that are parts of a larger one: their places in its grid, and barriers of the whole grid.
#pragma once
#include "base.cuh"
#include "stamps.cuh"

namespace ost {

// Brings a line of 128 bytes into the cache that all multiprocessors share.
inline void prefetch_line(const void* from) {
#ifdef __CUDA_ARCH__
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#endif
}

// The same of so many bytes: called by so many threads, each with its number among them.
inline void prefetch(const void* from, int bytes, int number, int threads) {
    for (int i = number * 128; i < bytes; i += threads * 128)
        prefetch_line((const unsigned char*)from + i);
}

// Copies so many bytes from and to multiples of four: called like `prefetch`.
inline void copy_bytes(void* to, const void* from, int bytes, int number, int threads) {
    for (int i = number; i < bytes / 4; i += threads) ((unsigned*)to)[i] = ((const unsigned*)from)[i];
    for (int i = bytes / 4 * 4 + number; i < bytes; i += threads)
        ((unsigned char*)to)[i] = ((const unsigned char*)from)[i];
}

// Copies so many vectors of 16 bytes: called by all threads of a block, of which there are so many.
template <int Count, int Threads>
inline void copy_vectors(void* to, const void* from) {
    struct alignas(16) part {
        unsigned words[4];
    };
#pragma unroll 4
    for (int i = threadIdx.x; i < Count; i += Threads) ((part*)to)[i] = ((const part*)from)[i];
}

// Puts the place of this block in a part into its record: `record` has the number of the blocks that
// share the part, of those that have work (0: each has all of it for itself), the first of them, and
// how many have work. The first two become the blocks that share it, and the number of this one
// among them, counted from the first; where each has all of the work, 0 for those that have any.
inline void find_place(unsigned short* record) {
    const unsigned working = record[0], from = record[1] % gridDim.x, those = record[2];
    const unsigned own = blockIdx.x >= from ? blockIdx.x - from : blockIdx.x + gridDim.x - from;
    const unsigned all = working == 0 ? 1 : gridDim.x < working ? gridDim.x : working;
    record[0] = (unsigned short)all;
    record[1] = (unsigned short)(working == 0 ? own >= those : own);
}

// Kernels have all the blocks that parts were given; only an emulator runs fewer. So numbers of them
// are constants of a kernel's code, and need no registers.

// The blocks that share a part, of those that have work.
inline unsigned sharing(unsigned working) {
#ifdef __CUDA_ARCH__
    return working;
#else
    return gridDim.x < working ? gridDim.x : working;
#endif
}

// The number of a block counted from the first one of a part.
inline unsigned counted_from(unsigned first, unsigned block) {
#ifdef __CUDA_ARCH__
    return block >= first ? block - first : block + gridDim.x - first;
#else
    return (block + (first / gridDim.x + 1) * gridDim.x - first) % gridDim.x;
#endif
}

// Where blocks take numbers by turns: the first one of a block from that many on, counted from there.
// Of blocks that are more than all numbers, one without any finds one behind them.
inline unsigned counted_on(place own, place all, unsigned before) {
    const unsigned behind = before % all.x;
    return own.x >= behind ? own.x - behind : own.x + all.x - behind;
}

// A pointer into global memory, as the compiler may take it for.
inline const void* in_global_memory(const void* pointer) {
#ifdef __CUDA_ARCH__
    __builtin_assume(__isGlobal(pointer));
#endif
    return pointer;
}

// A number of which the compiler knows nothing: what follows from it is computed here, and not kept
// from before.
inline int opaque(int number) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(number));
#endif
    return number;
}

// Waits until as many blocks have arrived as are awaited. What any block wrote before it arrived is
// seen by every block that waited for it.
static OST_APART void arrive_and_wait(unsigned* arrived, unsigned awaited) {
    OST_SYNC();
    if (threadIdx.x == 0) {
#ifdef __CUDA_ARCH__
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
#else
        __atomic_fetch_add(arrived, 1u, __ATOMIC_RELEASE);
#endif
        const waiting timed(&waits::values);
        unsigned found = 0, polls = 0;
        do {
#ifdef __CUDA_ARCH__
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(arrived) : "memory");
#else
            found = __atomic_load_n(arrived, __ATOMIC_ACQUIRE);
#endif
            looked(found >= awaited, polls, "other blocks");
        } while (found < awaited);
    }
    OST_SYNC();
}

// The last block to arrive leaves the count at 0, for the next kernel.
static OST_APART void arrive_last(unsigned* arrived, unsigned awaited) {
    OST_SYNC();
    if (threadIdx.x == 0 && atomicAdd(arrived, 1u) == awaited - 1) atomicExch(arrived, 0u);
}

}  // namespace ost
