#include "order_list.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

/* A sleeping thread looks for signals this often. */
#define SIGNAL_INTERVAL_NS 50000000L

/* Memory belongs to the process, and so does the order of what touches it. */
order_list submissions;

/* Threads that wait for their turn sleep here. */
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_over = PTHREAD_COND_INITIALIZER;
static uint64_t departures; /* of awaited entries; guarded by sleep_lock */

_Thread_local order_thread order_this_thread __attribute__((tls_model("initial-exec")));

/* ---- the list -------------------------------------------------------------------------------- */

void order_append(order_entry *entry) {
    entry->before = submissions.newest;
    entry->after = NULL;
    if (submissions.newest != NULL) {
        submissions.newest->after = entry;
    } else {
        submissions.oldest = entry;
    }
    submissions.newest = entry;
    entry->listed = true;
}

void order_unlink(order_entry *entry) {
    if (entry->before != NULL) {
        entry->before->after = entry->after;
    } else {
        submissions.oldest = entry->after;
    }
    if (entry->after != NULL) {
        entry->after->before = entry->before;
    } else {
        submissions.newest = entry->before;
    }
    entry->listed = false;
    if (entry->awaited) {
        pthread_mutex_lock(&sleep_lock);
        departures++;
        pthread_cond_broadcast(&sleep_over);
        pthread_mutex_unlock(&sleep_lock);
    }
}

/* Whether both touch a byte, and one of them writes it. */
static bool range_conflict(order_range a, order_range b) {
    uintptr_t begin = a.begin > b.begin ? a.begin : b.begin;
    uintptr_t end = a.end < b.end ? a.end : b.end;
    return begin < end && (a.written || b.written);
}

static bool ranges_conflict(const order_range *a, size_t n_a, const order_range *b, size_t n_b) {
    for (size_t i = 0; i < n_a; i++) {
        for (size_t j = 0; j < n_b; j++) {
            if (range_conflict(a[i], b[j])) {
                return true;
            }
        }
    }
    return false;
}

static bool conflict(const order_entry *a, const order_entry *b) {
    for (int i = 0; i < ORDER_RANGE_SETS; i++) {
        for (int j = 0; j < ORDER_RANGE_SETS; j++) {
            if (ranges_conflict(a->ranges[i], a->n_ranges[i], b->ranges[j], b->n_ranges[j])) {
                return true;
            }
        }
    }
    return false;
}

/* The last entry before this one that it has to wait for. Never one of the same thread: that is
 * interrupted by a signal handler, and would wait for itself. */
static order_entry *blocker_of(const order_entry *entry) {
    for (order_entry *other = entry->before; other != NULL; other = other->before) {
        if (other->thread != entry->thread && conflict(other, entry)) {
            return other;
        }
    }
    return NULL;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Lets a test switch threads here. -1 with the exception that it raised. */
int order_yield(const char *point) {
    if (submissions.hook == NULL) {
        return 0;
    }
    PyObject *called = Py_NewRef((PyObject *)submissions.hook);
    PyObject *result = PyObject_CallFunction(called, "s", point);
    Py_DECREF(called);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static void sleep_until_departure(order_entry *blocker) {
    blocker->awaited = true;
    uint64_t seen = departures; /* written with the GIL held, too */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += SIGNAL_INTERVAL_NS;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&sleep_lock);
    int status = 0;
    while (departures == seen && status == 0) {
        status = pthread_cond_timedwait(&sleep_over, &sleep_lock, &until);
    }
    pthread_mutex_unlock(&sleep_lock);
    Py_END_ALLOW_THREADS
}

static int wait_for_turn(order_entry *entry) {
    order_entry *blocker;
    while ((blocker = blocker_of(entry)) != NULL) {
        if (submissions.hook == NULL) {
            sleep_until_departure(blocker);
        } else if (order_yield("wait") < 0) {
            return -1;
        }
        if (PyErr_CheckSignals() < 0) {
            return -1;
        }
    }
    return order_yield("begin");
}

/* Wait until an appended entry, with its thread set, conflicts with no older one. */
int order_begin(order_thread *thread, order_entry *entry) {
    if (wait_for_turn(entry) < 0) {
        if (entry->listed) {
            order_unlink(entry);
        }
        return -1;
    }
    thread->depth++;
    return 0;
}

int order_enter_slowly(order_thread *thread, order_entry *entry) {
    entry->listed = false;
    if (thread->depth > 0) {
        return 0;
    }
    if (order_yield("enter") < 0) {
        return -1;
    }
    entry->thread = thread;
    entry->awaited = entry->queued = false;
    order_append(entry);
    return order_begin(thread, entry);
}

/* Keeps the exception that is set, if one is. */
static void yield_after_leaving(void) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (order_yield("leave") < 0) {
        PyErr_WriteUnraisable(submissions.hook);
    }
    PyErr_Restore(type, value, trace);
}

void order_leave_slowly(order_thread *thread, order_entry *entry) {
    if (!entry->listed) {
        return;
    }
    thread->depth--;
    order_unlink(entry);
    if (submissions.hook != NULL) {
        yield_after_leaving();
    }
}

/* ---- forks ----------------------------------------------------------------------------------- */

/* The parent's other threads, and what they submitted, do not exist in a forked child. */
void order_forget_other_threads(void) {
    pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t no_sleepers = PTHREAD_COND_INITIALIZER;
    memcpy(&sleep_lock, &free_lock, sizeof sleep_lock);
    memcpy(&sleep_over, &no_sleepers, sizeof sleep_over);
    order_entry *entry = submissions.oldest;
    submissions.oldest = submissions.newest = NULL;
    while (entry != NULL) {
        order_entry *next = entry->after;
        if (entry->thread == &order_this_thread) {
            order_append(entry);
        } else if (entry->queued) {
            entry->listed = false;
        }
        entry = next;
    }
}
