#include "bindings.h"

#include "arguments.h"

bindings *bindings_new(Py_ssize_t n_externals) {
    size_t count = (size_t)n_externals;
    size_t each = sizeof(Py_buffer) + sizeof(char *) + sizeof(order_range);
    char *at = PyMem_Calloc(1, sizeof(bindings) + count * each);
    bindings *b = (bindings *)at;
    if (b != NULL) {
        b->views = (Py_buffer *)(at += sizeof(bindings));
        b->addresses = (char **)(at += count * sizeof(Py_buffer));
        b->ranges = (order_range *)(at += count * sizeof(char *));
    }
    return b;
}

void bindings_free(bindings *b) { PyMem_Free(b); }

void bindings_release(bindings *b) {
    while (b->held > 0) {
        PyBuffer_Release(&b->views[--b->held]);
    }
}

Py_ssize_t required_nbytes(const external_slot *slot, const int64_t *vars) {
    if (vars == NULL || slot->nbytes_of == NULL) {
        return slot->nbytes;
    }
    return (Py_ssize_t)slot->nbytes_of(vars);
}

static int refuse_buffer(const external_slot *slot, PyObject *object) {
    if (!PyObject_CheckBuffer(object)) {
        raise_from_current(PyExc_TypeError, "slot %zd: %R is no buffer", slot->slot,
                           (PyObject *)Py_TYPE(object));
    } else {
        raise_from_current(PyExc_ValueError, "slot %zd: the buffer must be C-contiguous%s",
                           slot->slot, slot->written ? " and writable" : "");
    }
    return -1;
}

static int acquire_one(bindings *b, const external_slot *slot, PyObject *object,
                       const int64_t *vars) {
    /* A simple request is the one that an exporter may grant only for C-contiguous memory, and
     * the only one that NumPy grants for element types the buffer protocol has no code for. */
    Py_buffer *view = &b->views[b->held];
    int flags = slot->written ? PyBUF_SIMPLE | PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(object, view, flags) < 0) {
        return refuse_buffer(slot, object);
    }
    uintptr_t start = (uintptr_t)view->buf;
    b->ranges[b->held] = (order_range){start, start + (size_t)view->len, slot->written};
    b->addresses[b->held++] = view->buf;
    Py_ssize_t required = required_nbytes(slot, vars);
    if (view->len < required) {
        PyErr_Format(PyExc_ValueError, "slot %zd: the buffer has %zd bytes, but %zd are needed",
                     slot->slot, view->len, required);
        return -1;
    }
    return 0;
}

/* How many buffers there are, of which `inputs` gets how many are in the first sequence; or -1. */
static Py_ssize_t count_buffers(PyObject *buffers, PyObject *outputs, Py_ssize_t *inputs) {
    Py_ssize_t more = outputs == NULL ? 0 : PySequence_Size(outputs);
    *inputs = buffers == NULL ? 0 : PySequence_Size(buffers);
    return *inputs < 0 || more < 0 ? -1 : *inputs + more;
}

static int check_count(const ProgramObject *program, Py_ssize_t count) {
    if (count < 0) {
        return -1;
    }
    if (count != program->n_externals) {
        PyErr_Format(PyExc_ValueError,
                     "the program has %zd external slots, but %zd buffers were given",
                     program->n_externals, count);
        return -1;
    }
    return 0;
}

/* Memory that is written must be no one else's: a kernel may read its inputs after it wrote. */
static int check_overlaps(const bindings *b, const ProgramObject *program) {
    for (Py_ssize_t i = 0; i < b->held; i++) {
        const char *start = b->addresses[i], *end = start + b->views[i].len;
        for (Py_ssize_t j = 0; program->externals[i].written && j < b->held; j++) {
            const char *other = b->addresses[j];
            bool apart = end <= other || other + b->views[j].len <= start;
            if (j != i && !apart && b->views[i].len > 0 && b->views[j].len > 0) {
                PyErr_Format(PyExc_ValueError, "slot %zd: the buffer overlaps that of slot %zd",
                             program->externals[i].slot, program->externals[j].slot);
                return -1;
            }
        }
    }
    return 0;
}

int bindings_acquire(bindings *b, const ProgramObject *program, PyObject *buffers,
                     PyObject *outputs, const int64_t *vars) {
    Py_ssize_t inputs;
    if (check_count(program, count_buffers(buffers, outputs, &inputs)) < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < program->n_externals; i++) {
        PyObject *object =
            i < inputs ? sequence_item(buffers, i) : sequence_item(outputs, i - inputs);
        int status = object == NULL ? -1 : acquire_one(b, &program->externals[i], object, vars);
        Py_XDECREF(object); /* the view holds its own reference */
        if (status < 0) {
            bindings_release(b);
            return -1;
        }
    }
    if (check_overlaps(b, program) < 0) {
        bindings_release(b);
        return -1;
    }
    return 0;
}
