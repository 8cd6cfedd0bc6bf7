/* The one calling convention of every compiled kernel.
 *
 * A kernel processes the range [begin, end) of its outermost loop. Distinct ranges may run on
 * distinct threads at once, so everything a call may scribble on comes in through `scratch`. */
#ifndef OSTINATO_KERNEL_H
#define OSTINATO_KERNEL_H

#include <stdint.h>

/* buffers[i]: first byte of argument i.  vars[j]: value of variable j of the compiled graph.
 * scratch: private to the calling thread, 64-byte aligned, as long as the step asked for. */
typedef void (*kernel_fn)(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                          char *scratch);

/* A quantity that depends on the variables: the extent of a step, the bytes of a buffer. */
typedef int64_t (*symbolic_fn)(const int64_t *vars);

#endif
