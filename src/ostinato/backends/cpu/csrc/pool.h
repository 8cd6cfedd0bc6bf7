/* A pool of threads that share one range of work at a time; independent of Python. */
#ifndef OSTINATO_POOL_H
#define OSTINATO_POOL_H

#include <stdbool.h>

#include "pool_job.h"

#define POOL_MAX_THREADS 1024

/* `threads` counts the calling thread, so a pool of 1 never starts a thread, and no pool starts
 * one before it has something to share. With `recover_stolen_cores`, workers that lost their cores to
 * other processes are moved: see stolen_cores.c. NULL when out of memory. */
thread_pool *pool_create(int threads, bool recover_stolen_cores);

/* Joins the workers and frees the pool. No run may be in progress. */
void pool_destroy(thread_pool *p);

/* Runs the job and returns when all of it is done. Any number of threads may call this at once:
 * one of them gets the workers, the others do their own work alone rather than wait. */
void pool_run(thread_pool *p, const pool_job *job);

/* The thread count the pool was made with, and the number of workers alive in this process. */
int pool_threads(const thread_pool *p);
bool pool_recovers_stolen_cores(const thread_pool *p);
int pool_workers(const thread_pool *p);

/* The number of forks that this process descends from. Locks and workers inherited from the parent
 * are dead; their owner compares this number with the one of the time it made them. */
unsigned pool_fork_epoch(void);

/* Makes a pool taken over by fork() usable: forgets the parent's workers and locks. Cheap when
 * nothing was forked. The caller makes sure that no other thread is doing this at the same time. */
void pool_refresh_after_fork(thread_pool *p);

#endif
