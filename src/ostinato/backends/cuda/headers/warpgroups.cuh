// Products of matrices in shared memory by the tensor cores of a group of four warps.
#pragma once
#include "packs.cuh"
#include "products.cuh"

namespace ost {

// Matrices are in panels of 64 elements, 128 bytes, a line: its chunks of 16 bytes are swapped by
// the number of the line, so that a column of chunks lies in different banks. The first line of a
// panel is at a multiple of 1024 bytes. A panel is along the products of a sum, with a line for each
// row of the left operand or column of the right one; or along columns, with a line for each product.

// Elements of a line.
constexpr int panel = 64;

// The place of an element.
inline int in_panel(int line, int place) { return line * panel + (place ^ line % 8 * 8); }

// A matrix in panels, as tensor cores read it.
struct panels {
#ifdef __CUDA_ARCH__
    unsigned low;

    // The first line of the first panel; `apart`: elements from there to the next panel's.
    panels(const unsigned short* first, int apart)
        : low((unsigned)__cvta_generic_to_shared(first) >> 4 & 0x3FFF | (unsigned)(apart / 8) << 16) {}

    // The matrix from an element of its first line on, or from another line on.
    panels operator+(int elements) const {
        panels rest = *this;
        rest.low += elements / 8;
        return rest;
    }

    // What instructions take: groups of eight lines are 1024 bytes apart.
    unsigned long long description() const { return low | 64ull << 32 | 1ull << 62; }
#else
    const unsigned short* first;
    int apart, place = 0;

    panels(const unsigned short* first, int apart) : first(first), apart(apart) {}
    panels operator+(int elements) const {
        panels rest = *this;
        rest.first += elements / panel * panel;
        rest.place += elements % panel;
        return rest;
    }
    // A chunk: of the line of a row or column, from a product on; of one product, from a column on.
    typedef pack<unsigned short, 8> chunk;
    chunk in_line(int line, int k) const { return chunk::load(first + in_panel(line, place + k)); }
    chunk in_column(int column, int k) const {
        return chunk::load(first + column / panel * apart + in_panel(k, column % panel));
    }
#endif
};

// Makes what this thread has written to shared memory visible to the tensor cores' own reads.
inline void show_to_tensor_cores() {
#ifdef __CUDA_ARCH__
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// A barrier of the four warps of a group, behind which its products read what they have written to
// shared memory.
inline void group_sync() {
#ifdef __CUDA_ARCH__
    asm volatile("bar.sync %0, 128;" ::"r"(threadIdx.x / 128 + 1) : "memory");
#else
    __syncwarp();  // each warp reads its own rows
#endif
}

// The registers of the threads of this group from here on: more of them, which others have given
// back, or fewer. A multiple of eight.
template <int Count>
inline void take_registers() {
#ifdef __CUDA_ARCH__
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}
template <int Count>
inline void give_registers() {
#ifdef __CUDA_ARCH__
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}

// Begins products whose sums this thread has read or written.
inline void group_begin() {
#ifdef __CUDA_ARCH__
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Ends a batch of products.
inline void group_commit() {
#ifdef __CUDA_ARCH__
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most N batches of products are under way.
template <int N>
inline void group_wait() {
#ifdef __CUDA_ARCH__
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

// Keeps what is done with registers in front of `group_begin` or behind `group_wait`, where this
// stands between them.
inline void group_registers(float& sum) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+f"(sum)::"memory");
#endif
}
inline void group_registers(unsigned& pair) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(pair)::"memory");
#endif
}
template <class T, int Count>
inline void group_registers(T (&held)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; i++) group_registers(held[i]);
}

#ifdef __CUDA_ARCH__
// The registers of the sums of so many columns, and the operands that they are.
#define OST_SUMS_64                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OST_SUMS_128                                                                               \
    OST_SUMS_64 ", "                                                                               \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OST_SUMS_192                                                                               \
    OST_SUMS_128 ", "                                                                              \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OST_SUMS_256                                                                               \
    OST_SUMS_192 ", "                                                                              \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define OST_TILE(J) "+f"(sums[J][0]), "+f"(sums[J][1]), "+f"(sums[J][2]), "+f"(sums[J][3])
#define OST_TILES(J)                                                                               \
    OST_TILE(J), OST_TILE(J + 1), OST_TILE(J + 2), OST_TILE(J + 3),                                \
    OST_TILE(J + 4), OST_TILE(J + 5), OST_TILE(J + 6), OST_TILE(J + 7)
#define OST_TILES_64 OST_TILES(0)
#define OST_TILES_128 OST_TILES_64, OST_TILES(8)
#define OST_TILES_192 OST_TILES_128, OST_TILES(16)
#define OST_TILES_256 OST_TILES_192, OST_TILES(24)
#define OST_GROUP(COLUMNS, NAME, LEFT, RIGHT, ADDS, BY_ROWS, ...)                                  \
    asm volatile(                                                                                  \
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, " ADDS ", 0;\n"                                    \
        "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME                      \
        " {" OST_SUMS_##COLUMNS "}, " LEFT ", " RIGHT ", adds, 1, 1, " BY_ROWS ";\n}"              \
        : OST_TILES_##COLUMNS                                                                      \
        : __VA_ARGS__, "n"(Adds), "n"(ByRows))
// The left operand in shared memory, and in registers.
#define OST_MEMORY(COLUMNS, FORMAT, NAME, LEFT, RIGHT, ADDS, BY_ROWS)                              \
    template <bool ByRows, bool Adds>                                                              \
    inline void multiply_panels(                                                                   \
        float (&sums)[COLUMNS / 8][4], unsigned long long a, unsigned long long b, FORMAT          \
    ) {                                                                                            \
        OST_GROUP(COLUMNS, NAME, LEFT, RIGHT, ADDS, "0, " BY_ROWS, "l"(a), "l"(b));                \
    }
#define OST_REGISTERS(COLUMNS, FORMAT, NAME, LEFT, RIGHT, ADDS, BY_ROWS)                           \
    template <bool ByRows, bool Adds>                                                              \
    inline void multiply_panels(                                                                   \
        float (&sums)[COLUMNS / 8][4], const unsigned (&a)[4], unsigned long long b, FORMAT        \
    ) {                                                                                            \
        OST_GROUP(                                                                                 \
            COLUMNS, NAME, LEFT, RIGHT, ADDS, BY_ROWS,                                             \
            "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                                     \
        );                                                                                         \
    }
#define OST_FORMAT(FORMAT, NAME)                                                                   \
    OST_MEMORY(64, FORMAT, NAME, "%32", "%33", "%34", "%35")                                       \
    OST_MEMORY(128, FORMAT, NAME, "%64", "%65", "%66", "%67")                                      \
    OST_MEMORY(192, FORMAT, NAME, "%96", "%97", "%98", "%99")                                      \
    OST_MEMORY(256, FORMAT, NAME, "%128", "%129", "%130", "%131")                                  \
    OST_REGISTERS(64, FORMAT, NAME, "{%32, %33, %34, %35}", "%36", "%37", "%38")                   \
    OST_REGISTERS(128, FORMAT, NAME, "{%64, %65, %66, %67}", "%68", "%69", "%70")
OST_FORMAT(float16_format, "f16")
OST_FORMAT(bfloat16_format, "bf16")
#undef OST_FORMAT
#undef OST_REGISTERS
#undef OST_MEMORY
#undef OST_GROUP
#undef OST_TILES_256
#undef OST_TILES_192
#undef OST_TILES_128
#undef OST_TILES_64
#undef OST_TILES
#undef OST_TILE
#undef OST_SUMS_256
#undef OST_SUMS_192
#undef OST_SUMS_128
#undef OST_SUMS_64
#endif

#ifndef __CUDA_ARCH__
// Adds the products of two rows of 16 elements and of the lane's columns to its sums.
template <bool ByRows, int Tiles, class Format>
inline void multiply_rows(
    float (&sums)[Tiles][4], const float (&rows)[2][16], panels right, Format
) {
    const int place = threadIdx.x % 4 * 2;
    for (int j = 0; j < Tiles; j++) {
        float columns[2][16];
        for (int i = 0; i < 16 && ByRows; i++) {
            const panels::chunk chunk = right.in_column(j * 8, i);
            for (int e = 0; e < 2; e++) columns[e][i] = Format::value(chunk.at[place + e]);
        }
        for (int e = 0; e < 2 && !ByRows; e++)
            for (int k = 0; k < 16; k += 8) {
                const panels::chunk chunk = right.in_line(j * 8 + place + e, k);
                for (int i = 0; i < 8; i++) columns[e][k + i] = Format::value(chunk.at[i]);
            }
        for (int half = 0; half < 2; half++)
            for (int e = 0; e < 2; e++)
                for (int i = 0; i < 16; i++) {
                    float& sum = sums[j][2 * half + e];
                    sum = fmaf(rows[half][i], columns[e][i], sum);
                }
    }
}
#endif

// Adds the product of 64 rows of 16 elements and 16 rows of 8 `Tiles` columns to the group's sums;
// each warp has 16 rows, and each tile is as `multiply_tiles` has it. The group goes on meanwhile.
// Unless it `Adds`, the product takes the place of the sums. `ByRows`: the right panels have a line
// for each product, not for each column.
template <bool ByRows, bool Adds = true, int Tiles, class Format>
inline void multiply_group(float (&sums)[Tiles][4], panels left, panels right, Format format) {
#ifdef __CUDA_ARCH__
    multiply_panels<ByRows, Adds>(sums, left.description(), right.description(), format);
#else
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    for (int j = 0; j < Tiles && !Adds; j++) {
        for (int e = 0; e < 4; e++) sums[j][e] = 0;
    }
    float rows[2][16];
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 16; k += 8) {
            const panels::chunk chunk = left.in_line(row + 8 * half, k);
            for (int i = 0; i < 8; i++) rows[half][k + i] = Format::value(chunk.at[i]);
        }
    multiply_rows<ByRows>(sums, rows, right, format);
#endif
}

// The same with the rows in registers, as `multiply_tiles` has them.
template <bool ByRows, bool Adds = true, int Tiles, class Format>
inline void multiply_group(
    float (&sums)[Tiles][4], const unsigned (&left)[4], panels right, Format format
) {
#ifdef __CUDA_ARCH__
    multiply_panels<ByRows, Adds>(sums, left, right.description(), format);
#else
    const int lane = threadIdx.x % 32;
    for (int j = 0; j < Tiles && !Adds; j++) {
        for (int e = 0; e < 4; e++) sums[j][e] = 0;
    }
    float rows[2][16];
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 16; i += 2) {
            const unsigned pair =
                __shfl_sync(0xFFFFFFFFu, left[i / 8 * 2 + half], lane / 4 * 4 + i % 8 / 2);
            rows[half][i] = Format::value(pair & 0xFFFFu);
            rows[half][i + 1] = Format::value(pair >> 16);
        }
    multiply_rows<ByRows>(sums, rows, right, format);
#endif
}

}  // namespace ost
