#include "graph_run.h"

#include <string.h>
#include <unistd.h>

/* After so many looks, some 0.1 ms, the driver's wait costs a run next to nothing. */
#define MOST_LOOKS 4096

const order_api *order;

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

/* ---- running --------------------------------------------------------------------------------- */

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

/* Runs it, its turn having come. 0; 1 where its epoch is over, and nothing has happened; -1 where
 * the driver has refused: `status` and `failed` say what. */
static int run_now(const GraphRunObject *self, const transfer *transfers, int *status,
                   const char **failed) {
    if (self->epoch->over || self->process != (long)getpid()) {
        return 1;
    }
    PyThreadState *state = PyEval_SaveThread();
    *status = carry_out(self, transfers, failed);
    PyEval_RestoreThread(state);
    return *status == 0 ? 0 : -1;
}

/* The exception for a call of the driver that failed. -1. */
static int refuse(const GraphRunObject *self, const char *failed, int status) {
    PyObject *unused = PyObject_CallFunction(self->refuse, "si", failed, status);
    if (unused != NULL) {
        Py_DECREF(unused);
        PyErr_Format(PyExc_RuntimeError, "%s failed with %d", failed, status);
    }
    return -1;
}

int graph_run_in_order(GraphRunObject *self, order_thread *thread) {
    order_entry entry = {.ranges = {self->ranges}, .n_ranges = {(size_t)self->n_ranges}};
    if (order_enter(order, thread, &entry) < 0) {
        return -1;
    }
    const char *failed = NULL;
    int status = 0;
    int outcome = run_now(self, self->transfers, &status, &failed);
    order_leave(order, thread, &entry);
    return outcome < 0 ? refuse(self, failed, status) : outcome;
}

/* ---- on arrays of the call ------------------------------------------------------------------- */

/* Arrays that a call brings, at most. */
#define MOST_ARRAYS 32

typedef struct {
    Py_ssize_t held; /* this many views are acquired */
    Py_buffer views[MOST_ARRAYS];
    transfer transfers[MOST_ARRAYS];
    order_range ranges[MOST_ARRAYS];
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
    *(written ? &own.target : (void **)&own.source) = view->buf;
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
    const char *failed = NULL;
    int status = 0, outcome = is_direct(executable);
    if (outcome >= 0) {
        outcome = outcome == 0 ? 1 : run_now(self, given->transfers, &status, &failed);
        if (outcome == 0 && PyObject_SetAttrString(executable, "last", outputs) < 0) {
            outcome = -1;
        }
    }
    order_leave(order, thread, &entry);
    return status != 0 ? refuse(self, failed, status) : outcome;
}

static PyObject *graph_run_run_on(GraphRunObject *self, PyObject *args) {
    PyObject *inputs, *outputs, *executable;
    if (!PyArg_ParseTuple(args, "OO!O:run_on", &inputs, &PyTuple_Type, &outputs, &executable)) {
        return NULL;
    }
    Py_ssize_t n_inputs = PySequence_Size(inputs), n_outputs = PyTuple_Size(outputs);
    if (n_inputs < 0) {
        return NULL;
    }
    if (n_inputs != self->n_before || n_inputs + n_outputs != self->n_transfers ||
        self->n_transfers > MOST_ARRAYS) {
        Py_RETURN_FALSE;
    }
    given_arrays given = {.held = 0};
    int status = take_arrays(self, &given, inputs, n_inputs, false);
    if (status == 0) {
        status = take_arrays(self, &given, outputs, n_outputs, true);
    }
    if (status == 0) {
        status = run_on_arrays(self, &given, outputs, executable);
    }
    release(&given);
    return status < 0 ? NULL : PyBool_FromLong(status == 0);
}

/* ---- construction ---------------------------------------------------------------------------- */

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
                          PyObject *after, PyObject *accesses) {
    self->context = address_at(handles, 0);
    self->graph = PyErr_Occurred() ? NULL : address_at(handles, 1);
    self->stream = PyErr_Occurred() ? NULL : address_at(handles, 2);
    self->signal = PyErr_Occurred() ? NULL : address_at(handles, 3);
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
    static char *names[] = {"epoch",    "calls",  "refuse", "handles", "before",
                            "after", "accesses", "owners", NULL};
    PyObject *epoch, *calls, *refuse, *handles, *before, *after, *accesses, *owners;
    graph_calls_state *state = PyType_GetModuleState(type);
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOOOOOO:GraphRun", names, state->epoch_type,
                                     &epoch, &calls, &refuse, &handles, &before, &after, &accesses,
                                     &owners)) {
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
    if (graph_run_read(self, calls, handles, before, after, accesses) < 0) {
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
    {"run_on", (PyCFunction)graph_run_run_on, METH_VARARGS,
     "run_on($self, inputs, outputs, executable, /)\n--\n\n"
     "Runs on other arrays of the host than its own; whether it could."},
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
