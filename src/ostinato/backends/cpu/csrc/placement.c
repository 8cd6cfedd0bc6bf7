#include "placement.h"

#ifdef __linux__

#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

thread_name placement_self(void) { return (thread_name)syscall(SYS_gettid); }

int placement_here(void) { return sched_getcpu(); }

int64_t placement_run_time(thread_name thread) {
    /* The clock of a thread by its number, as pthread_getcpuclockid makes it from a pthread_t. */
    clockid_t clock = (clockid_t)(~(unsigned)thread << 3 | 6);
    struct timespec time;
    if (thread == 0 || clock_gettime(clock, &time) != 0) {
        return -1;
    }
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* The caller's processor and those that the thread may run on; false where one is not known. */
static bool look(thread_name thread, int *here, cpu_set_t *allowed) {
    *here = sched_getcpu();
    return thread != 0 && *here >= 0 && *here < CPU_SETSIZE &&
           sched_getaffinity((pid_t)thread, sizeof *allowed, allowed) == 0;
}

static bool confine(thread_name thread, const cpu_set_t *to) {
    return sched_setaffinity((pid_t)thread, sizeof *to, to) == 0;
}

/* A thread that is waiting for a processor is moved at once when it may no longer run there. It stays
 * on the processor that it was moved to when it may run anywhere again. */
void placement_bring_here(thread_name thread, placement_set *before) {
    cpu_set_t only;
    int here;
    if (look(thread, &here, &before->allowed) && CPU_ISSET(here, &before->allowed) &&
        CPU_COUNT(&before->allowed) > 1) {
        CPU_ZERO(&only);
        CPU_SET(here, &only);
        before->withheld = confine(thread, &only);
        (void)placement_restore(thread, before); /* else it stays withheld, for another attempt */
    }
}

void placement_forbid_here(thread_name thread, placement_set *before) {
    int here;
    if (look(thread, &here, &before->allowed) && CPU_ISSET(here, &before->allowed) &&
        CPU_COUNT(&before->allowed) > 1) {
        cpu_set_t elsewhere = before->allowed;
        CPU_CLR(here, &elsewhere);
        before->withheld = confine(thread, &elsewhere);
    }
}

bool placement_restore(thread_name thread, placement_set *before) {
    if (before->withheld) {
        cpu_set_t all;
        memset(&all, 0xff, sizeof all);
        before->withheld = !confine(thread, &before->allowed) && !confine(thread, &all);
    }
    return !before->withheld;
}

#else

thread_name placement_self(void) { return 0; }

int placement_here(void) { return -1; }

int64_t placement_run_time(thread_name thread) {
    (void)thread;
    return -1;
}

void placement_bring_here(thread_name thread, placement_set *before) {
    (void)thread;
    (void)before;
}

void placement_forbid_here(thread_name thread, placement_set *before) {
    (void)thread;
    (void)before;
}

bool placement_restore(thread_name thread, placement_set *before) {
    (void)thread;
    (void)before;
    return true;
}

#endif
