/* Kernels that choose elements by their values. */
#ifndef OSTINATO_SELECTION_H
#define OSTINATO_SELECTION_H

#include "kernel.h"

/* What flat_nonzero reads first. */
typedef struct {
    int64_t length; /* of the mask */
    int64_t size;   /* of the result */
} mask_sizes;

/* flat_nonzero(sizes, mask, positions): the positions of the bytes of `mask` that are not 0, in
 * order: as many as the result has room for, zeros behind the last one. */
void flat_nonzero_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                         char *scratch);

/* What suppress reads first. */
typedef struct {
    int64_t classes;
    int64_t boxes;
    int64_t centered; /* not 0: boxes are (x, y, width, height), else two opposite corners */
} suppression_sizes;

/* Non-maximum suppression, a greedy choice of boxes that overlap little.
 *
 * suppress(sizes, boxes, scores, most, overlap, least, chosen): item `b * classes + c` chooses boxes
 * of batch `b` by the scores of class `c` and leaves their numbers in `chosen`, -1 behind the last
 * one. Scratch has a number for each box. */
void suppress_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                     char *scratch);

#endif
