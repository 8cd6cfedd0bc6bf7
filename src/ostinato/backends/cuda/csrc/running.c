#include "running.h"

#include <string.h>
#include <unistd.h>

/* After so many looks, some 0.1 ms, the driver's wait costs a run next to nothing. */
#define MOST_LOOKS 4096

const order_api *order;

static void copy(const transfer *transfers, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        memcpy(transfers[i].target, transfers[i].source, transfers[i].nbytes);
    }
}

static void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* Watches a word for a while; whether it has changed. Then all is in memory that was written
 * before it. */
static bool comes_soon(const int64_t *signal, int64_t before) {
    for (int i = 0; signal != NULL && i < MOST_LOOKS; i++) {
        if (__atomic_load_n(signal, __ATOMIC_ACQUIRE) != before) {
            return true;
        }
        pause_briefly();
    }
    return false;
}

/* The status of a call of the driver, unless one has failed before, with its name. */
static void note(failure *found, int status, const char *name) {
    if (found->status == 0 && status != 0) {
        *found = (failure){status, name};
    }
}

/* The copies before the graph, and its launch. `signal` is what the word was before. */
static void launch(const GraphRunObject *self, const transfer *transfers, int64_t *signal,
                   failure *found) {
    const driver_calls *calls = &self->calls;
    copy(transfers, self->n_before);
    note(found, calls->push(self->context), "cuCtxPushCurrent");
    if (found->status != 0) {
        return;
    }
    *signal = self->signal == NULL ? 0 : *self->signal;
    note(found, calls->launch(self->graph, self->stream), "cuGraphLaunch");
    if (found->status != 0) {
        calls->synchronize(self->stream); /* with what was launched of it */
    }
    void *former;
    note(found, calls->pop(&former), "cuCtxPopCurrent");
}

/* Waits for a graph that was launched; then the copies behind it. */
static void await(const GraphRunObject *self, const transfer *transfers, int64_t signal,
                  failure *found) {
    const driver_calls *calls = &self->calls;
    if (!comes_soon(self->signal, signal)) {
        int pushed = calls->push(self->context);
        note(found, pushed, "cuCtxPushCurrent");
        note(found, calls->synchronize(self->stream), "cuStreamSynchronize");
        void *former;
        note(found, pushed == 0 ? calls->pop(&former) : 0, "cuCtxPopCurrent");
    }
    if (found->status == 0) { /* results of a run that failed are not copied */
        copy(transfers + self->n_before, self->n_transfers - self->n_before);
    }
}

/* Whether all addresses still hold. */
static bool holds(const GraphRunObject *self) {
    return !self->epoch->over && self->process == (long)getpid();
}

int run_now(const GraphRunObject *self, const transfer *transfers, const int64_t *values,
            failure *found) {
    if (!holds(self)) {
        return 1;
    }
    if (self->n_words > 0) {
        memcpy(self->words, values, (size_t)self->n_words * sizeof *values);
    }
    PyThreadState *state = PyEval_SaveThread();
    int64_t signal = 0;
    launch(self, transfers, &signal, found);
    if (found->status == 0) {
        await(self, transfers, signal, found);
    }
    PyEval_RestoreThread(state);
    return found->status == 0 ? 0 : -1;
}

int read_values(int64_t *values, PyObject *variables, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = PySequence_GetItem(variables, i);
        values[i] = value == NULL ? -1 : PyLong_AsLongLong(value);
        Py_XDECREF(value);
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

int refuse_run(const GraphRunObject *self, const failure *found) {
    PyObject *unused = PyObject_CallFunction(self->refuse, "si", found->call, found->status);
    if (unused != NULL) {
        Py_DECREF(unused);
        PyErr_Format(PyExc_RuntimeError, "%s failed with %d", found->call, found->status);
    }
    return -1;
}

int run_in_order(GraphRunObject *self, order_thread *thread) {
    order_entry entry = {.ranges = {self->ranges}, .n_ranges = {(size_t)self->n_ranges}};
    if (order_enter(order, thread, &entry) < 0) {
        return -1;
    }
    failure found = {0, NULL};
    int outcome = run_now(self, self->transfers, NULL, &found);
    order_leave(order, thread, &entry);
    return outcome < 0 ? refuse_run(self, &found) : outcome;
}

/* Leaves the order with an entry that is no thread's. */
static void leave_alone(order_thread *thread, order_entry *entry) {
    int depth = thread->depth;
    thread->depth = 1;
    order_leave(order, thread, entry);
    thread->depth = depth;
}

int start_in_order(GraphRunObject *self, started_run *started, order_thread *thread) {
    if (thread->depth > 0) { /* within a submission, whose end it would outlive */
        return 1;
    }
    started->entry = (order_entry){.ranges = {self->ranges}, .n_ranges = {(size_t)self->n_ranges}};
    if (order_enter(order, thread, &started->entry) < 0) {
        return -1;
    }
    /* From here on it is as one that is queued: of no thread, whose others take turns with it. */
    started->entry.thread = NULL;
    started->entry.queued = true;
    thread->depth = 0;
    int outcome = 1;
    failure found = {0, NULL};
    if (holds(self)) {
        PyThreadState *state = PyEval_SaveThread();
        launch(self, self->transfers, &started->signal, &found);
        PyEval_RestoreThread(state);
        outcome = found.status == 0 ? 0 : -1;
    }
    if (outcome != 0) {
        leave_alone(thread, &started->entry);
        return outcome < 0 ? refuse_run(self, &found) : outcome;
    }
    started->run = (GraphRunObject *)Py_NewRef((PyObject *)self);
    return 0;
}

int finish_in_order(started_run *started, order_thread *thread) {
    GraphRunObject *run = started->run;
    started->run = NULL;
    failure found = {0, NULL};
    if (run->process == (long)getpid()) { /* a forked child has no such work */
        PyThreadState *state = PyEval_SaveThread();
        await(run, run->transfers, started->signal, &found);
        PyEval_RestoreThread(state);
    }
    leave_alone(thread, &started->entry);
    int outcome = found.status == 0 ? 0 : refuse_run(run, &found);
    Py_DECREF((PyObject *)run);
    return outcome;
}

PyObject *run_in_turn(GraphRunObject *self, PyObject *variables) {
    Py_ssize_t count = PySequence_Size(variables);
    if (count < 0) {
        return NULL;
    }
    if (count != self->n_words) {
        Py_RETURN_FALSE;
    }
    int64_t *values = PyMem_Calloc((size_t)count + 1, sizeof *values);
    if (values == NULL) {
        return PyErr_NoMemory();
    }
    failure found = {0, NULL};
    int outcome = read_values(values, variables, count);
    if (outcome == 0) {
        outcome = run_now(self, self->transfers, values, &found);
    }
    PyMem_Free(values);
    if (found.status != 0) {
        refuse_run(self, &found);
    }
    return outcome < 0 ? NULL : PyBool_FromLong(outcome == 0);
}
