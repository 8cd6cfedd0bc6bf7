/* CPU contention: workers that lost their cores to other processes. */
#ifndef OSTINATO_STOLEN_CORES_H
#define OSTINATO_STOLEN_CORES_H

#include "pool_state.h"

/* Moves workers that lost their cores in the middle of a chunk to the owner's core, while the owner,
 * which calls this, sleeps until they have finished `expected` chunks. */
void stolen_cores_move_workers(thread_pool *p, uint64_t expected);

/* Around the waking of sleepers: contended workers wake on cores other than the owner's, which they
 * would have to share with it. */
void stolen_cores_keep_off(thread_pool *p);
void stolen_cores_release(thread_pool *p);

#endif
