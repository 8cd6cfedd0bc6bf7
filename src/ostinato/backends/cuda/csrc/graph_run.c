#include "graph_run.h"

#include <unistd.h>

#include "given_arrays.h"
#include "running.h"

/* ---- Epoch ----------------------------------------------------------------------------------- */

static PyObject *epoch_end(EpochObject *self, PyObject *unused) {
    (void)unused;
    self->over = true;
    Py_RETURN_NONE;
}

static void epoch_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef epoch_methods[] = {
    {"end", (PyCFunction)epoch_end, METH_NOARGS,
     "end($self)\n--\n\nNo run of this epoch takes place from now on."},
    {0},
};

static PyType_Slot epoch_slots[] = {
    {Py_tp_doc, "The time in which a program's memory stays where it is."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, epoch_dealloc},
    {Py_tp_methods, epoch_methods},
    {0, NULL},
};

PyType_Spec epoch_spec = {
    .name = "ostinato.backends.cuda._graph_calls.Epoch",
    .basicsize = sizeof(EpochObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = epoch_slots,
};

/* ---- GraphRun -------------------------------------------------------------------------------- */

/* An address in a tuple or list; NULL with an exception where it is none. */
static void *address_at(PyObject *sequence, Py_ssize_t position) {
    PyObject *item = PySequence_GetItem(sequence, position);
    void *address = item == NULL ? NULL : PyLong_AsVoidPtr(item);
    Py_XDECREF(item);
    return address;
}

static int read_transfers(transfer *found, PyObject *items, Py_ssize_t count, bool before) {
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(items, i);
        if (item == NULL) {
            return -1;
        }
        void *outside = address_at(item, 0), *inside = address_at(item, 1);
        size_t nbytes = (size_t)address_at(item, 2);
        Py_DECREF(item);
        if (PyErr_Occurred()) {
            return -1;
        }
        found[i] = before ? (transfer){inside, outside, nbytes} : (transfer){outside, inside, nbytes};
    }
    return 0;
}

static int read_ranges(GraphRunObject *self, PyObject *accesses) {
    for (Py_ssize_t i = 0; i < self->n_ranges; i++) {
        PyObject *item = PySequence_GetItem(accesses, i);
        if (item == NULL) {
            return -1;
        }
        uintptr_t start = (uintptr_t)address_at(item, 0), nbytes = (uintptr_t)address_at(item, 1);
        PyObject *written = PyErr_Occurred() ? NULL : PySequence_GetItem(item, 2);
        Py_DECREF(item);
        if (written == NULL) {
            return -1;
        }
        self->ranges[i] = (order_range){start, start + nbytes, PyObject_IsTrue(written) > 0};
        Py_DECREF(written);
    }
    return 0;
}

static int read_calls(GraphRunObject *self, PyObject *calls) {
    self->calls.push = (int (*)(void *))address_at(calls, 0);
    self->calls.pop = (int (*)(void **))address_at(calls, 1);
    self->calls.launch = (int (*)(void *, void *))address_at(calls, 2);
    self->calls.synchronize = (int (*)(void *))address_at(calls, 3);
    return PyErr_Occurred() ? -1 : 0;
}

static int graph_run_read(GraphRunObject *self, PyObject *calls, PyObject *handles, PyObject *before,
                          PyObject *after, PyObject *accesses, PyObject *words) {
    self->context = address_at(handles, 0);
    self->graph = PyErr_Occurred() ? NULL : address_at(handles, 1);
    self->stream = PyErr_Occurred() ? NULL : address_at(handles, 2);
    self->signal = PyErr_Occurred() ? NULL : address_at(handles, 3);
    self->words = PyErr_Occurred() ? NULL : address_at(words, 0);
    self->n_words = PyErr_Occurred() ? 0 : (Py_ssize_t)(intptr_t)address_at(words, 1);
    if (PyErr_Occurred() || read_calls(self, calls) < 0) {
        return -1;
    }
    Py_ssize_t n_before = PySequence_Size(before);
    Py_ssize_t n_after = n_before < 0 ? -1 : PySequence_Size(after);
    Py_ssize_t n_ranges = n_after < 0 ? -1 : PySequence_Size(accesses);
    if (n_ranges < 0) {
        return -1;
    }
    self->transfers = PyMem_Calloc((size_t)(n_before + n_after), sizeof *self->transfers);
    self->ranges = PyMem_Calloc((size_t)n_ranges, sizeof *self->ranges);
    if (self->transfers == NULL || self->ranges == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->n_before = n_before;
    self->n_transfers = n_before + n_after;
    self->n_ranges = n_ranges;
    if (read_transfers(self->transfers, before, n_before, true) < 0 ||
        read_transfers(self->transfers + n_before, after, n_after, false) < 0) {
        return -1;
    }
    return read_ranges(self, accesses);
}

static PyObject *graph_run_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"epoch", "calls",    "refuse", "handles", "before",
                            "after", "accesses", "owners", "words",   NULL};
    PyObject *epoch, *calls, *refuse, *handles, *before, *after, *accesses, *owners, *words;
    graph_calls_state *state = PyType_GetModuleState(type);
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOOOOOOO:GraphRun", names, state->epoch_type,
                                     &epoch, &calls, &refuse, &handles, &before, &after, &accesses,
                                     &owners, &words)) {
        return NULL;
    }
    GraphRunObject *self = (GraphRunObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->epoch = (EpochObject *)Py_NewRef(epoch);
    self->refuse = Py_NewRef(refuse);
    self->owners = Py_NewRef(owners);
    self->process = (long)getpid();
    if (graph_run_read(self, calls, handles, before, after, accesses, words) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int graph_run_traverse(GraphRunObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT((PyObject *)self->epoch);
    Py_VISIT(self->refuse);
    Py_VISIT(self->owners);
    return 0;
}

static void graph_run_dealloc(GraphRunObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF((PyObject *)self->epoch);
    Py_XDECREF(self->refuse);
    Py_XDECREF(self->owners);
    PyMem_Free(self->transfers);
    PyMem_Free(self->ranges);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef graph_run_methods[] = {
    {"run_on", (PyCFunction)run_on_given, METH_VARARGS,
     "run_on($self, inputs, outputs, executable, variables, /)\n--\n\n"
     "Runs on other arrays of the host than its own; whether it could."},
    {"run", (PyCFunction)run_in_turn, METH_O,
     "run($self, variables, /)\n--\n\n"
     "Runs, its turn having come; whether it could."},
    {0},
};

static PyType_Slot graph_run_slots[] = {
    {Py_tp_doc, "A run that is one CUDA graph, between copies by the processor."},
    {Py_tp_new, graph_run_new},
    {Py_tp_dealloc, graph_run_dealloc},
    {Py_tp_traverse, graph_run_traverse},
    {Py_tp_methods, graph_run_methods},
    {0, NULL},
};

PyType_Spec graph_run_spec = {
    .name = "ostinato.backends.cuda._graph_calls.GraphRun",
    .basicsize = sizeof(GraphRunObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = graph_run_slots,
};
