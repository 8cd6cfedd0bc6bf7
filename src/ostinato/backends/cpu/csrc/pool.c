/* Distribution of work, without waiting for slow threads
 * ------------------------------------------------------
 * The owner of a job (the thread in pool_run) cuts it into chunks and gives every thread a *queue*:
 * a contiguous share of them, so that a thread meets the same rows in step after step and finds
 * them in its cache. (bench/core_dispatch.py, 512 KiB scaled in place by two threads: 4.2 us;
 * 7.7 us when both took the next chunk from one common counter.) A queue is one 64-bit atomic
 * ticket: the generation of the job and the range of chunks not yet claimed. A thread takes chunks
 * from the front of its own queue; when that is empty it steals from the back of the others'.
 * Either is one compare-and-swap.
 *
 *   - The owner waits for claimed chunks only. It claims as long as there is something to claim, so
 *     a worker that sleeps, or that the system took off its core, causes no delay.
 *   - A worker that wakes late finds empty queues, or another generation in them; it has touched
 *     nothing but the pool itself, which outlives it (pool_destroy joins).
 *   - A worker can not claim a chunk under a stale description. It learns of generation g, reads
 *     the description, then swaps a ticket of generation g. If the swap succeeds, a chunk of job g
 *     was unclaimed until then, so job g was not over, so its owner had not begun to write the next
 *     description. If not, what was read is thrown away (its fields are atomics: no harm done).
 *   - Within a generation a queue only ever shrinks, and 48 bits of generation do not wrap in the
 *     life of a machine: the same ticket never comes back.
 *
 * A claimed chunk can still be long in coming, where its thread lost its core to another process: see
 * stolen_cores.c. Sleeping uses a mutex and condition variables, which exist wherever there are threads. */
#include "pool_state.h"

#include "pool.h"
#include "stolen_cores.h"

#include <signal.h>
#include <stdlib.h>

/* Enough chunks that waiting for the last one costs a few percent; few enough that claiming them
 * stays cheap. Must fit the 8 bits that a ticket has for either end of a queue. */
#define CHUNKS_PER_THREAD 16

/* How long a thread watches for the next event before it sleeps. Steps of a program follow each
 * other within microseconds, runs within tens of them. A sleeper takes as long to wake where idle
 * cores of a virtual machine halt, and may wake on the core of the thread that waits for it. (A layer
 * of experts on two cores of an Emerald Rapids: medians of 3.4 ms with 30 us, 2.1 ms with this.) */
#define SPIN_NANOSECONDS 300000

/* How long an owner that recovers stolen cores watches before it looks for a thread that has none. */
#define LOOK_NANOSECONDS 30000

/* The same on a contended core: a thread that sleeps there waits for the other's whole time slice. */
#define CONTENDED_SPIN_NANOSECONDS 500000

/* ---- fork ------------------------------------------------------------------------------------ */

/* Global because fork is: the handler runs in the child before anything else can. */
static _Atomic unsigned fork_epoch;
static pthread_once_t fork_handler_once = PTHREAD_ONCE_INIT;

static void count_fork(void) { atomic_fetch_add(&fork_epoch, 1); }

static void install_fork_handler(void) { (void)pthread_atfork(NULL, NULL, count_fork); }

unsigned pool_fork_epoch(void) { return atomic_load_explicit(&fork_epoch, memory_order_relaxed); }

/* ---- waiting --------------------------------------------------------------------------------- */

typedef bool (*condition)(thread_pool *p, uint64_t argument);

/* Watches for the condition for a time. Reading the clock costs as much as many pauses,
 * and a pause takes 10 to 150 cycles depending on the core: so count time, but not every time. */
static bool spin_until(condition holds, thread_pool *p, uint64_t argument, int64_t nanoseconds) {
    int64_t deadline = 0;
    for (unsigned iteration = 0;; iteration++) {
        if (holds(p, argument)) {
            return true;
        }
        relax();
        if (iteration % 32 == 31) {
            int64_t now = now_nanoseconds();
            if (deadline == 0) {
                deadline = now + nanoseconds;
            } else if (now >= deadline) {
                return false;
            }
        }
    }
}

/* ---- cores of their own ----------------------------------------------------------------------
 * The system may wake a worker on the owner's core, or move the owner to the worker's, although there
 * are others. There the two can only alternate, and the next time is the same. So a worker that finds
 * itself on the owner's core leaves it, and an owner that publishes moves workers that were last on its
 * own. (Three layers of 64 rows on two cores of an Emerald Rapids, both threads on one of them in half
 * of all runs: medians of 0.62 ms, 0.36 ms with this and SPIN_NANOSECONDS.) Where stolen cores are
 * recovered, stolen_cores.c moves workers instead. */

/* The worker's core, which it notes for the owner; -1 where that is not known. */
static int note_core(worker *self) {
    int here = placement_here();
    atomic_store_explicit(&self->core, here, memory_order_relaxed);
    return here;
}

/* Has a worker leave the caller's core, if it may run on another. */
static void move_away(worker *member) {
    thread_name name = atomic_load(&member->name);
    bool recovers = member->pool->recover_stolen_cores;
    if (recovers || placement_here() < 0 || atomic_exchange(&member->placing, true)) {
        return; /* or the other of the two is about to */
    }
    if (placement_restore(name, &member->withheld)) {
        placement_forbid_here(name, &member->withheld);
        (void)placement_restore(name, &member->withheld); /* what fails is tried again next time */
    }
    atomic_store(&member->placing, false);
}

/* Notes the owner's core, and moves workers that were there when they last looked. */
static void keep_core(thread_pool *p) {
    int here = placement_here();
    atomic_store_explicit(&p->owner_core, here, memory_order_relaxed);
    for (int i = 0; i < atomic_load_explicit(&p->workers, memory_order_relaxed); i++) {
        worker *member = &p->members[i];
        if (here >= 0 && atomic_load_explicit(&member->core, memory_order_relaxed) == here) {
            atomic_store_explicit(&member->core, -1, memory_order_relaxed); /* until it looks */
            move_away(member);
        }
    }
}

/* ---- doing chunks ---------------------------------------------------------------------------- */

static void run_chunk(const shared_job *shared, int64_t index, int thread) {
    const pool_job *job = &shared->job;
    int64_t begin = index * shared->chunk;
    int64_t end = job->extent - begin <= shared->chunk ? job->extent : begin + shared->chunk;
    char *scratch = job->scratch + (size_t)thread * job->scratch_stride;
    job->kernel(job->buffers, job->vars, begin, end, scratch);
}

/* The first chunk of a thread's share: shares differ by one chunk at most. */
static int64_t first_chunk(const thread_pool *p, int64_t chunks, int thread) {
    return chunks * thread / p->threads;
}

/* Takes a chunk from the front or the back of a queue; returns its position in the share, or -1 when
 * the queue is empty or belongs to another job by now. */
static int claim(thread_queue *from, uint64_t generation, bool front) {
    uint64_t ticket = atomic_load_explicit(&from->ticket, memory_order_acquire);
    for (;;) {
        int begin = ticket & 0xff;
        int end = ticket >> 8 & 0xff;
        if (ticket >> 16 != generation || begin == end) {
            return -1;
        }
        uint64_t rest = front ? ticket + 1 : ticket - (1 << 8);
        if (atomic_compare_exchange_weak_explicit(&from->ticket, &ticket, rest,
                                                  memory_order_acq_rel, memory_order_acquire)) {
            return front ? begin : end - 1;
        }
    }
}

/* Runs chunks until none is left unclaimed, its own first; returns how many it ran. */
static int64_t run_chunks(thread_pool *p, const shared_job *shared, int thread) {
    int64_t completed = 0;
    for (int distance = 0; distance < p->threads; distance++) {
        int victim = (thread + distance) % p->threads;
        int64_t first = -1; /* a division, and most queues of a small job are empty */
        int position;
        while ((position = claim(&p->queues[victim], shared->generation, distance == 0)) >= 0) {
            if (first < 0) {
                first = first_chunk(p, shared->chunks, victim);
            }
            run_chunk(shared, first + position, thread);
            completed++;
        }
    }
    return completed;
}

static void run_inline(const pool_job *job) {
    job->kernel(job->buffers, job->vars, 0, job->extent, job->scratch);
}

/* ---- the worker's side ----------------------------------------------------------------------- */

static void sleep_until_news(thread_pool *p, uint64_t seen) {
    pthread_mutex_lock(&p->mutex);
    /* First announce, then look: the owner publishes first and then looks for sleepers, so one of
     * the two always sees the other (both sequentially consistent). */
    atomic_fetch_add(&p->sleepers, 1);
    while (!has_news(p, seen)) {
        pthread_cond_wait(&p->work_published, &p->mutex);
    }
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->mutex);
}

static shared_job read_published(thread_pool *p, uint64_t generation) {
    published_job *from = &p->published;
#define FIELD(name) atomic_load_explicit(&from->name, memory_order_relaxed)
    return (shared_job){
        .generation = generation,
        .job = {.kernel = FIELD(kernel),
                .buffers = FIELD(buffers),
                .vars = FIELD(vars),
                .extent = FIELD(extent),
                .scratch = FIELD(scratch),
                .scratch_stride = FIELD(scratch_stride)},
        .chunk = FIELD(chunk),
        .chunks = FIELD(chunks),
    };
#undef FIELD
}

static void report_finished(thread_pool *p, int64_t completed) {
    atomic_fetch_add(&p->finished, completed);
    if (atomic_load(&p->owner_asleep)) {
        /* Passing through the mutex puts this after the owner's last look at `finished`. */
        pthread_mutex_lock(&p->mutex);
        pthread_mutex_unlock(&p->mutex);
        pthread_cond_signal(&p->work_finished);
    }
}

static void wait_for_news(worker *self) {
    thread_pool *p = self->pool;
    if (!atomic_exchange(&self->moved, false)) {
        bool contended = atomic_load_explicit(&self->contended, memory_order_relaxed) > 0;
        int64_t patience = contended ? CONTENDED_SPIN_NANOSECONDS : SPIN_NANOSECONDS;
        if (spin_until(has_news, p, self->seen, patience)) {
            return;
        }
    }
    sleep_until_news(p, self->seen);
}

static void *worker_main(void *argument) {
    worker *self = argument;
    thread_pool *p = self->pool;
    atomic_store(&self->name, placement_self());
    for (;;) {
        wait_for_news(self);
        if (atomic_load(&p->stop)) {
            return NULL;
        }
        if (note_core(self) == atomic_load_explicit(&p->owner_core, memory_order_relaxed)) {
            move_away(self);
        }
        self->seen = atomic_load_explicit(&p->generation, memory_order_acquire);
        shared_job shared = read_published(p, self->seen);
        atomic_store_explicit(&self->working, true, memory_order_release);
        int64_t completed = run_chunks(p, &shared, self->index);
        if (completed > 0) {
            /* Reporting once is enough: the job can not end before its last claimant reports. */
            report_finished(p, completed);
        }
        atomic_store_explicit(&self->working, false, memory_order_release);
    }
}

/* ---- the owner's side ------------------------------------------------------------------------ */

/* Workers must not take the process's signals: handlers belong to threads that expect them. */
static void spawn_workers(thread_pool *p) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = 0;
    while (started < p->threads - 1) {
        worker *member = &p->members[started];
        *member = (worker){.pool = p, .index = started + 1, .core = -1};
        member->seen = atomic_load(&p->generation);
        if (pthread_create(&member->thread, NULL, worker_main, member) != 0) {
            break; /* out of threads: fewer workers are slower, not wrong */
        }
        started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    atomic_store(&p->workers, started);
    p->spawned = true;
}

static shared_job split(const thread_pool *p, const pool_job *job) {
    int64_t grains = job->extent / job->grain + (job->extent % job->grain != 0);
    int64_t wanted = (int64_t)p->threads * CHUNKS_PER_THREAD;
    int64_t chunk = job->grain * (grains / wanted + (grains % wanted != 0));
    int64_t chunks = job->extent / chunk + (job->extent % chunk != 0);
    uint64_t generation = atomic_load(&p->generation) + 1;
    return (shared_job){.generation = generation, .job = *job, .chunk = chunk, .chunks = chunks};
}

static void write_published(thread_pool *p, const shared_job *shared) {
    published_job *to = &p->published;
#define SET(name, value) atomic_store_explicit(&to->name, value, memory_order_relaxed)
    SET(kernel, shared->job.kernel);
    SET(buffers, shared->job.buffers);
    SET(vars, shared->job.vars);
    SET(extent, shared->job.extent);
    SET(scratch, shared->job.scratch);
    SET(scratch_stride, shared->job.scratch_stride);
    SET(chunk, shared->chunk);
    SET(chunks, shared->chunks);
#undef SET
    atomic_store_explicit(&p->finished, 0, memory_order_relaxed);
}

static void wake_sleepers(thread_pool *p, int64_t wanted) {
    int asleep = atomic_load(&p->sleepers);
    if (asleep == 0) {
        return;
    }
    /* A worker between its last look and its wait holds the mutex; after this it waits. */
    pthread_mutex_lock(&p->mutex);
    pthread_mutex_unlock(&p->mutex);
    if (wanted >= asleep) {
        pthread_cond_broadcast(&p->work_published);
        return;
    }
    for (; wanted > 0; wanted--) {
        pthread_cond_signal(&p->work_published);
    }
}

static void fill_queues(thread_pool *p, const shared_job *shared) {
    int64_t first = 0;
    for (int i = 0; i < p->threads; i++) {
        int64_t next = first_chunk(p, shared->chunks, i + 1);
        uint64_t ticket = shared->generation << 16 | (uint64_t)(next - first) << 8;
        /* No ticket is used before its generation has been read, which is published last. */
        atomic_store_explicit(&p->queues[i].ticket, ticket, memory_order_relaxed);
        first = next;
    }
}

static void publish(thread_pool *p, const shared_job *shared) {
    keep_core(p);
    write_published(p, shared);
    fill_queues(p, shared);
    atomic_store(&p->generation, shared->generation);
    if (atomic_load(&p->sleepers) > 0) {
        stolen_cores_keep_off(p);
        wake_sleepers(p, shared->chunks - 1);
        stolen_cores_release(p);
    }
}

static void wait_for_workers(thread_pool *p, uint64_t expected) {
    int64_t patience = p->recover_stolen_cores ? LOOK_NANOSECONDS : SPIN_NANOSECONDS;
    if (spin_until(workers_finished, p, expected, patience)) {
        return;
    }
    stolen_cores_move_workers(p, expected);
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->owner_asleep, true); /* announce, then look, as in sleep_until_news */
    while (!workers_finished(p, expected)) {
        pthread_cond_wait(&p->work_finished, &p->mutex);
    }
    atomic_store(&p->owner_asleep, false);
    pthread_mutex_unlock(&p->mutex);
}

static void run_shared(thread_pool *p, const pool_job *job) {
    if (!p->spawned) {
        spawn_workers(p);
    }
    shared_job shared = split(p, job);
    publish(p, &shared);
    int64_t mine = run_chunks(p, &shared, 0);
    wait_for_workers(p, (uint64_t)(shared.chunks - mine));
}

void pool_run(thread_pool *p, const pool_job *job) {
    if (job->extent <= 0) {
        return;
    }
    bool worth_sharing = p->threads > 1 && job->extent > job->grain;
    if (!worth_sharing || atomic_exchange_explicit(&p->busy, true, memory_order_acquire)) {
        run_inline(job);
        return;
    }
    run_shared(p, job);
    atomic_store_explicit(&p->busy, false, memory_order_release);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* A pool with no workers, no owner and no job. */
static void reset(thread_pool *p) {
    atomic_init(&p->generation, 0);
    atomic_init(&p->finished, 0);
    atomic_init(&p->busy, false);
    atomic_init(&p->stop, false);
    atomic_init(&p->owner_asleep, false);
    atomic_init(&p->sleepers, 0);
    atomic_init(&p->workers, 0);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->work_published, NULL);
    pthread_cond_init(&p->work_finished, NULL);
    for (int i = 0; i < p->threads; i++) {
        atomic_init(&p->queues[i].ticket, 0);
    }
    p->spawned = false;
    p->fork_epoch = pool_fork_epoch();
}

thread_pool *pool_create(int threads, bool recover_stolen_cores) {
    pthread_once(&fork_handler_once, install_fork_handler);
    size_t nbytes = sizeof(thread_pool) + sizeof(thread_queue) * (size_t)threads; /* whole cache lines */
    thread_pool *p = aligned_alloc(CACHE_LINE, nbytes);
    worker *members = calloc((size_t)threads, sizeof(worker));
    if (p == NULL || members == NULL) {
        free(members);
        free(p);
        return NULL;
    }
    p->threads = threads;
    p->recover_stolen_cores = recover_stolen_cores;
    p->members = members;
    reset(p);
    return p;
}

static void stop_workers(thread_pool *p) {
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work_published);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 0; i < p->workers; i++) {
        pthread_join(p->members[i].thread, NULL);
    }
}

void pool_destroy(thread_pool *p) {
    if (p->fork_epoch == pool_fork_epoch()) { /* else the workers live in another process */
        stop_workers(p);
        pthread_cond_destroy(&p->work_finished);
        pthread_cond_destroy(&p->work_published);
        pthread_mutex_destroy(&p->mutex);
    }
    free(p->members);
    free(p);
}

void pool_refresh_after_fork(thread_pool *p) {
    if (p->fork_epoch != pool_fork_epoch()) {
        reset(p);
    }
}

int pool_threads(const thread_pool *p) { return p->threads; }

bool pool_recovers_stolen_cores(const thread_pool *p) { return p->recover_stolen_cores; }

int pool_workers(const thread_pool *p) {
    return p->fork_epoch == pool_fork_epoch() ? atomic_load(&p->workers) : 0;
}
