/* The interface between the emulator's engine, the kernels and Python. */
#ifndef EMU_ENGINE_H
#define EMU_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EMU_DYNAMIC_SHARED (228 << 10)

struct emu_index {
    unsigned x, y, z;
};

extern struct emu_state {
    struct emu_index thread, block, block_size, grid_size;
} emu_state;

extern unsigned char emu_dynamic_shared[EMU_DYNAMIC_SHARED];

enum { EMU_WRITTEN = 1, EMU_UNSET = 2, EMU_SHARED = 4 };

/* Memory that a launch may touch; of written memory, accesses are recorded by grains.
 * EMU_UNSET: what the launch has not written may not be read. */
struct emu_region {
    const char *name;
    void *start;
    size_t bytes;
    unsigned grain;
    int flags;
};

struct emu_launch {
    void (*call)(void **arguments);
    void **arguments;
    int grid, block;
    int together; /* whether all blocks run at the same time, and may wait for one another */
    uint64_t seed;
    const struct emu_region *regions; /* the arguments', then those of shared memory */
    int region_count;
    void *image_low, *image_high; /* the kernel's code and constants */
};

int emu_launch(const struct emu_launch *launch);
const char *emu_message(void **pc);

enum { EMU_SYNC, EMU_BALLOT, EMU_SHUFFLE };

uint64_t emu_barrier(int site, uint64_t value);
uint64_t emu_barrier_of(int site, uint64_t value, int threads);
void emu_yield(void);
void emu_copy(void *to, const void *from, size_t bytes);
uint64_t emu_warp(int kind, int site, uint32_t mask, uint64_t value, int source);
void emu_atomic(void *p, size_t bytes);
void emu_fence(void);
void emu_fail(const char *problem);

#ifdef __cplusplus
}
#endif
#endif
