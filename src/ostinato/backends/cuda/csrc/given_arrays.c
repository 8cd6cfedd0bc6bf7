#include "given_arrays.h"

/* Arrays that a call brings, at most. */
#define MOST_ARRAYS 32

/* Values of Variables that a call brings, at most. */
#define MOST_WORDS 32

typedef struct {
    Py_ssize_t held; /* this many views are acquired */
    Py_buffer views[MOST_ARRAYS];
    transfer transfers[MOST_ARRAYS];
    order_range ranges[MOST_ARRAYS];
    int64_t words[MOST_WORDS];
} given_arrays;

static void release(given_arrays *given) {
    while (given->held > 0) {
        PyBuffer_Release(&given->views[--given->held]);
    }
}

/* Whether the last array, an output, overlaps an earlier one. */
static bool overlaps(const given_arrays *given) {
    Py_ssize_t last = given->held - 1;
    const order_range *own = &given->ranges[last];
    for (Py_ssize_t i = 0; i < last; i++) {
        if (own->begin < given->ranges[i].end && given->ranges[i].begin < own->end) {
            return true;
        }
    }
    return false;
}

/* Acquires an array in the place of a transfer's. 0; 1 where it is none that serves; -1 with an
 * exception: it is not contiguous, or overlaps another one. */
static int take_array(const GraphRunObject *self, given_arrays *given, PyObject *array, bool written) {
    Py_ssize_t at = given->held;
    Py_buffer *view = &given->views[at];
    if (PyObject_GetBuffer(array, view, written ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) {
        if (PyErr_ExceptionMatches(PyExc_ValueError)) {
            return -1;
        }
        PyErr_Clear();
        return 1;
    }
    given->held++;
    transfer own = self->transfers[at];
    if (written) {
        own.target = view->buf;
    } else {
        own.source = view->buf;
    }
    given->transfers[at] = own;
    uintptr_t start = (uintptr_t)view->buf;
    given->ranges[at] = (order_range){start, start + (uintptr_t)view->len, written};
    if ((size_t)view->len != own.nbytes) {
        return 1;
    }
    if (written && overlaps(given)) {
        PyErr_SetString(PyExc_ValueError, "an output overlaps another array in memory");
        return -1;
    }
    return 0;
}

static int take_arrays(const GraphRunObject *self, given_arrays *given, PyObject *arrays,
                       Py_ssize_t count, bool written) {
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *array = PySequence_GetItem(arrays, i);
        if (array == NULL) {
            return -1;
        }
        int status = take_array(self, given, array, written); /* a view owns its array */
        Py_DECREF(array);
        if (status != 0) {
            return status;
        }
    }
    return 0;
}

/* Whether an executable runs directly, its turn having come; -1 with an exception. */
static int is_direct(PyObject *executable) {
    PyObject *direct = PyObject_GetAttrString(executable, "direct");
    int found = direct == NULL ? -1 : PyObject_IsTrue(direct);
    Py_XDECREF(direct);
    return found;
}

/* 0; 1 where nothing has happened; -1 with an exception. */
static int run_on_arrays(GraphRunObject *self, const given_arrays *given, PyObject *outputs,
                         PyObject *executable) {
    order_thread *thread = order->thread();
    order_entry entry = {
        .ranges = {self->ranges, given->ranges},
        .n_ranges = {(size_t)self->n_ranges, (size_t)given->held},
    };
    if (order_enter(order, thread, &entry) < 0) {
        return -1;
    }
    failure found = {0, NULL};
    int outcome = is_direct(executable);
    if (outcome >= 0) {
        outcome = outcome == 0 ? 1 : run_now(self, given->transfers, given->words, &found);
        if (outcome == 0 && PyObject_SetAttrString(executable, "last", outputs) < 0) {
            outcome = -1;
        }
    }
    order_leave(order, thread, &entry);
    return found.status != 0 ? refuse_run(self, &found) : outcome;
}

PyObject *run_on_given(GraphRunObject *self, PyObject *args) {
    PyObject *inputs, *outputs, *executable, *variables;
    if (!PyArg_ParseTuple(args, "OO!OO:run_on", &inputs, &PyTuple_Type, &outputs, &executable,
                          &variables)) {
        return NULL;
    }
    Py_ssize_t n_inputs = PySequence_Size(inputs), n_outputs = PyTuple_Size(outputs);
    Py_ssize_t n_words = n_inputs < 0 ? -1 : PySequence_Size(variables);
    if (n_words < 0) {
        return NULL;
    }
    if (n_inputs != self->n_before || n_inputs + n_outputs != self->n_transfers ||
        self->n_transfers > MOST_ARRAYS || n_words != self->n_words || n_words > MOST_WORDS) {
        Py_RETURN_FALSE;
    }
    given_arrays given;
    given.held = 0;
    int status = read_values(given.words, variables, n_words);
    if (status == 0) {
        status = take_arrays(self, &given, inputs, n_inputs, false);
    }
    if (status == 0) {
        status = take_arrays(self, &given, outputs, n_outputs, true);
    }
    if (status == 0) {
        status = run_on_arrays(self, &given, outputs, executable);
    }
    release(&given);
    return status < 0 ? NULL : PyBool_FromLong(status == 0);
}
