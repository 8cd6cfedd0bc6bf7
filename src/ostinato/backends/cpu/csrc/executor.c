#include "executor.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "memory.h"

/* Threads write their scratch all the time: keep each on cache lines of its own. */
#define SCRATCH_ALIGNMENT 128

/* An entry of the pointer table that follows an external slot. */
typedef struct {
    size_t pointer;
    size_t offset;
} patch;

struct executor {
    thread_pool *pool;
    pthread_mutex_t lock; /* held by the run in progress; guards the pointer table */
    struct executor *lock_owner; /* the owner of that lock: this one, or the one that it excludes */
    unsigned fork_epoch;
    size_t n_steps;
    size_t n_externals;
    size_t n_arguments;
    size_t n_vars;
    memory_block scratch;
    size_t scratch_stride;
    bool stopped; /* guarded by the lock: the memory of slots may be gone */
    bool writes_variables; /* runs have variables of their own: some steps write them */
    bool unbound; /* the pointers of external slots are unknown: write all of them */

    /* All of the following lie in the same allocation, behind this struct. */
    executor_step *steps;
    executor_argument *arguments;
    char **pointers;      /* one per argument; what kernels get as `buffers` */
    char **bound;         /* per external: the address its pointers were written for */
    size_t *first_patch;  /* per external, and one more: where its patches begin */
    patch *patches;
    int64_t *live; /* the variables of the run in progress, then the counters of loops */
};

/* ---- building -------------------------------------------------------------------------------- */

static size_t count_patches(const executor_description *d) {
    size_t count = 0;
    for (size_t i = 0; i < d->n_arguments; i++) {
        count += d->slots[d->arguments[i].slot].external >= 0;
    }
    return count;
}

static bool writes_variables(const executor_description *d) {
    for (size_t i = 0; i < d->n_steps; i++) {
        if (d->steps[i].kernel == NULL) {
            return true;
        }
    }
    return false;
}

/* One allocation for everything a run reads, so that it is freed as one and lies together. */
static executor *allocate(const executor_description *d) {
    size_t steps = sizeof(executor_step) * d->n_steps;
    size_t arguments = sizeof(executor_argument) * d->n_arguments;
    size_t pointers = sizeof(char *) * d->n_arguments;
    size_t bound = sizeof(char *) * d->n_externals;
    size_t first_patch = sizeof(size_t) * (d->n_externals + 1);
    size_t patches = sizeof(patch) * count_patches(d);
    size_t n_live = writes_variables(d) ? d->n_vars + d->n_counters : 0;
    char *at = calloc(1, sizeof(executor) + steps + arguments + pointers + bound + first_patch +
                             patches + sizeof(int64_t) * n_live);
    executor *e = (executor *)at;
    if (e != NULL) {
        /* Every part is made of words of 8 bytes, so none needs padding. */
        e->steps = (executor_step *)(at += sizeof(executor));
        e->arguments = (executor_argument *)(at += steps);
        e->pointers = (char **)(at += arguments);
        e->bound = (char **)(at += pointers);
        e->first_patch = (size_t *)(at += bound);
        e->patches = (patch *)(at += first_patch);
        e->live = (int64_t *)(at += patches);
        e->writes_variables = n_live > 0;
    }
    return e;
}

/* Writes the pointers that never change, and sorts the others by their external slot. */
static void fill_pointers(executor *e, const executor_description *d) {
    size_t n_patches = 0;
    for (size_t external = 0; external < d->n_externals; external++) {
        e->first_patch[external] = n_patches;
        for (size_t i = 0; i < d->n_arguments; i++) {
            const executor_argument *argument = &d->arguments[i];
            if (d->slots[argument->slot].external == (int)external) {
                e->patches[n_patches++] = (patch){.pointer = i, .offset = argument->offset};
            }
        }
    }
    e->first_patch[d->n_externals] = n_patches;
    for (size_t i = 0; i < d->n_arguments; i++) {
        const executor_slot *slot = &d->slots[d->arguments[i].slot];
        if (slot->external < 0) {
            e->pointers[i] = slot->fixed + d->arguments[i].offset;
        }
    }
}

/* Scratch belongs to the executor, not to the pool: a run that finds the pool busy needs its own
 * anyway, and a pool-wide block would have to grow under a running job. Pages that no thread
 * touches are never backed by memory, and each thread touches its own first. */
static bool reserve_scratch(executor *e, size_t nbytes) {
    size_t threads = (size_t)pool_threads(e->pool);
    size_t stride = (nbytes / SCRATCH_ALIGNMENT + 1) * SCRATCH_ALIGNMENT;
    size_t total;
    if (__builtin_mul_overflow(stride, threads, &total)) {
        return false;
    }
    e->scratch_stride = stride;
    return memory_map(&e->scratch, total, true);
}

executor *executor_create(const executor_description *d, thread_pool *p) {
    executor *e = allocate(d);
    if (e == NULL) {
        return NULL;
    }
    e->pool = p;
    pool_refresh_after_fork(p); /* the pool may be older than this process; the executor is not */
    if (!reserve_scratch(e, d->scratch_bytes)) {
        free(e);
        return NULL;
    }
    if (d->n_steps > 0) {
        memcpy(e->steps, d->steps, sizeof(executor_step) * d->n_steps);
    }
    if (d->n_arguments > 0) {
        memcpy(e->arguments, d->arguments, sizeof(executor_argument) * d->n_arguments);
    }
    e->n_steps = d->n_steps;
    e->n_arguments = d->n_arguments;
    e->n_externals = d->n_externals;
    e->n_vars = d->n_vars;
    fill_pointers(e, d);
    e->unbound = true;
    e->fork_epoch = pool_fork_epoch();
    pthread_mutex_init(&e->lock, NULL);
    e->lock_owner = d->exclusive_with == NULL ? e : d->exclusive_with->lock_owner;
    return e;
}

void executor_destroy(executor *e) {
    if (e->fork_epoch == pool_fork_epoch()) { /* else the parent's thread may seem to hold it */
        pthread_mutex_destroy(&e->lock);
    }
    memory_unmap(&e->scratch);
    free(e);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Most runs come with the same arrays, or with some of the same: only what moved is written. */
static void bind_externals(executor *e, char *const *addresses) {
    for (size_t external = 0; external < e->n_externals; external++) {
        char *address = addresses[external];
        if (address == e->bound[external] && !e->unbound) {
            continue;
        }
        for (size_t i = e->first_patch[external]; i < e->first_patch[external + 1]; i++) {
            e->pointers[e->patches[i].pointer] = address + e->patches[i].offset;
        }
        e->bound[external] = address;
    }
    e->unbound = false;
}

static void run_kernel(executor *e, const executor_step *step, int64_t extent,
                       const int64_t *vars) {
    pool_job job = {
        .kernel = step->kernel,
        .buffers = e->pointers + step->first_argument,
        .vars = vars,
        .extent = extent < step->limit ? extent : step->limit,
        .grain = step->grain,
        .scratch = e->scratch.address,
        .scratch_stride = e->scratch_stride,
    };
    if (!step->threaded) {
        job.grain = INT64_MAX; /* nothing is worth sharing */
    }
    pool_run(e->pool, &job);
}

static void run_kernel_step(executor *e, const executor_step *step, const int64_t *vars) {
    int64_t extent = step->extent_of == NULL ? step->extent : step->extent_of(vars);
    run_kernel(e, step, extent, vars);
}

static size_t run_control_step(executor *e, size_t position) {
    const executor_step *step = &e->steps[position];
    int64_t trips = step->extent_of == NULL ? step->extent : step->extent_of(e->live);
    char *const *arguments = e->pointers + step->first_argument;
    return control_next(&step->control, position, trips, arguments, e->live);
}

/* False, with the number in the outcome, where it is out of bounds. */
static bool run_size_step(executor *e, const executor_step *step, executor_outcome *outcome) {
    int64_t value = 0, most = step->extent_of == NULL ? step->extent : step->extent_of(e->live);
    char *const *arguments = e->pointers + step->first_argument;
    bool binds = step->size.variable >= 0;
    if (binds) {
        memcpy(&value, arguments[0], sizeof value);
    } else {
        value = most;
        most = INT64_MAX;
    }
    if (value < step->size.least || value > most) {
        *outcome = (executor_outcome){EXECUTOR_REFUSED, step->size.problem, value};
        return false;
    }
    if (binds) {
        e->live[step->size.variable] = value;
        memcpy(arguments[1], &value, sizeof value);
    }
    return true;
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Runs the step at a position; returns the position of the next one, n_steps to end the run. */
static inline size_t run_step(executor *e, size_t position, const int64_t *vars,
                              executor_outcome *outcome) {
    const executor_step *step = &e->steps[position];
    if (step->kernel != NULL) {
        run_kernel_step(e, step, vars);
        return position + 1;
    }
    if (step->control.kind != CONTROL_NONE) {
        return run_control_step(e, position);
    }
    return run_size_step(e, step, outcome) ? position + 1 : e->n_steps;
}

static void run_timed(executor *e, const int64_t *vars, double *seconds,
                      executor_outcome *outcome) {
    double before = now_seconds();
    for (size_t i = 0; i < e->n_steps;) {
        size_t next = run_step(e, i, vars, outcome);
        double after = now_seconds();
        seconds[i] += after - before;
        before = after;
        i = next;
    }
}

static void run_steps(executor *e, char *const *addresses, const int64_t *vars, double *seconds,
                      executor_outcome *outcome) {
    bind_externals(e, addresses);
    if (e->writes_variables) {
        if (e->n_vars > 0) {
            memcpy(e->live, vars, sizeof(int64_t) * e->n_vars);
        }
        vars = e->live;
    }
    if (seconds != NULL) {
        run_timed(e, vars, seconds, outcome);
    } else {
        for (size_t i = 0; i < e->n_steps;) {
            i = run_step(e, i, vars, outcome);
        }
    }
}

executor_outcome executor_run(executor *e, char *const *addresses, const int64_t *vars,
                              double *seconds) {
    executor_outcome outcome = {.status = EXECUTOR_RAN};
    pthread_mutex_lock(&e->lock_owner->lock);
    if (e->stopped) {
        outcome.status = EXECUTOR_STOPPED;
    } else {
        run_steps(e, addresses, vars, seconds, &outcome);
    }
    pthread_mutex_unlock(&e->lock_owner->lock);
    return outcome;
}

void executor_stop(executor *e) {
    pthread_mutex_lock(&e->lock_owner->lock);
    e->stopped = true;
    pthread_mutex_unlock(&e->lock_owner->lock);
}

void executor_move(executor *e, size_t slot, char *address) {
    pthread_mutex_lock(&e->lock_owner->lock);
    for (size_t i = 0; i < e->n_arguments; i++) {
        if (e->arguments[i].slot == slot) {
            e->pointers[i] = address + e->arguments[i].offset;
        }
    }
    pthread_mutex_unlock(&e->lock_owner->lock);
}

void executor_limit(executor *e, const char *limits, void *target, const void *source,
                    size_t nbytes) {
    pthread_mutex_lock(&e->lock_owner->lock);
    for (size_t i = 0; i < e->n_steps; i++) {
        e->steps[i].limit = INT64_MAX;
        if (limits != NULL) {
            memcpy(&e->steps[i].limit, limits + i * sizeof(int64_t), sizeof(int64_t));
        }
    }
    if (nbytes > 0 && limits != NULL) {
        memcpy(target, source, nbytes);
    } else if (nbytes > 0) {
        memset(target, 0, nbytes);
    }
    pthread_mutex_unlock(&e->lock_owner->lock);
}

void executor_refresh_after_fork(executor *e) {
    if (e->lock_owner != e) {
        executor_refresh_after_fork(e->lock_owner);
    }
    if (e->fork_epoch != pool_fork_epoch()) {
        /* A thread of the parent may have been half-way through a run: its lock and the pointers
         * it was writing can not be trusted here. */
        pthread_mutex_init(&e->lock, NULL);
        e->unbound = true;
        pool_refresh_after_fork(e->pool);
        e->fork_epoch = pool_fork_epoch();
    }
}
