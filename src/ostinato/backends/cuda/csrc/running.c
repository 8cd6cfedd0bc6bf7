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

/* The copies and the graph, without the GIL. The status of the call that failed, and its name. */
static int carry_out(const GraphRunObject *self, const transfer *transfers, const char **failed) {
    const driver_calls *calls = &self->calls;
    copy(transfers, self->n_before);
    int status = calls->push(self->context);
    if (status != 0) {
        *failed = "cuCtxPushCurrent";
        return status;
    }
    int64_t before = self->signal == NULL ? 0 : *self->signal;
    status = calls->launch(self->graph, self->stream);
    *failed = "cuGraphLaunch";
    if (status != 0 || !comes_soon(self->signal, before)) {
        int waited = calls->synchronize(self->stream); /* also where the launch was refused */
        if (status == 0 && waited != 0) {
            status = waited;
            *failed = "cuStreamSynchronize";
        }
    }
    void *former;
    int popped = calls->pop(&former);
    if (status == 0 && popped != 0) {
        status = popped;
        *failed = "cuCtxPopCurrent";
    }
    if (status == 0) { /* results of a run that failed are not copied */
        copy(transfers + self->n_before, self->n_transfers - self->n_before);
    }
    return status;
}

int run_now(const GraphRunObject *self, const transfer *transfers, const int64_t *values,
            int *status, const char **failed) {
    if (self->epoch->over || self->process != (long)getpid()) {
        return 1;
    }
    if (self->n_words > 0) {
        memcpy(self->words, values, (size_t)self->n_words * sizeof *values);
    }
    PyThreadState *state = PyEval_SaveThread();
    *status = carry_out(self, transfers, failed);
    PyEval_RestoreThread(state);
    return *status == 0 ? 0 : -1;
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

int refuse_run(const GraphRunObject *self, const char *failed, int status) {
    PyObject *unused = PyObject_CallFunction(self->refuse, "si", failed, status);
    if (unused != NULL) {
        Py_DECREF(unused);
        PyErr_Format(PyExc_RuntimeError, "%s failed with %d", failed, status);
    }
    return -1;
}

int run_in_order(GraphRunObject *self, order_thread *thread) {
    order_entry entry = {.ranges = {self->ranges}, .n_ranges = {(size_t)self->n_ranges}};
    if (order_enter(order, thread, &entry) < 0) {
        return -1;
    }
    const char *failed = NULL;
    int status = 0;
    int outcome = run_now(self, self->transfers, NULL, &status, &failed);
    order_leave(order, thread, &entry);
    return outcome < 0 ? refuse_run(self, failed, status) : outcome;
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
    const char *failed = NULL;
    int status = 0, outcome = read_values(values, variables, count);
    if (outcome == 0) {
        outcome = run_now(self, self->transfers, values, &status, &failed);
    }
    PyMem_Free(values);
    if (status != 0) {
        refuse_run(self, failed, status);
    }
    return outcome < 0 ? NULL : PyBool_FromLong(outcome == 0);
}
