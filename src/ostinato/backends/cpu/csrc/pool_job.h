/* What pools are asked to do. */
#ifndef OSTINATO_POOL_JOB_H
#define OSTINATO_POOL_JOB_H

#include <stddef.h>
#include <stdint.h>

#include "kernel.h"

typedef struct thread_pool thread_pool;

/* One kernel over [0, extent). Everything it points at stays valid until pool_run returns, and is
 * not read afterwards. Thread t gets the scratch at scratch + t * scratch_stride. */
typedef struct {
    kernel_fn kernel;
    char *const *buffers;
    const int64_t *vars;
    int64_t extent;
    int64_t grain; /* the least work worth handing out; chunks are multiples of it */
    char *scratch;
    size_t scratch_stride;
} pool_job;

#endif
