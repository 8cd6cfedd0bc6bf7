/* Recovery of work on a core that another process takes
 * ------------------------------------------------------
 * A worker that lost its core in the middle of a chunk continues after some milliseconds. A job of a
 * few hundred microseconds is long done by then but for that chunk, and the owner has nothing to do.
 * So an owner that waits for long looks whether the worker runs at all, and if it does not, moves it
 * to its own core and sleeps.
 *
 * Only workers are ever moved. The owner is a thread of the user's, and so are its processors: where
 * the owner itself has lost its core, the job waits.
 *
 * A worker is moved by narrowing the processors that it may run on, and giving them back at once.
 * Should giving them back fail, it is tried again at the next opportunity, and until it succeeds no
 * worker is moved. (bench/stolen_core.py measures the gain; docs/performance.md has it.) */
#include "stolen_cores.h"

/* The number of jobs for which a worker is taken to be contended after it has lost its core. */
#define CONTENDED_JOBS 64

/* A thread whose clock stands still for so long is not running. Reading the clock of a running
 * thread of another core is exact, so this only has to be longer than the reading itself. */
#define STILL_NANOSECONDS 10000

static void let_time_pass(int64_t nanoseconds) {
    int64_t end = now_nanoseconds() + nanoseconds;
    while (now_nanoseconds() < end) {
        relax();
    }
}

/* Gives back processors that are still withheld; whether none are. */
static bool restore_all(thread_pool *p) {
    bool restored = true;
    for (int i = 0; i < p->workers; i++) {
        worker *member = &p->members[i];
        restored &= placement_restore(atomic_load(&member->name), &member->withheld);
    }
    return restored;
}

void stolen_cores_move_workers(thread_pool *p, uint64_t expected) {
    if (!p->recover_stolen_cores || !restore_all(p)) {
        return;
    }
    for (int i = 0; i < p->workers; i++) {
        worker *member = &p->members[i];
        bool working = atomic_load_explicit(&member->working, memory_order_acquire);
        member->run_time = working ? placement_run_time(atomic_load(&member->name)) : -1;
    }
    let_time_pass(STILL_NANOSECONDS);
    for (int i = 0; i < p->workers && !workers_finished(p, expected); i++) {
        worker *member = &p->members[i];
        thread_name name = atomic_load(&member->name);
        if (member->run_time >= 0 && placement_run_time(name) == member->run_time) {
            atomic_store(&member->contended, CONTENDED_JOBS);
            atomic_store(&member->moved, true);
            placement_bring_here(name, &member->withheld);
        }
    }
}

void stolen_cores_keep_off(thread_pool *p) {
    if (!p->recover_stolen_cores || !restore_all(p)) {
        return;
    }
    for (int i = 0; i < p->workers; i++) {
        worker *member = &p->members[i];
        int left = atomic_load_explicit(&member->contended, memory_order_relaxed);
        if (left > 0) {
            atomic_store_explicit(&member->contended, left - 1, memory_order_relaxed);
            placement_forbid_here(atomic_load(&member->name), &member->withheld);
        }
    }
}

void stolen_cores_release(thread_pool *p) {
    if (p->recover_stolen_cores) {
        (void)restore_all(p); /* what fails is tried again before the next move */
    }
}
