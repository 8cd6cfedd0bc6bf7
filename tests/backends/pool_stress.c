/* Stress of the thread pool, without Python, so that it runs under the thread sanitizer too.
 *
 * Each job checks that every row ran exactly once, under the job's own description, in pieces that
 * respect the grain, with scratch that no other thread touches. What a job points at is spoiled as
 * soon as it is over: a late worker that looked at it would be noticed.
 *
 *     cc -std=gnu11 -g -O2 -pthread -I CSRC pool_stress.c CSRC/pool.c CSRC/placement.c \
 *         CSRC/stolen_cores.c && ./a.out [seconds]
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pool.h"

#define MAX_ROWS 3000
#define MAX_THREADS 8
#define SCRATCH_STRIDE 128
#define SPOILED (-1)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { VAR_JOB, VAR_EXTENT, VAR_GRAIN, VAR_WORK, N_VARS };

typedef struct {
    int64_t job;
    _Atomic int64_t pieces;
    _Atomic int runs[MAX_ROWS];
} ledger;

typedef struct {
    thread_pool *pool;
    unsigned seed;
    double until;
    long jobs;
} owner;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                   char *scratch) {
    ledger *book = (ledger *)buffers[0];
    CHECK(vars[VAR_JOB] != SPOILED && book->job == vars[VAR_JOB]);
    CHECK(0 <= begin && begin < end && end <= vars[VAR_EXTENT]);
    CHECK(begin % vars[VAR_GRAIN] == 0);
    CHECK(end % vars[VAR_GRAIN] == 0 || end == vars[VAR_EXTENT]);
    int64_t *mine = (int64_t *)scratch; /* not atomic on purpose: the sanitizer watches it */
    CHECK(*mine == 0);
    *mine = vars[VAR_JOB];
    for (int64_t row = begin; row < end; row++) {
        atomic_fetch_add_explicit(&book->runs[row], 1, memory_order_relaxed);
        for (volatile int64_t spin = 0; spin < vars[VAR_WORK]; spin = spin + 1) {
        }
    }
    CHECK(*mine == vars[VAR_JOB]);
    *mine = 0;
    atomic_fetch_add(&book->pieces, 1);
}

static void one_job(owner *self, ledger *book, char *scratch) {
    unsigned *seed = &self->seed;
    int64_t extent = rand_r(seed) % (rand_r(seed) % 2 ? 8 : MAX_ROWS);
    int64_t grain = 1 + rand_r(seed) % (rand_r(seed) % 2 ? 4 : 400);
    int64_t vars[N_VARS] = {self->jobs, extent, grain, rand_r(seed) % 60};
    char *buffers[1] = {(char *)book};
    pool_job job = {kernel, buffers, vars, extent, grain, scratch, SCRATCH_STRIDE};
    book->job = self->jobs;

    pool_run(self->pool, &job);

    for (int64_t row = 0; row < MAX_ROWS; row++) {
        CHECK(book->runs[row] == (row < extent));
    }
    CHECK(extent > grain || book->pieces == (extent > 0));
    memset(vars, SPOILED, sizeof vars);
    memset((void *)book->runs, 0, sizeof book->runs);
    book->pieces = 0;
    buffers[0] = NULL;
}

static void *own(void *argument) {
    owner *self = argument;
    ledger *book = calloc(1, sizeof *book);
    char *scratch = aligned_alloc(SCRATCH_STRIDE, SCRATCH_STRIDE * MAX_THREADS);
    memset(scratch, 0, SCRATCH_STRIDE * MAX_THREADS);
    while (seconds() < self->until) {
        one_job(self, book, scratch);
        self->jobs++;
        switch (rand_r(&self->seed) % 64) { /* let workers fall asleep, now and then */
        case 0: usleep(200); break;
        case 1: usleep(30); break;
        default: break;
        }
    }
    free(scratch);
    free(book);
    return NULL;
}

static long run_owners(int threads, int n_owners, double duration) {
    thread_pool *p = pool_create(threads, threads % 2 == 0);
    CHECK(p != NULL && pool_workers(p) == 0);
    owner owners[4];
    pthread_t handles[4];
    for (int i = 0; i < n_owners; i++) {
        owners[i] = (owner){p, (unsigned)(100 * threads + i), seconds() + duration, 1};
        CHECK(pthread_create(&handles[i], NULL, own, &owners[i]) == 0);
    }
    long jobs = 0;
    for (int i = 0; i < n_owners; i++) {
        pthread_join(handles[i], NULL);
        jobs += owners[i].jobs;
    }
    CHECK(pool_workers(p) <= threads - 1);
    pool_destroy(p);
    return jobs;
}

/* Pools that die young, while their workers are still starting, spinning or falling asleep. */
static void short_lives(double duration) {
    double until = seconds() + duration;
    ledger *book = calloc(1, sizeof *book);
    char *scratch = aligned_alloc(SCRATCH_STRIDE, SCRATCH_STRIDE * MAX_THREADS);
    memset(scratch, 0, SCRATCH_STRIDE * MAX_THREADS);
    for (unsigned life = 1; seconds() < until; life++) {
        owner self = {pool_create(1 + (int)(life % MAX_THREADS), life % 3 == 0), life, 0, 1};
        for (unsigned i = 0; i < life % 5; i++) {
            one_job(&self, book, scratch);
        }
        if (life % 7 == 0) {
            usleep(100);
        }
        pool_destroy(self.pool);
    }
    free(scratch);
    free(book);
}

int main(int argc, char **argv) {
    double duration = argc > 1 ? atof(argv[1]) : 2.0;
    int sizes[] = {1, 2, 4, MAX_THREADS};
    long jobs = 0;
    for (int i = 0; i < 4; i++) {
        jobs += run_owners(sizes[i], 1, duration / 10);
        jobs += run_owners(sizes[i], 3, duration / 10);
    }
    short_lives(duration / 5);
    printf("%ld jobs\n", jobs);
    return 0;
}
