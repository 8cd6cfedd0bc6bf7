/* On which processors threads run, where the system lets us have a say. Elsewhere all of this does
 * nothing: runs are then slower beside other busy processes, not wrong. */
#ifndef OSTINATO_PLACEMENT_H
#define OSTINATO_PLACEMENT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdbool.h>
#include <stdint.h>

#ifdef __linux__
#include <sched.h>
#endif

/* What the system calls a thread; 0 where it has no name that is of use here. */
typedef int64_t thread_name;

/* The calling thread. */
thread_name placement_self(void);

/* The number of the caller's processor; -1 where it is not known. */
int placement_here(void);

/* How long a thread has run, in nanoseconds; -1 where that is not known. It stands still while the
 * thread is off its processor. */
int64_t placement_run_time(thread_name thread);

/* The processors that a thread was allowed before some were withheld from it. */
typedef struct {
#ifdef __linux__
    cpu_set_t allowed;
#endif
    bool withheld; /* whether any are */
} placement_set;

/* Has a thread continue on the caller's processor, if it may run there, and restores the set of
 * processors that it is allowed. The caller should go to sleep. */
void placement_bring_here(thread_name thread, placement_set *before);

/* Forbids a thread the caller's processor, if it has another, until placement_restore; it leaves
 * now, or wakes elsewhere. */
void placement_forbid_here(thread_name thread, placement_set *before);

/* Gives back what is withheld from a thread. If the system refuses the set as it was, because
 * processors have been taken offline or from the process, the thread gets all there are. Whether
 * nothing is withheld any more. */
bool placement_restore(thread_name thread, placement_set *before);

#endif
