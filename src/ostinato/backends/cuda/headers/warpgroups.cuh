// Products of matrices in shared memory by the tensor cores of a group of four warps.
#pragma once
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
    // An element of a product: of the line of a row or column, and of the line of the product.
    unsigned short in_line(int line, int k) const { return first[in_panel(line, place + k)]; }
    unsigned short in_column(int column, int k) const {
        return first[column / panel * apart + in_panel(k, column % panel)];
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
#define OST_ROWS(A) "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3])
#define OST_TILE(J) "+f"(sums[J][0]), "+f"(sums[J][1]), "+f"(sums[J][2]), "+f"(sums[J][3])
#define OST_GROUP_64(FORMAT, ADDS, OPERANDS, ...)                                                  \
    asm volatile(                                                                                  \
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, " ADDS ", 0;\n"                                    \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." FORMAT "." FORMAT " {"                       \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                   \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "                   \
        "%30, %31"                                                                                 \
        "}, " OPERANDS ";\n}"                                                                      \
        : OST_TILE(0), OST_TILE(1), OST_TILE(2), OST_TILE(3),                                      \
          OST_TILE(4), OST_TILE(5), OST_TILE(6), OST_TILE(7)                                       \
        : __VA_ARGS__)
#define OST_GROUP_128(FORMAT, ADDS, OPERANDS, ...)                                                 \
    asm volatile(                                                                                  \
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, " ADDS ", 0;\n"                                    \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." FORMAT "." FORMAT " {"                      \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                   \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "                   \
        "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "                   \
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "                   \
        "%58, %59, %60, %61, %62, %63"                                                             \
        "}, " OPERANDS ";\n}"                                                                      \
        : OST_TILE(0), OST_TILE(1), OST_TILE(2), OST_TILE(3),                                      \
          OST_TILE(4), OST_TILE(5), OST_TILE(6), OST_TILE(7),                                      \
          OST_TILE(8), OST_TILE(9), OST_TILE(10), OST_TILE(11),                                    \
          OST_TILE(12), OST_TILE(13), OST_TILE(14), OST_TILE(15)                                   \
        : __VA_ARGS__)
#define OST_GROUP_192(FORMAT, ADDS, OPERANDS, ...)                                                 \
    asm volatile(                                                                                  \
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, " ADDS ", 0;\n"                                    \
        "wgmma.mma_async.sync.aligned.m64n192k16.f32." FORMAT "." FORMAT " {"                      \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                   \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "                   \
        "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "                   \
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "                   \
        "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "                   \
        "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "                   \
        "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95"                                         \
        "}, " OPERANDS ";\n}"                                                                      \
        : OST_TILE(0), OST_TILE(1), OST_TILE(2), OST_TILE(3),                                      \
          OST_TILE(4), OST_TILE(5), OST_TILE(6), OST_TILE(7),                                      \
          OST_TILE(8), OST_TILE(9), OST_TILE(10), OST_TILE(11),                                    \
          OST_TILE(12), OST_TILE(13), OST_TILE(14), OST_TILE(15),                                  \
          OST_TILE(16), OST_TILE(17), OST_TILE(18), OST_TILE(19),                                  \
          OST_TILE(20), OST_TILE(21), OST_TILE(22), OST_TILE(23)                                   \
        : __VA_ARGS__)
#define OST_ROWS_64 "{%32, %33, %34, %35}, %36, adds, 1, 1"
#define OST_ROWS_128 "{%64, %65, %66, %67}, %68, adds, 1, 1"
#define OST_GROUP(FORMAT, NAME)                                                                    \
    template <bool ByRows, bool Adds>                                                              \
    inline void multiply_panels(                                                                   \
        float (&sums)[8][4], unsigned long long a, unsigned long long b, FORMAT                    \
    ) {                                                                                            \
        if constexpr (ByRows)                                                                      \
            OST_GROUP_64(NAME, "%34", "%32, %33, adds, 1, 1, 0, 1", "l"(a), "l"(b), "n"(Adds));    \
        else OST_GROUP_64(NAME, "%34", "%32, %33, adds, 1, 1, 0, 0", "l"(a), "l"(b), "n"(Adds));   \
    }                                                                                              \
    template <bool ByRows, bool Adds>                                                              \
    inline void multiply_panels(                                                                   \
        float (&sums)[16][4], unsigned long long a, unsigned long long b, FORMAT                   \
    ) {                                                                                            \
        if constexpr (ByRows)                                                                      \
            OST_GROUP_128(NAME, "%66", "%64, %65, adds, 1, 1, 0, 1", "l"(a), "l"(b), "n"(Adds));   \
        else OST_GROUP_128(NAME, "%66", "%64, %65, adds, 1, 1, 0, 0", "l"(a), "l"(b), "n"(Adds));  \
    }                                                                                              \
    template <bool ByRows, bool Adds>                                                              \
    inline void multiply_panels(                                                                   \
        float (&sums)[24][4], unsigned long long a, unsigned long long b, FORMAT                   \
    ) {                                                                                            \
        if constexpr (ByRows)                                                                      \
            OST_GROUP_192(NAME, "%98", "%96, %97, adds, 1, 1, 0, 1", "l"(a), "l"(b), "n"(Adds));   \
        else OST_GROUP_192(NAME, "%98", "%96, %97, adds, 1, 1, 0, 0", "l"(a), "l"(b), "n"(Adds));  \
    }                                                                                              \
    template <bool ByRows, bool Adds>                                                              \
    inline void multiply_panels(                                                                   \
        float (&sums)[8][4], const unsigned (&a)[4], unsigned long long b, FORMAT                  \
    ) {                                                                                            \
        if constexpr (ByRows)                                                                      \
            OST_GROUP_64(NAME, "%37", OST_ROWS_64 ", 1", OST_ROWS(a), "l"(b), "n"(Adds));          \
        else OST_GROUP_64(NAME, "%37", OST_ROWS_64 ", 0", OST_ROWS(a), "l"(b), "n"(Adds));         \
    }                                                                                              \
    template <bool ByRows, bool Adds>                                                              \
    inline void multiply_panels(                                                                   \
        float (&sums)[16][4], const unsigned (&a)[4], unsigned long long b, FORMAT                 \
    ) {                                                                                            \
        if constexpr (ByRows)                                                                      \
            OST_GROUP_128(NAME, "%69", OST_ROWS_128 ", 1", OST_ROWS(a), "l"(b), "n"(Adds));        \
        else OST_GROUP_128(NAME, "%69", OST_ROWS_128 ", 0", OST_ROWS(a), "l"(b), "n"(Adds));       \
    }
OST_GROUP(float16_format, "f16")
OST_GROUP(bfloat16_format, "bf16")
#undef OST_GROUP
#undef OST_GROUP_64
#undef OST_GROUP_128
#undef OST_GROUP_192
#undef OST_TILE
#undef OST_ROWS
#undef OST_ROWS_64
#undef OST_ROWS_128
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
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    for (int j = 0; j < Tiles; j++) {
        for (int e = 0; e < 4; e++) {
            const int row = warp * 16 + lane / 4 + e / 2 * 8, column = j * 8 + lane % 4 * 2 + e % 2;
            if (!Adds) sums[j][e] = 0;
            for (int i = 0; i < 16; i++) {
                const float x = Format::value(left.in_line(row, i));
                const float y =
                    Format::value(ByRows ? right.in_column(column, i) : right.in_line(column, i));
                sums[j][e] = fmaf(x, y, sums[j][e]);
            }
        }
    }
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
    for (int i = 0; i < 16; i++) {
        for (int half = 0; half < 2; half++) {
            const unsigned pair =
                __shfl_sync(0xFFFFFFFFu, left[i / 8 * 2 + half], lane / 4 * 4 + i % 8 / 2);
            const float x = Format::value(pair >> i % 2 * 16 & 0xFFFFu);
            for (int j = 0; j < Tiles; j++) {
                for (int e = 0; e < 2; e++) {
                    const int column = j * 8 + lane % 4 * 2 + e;
                    const float y =
                        Format::value(ByRows ? right.in_column(column, i) : right.in_line(column, i));
                    sums[j][2 * half + e] = fmaf(x, y, sums[j][2 * half + e]);
                }
            }
        }
    }
#endif
}

}  // namespace ost
