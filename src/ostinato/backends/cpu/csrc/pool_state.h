/* What a pool consists of, for the files that make it work. */
#ifndef OSTINATO_POOL_STATE_H
#define OSTINATO_POOL_STATE_H

#include "placement.h"

#include "pool_job.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

/* Two lines: adjacent-line prefetchers make neighbours share. */
#define CACHE_LINE 128

/* The description of the current job, written by its owner alone and read by the workers. */
typedef struct {
    _Atomic(kernel_fn) kernel;
    _Atomic(char *const *) buffers;
    _Atomic(const int64_t *) vars;
    _Atomic int64_t extent;
    _Atomic int64_t chunk;
    _Atomic int64_t chunks;
    _Atomic(char *) scratch;
    _Atomic size_t scratch_stride;
} published_job;

/* One thread's copy of it. */
typedef struct {
    uint64_t generation;
    pool_job job;
    int64_t chunk; /* rows per chunk */
    int64_t chunks;
} shared_job;

/* What is left of a thread's share, as (generation << 16 | end << 8 | begin), counted in chunks
 * from the start of the share. */
typedef struct {
    alignas(CACHE_LINE) _Atomic uint64_t ticket;
} thread_queue;

typedef struct {
    thread_pool *pool;
    int index; /* 1..threads-1; the owner is 0 */
    uint64_t seen; /* the last generation that it looked at */
    pthread_t thread;
    _Atomic thread_name name; /* 0 until it runs */
    _Atomic bool working;     /* it may have claimed chunks that it has not reported */
    _Atomic int core;         /* on which it last looked; -1 where that is not known */
    _Atomic bool placing;     /* the owner or itself is changing its processors */
    _Atomic bool moved;       /* to the owner's core, which it should leave to the owner soon */
    _Atomic int contended;    /* jobs for which to expect that other processes want its core */
    int64_t run_time;         /* when the owner last looked */
    placement_set withheld;   /* the processors to give back to it, if any were taken from it */
} worker;

struct thread_pool {
    /* Each of these is written at times when other threads watch only the others. */
    alignas(CACHE_LINE) _Atomic uint64_t generation; /* of the current job; waiting workers watch it */
    alignas(CACHE_LINE) published_job published;
    _Atomic int owner_core; /* on which the job was published; -1 where that is not known */
    alignas(CACHE_LINE) _Atomic int64_t finished; /* chunks completed by workers, of this job */

    alignas(CACHE_LINE) _Atomic bool busy; /* some thread owns the workers */
    _Atomic bool stop;
    _Atomic bool owner_asleep;
    _Atomic int sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t work_published;
    pthread_cond_t work_finished;

    int threads;
    bool recover_stolen_cores; /* see stolen_cores.c */
    bool spawned; /* tried to start the workers; not tried again when the system refuses some */
    _Atomic int workers;
    unsigned fork_epoch;
    worker *members; /* the first threads - 1 are used */
    thread_queue queues[]; /* one per thread */
};

/* ---- waiting --------------------------------------------------------------------------------- */

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* `yield` is a no-op on most cores; isb does wait */
#endif
}

static inline int64_t now_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline bool has_news(thread_pool *p, uint64_t seen) {
    return atomic_load(&p->generation) != seen || atomic_load(&p->stop);
}

static inline bool workers_finished(thread_pool *p, uint64_t expected) {
    return atomic_load(&p->finished) == (int64_t)expected;
}

#endif
