// Copies into shared memory that one thread asks for: of bytes, and of parts of a matrix.
#pragma once
#include "barriers.cuh"

namespace ost {

// How the cache treats what is read once: it is the first to leave.
inline unsigned long long read_once() {
    unsigned long long policy = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
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

// Where the byte at an offset is, as swizzled copies write it.
constexpr int swizzled(int offset) { return offset ^ (offset >> 7 & 7) << 4; }

// A matrix in memory as copies see it: rows of so many words of four bytes, and, where they are divided
// into lines of 128 bytes, these at a depth of their own. `TensorMap` of the runtime has the fields;
// for a GPU, the driver encodes them.
#ifdef __CUDA_ARCH__
struct alignas(64) tensor_map {
    unsigned char encoded[128];
};
#else
struct tensor_map {
    const void* from;
    int words, rows, depth, row_bytes;
    int copied_words, copied_rows, copied_depth;
    bool swizzled;
};
#endif

// Those that a kernel is given.
template <int Count>
struct tensor_maps {
    tensor_map of[Count];
};

// Copies what is at a word, a row and a depth, and as much behind each as the map says: word by word,
// row by row, and so for each depth. What is beyond the matrix becomes zeros. Swizzled: `to` is a
// multiple of 1024 bytes, copied rows have 128, and vectors of 16 bytes are exchanged within a row:
// bits 4 to 6 of an offset are changed where bits 7 to 9 are set.
inline void copy_tensor(
    void* to, const tensor_map* map, int word, int row, int depth, phased_barrier* barrier,
    unsigned long long policy
) {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(word), "r"(row), "r"(depth), "l"(policy)
        : "memory"
    );
#endif
#else
    static const unsigned char zeros[16] = {};
    const unsigned char* const first = (const unsigned char*)map->from;
    int at = 0;
    for (int z = depth; z < depth + map->copied_depth; z++)
        for (int y = row; y < row + map->copied_rows; y++)
            for (int x = word; x < word + map->copied_words; x += 4, at += 16) {
                unsigned char* const vector = (unsigned char*)to + (map->swizzled ? swizzled(at) : at);
                const bool inside = x < map->words && y < map->rows && z < map->depth;
                const unsigned char* const from =
                    first + (long long)y * map->row_bytes + z * 128 + x * 4;
                __pipeline_memcpy_async(vector, inside ? from : zeros, 16);
            }
    atomicAdd(&barrier->words[1], 0u - at * 1024u);
#endif
}

}  // namespace ost
