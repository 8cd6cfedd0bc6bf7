// Clusters of neighbouring blocks, which write to each other's shared memory, and what groups of warps
// in them multiply: weights that one copy brings to all blocks.
#pragma once
#include "rings.cuh"
#include "warpgroups.cuh"

namespace ost {

// Clusters ----------------------------------------------------------------------------------------

// Blocks of a cluster that are there: a host runs each block alone.
#ifdef __CUDA_ARCH__
template <int Blocks>
constexpr int blocks_at_once = Blocks;
#else
template <int Blocks>
constexpr int blocks_at_once = 1;
#endif

// Waits for all threads of a cluster.
template <int Blocks>
inline void cluster_sync() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (Blocks > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                         : "memory");
        return;
    }
#endif
    OST_SYNC();
}

// Arrives at the same barrier of each block: called by a warp.
template <int Blocks>
inline void arrive_everywhere(phased_barrier* barrier) {
    __syncwarp();
    const int lane = threadIdx.x % 32;
    if constexpr (blocks_at_once<Blocks> == 1) {
        if (lane == 0) barrier_arrive(barrier);
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    else if (lane < Blocks) {
        asm volatile(
            "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }" ::"r"(
                shared_address(barrier)
            ),
            "r"(lane)
            : "memory"
        );
    }
#endif
}

// Waits until a phase has ended at which other blocks arrive, too.
template <int Blocks>
inline void wait_for_cluster(phased_barrier* barrier, unsigned parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (Blocks > 1) {
        unsigned passed = 0, polls = 0;
        while (!passed) {
            asm volatile(
                "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                "selp.u32 %0, 1, 0, p; }"
                : "=r"(passed)
                : "r"(shared_address(barrier)), "r"(parity)
                : "memory"
            );
            if (++polls == 1u << 24) waited_in_vain("weights");
        }
        return;
    }
#endif
    barrier_wait(barrier, parity);
}

// A block's share of a copy that all blocks of a cluster get; it arrives at the same barrier of each.
template <int Blocks>
inline void copy_everywhere(
    unsigned char* to, const unsigned char* from, unsigned bytes, phased_barrier* barrier, unsigned rank
) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (Blocks > 1) {
        const unsigned share = bytes / Blocks;
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to) + rank * share),
            "l"(from + rank * share), "r"(share), "r"(shared_address(barrier)),
            "h"((unsigned short)((1 << Blocks) - 1))
            : "memory"
        );
        return;
    }
#endif
    copy_bulk(to, from, bytes, barrier);
}

// As `copy_async`, for threads that wait at a barrier in shared memory.
inline void copy_chunk(unsigned short* to, const unsigned short* from, bool inside) {
#ifdef __CUDA_ARCH__
    copy_async(to, from, inside);
#else
    static const unsigned short none[8] = {};
    __pipeline_memcpy_async(to, inside ? from : none, sizeof none);
#endif
}

// The registers of each thread of a group of warps, from here on.
template <int Count>
inline void take_registers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}
template <int Count>
inline void leave_registers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}

// Products ----------------------------------------------------------------------------------------

#ifdef __CUDA_ARCH__
#define OST_4(J) "+f"(sums[J][0]), "+f"(sums[J][1]), "+f"(sums[J][2]), "+f"(sums[J][3])
#define OST_16(J) OST_4(J), OST_4(J + 1), OST_4(J + 2), OST_4(J + 3)
#define OST_64(J) OST_16(J), OST_16(J + 4), OST_16(J + 8), OST_16(J + 12)
#define OST_SUMS_64                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "   \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "   \
    "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "   \
    "%56, %57, %58, %59, %60, %61, %62, %63"
#define OST_SUMS_96                                                                                \
    OST_SUMS_64                                                                                    \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
    "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OST_SUMS_128                                                                               \
    OST_SUMS_96                                                                                    \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "   \
    "%126, %127"
#define OST_WIDE(FORMAT, NAME, TILES, COLUMNS, SUMS, LIST, A, B, ADDS)                             \
    inline void multiply_wide(                                                                     \
        float (&sums)[TILES][4], unsigned long long a, unsigned long long b, int adds, FORMAT      \
    ) {                                                                                            \
        asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " ADDS ", 0;\n"                       \
                     "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." NAME "." NAME " {" SUMS \
                     "}, " A ", " B ", adds, 1, 1, 0, 0;\n}"                                       \
                     : LIST                                                                        \
                     : "l"(a), "l"(b), "r"(adds));                                                 \
    }
#define OST_WIDES(FORMAT, NAME)                                                                    \
    OST_WIDE(FORMAT, NAME, 16, "128", OST_SUMS_64, OST_64(0), "%64", "%65", "%66")                 \
    OST_WIDE(                                                                                      \
        FORMAT, NAME, 24, "192", OST_SUMS_96, OST_64(0) COMMA OST_16(16) COMMA OST_16(20), "%96",  \
        "%97", "%98"                                                                               \
    )                                                                                              \
    OST_WIDE(                                                                                      \
        FORMAT, NAME, 32, "256", OST_SUMS_128, OST_64(0) COMMA OST_64(16), "%128", "%129", "%130"  \
    )
#define COMMA ,
OST_WIDES(float16_format, "f16")
OST_WIDES(bfloat16_format, "bf16")
#undef COMMA
#undef OST_WIDES
#undef OST_WIDE
#undef OST_SUMS_128
#undef OST_SUMS_96
#undef OST_SUMS_64
#undef OST_64
#undef OST_16
#undef OST_4
#endif

// As `multiply_group` has it, but that the right operand is in chunks of eight products of a column:
// those of all columns are side by side, and the next eight of all columns behind them. Unless `adds`,
// the product takes the place of the sums.
template <int Tiles, class Format>
inline void multiply_chunks(
    float (&sums)[Tiles][4], const unsigned short* left, const unsigned short* right, int k, bool adds,
    Format format
) {
    constexpr int chunks = 8 * Tiles * 8;
#ifdef __CUDA_ARCH__
    const unsigned address = (unsigned)__cvta_generic_to_shared(right + k / 8 * chunks);
    const unsigned long long b = (unsigned long long)(address >> 4 & 0x3FFF)
        | (unsigned long long)(chunks / 8) << 16 | 8ull << 32;
    multiply_wide(sums, panels_at(left + k, 0), b, adds, format);
#else
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    for (int j = 0; j < Tiles; j++) {
        for (int e = 0; e < 4; e++) {
            const int row = warp * 16 + lane / 4 + e / 2 * 8, column = j * 8 + lane % 4 * 2 + e % 2;
            if (!adds) sums[j][e] = 0;
            for (int i = k; i < k + 16; i++) {
                const float x = Format::value(left[in_panel(row, i)]);
                const float y = Format::value(right[i / 8 * chunks + column * 8 + i % 8]);
                sums[j][e] = fmaf(x, y, sums[j][e]);
            }
        }
    }
#endif
}

}  // namespace ost
