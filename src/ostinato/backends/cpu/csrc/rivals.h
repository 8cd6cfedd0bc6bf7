/* Other processes that are busy on the pool's cores. */
#ifndef OSTINATO_RIVALS_H
#define OSTINATO_RIVALS_H

#include "pool_state.h"

/* Has the owner, if it lost its core before its job was over, go on here while the caller sleeps.
 * The caller is a worker that has seen generation `seen` and has nothing left to do. */
void rivals_bring_owner(thread_pool *p, uint64_t seen);

/* Has workers that lost their cores in the middle of a chunk go on here while the owner, who calls
 * this, sleeps until they have finished `expected` chunks. */
void rivals_bring_workers(thread_pool *p, uint64_t expected);

/* Around the waking of sleepers: those with a rival wake on cores other than the owner's, where
 * they would only take turns with it. */
void rivals_part(thread_pool *p);
void rivals_rejoin(thread_pool *p);

#endif
