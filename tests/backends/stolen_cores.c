/* The recovery of stolen cores next to a system that is under control: calls that change affinities
 * are seen here, and fail on request. A thread that sleeps in a kernel has a clock that
 * stands still, like one that lost its core. Two processors are needed.
 *
 *     cc -std=gnu11 -pthread -I CSRC stolen_cores.c CSRC/pool.c CSRC/placement.c CSRC/stolen_cores.c
 *     ./a.out off|together|on|failing
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pool.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static pid_t owner;
static _Atomic int moves, restores;
static _Atomic bool failing;
static enum { REAL, APART, TOGETHER } cores = REAL; /* on which the owner and the worker are */

/* Stands before that of the C library. */
int sched_setaffinity(pid_t thread, size_t size, const cpu_set_t *to) {
    CHECK(thread != 0 && thread != owner); /* threads of others are not touched */
    cpu_set_t before;
    CHECK(sched_getaffinity(thread, sizeof before, &before) == 0);
    bool narrower = CPU_COUNT_S(size, to) < CPU_COUNT(&before);
    if (!narrower && failing) {
        return -1;
    }
    narrower ? moves++ : restores++;
    return (int)syscall(SYS_sched_setaffinity, thread, size, to);
}

/* Stands before that of the C library, too. */
int sched_getcpu(void) {
    unsigned core = 0;
    if (cores == REAL) {
        CHECK(syscall(SYS_getcpu, &core, NULL, NULL) == 0);
        return (int)core;
    }
    cpu_set_t allowed;
    CHECK(sched_getaffinity(owner, sizeof allowed, &allowed) == 0);
    while (!CPU_ISSET(core, &allowed)) {
        core++;
    }
    return (int)core + (cores == APART && gettid() != owner);
}

/* The thread of `vars[0]`, 0 for the owner and 1 for others, sleeps. */
static void sleepy(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                   char *scratch) {
    (void)buffers, (void)begin, (void)end, (void)scratch;
    bool is_owner = gettid() == owner;
    usleep(is_owner == (vars[0] == 0) ? 3000 : 100);
}

static void run(thread_pool *p, int64_t sleeper) {
    static char scratch[2 * 64];
    pool_job job = {sleepy, NULL, &sleeper, 4, 1, scratch, 64};
    pool_run(p, &job);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    bool off = strcmp(arguments[1], "off") == 0, together = strcmp(arguments[1], "together") == 0;
    cores = off ? APART : together ? TOGETHER : REAL;
    owner = gettid();
    cpu_set_t allowed, now;
    CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    thread_pool *p = pool_create(2, !off && !together);
    for (int i = 0; i < 100; i++) {
        run(p, i % 2);
    }
    CHECK(off ? moves == 0 : moves > 0);
    if (together || strcmp(arguments[1], "failing") == 0) {
        failing = true;
        for (int i = 0; i < 100 && moves == restores; i++) {
            run(p, 1);
        }
        CHECK(moves == restores + 1); /* one worker waits for its processors */
        for (int i = 0; i < 20; i++) {
            run(p, 1);
        }
        CHECK(moves == restores + 1); /* and none is moved until it has them */
        failing = false;
        int given_back = restores;
        for (int i = 0; i < 100 && restores == given_back; i++) {
            run(p, 1);
        }
        CHECK(restores > given_back);
    }
    CHECK(sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &allowed));
    pool_destroy(p);
    CHECK(restores == moves);
    return 0;
}
