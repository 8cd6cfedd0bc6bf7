/* Calling it goes through tp_call: the vectorcall protocol joined the stable ABI in Python 3.12
 * only. */
#include "graph_call.h"

#include "graph_run.h"
#include "running.h"

typedef struct {
    PyObject_HEAD
    PyObject *slowly;   /* makes the call with all checks; returns the GraphRun of later ones */
    PyObject *commands; /* their `recording_number` is that of the context's recording in progress */
    GraphRunObject *run;
    started_run started;
} GraphCallObject;

/* Whether the calling thread's calls may be recorded or refused; -1 with an exception. */
static int may_record(const GraphCallObject *self, const order_thread *thread) {
    if (thread->number == 0) { /* it has never recorded */
        return 0;
    }
    if (thread->exclusive != 0) {
        return 1;
    }
    PyObject *number = PyObject_GetAttrString(self->commands, "recording_number");
    if (number == NULL) {
        return -1;
    }
    uint64_t recording = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (PyErr_Occurred()) {
        return -1;
    }
    return recording != 0 && order->is_recording(recording, thread);
}

static PyObject *call_slowly(GraphCallObject *self) {
    graph_calls_state *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    PyObject *run = state == NULL ? NULL : PyObject_CallNoArgs(self->slowly);
    if (run == NULL) {
        return NULL;
    }
    if (run != Py_None && Py_TYPE(run) != state->run_type) {
        PyErr_Format(PyExc_TypeError, "expected a GraphRun or None, got %R", run);
        Py_DECREF(run);
        return NULL;
    }
    GraphRunObject *former = self->run;
    self->run = run == Py_None ? NULL : (GraphRunObject *)Py_NewRef(run);
    Py_DECREF(run);
    Py_XDECREF((PyObject *)former);
    Py_RETURN_NONE;
}

static PyObject *graph_call_call(GraphCallObject *self, PyObject *args, PyObject *kwargs) {
    if (PyTuple_Size(args) != 0 || (kwargs != NULL && PyDict_Size(kwargs) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a bound call takes no arguments");
        return NULL;
    }
    if (self->run == NULL) {
        return call_slowly(self);
    }
    order_thread *thread = order->thread();
    int status = may_record(self, thread);
    if (status == 0) {
        GraphRunObject *run = (GraphRunObject *)Py_NewRef((PyObject *)self->run);
        status = run_in_order(run, thread);
        Py_DECREF((PyObject *)run);
    }
    if (status < 0) {
        return NULL;
    }
    if (status > 0) {
        return call_slowly(self);
    }
    Py_RETURN_NONE;
}

static PyObject *graph_call_start(GraphCallObject *self, PyObject *unused) {
    (void)unused;
    if (self->started.run != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the call has been started, and was not finished");
        return NULL;
    }
    if (self->run == NULL) {
        Py_RETURN_FALSE;
    }
    order_thread *thread = order->thread();
    int status = may_record(self, thread);
    if (status == 0) {
        GraphRunObject *run = (GraphRunObject *)Py_NewRef((PyObject *)self->run);
        status = start_in_order(run, &self->started, thread);
        Py_DECREF((PyObject *)run);
    }
    return status < 0 ? NULL : PyBool_FromLong(status == 0);
}

static PyObject *graph_call_finish(GraphCallObject *self, PyObject *unused) {
    (void)unused;
    if (self->started.run != NULL && finish_in_order(&self->started, order->thread()) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef graph_call_methods[] = {
    {"start", (PyCFunction)graph_call_start, METH_NOARGS,
     "start($self)\n--\n\nLaunches the call, without waiting for it; whether it could."},
    {"finish", (PyCFunction)graph_call_finish, METH_NOARGS,
     "finish($self)\n--\n\nWaits for the call that was started, if one was."},
    {0},
};

static PyObject *graph_call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slowly", "commands", NULL};
    PyObject *slowly, *commands;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:GraphCall", names, &slowly, &commands)) {
        return NULL;
    }
    GraphCallObject *self = (GraphCallObject *)PyType_GenericAlloc(type, 0);
    if (self != NULL) {
        self->slowly = Py_NewRef(slowly);
        self->commands = Py_NewRef(commands);
    }
    return (PyObject *)self;
}

static int graph_call_traverse(GraphCallObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->slowly);
    Py_VISIT(self->commands);
    Py_VISIT((PyObject *)self->run);
    Py_VISIT((PyObject *)self->started.run);
    return 0;
}

static void graph_call_dealloc(GraphCallObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    if (self->started.run != NULL) { /* its memory may go now */
        PyObject *raised, *value, *trace;
        PyErr_Fetch(&raised, &value, &trace);
        if (finish_in_order(&self->started, order->thread()) < 0) {
            PyErr_WriteUnraisable(NULL);
        }
        PyErr_Restore(raised, value, trace);
    }
    Py_XDECREF(self->slowly);
    Py_XDECREF(self->commands);
    Py_XDECREF((PyObject *)self->run);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyType_Slot graph_call_slots[] = {
    {Py_tp_doc, "A bound call that runs as a GraphRun where it can."},
    {Py_tp_new, graph_call_new},
    {Py_tp_dealloc, graph_call_dealloc},
    {Py_tp_call, graph_call_call},
    {Py_tp_traverse, graph_call_traverse},
    {Py_tp_methods, graph_call_methods},
    {0, NULL},
};

PyType_Spec graph_call_spec = {
    .name = "ostinato.backends.cuda._graph_calls.GraphCall",
    .basicsize = sizeof(GraphCallObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = graph_call_slots,
};
