/* What a pool does where another process takes one of its cores
 * --------------------------------------------------------------
 * A thread that lost its core in the middle of a chunk comes back after some milliseconds. A job of
 * a few hundred microseconds is long done by then but for that chunk, and nobody has anything to do.
 * So whoever waits for long looks whether the thread runs at all, and if it does not, brings it to
 * its own core and sleeps.
 *
 * (bench/stolen_core.py, beside a process that is busy on one of two cores: BERT-base takes 1.65
 * times as long as alone, 1.9 without this; MiniLM at 32 tokens 1.6 times, 2.1 without.) */
#include "rivals.h"

/* For so many jobs a worker is taken to have a rival after it has lost its core to one. */
#define RIVALLED_JOBS 64

/* A thread whose clock stands still for so long is not running. Reading the clock of a running
 * thread of another core is exact, so this only has to be longer than the reading itself. */
#define STILL_NANOSECONDS 10000

static void let_time_pass(int64_t nanoseconds) {
    int64_t end = now_nanoseconds() + nanoseconds;
    while (now_nanoseconds() < end) {
        relax();
    }
}

void rivals_bring_owner(thread_pool *p, uint64_t seen) {
    thread_name owner = atomic_load(&p->owner);
    bool asleep = atomic_load(&p->owner_asleep);
    int64_t run_time = owner == 0 || asleep ? -1 : placement_run_time(owner);
    if (run_time < 0) {
        return;
    }
    let_time_pass(STILL_NANOSECONDS);
    bool waits = !has_news(p, seen) && atomic_load(&p->owner) == owner;
    if (waits && placement_run_time(owner) == run_time) {
        placement_bring_here(owner);
    }
}

void rivals_bring_workers(thread_pool *p, uint64_t expected) {
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
            atomic_store(&member->rivalled, RIVALLED_JOBS);
            atomic_store(&member->brought, true);
            placement_bring_here(name);
        }
    }
}

void rivals_part(thread_pool *p) {
    for (int i = 0; i < p->workers; i++) {
        worker *member = &p->members[i];
        member->home.changed = false;
        int left = atomic_load_explicit(&member->rivalled, memory_order_relaxed);
        if (left > 0) {
            atomic_store_explicit(&member->rivalled, left - 1, memory_order_relaxed);
            placement_forbid_here(atomic_load(&member->name), &member->home);
        }
    }
}

void rivals_rejoin(thread_pool *p) {
    for (int i = 0; i < p->workers; i++) {
        placement_restore(atomic_load(&p->members[i].name), &p->members[i].home);
    }
}
