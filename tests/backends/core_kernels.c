/* Kernels for the tests of the native core; see its type stub for the calling convention. */
#include <stdint.h>
#include <string.h>

#define KERNEL(name)                                                                               \
    void name(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end, char *scratch)

KERNEL(nothing) { (void)buffers, (void)vars, (void)begin, (void)end, (void)scratch; }

/* rows[i] += 1; pieces += 1, atomically: two threads that ran one row would both be seen. */
KERNEL(count) {
    (void)vars, (void)scratch;
    int64_t *rows = (int64_t *)buffers[0];
    for (int64_t i = begin; i < end; i++) {
        __atomic_fetch_add(&rows[i], 1, __ATOMIC_RELAXED);
    }
    __atomic_fetch_add((int64_t *)buffers[1], 1, __ATOMIC_RELAXED);
}

/* out[i] = a[i] + b[i] + vars[0] */
KERNEL(add) {
    (void)scratch;
    int64_t *out = (int64_t *)buffers[0];
    const int64_t *a = (const int64_t *)buffers[1], *b = (const int64_t *)buffers[2];
    for (int64_t i = begin; i < end; i++) {
        out[i] = a[i] + b[i] + vars[0];
    }
}

/* state = 3 state + 1, slowly and not atomically: two runs at once would lose some. */
KERNEL(step_state) {
    (void)vars, (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        volatile int64_t *state = (volatile int64_t *)buffers[0];
        int64_t before = *state;
        for (volatile int spin = 0; spin < 200; spin = spin + 1) {
        }
        *state = 3 * before + 1;
    }
}

/* Fills all of its 1000 bytes of scratch and reports where they lie. */
KERNEL(report_scratch) {
    (void)vars;
    for (int64_t i = begin; i < end; i++) {
        memset(scratch, (int)i, 1000);
        ((int64_t *)buffers[0])[i] = (int64_t)(uintptr_t)scratch;
        for (volatile int spin = 0; spin < 2000; spin = spin + 1) {
        }
        for (int byte = 0; byte < 1000; byte++) {
            ((int64_t *)buffers[1])[i] |= scratch[byte] != (char)i;
        }
    }
}

/* Takes a while, on one thread or on many. */
KERNEL(dawdle) {
    (void)buffers, (void)vars, (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        for (volatile int spin = 0; spin < 100000; spin = spin + 1) {
        }
    }
}

int64_t first_variable(const int64_t *vars) { return vars[0]; }

int64_t eight_bytes_each(const int64_t *vars) { return 8 * vars[0]; }
