/* Tile registers are 8 KiB of state per thread, which Linux saves only for processes that have asked
 * for it. A process that uses them without permission gets SIGILL. The permission holds for all
 * threads, is inherited by children, and is asked for once: asking again changes nothing. */
#include "amx.h"

enum { AMX_BF16 = 1, AMX_INT8 = 2 };

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#define XSAVE_ENABLED (1u << 27)    /* leaf 1, ecx: the system saves extended state */
#define LEAF_BF16 (1u << 22)        /* leaf 7, edx */
#define LEAF_TILE (1u << 24)        /* leaf 7, edx */
#define LEAF_INT8 (1u << 25)        /* leaf 7, edx */
#define TILE_STATE (3u << 17)       /* XCR0: the configuration, and the tiles */
#define TILE_DATA 18                /* the number of the tiles' state component */
#define ARCH_GET_XCOMP_PERM 0x1022
#define ARCH_REQ_XCOMP_PERM 0x1023

static unsigned enabled_state(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Palette 1 as kernels use it: eight tiles of 16 rows of 64 bytes. */
static bool has_palette(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(0x1d, 1, &a, &b, &c, &d)) {
        return false;
    }
    return a >> 16 >= 1024 && (b & 0xffff) >= 64 && b >> 16 >= 8 && (c & 0xffff) >= 16;
}

static unsigned detected(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & XSAVE_ENABLED) ||
        (enabled_state() & TILE_STATE) != TILE_STATE) {
        return 0;
    }
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & LEAF_TILE) || !has_palette()) {
        return 0;
    }
    return (d & LEAF_BF16 ? AMX_BF16 : 0u) | (d & LEAF_INT8 ? AMX_INT8 : 0u);
}

static bool permitted(void) {
    unsigned long granted = 0;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 &&
           syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &granted) == 0 && (granted >> TILE_DATA & 1);
}

static unsigned usable(void) {
    unsigned found = detected();
    return found != 0 && permitted() ? found : 0;
}

#else

static unsigned usable(void) { return 0; }

#endif

PyObject *permit_amx(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    unsigned found = usable();
    return Py_BuildValue("(OO)", found & AMX_BF16 ? Py_True : Py_False,
                         found & AMX_INT8 ? Py_True : Py_False);
}
