#include "limits.h"

#include "program_state.h"
#include "touches.h"

/* Limits are bytes: an int64 for each step, its greatest extent, and then what kernels read of their
 * own limits in the slot for that. They hold for the runs of one thread, or for those of all threads
 * that have none of their own; a run that finds others in force than its own puts those in their
 * place. */

int program_check_limit_slot(ProgramObject *self) {
    return self->limit_slot < 0 || program_fixed(self, self->limit_slot) != NULL ? 0 : -1;
}

static size_t limit_bytes(const ProgramObject *self) {
    return sizeof(int64_t) * (size_t)self->n_steps;
}

static int check_limits(ProgramObject *self, PyObject *limits) {
    if (self->limit_slot < 0) {
        PyErr_SetString(PyExc_ValueError, "the program was made without a limit_slot");
        return -1;
    }
    if (self->stopped != NULL) {
        raise_stopped(self);
        return -1;
    }
    char *data;
    Py_ssize_t nbytes;
    if (PyBytes_AsStringAndSize(limits, &data, &nbytes) < 0) {
        return -1;
    }
    Py_ssize_t needed =
        (Py_ssize_t)limit_bytes(self) + program_fixed(self, self->limit_slot)->view.len;
    if (nbytes != needed) {
        PyErr_Format(PyExc_ValueError, "limits have %zd bytes, but %zd are needed", nbytes, needed);
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->n_steps; i++) {
        int64_t limit;
        memcpy(&limit, data + sizeof limit * (size_t)i, sizeof limit);
        if (limit < 0) {
            PyErr_Format(PyExc_ValueError, "step %zd: the limit is negative", i);
            return -1;
        }
    }
    return 0;
}

/* Borrowed: those of the calling thread's runs, or NULL. */
static PyObject *current_limits(const ProgramObject *self) {
    if (self->n_of_threads > 0) {
        const order_thread *thread = calling_thread();
        for (Py_ssize_t i = self->n_of_threads - 1; i >= 0; i--) {
            if (self->of_threads[i].thread == thread) {
                return self->of_threads[i].limits;
            }
        }
    }
    return self->limits;
}

/* The GIL stays held; see program_move_slot. */
void program_apply_limits(ProgramObject *self) {
    PyObject *limits = current_limits(self);
    if (limits == self->applied || self->stopped != NULL) {
        return;
    }
    fixed_slot *target = program_fixed(self, self->limit_slot);
    if (limits == NULL) {
        executor_limit(self->executor, NULL, target->view.buf, NULL, (size_t)target->view.len);
    } else {
        const char *data = PyBytes_AsString(limits);
        executor_limit(self->executor, data, target->view.buf, data + limit_bytes(self),
                       (size_t)target->view.len);
    }
    PyObject *former = self->applied;
    self->applied = Py_XNewRef(limits);
    Py_XDECREF(former);
}

/* `limits`, checked; NULL for None. -1 with an exception. */
static int read_limits(ProgramObject *self, PyObject **limits) {
    if (*limits == Py_None) {
        *limits = NULL;
        return 0;
    }
    return check_limits(self, *limits);
}

PyObject *program_set_limits(ProgramObject *self, PyObject *limits) {
    if (read_limits(self, &limits) < 0) {
        return NULL;
    }
    PyObject *former = self->limits;
    self->limits = Py_XNewRef(limits);
    Py_XDECREF(former);
    Py_RETURN_NONE;
}

PyObject *program_push_limits(ProgramObject *self, PyObject *limits) {
    if (read_limits(self, &limits) < 0) {
        return NULL;
    }
    size_t nbytes = sizeof(thread_limits) * (size_t)(self->n_of_threads + 1);
    thread_limits *grown = PyMem_Realloc(self->of_threads, nbytes);
    if (grown == NULL) {
        return PyErr_NoMemory();
    }
    self->of_threads = grown;
    grown[self->n_of_threads++] = (thread_limits){calling_thread(), Py_XNewRef(limits)};
    Py_RETURN_NONE;
}

PyObject *program_pop_limits(ProgramObject *self, PyObject *unused) {
    (void)unused;
    const order_thread *thread = calling_thread();
    for (Py_ssize_t i = self->n_of_threads - 1; i >= 0; i--) {
        if (self->of_threads[i].thread == thread) {
            PyObject *limits = self->of_threads[i].limits;
            self->n_of_threads--;
            memmove(&self->of_threads[i], &self->of_threads[i + 1],
                    sizeof(thread_limits) * (size_t)(self->n_of_threads - i));
            Py_XDECREF(limits);
            Py_RETURN_NONE;
        }
    }
    PyErr_SetString(PyExc_RuntimeError, "this thread has no limits of its own");
    return NULL;
}
