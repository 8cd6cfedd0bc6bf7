/* A kernel that moves elements: panels of a matrix, a transpose, a piece of something larger. */
#ifndef OSTINATO_COPYING_H
#define OSTINATO_COPYING_H

#include "kernel.h"

enum { COPY_MAX_AXES = 8 };

/* An axis of the elements to be written: how many steps it has, and the bytes that one makes. */
typedef struct {
    int64_t extent;
    int64_t source;
    int64_t target;
} copy_axis;

/* Holds where `constant` plus, for each axis, its factor times the position is not negative. */
typedef struct {
    int64_t constant;
    int64_t factors[COPY_MAX_AXES];
} copy_condition;

/* What elements go where. The last two axes are the rows and the lanes of a block, which is what
 * one step of the parallel range does; a block may be cut short by the end of its axis. */
typedef struct {
    int64_t element;      /* bytes of an element: 1, 2, 4 or 8 */
    int64_t source_start; /* bytes from the start of the source to its first element */
    int64_t target_start;
    int64_t fill;         /* the element, in the low bytes, of positions where a condition fails */
    int64_t rows;         /* of a block */
    int64_t lanes;
    int64_t axis_count;   /* from 2 to COPY_MAX_AXES */
    int64_t condition_count;
    copy_axis axes[COPY_MAX_AXES];
    copy_condition conditions[];
} copy_plan;

/* copy(source, target, plan): moves the elements of blocks `begin` to `end`, counted with the lanes
 * fastest. Nothing is read for positions that are filled. */
void copy_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                 char *scratch);

#endif
