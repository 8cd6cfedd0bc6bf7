#include "order_types.h"

#include <string.h>

#include "order_list.h"

/* Under the stable ABI Py_TYPE is a function that takes nothing but a PyObject. */
#define TYPE_OF(self) Py_TYPE((PyObject *)(self))

/* ---- Accesses -------------------------------------------------------------------------------- */

typedef struct {
    PyObject_VAR_HEAD
    order_range ranges[];
} AccessesObject;

#define N_RANGES(accesses) Py_SIZE((PyObject *)(accesses))

/* (address, nbytes, written) */
static int parse_range(PyObject *item, order_range *range) {
    PyObject *fields = PySequence_Tuple(item);
    if (fields == NULL) {
        return -1;
    }
    unsigned long long address = 0;
    Py_ssize_t nbytes = 0;
    int written = 0;
    int parsed = PyArg_ParseTuple(fields, "Knp;a range is (address, nbytes, written)", &address,
                                  &nbytes, &written);
    Py_DECREF(fields);
    if (!parsed) {
        return -1;
    }
    if (nbytes < 0 || address > UINTPTR_MAX - (size_t)nbytes) {
        PyErr_Format(PyExc_ValueError, "%zd bytes at %llu are no range of memory", nbytes, address);
        return -1;
    }
    *range = (order_range){(uintptr_t)address, (uintptr_t)address + (size_t)nbytes, written != 0};
    return 0;
}

static PyObject *accesses_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"ranges", NULL};
    PyObject *ranges;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Accesses", names, &ranges)) {
        return NULL;
    }
    PyObject *items = PySequence_Tuple(ranges);
    if (items == NULL) {
        return NULL;
    }
    Py_ssize_t n_ranges = PyTuple_Size(items);
    AccessesObject *self = (AccessesObject *)PyType_GenericAlloc(type, n_ranges);
    for (Py_ssize_t i = 0; self != NULL && i < n_ranges; i++) {
        if (parse_range(PyTuple_GetItem(items, i), &self->ranges[i]) < 0) {
            Py_CLEAR(self);
        }
    }
    Py_DECREF(items);
    return (PyObject *)self;
}

static void accesses_dealloc(AccessesObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static Py_ssize_t accesses_length(AccessesObject *self) { return N_RANGES(self); }

static PyObject *accesses_item(AccessesObject *self, Py_ssize_t index) {
    if (index < 0 || index >= N_RANGES(self)) {
        PyErr_SetString(PyExc_IndexError, "there is no such range");
        return NULL;
    }
    const order_range *range = &self->ranges[index];
    return Py_BuildValue("(KnN)", (unsigned long long)range->begin,
                         (Py_ssize_t)(range->end - range->begin), PyBool_FromLong(range->written));
}

static PyType_Slot accesses_slots[] = {
    {Py_tp_doc, "Accesses(ranges)\n--\n\n"
                "Ranges of memory that a submission touches, each (address, nbytes, written)."},
    {Py_tp_new, accesses_new},
    {Py_tp_dealloc, accesses_dealloc},
    {Py_sq_length, accesses_length},
    {Py_sq_item, accesses_item},
    {0, NULL},
};

PyType_Spec accesses_spec = {
    .name = "ostinato.plan._order.Accesses",
    .basicsize = sizeof(AccessesObject),
    .itemsize = sizeof(order_range),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = accesses_slots,
};

/* ---- Submission ------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    order_entry entry;
    order_range *ranges;
    order_thread *began; /* the thread that began it, until it ends it */
    bool counted;        /* it is a level of that thread's depth */
} SubmissionObject;

/* The ranges of all Accesses in `args`, one behind the other. */
static int collect_ranges(SubmissionObject *self, order_state *state, PyObject *args) {
    Py_ssize_t n_ranges = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(args); i++) {
        PyObject *item = PyTuple_GetItem(args, i);
        if (Py_TYPE(item) != state->accesses_type) {
            PyErr_Format(PyExc_TypeError, "a Submission is made of Accesses, not %R",
                         (PyObject *)Py_TYPE(item));
            return -1;
        }
        n_ranges += N_RANGES(item);
    }
    self->ranges = PyMem_Malloc(sizeof(order_range) * (size_t)(n_ranges > 0 ? n_ranges : 1));
    if (self->ranges == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    order_range *at = self->ranges;
    for (Py_ssize_t i = 0; i < PyTuple_Size(args); i++) {
        AccessesObject *item = (AccessesObject *)PyTuple_GetItem(args, i);
        memcpy(at, item->ranges, sizeof(order_range) * (size_t)N_RANGES(item));
        at += N_RANGES(item);
    }
    self->entry.ranges[0] = self->ranges;
    self->entry.n_ranges[0] = (size_t)n_ranges;
    return 0;
}

static PyObject *submission_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Submission() takes no keyword arguments");
        return NULL;
    }
    SubmissionObject *self = (SubmissionObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (collect_ranges(self, PyType_GetModuleState(type), args) < 0 ||
        (order_this_thread.depth == 0 && order_yield("enter") < 0)) {
        Py_DECREF(self);
        return NULL;
    }
    self->entry.queued = true;
    order_append(&self->entry);
    return (PyObject *)self;
}

static void submission_dealloc(SubmissionObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    if (self->entry.listed) {
        order_unlink(&self->entry);
    }
    PyMem_Free(self->ranges);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *submission_begin(SubmissionObject *self, PyObject *unused) {
    (void)unused;
    if (self->began != NULL || !self->entry.listed) {
        PyErr_SetString(PyExc_RuntimeError, "this submission has begun before, or was withdrawn");
        return NULL;
    }
    self->entry.thread = &order_this_thread;
    self->counted = order_this_thread.depth == 0;
    if (self->counted && order_begin(&order_this_thread, &self->entry) < 0) {
        return NULL;
    }
    self->began = &order_this_thread;
    return Py_NewRef((PyObject *)self);
}

static PyObject *submission_end(SubmissionObject *self, PyObject *unused) {
    (void)unused;
    if (self->began == NULL || self->began != &order_this_thread) {
        PyErr_SetString(PyExc_RuntimeError, "this submission is not of this thread");
        return NULL;
    }
    self->began = NULL;
    if (self->counted) {
        order_leave_slowly(&order_this_thread, &self->entry);
    } else if (self->entry.listed) {
        order_unlink(&self->entry);
    }
    Py_RETURN_NONE;
}

static PyObject *submission_exit(SubmissionObject *self, PyObject *args) {
    (void)args;
    return submission_end(self, NULL);
}

static PyMethodDef submission_methods[] = {
    {"begin", (PyCFunction)submission_begin, METH_NOARGS,
     "begin($self)\n--\n\nWaits for what was submitted before and touches the same memory."},
    {"end", (PyCFunction)submission_end, METH_NOARGS,
     "end($self)\n--\n\nIt has taken effect: what waits for it may go on."},
    {"__enter__", (PyCFunction)submission_begin, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)submission_exit, METH_VARARGS, NULL},
    {0},
};

static PyType_Slot submission_slots[] = {
    {Py_tp_doc, "Submission(*accesses)\n--\n\n"
                "A position in the order of submissions, taken when this is made."},
    {Py_tp_new, submission_new},
    {Py_tp_dealloc, submission_dealloc},
    {Py_tp_methods, submission_methods},
    {0, NULL},
};

PyType_Spec submission_spec = {
    .name = "ostinato.plan._order.Submission",
    .basicsize = sizeof(SubmissionObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = submission_slots,
};
