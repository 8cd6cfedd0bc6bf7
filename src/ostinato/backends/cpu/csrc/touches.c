#include "touches.h"

#include "arguments.h"

const order_api *order;

PyObject *accesses_of(core_state *state, const order_range *ranges, Py_ssize_t n_ranges) {
    PyObject *list = PyList_New(n_ranges), *accesses = NULL;
    for (Py_ssize_t i = 0; list != NULL && i < n_ranges; i++) {
        const order_range *range = &ranges[i];
        PyObject *item = Py_BuildValue("(KnN)", (unsigned long long)range->begin,
                                       (Py_ssize_t)(range->end - range->begin),
                                       PyBool_FromLong(range->written));
        if (item == NULL || PyList_SetItem(list, i, item) < 0) {
            Py_CLEAR(list);
        }
    }
    if (list != NULL) {
        accesses = PyObject_CallFunctionObjArgs(state->accesses_factory, list, NULL);
        Py_DECREF(list);
    }
    return accesses;
}

order_range order_token(const void *object, bool written) {
    return (order_range){(uintptr_t)object, (uintptr_t)object + 1, written};
}

/* (address, nbytes, written) */
static int parse_touched(PyObject *item, Py_ssize_t index, order_range *range) {
    PyObject *fields = read_sequence(item, (place){"touches", index, "its description"});
    int64_t values[2] = {0, 0};
    int status = fields == NULL ? -1 : 0;
    int written = 0;
    if (status == 0 && PyTuple_Size(fields) != 3) {
        PyErr_Format(PyExc_ValueError,
                     "touches %zd has %zd items, but is (address, nbytes, written)", index,
                     PyTuple_Size(fields));
        status = -1;
    }
    for (Py_ssize_t i = 0; status == 0 && i < 2; i++) {
        status = read_int(PyTuple_GetItem(fields, i), 0,
                          (place){"touches", index, i == 0 ? "address" : "nbytes"}, &values[i]);
    }
    if (status == 0 && (written = PyObject_IsTrue(PyTuple_GetItem(fields, 2))) < 0) {
        status = -1;
    }
    Py_XDECREF(fields);
    uintptr_t begin = (uintptr_t)values[0];
    *range = (order_range){begin, begin + (uintptr_t)values[1], written};
    return status;
}

/* One token stands for the program and those that it excludes, another for the block of
 * variables; the rest is memory. */
int program_parse_touched(ProgramObject *self, PyObject *touches) {
    PyObject *items = touches == NULL ? PyTuple_New(0) : PySequence_Tuple(touches);
    if (items == NULL) {
        return -1;
    }
    Py_ssize_t count = PyTuple_Size(items);
    int status = 0;
    self->touched = PyMem_Calloc((size_t)count + 2, sizeof *self->touched);
    if (self->touched == NULL) {
        PyErr_NoMemory();
        status = -1;
    }
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        status = parse_touched(PyTuple_GetItem(items, i), i, &self->touched[i]);
    }
    if (status == 0) {
        ProgramObject *lock_owner = self->exclusive_with == NULL ? self : self->exclusive_with;
        self->touched[count++] = order_token(lock_owner, true);
        if (self->n_resident > 0) {
            self->touched[count++] = order_token(self->queue, false);
        }
        self->n_touched = count;
    }
    Py_DECREF(items);
    return status;
}
