/* A prepared list of kernel calls, and of steps that decide which of them run, flattened so that a
 * run follows as few pointers as possible. Independent of Python; arguments are checked by its callers. */
#ifndef OSTINATO_EXECUTOR_H
#define OSTINATO_EXECUTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control.h"
#include "kernel.h"
#include "pool.h"

/* A step without a kernel is about sizes that depend on data: it gives a variable the number that
 * argument 0 holds, and writes it to argument 1; or, without a variable, it checks a number that
 * follows from the variables. A number outside of its bounds ends the run. */
typedef struct {
    int64_t variable; /* -1: none is written */
    int64_t least;
    size_t problem; /* what is wrong with other numbers; a position in a list of the caller's */
} size_rule;

typedef struct {
    kernel_fn kernel;      /* NULL: `control` applies if it is of a kind, else `size`, and the extent
                            * is the greatest number allowed */
    symbolic_fn extent_of; /* NULL: the extent is the constant below */
    int64_t extent;
    int64_t limit; /* steps beyond are left out, whatever the extent */
    int64_t grain;
    size_t first_argument; /* its arguments start here in the list of all arguments */
    bool threaded;
    size_rule size;
    control control; /* of a kind: the extent is the most iterations of a loop, and `size` is void */
} executor_step;

/* An argument of a step: `offset` bytes into a slot. */
typedef struct {
    size_t slot;
    size_t offset;
} executor_argument;

/* A slot is memory that steps refer to by number: fixed until it is moved, or external, that is,
 * given anew with each run as addresses[external]. */
typedef struct {
    char *fixed;
    int external; /* -1 for a fixed slot */
} executor_slot;

typedef struct {
    const executor_step *steps;
    size_t n_steps;
    const executor_argument *arguments;
    size_t n_arguments;
    const executor_slot *slots;
    size_t n_externals;
    size_t scratch_bytes; /* the most that any step needs */
    size_t n_vars;        /* that a run brings */
    size_t n_counters;    /* further variables, in which loops count */
    struct executor *exclusive_with; /* never runs at the same time as that one; NULL: nothing to heed */
} executor_description;

typedef struct executor executor;

/* Copies the description. The pool must outlive the executor, and so must the executor that it
 * excludes for as long as this one is run. NULL when out of memory. */
executor *executor_create(const executor_description *description, thread_pool *p);
void executor_destroy(executor *e);

/* How a run ended: with all steps; before the first, since the executor was stopped; or at a step
 * that refused a size. */
typedef struct {
    enum { EXECUTOR_RAN, EXECUTOR_STOPPED, EXECUTOR_REFUSED } status;
    size_t problem; /* of the size, as its rule has it */
    int64_t size;
} executor_outcome;

/* Runs all steps in order; allocates nothing. Runs of one executor, and of
 * those that it excludes, on several threads happen one after the other.
 * Where `seconds` is not NULL, the time of each step is added there, zero for a step that no branch
 * came to. */
executor_outcome executor_run(executor *e, char *const *addresses, const int64_t *vars,
                              double *seconds);

/* Waits for a run in progress; there will be no other, so that the memory of slots may go. */
void executor_stop(executor *e);

/* Points everything that refers to a fixed slot to `address`. Waits for a run in progress. */
void executor_move(executor *e, size_t slot, char *address);

/* Gives every step its limit, an int64 each, and copies bytes that kernels read, such as limits of
 * their own. Without limits there are none, and the bytes are zero. Waits for a run in progress. */
void executor_limit(executor *e, const char *limits, void *target, const void *source,
                    size_t nbytes);

/* To be called before a run when this process may be a fork; see pool_refresh_after_fork. */
void executor_refresh_after_fork(executor *e);

#endif
