/* Calling it goes through tp_call: the vectorcall protocol joined the stable ABI in Python 3.12
 * only. */
#include "fresh_run.h"

#include "stage_call.h"

const order_api *order;

/* Inputs of a run, at most. */
#define MOST_INPUTS 32

typedef struct {
    PyObject_HEAD
    PyObject *executable; /* has `direct` and `last` */
    PyObject *refuse;     /* raises where the calling thread records */
    PyObject *bind;       /* returns the parts of the call */
    PyObject *fail;       /* raises an error in place of another one */
    order_range *ranges;  /* that every run touches */
    size_t n_ranges;
    stage_call call; /* without parts until the first run, and after memory has moved */
} FreshRunObject;

/* The memory of the inputs. Whether all of them are contiguous buffers. */
static bool find_ranges(PyObject *inputs, order_range *ranges) {
    for (Py_ssize_t i = 0; i < PyList_Size(inputs); i++) {
        Py_buffer view;
        if (PyObject_GetBuffer(PyList_GetItem(inputs, i), &view, PyBUF_SIMPLE) < 0) {
            PyErr_Clear();
            return false;
        }
        uintptr_t start = (uintptr_t)view.buf;
        ranges[i] = (order_range){start, start + (uintptr_t)view.len, false};
        PyBuffer_Release(&view);
    }
    return true;
}

/* Whether the executable runs directly; -1 with an exception. */
static int is_direct(const FreshRunObject *self) {
    PyObject *direct = PyObject_GetAttrString(self->executable, "direct");
    int found = direct == NULL ? -1 : PyObject_IsTrue(direct);
    Py_XDECREF(direct);
    return found;
}

/* Raises the error of ours for the exception that is set. */
static void replace_error(const FreshRunObject *self) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return; /* an interrupt */
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *result = PyObject_CallFunctionObjArgs(self->fail, value, NULL);
    if (result != NULL) {
        Py_DECREF(result);
        PyErr_Restore(type, value, trace);
        return;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

static int find_parts(FreshRunObject *self) {
    PyObject *parts = PyObject_CallNoArgs(self->bind);
    int status = parts == NULL ? -1 : stage_call_fill(&self->call, parts);
    Py_XDECREF(parts);
    return status;
}

/* Steals the reference, which may be NULL with an exception. */
static int set_last(const FreshRunObject *self, PyObject *outputs) {
    int status = outputs == NULL ? -1 : PyObject_SetAttrString(self->executable, "last", outputs);
    Py_XDECREF(outputs);
    return status;
}

/* Runs, in turn: the outputs, None where the executable does not run directly, or NULL. */
static PyObject *run_now(FreshRunObject *self, PyTypeObject *memory_type, PyObject *inputs) {
    int direct = is_direct(self);
    if (direct <= 0) {
        return direct < 0 ? NULL : Py_NewRef(Py_None);
    }
    if (self->call.parts == NULL && find_parts(self) < 0) {
        return NULL;
    }
    if (set_last(self, PyTuple_New(0)) < 0) { /* its memory may serve this run */
        return NULL;
    }
    PyObject *outputs = stage_call_run(&self->call, memory_type, inputs);
    if (outputs == NULL) {
        replace_error(self);
        return NULL;
    }
    if (set_last(self, PyList_AsTuple(outputs)) < 0) {
        Py_CLEAR(outputs);
    }
    return outputs;
}

/* Raises where a recording cannot hold the call: -1. */
static int refuse_in_recording(const FreshRunObject *self, const order_thread *thread) {
    if (thread->number == 0) { /* it has never recorded */
        return 0;
    }
    PyObject *result = PyObject_CallNoArgs(self->refuse);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static PyObject *fresh_run_call(FreshRunObject *self, PyObject *args, PyObject *kwargs) {
    PyObject *inputs, *variables;
    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "a FreshRun takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O:FreshRun", &PyList_Type, &inputs, &variables)) {
        return NULL;
    }
    fresh_runs_state *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    order_thread *thread = order->thread();
    if (state == NULL || refuse_in_recording(self, thread) < 0) {
        return NULL;
    }
    order_range given[MOST_INPUTS];
    Py_ssize_t n_inputs = PyList_Size(inputs);
    if (n_inputs > MOST_INPUTS || !find_ranges(inputs, given)) {
        Py_RETURN_NONE;
    }
    order_entry entry = {
        .ranges = {self->ranges, given},
        .n_ranges = {self->n_ranges, (size_t)n_inputs},
    };
    if (order_enter(order, thread, &entry) < 0) {
        return NULL;
    }
    PyObject *outputs = run_now(self, state->memory_type, inputs);
    order_leave(order, thread, &entry);
    return outputs;
}

static PyObject *fresh_run_forget(FreshRunObject *self, PyObject *unused) {
    (void)unused;
    stage_call_clear(&self->call);
    Py_RETURN_NONE;
}

/* ---- the object ------------------------------------------------------------------------------ */

static int copy_ranges(FreshRunObject *self, PyObject *accesses) {
    Py_ssize_t count = PySequence_Size(accesses);
    if (count < 0) {
        return -1;
    }
    self->ranges = PyMem_Malloc(sizeof(order_range) * (size_t)(count > 0 ? count : 1));
    if (self->ranges == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->n_ranges = (size_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *range = PySequence_GetItem(accesses, i);
        unsigned long long start;
        Py_ssize_t nbytes;
        int written;
        int parsed =
            range != NULL && PyArg_ParseTuple(range, "Knp:range", &start, &nbytes, &written);
        Py_XDECREF(range);
        if (!parsed) {
            return -1;
        }
        self->ranges[i] =
            (order_range){(uintptr_t)start, (uintptr_t)start + (size_t)nbytes, written != 0};
    }
    return 0;
}

static PyObject *fresh_run_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"executable", "accesses", "refuse", "bind", "fail", NULL};
    PyObject *executable, *accesses, *refuse, *bind, *fail;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO:FreshRun", names, &executable, &accesses,
                                     &refuse, &bind, &fail)) {
        return NULL;
    }
    FreshRunObject *self = (FreshRunObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->executable = Py_NewRef(executable);
    self->refuse = Py_NewRef(refuse);
    self->bind = Py_NewRef(bind);
    self->fail = Py_NewRef(fail);
    if (copy_ranges(self, accesses) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int fresh_run_traverse(FreshRunObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->executable);
    Py_VISIT(self->refuse);
    Py_VISIT(self->bind);
    Py_VISIT(self->fail);
    Py_VISIT(self->call.parts);
    return 0;
}

static int fresh_run_clear(FreshRunObject *self) {
    Py_CLEAR(self->executable);
    Py_CLEAR(self->refuse);
    Py_CLEAR(self->bind);
    Py_CLEAR(self->fail);
    stage_call_clear(&self->call);
    return 0;
}

static void fresh_run_dealloc(FreshRunObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    (void)fresh_run_clear(self);
    PyMem_Free(self->ranges);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef fresh_run_methods[] = {
    {"forget", (PyCFunction)fresh_run_forget, METH_NOARGS,
     "forget($self)\n--\n\nBinds the next run anew: memory has moved."},
    {0},
};

static PyType_Slot fresh_run_slots[] = {
    {Py_tp_doc, "FreshRun(executable, accesses, refuse, bind, fail)\n--\n\n"
                "Runs of a program that is one function, with outputs that are new arrays."},
    {Py_tp_new, fresh_run_new},
    {Py_tp_dealloc, fresh_run_dealloc},
    {Py_tp_call, fresh_run_call},
    {Py_tp_methods, fresh_run_methods},
    {Py_tp_traverse, fresh_run_traverse},
    {Py_tp_clear, fresh_run_clear},
    {0, NULL},
};

PyType_Spec fresh_run_spec = {
    .name = "ostinato.backends.array_api._fresh_runs.FreshRun",
    .basicsize = sizeof(FreshRunObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = fresh_run_slots,
};
