/* Steps that decide which step comes next. */
#ifndef OSTINATO_CONTROL_H
#define OSTINATO_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are those of ControlKind in lower/control.py. */
typedef enum {
    CONTROL_NONE, /* a step that runs a kernel */
    CONTROL_IF,
    CONTROL_ELSE,
    CONTROL_END_IF,
    CONTROL_LOOP,
    CONTROL_END_LOOP,
} control_kind;

typedef struct {
    control_kind kind;
    bool conditional; /* the first argument is a bool: whether to go on */
    bool counted;     /* the argument after that is an int64: a trip count */
    size_t target;    /* the step that it may jump to */
    size_t counter;   /* of a loop: the variable that holds the number of the iteration */
} control;

/* The position of the step that comes after the control step at `position`.
 *
 * trips: the most iterations of a loop, beside its trip count.
 * arguments: the addresses of the step's arguments.
 * vars: the variables of this run; a loop counts its iterations there. */
size_t control_next(const control *c, size_t position, int64_t trips, char *const *arguments,
                    int64_t *vars);

#endif
