#include "program.h"

#include "arguments.h"
#include "bindings.h"
#include "bound_call.h"
#include "command_queue.h"
#include "execution.h"
#include "limits.h"
#include "program_parse.h"
#include "program_state.h"
#include "touches.h"

/* ---- life ------------------------------------------------------------------------------------ */

/* The first of several programs that exclude each other has the lock; the others refer to it. */
static int join_lock(ProgramObject *self, PyObject *other) {
    if (other == NULL || other == Py_None) {
        return 0;
    }
    if (Py_TYPE(other) != TYPE_OF(self)) {
        PyErr_Format(PyExc_TypeError, "exclusive_with must be a Program, not %R",
                     (PyObject *)Py_TYPE(other));
        return -1;
    }
    ProgramObject *program = (ProgramObject *)other, *first = program->exclusive_with;
    self->exclusive_with = (ProgramObject *)Py_NewRef((PyObject *)(first != NULL ? first : program));
    return 0;
}

/* ---- making ---------------------------------------------------------------------------------- */

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"pool",  "slots",    "steps",   "n_vars",  "owner",      "exclusive_with",
                            "queue", "resident", "touches", "sources", "limit_slot", NULL};
    PyObject *pool, *slots, *steps, *owner = NULL, *exclusive_with = NULL;
    PyObject *queue = Py_None, *resident = NULL, *touches = NULL, *sources = NULL;
    Py_ssize_t n_vars, limit_slot = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOn|$OOOOOO!n:Program", names, &pool, &slots,
                                     &steps, &n_vars, &owner, &exclusive_with, &queue, &resident,
                                     &touches, &PyTuple_Type, &sources, &limit_slot)) {
        return NULL;
    }
    if (n_vars < 0 || n_vars > MAX_VARS) {
        return PyErr_Format(PyExc_ValueError, "n_vars is %zd, but must lie in 0..%d", n_vars,
                            MAX_VARS);
    }
    ProgramObject *self = (ProgramObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->n_vars = n_vars;
    self->direct = true;
    self->limit_slot = limit_slot;
    self->owner = Py_XNewRef(owner);
    self->sources = Py_XNewRef(sources);
    core_state *state = PyType_GetModuleState(type);
    if (join_lock(self, exclusive_with) < 0 || program_join(self, state, queue, resident) < 0 ||
        program_parse(self, state, pool, slots, steps) < 0 ||
        program_parse_touched(self, touches) < 0 || program_check_limit_slot(self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int program_traverse(ProgramObject *self, visitproc visit, void *arg) {
    Py_VISIT(TYPE_OF(self));
    Py_VISIT(self->pool);
    Py_VISIT(self->owner);
    Py_VISIT(self->sources);
    Py_VISIT(self->stopped);
    Py_VISIT(self->problems);
    Py_VISIT(self->last);
    Py_VISIT((PyObject *)self->exclusive_with);
    Py_VISIT((PyObject *)self->queue);
    for (Py_ssize_t i = 0; i < self->n_fixed; i++) {
        Py_VISIT(self->fixed[i].view.obj);
    }
    return 0;
}

static void release_fixed(ProgramObject *self) {
    while (self->n_fixed > 0) {
        PyBuffer_Release(&self->fixed[--self->n_fixed].view);
    }
}

/* Lets go of everything that can close a cycle. A finalizer may still get hold of the program;
 * program_execute refuses to run without a pool. The program whose lock it uses uses no
 * other one, so it closes no cycle, and others may still need its lock. */
static int program_clear(ProgramObject *self) {
    Py_CLEAR(self->pool);
    release_fixed(self);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->sources);
    Py_CLEAR(self->stopped);
    Py_CLEAR(self->problems);
    Py_CLEAR(self->last);
    Py_CLEAR(self->queue);
    return 0;
}

/* No run is in progress: each holds a reference. */
static void program_dealloc(ProgramObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    PyObject_GC_UnTrack(self);
    if (self->executor != NULL) {
        executor_destroy(self->executor);
    }
    (void)program_clear(self);
    Py_XDECREF((PyObject *)self->exclusive_with);
    Py_XDECREF(self->limits);
    Py_XDECREF(self->applied);
    while (self->n_of_threads > 0) {
        Py_XDECREF(self->of_threads[--self->n_of_threads].limits);
    }
    PyMem_Free(self->of_threads);
    PyMem_Free(self->touched);
    PyMem_Free(self->fixed);
    PyMem_Free(self->externals);
    bindings_free(self->spare);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* ---- running --------------------------------------------------------------------------------- */

/* A run that finds the spare bindings taken is one of several at once, and allocates. */
static bindings *take_bindings(ProgramObject *self) {
    bindings *b = self->spare;
    self->spare = NULL;
    if (b == NULL && (b = bindings_new(self->n_externals)) == NULL) {
        PyErr_NoMemory();
    }
    return b;
}

static void put_bindings(ProgramObject *self, bindings *b) {
    bindings_release(b);
    if (self->spare == NULL) {
        self->spare = b;
    } else {
        bindings_free(b);
    }
}

/* A list of the caller's may change: `last` has a tuple of its own. */
static int keep_results(ProgramObject *self, PyObject *outputs) {
    PyObject *results = PySequence_Tuple(outputs);
    if (results == NULL) {
        return -1;
    }
    PyObject *former = self->last;
    self->last = results;
    Py_XDECREF(former);
    return 0;
}

/* The arguments of a run. */
typedef struct {
    PyObject *buffers;
    PyObject *outputs; /* of a direct run: further buffers, which become `last`; else NULL */
    PyObject *vars;
    double *seconds;
} run_request;

/* 1 when it has run, 0 when it was refused.
 *
 * Variables are read before and set after the buffers are checked against them: a run that is
 * refused changes nothing. The run keeps its own copy, so another thread that sets variables
 * meanwhile can not make it overrun buffers that were checked for fewer rows. */
static int run_in_order(ProgramObject *self, const bindings *b, const int64_t *values,
                       const run_request *request) {
    order_thread *thread = calling_thread();
    order_entry entry;
    if (program_enter(self, b, thread, &entry) < 0) {
        return -1;
    }
    int status = 0;
    if (self->direct || request->outputs == NULL) {
        memcpy(self->vars, values, sizeof(int64_t) * (size_t)self->n_vars);
        status = program_execute(self, b, values, request->seconds) < 0 ? -1 : 1;
        if (status > 0 && request->outputs != NULL) {
            status = keep_results(self, request->outputs) < 0 ? -1 : 1;
        }
    }
    order_leave(order, thread, &entry);
    return status;
}

static int check_not_recording(const ProgramObject *self) {
    order_thread *thread = calling_thread();
    if (thread->number == 0 || self->queue == NULL) {
        return 0;
    }
    int records = queue_records(self->queue, thread);
    if (records > 0) {
        PyErr_SetString(self->queue->capture_error,
                        "run reads its results back, which a recording can not hold; record a "
                        "bound call, commit_no_wait or a session instead");
    }
    return records == 0 ? 0 : -1;
}

static int run_checked(ProgramObject *self, const run_request *request) {
    int64_t values[MAX_VARS];
    if (check_not_recording(self) < 0 || read_vars(self, request->vars, values) < 0) {
        return -1;
    }
    bindings *b = take_bindings(self);
    if (b == NULL) {
        return -1;
    }
    int status = bindings_acquire(b, self, request->buffers, request->outputs, values);
    if (status == 0) {
        status = run_in_order(self, b, values, request);
    }
    put_bindings(self, b);
    return status;
}

#define N_PARAMETERS 2

/* The arguments (buffers=(), vars=None) of run and its relatives. By hand, because the generic
 * parser takes longer than a small program. */
static int read_call(const char *method, PyObject *const *args, Py_ssize_t n_args,
                     PyObject *names, PyObject *call[N_PARAMETERS]) {
    static const char *const parameters[N_PARAMETERS] = {"buffers", "vars"};
    memset(call, 0, sizeof(PyObject *) * N_PARAMETERS);
    if (n_args > N_PARAMETERS) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d arguments (%zd given)", method,
                     N_PARAMETERS, n_args);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n_args; i++) {
        call[i] = args[i];
    }
    Py_ssize_t n_names = names == NULL ? 0 : PyTuple_Size(names);
    for (Py_ssize_t i = 0; i < n_names; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        int which = 0;
        while (which < N_PARAMETERS &&
               PyUnicode_CompareWithASCIIString(name, parameters[which]) != 0) {
            which++;
        }
        if (which == N_PARAMETERS || call[which] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected or repeated argument %R", method,
                         name);
            return -1;
        }
        call[which] = args[n_args + i];
    }
    return 0;
}

static PyObject *program_run(ProgramObject *self, PyObject *const *args, Py_ssize_t n_args,
                             PyObject *names) {
    PyObject *call[N_PARAMETERS];
    if (read_call("run", args, n_args, names, call) < 0) {
        return NULL;
    }
    run_request request = {.buffers = call[0], .vars = call[1]};
    if (run_checked(self, &request) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *program_run_direct(ProgramObject *self, PyObject *const *args,
                                    Py_ssize_t n_args) {
    if (n_args != 3) {
        return PyErr_Format(PyExc_TypeError, "run_direct() takes 3 arguments (%zd given)", n_args);
    }
    run_request request = {.buffers = args[0], .outputs = args[1], .vars = args[2]};
    int status = run_checked(self, &request);
    return status < 0 ? NULL : PyBool_FromLong(status);
}

static PyObject *list_of_seconds(const double *seconds, Py_ssize_t count) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *value = PyFloat_FromDouble(seconds[i]);
        if (value == NULL || PyList_SetItem(list, i, value) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *program_run_profiled(ProgramObject *self, PyObject *const *args, Py_ssize_t n_args,
                                      PyObject *names) {
    PyObject *call[N_PARAMETERS];
    if (read_call("run_profiled", args, n_args, names, call) < 0) {
        return NULL;
    }
    double *seconds = PyMem_Calloc((size_t)self->n_steps, sizeof(double));
    if (seconds == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *result = NULL;
    run_request request = {.buffers = call[0], .vars = call[1], .seconds = seconds};
    if (run_checked(self, &request) > 0) {
        result = list_of_seconds(seconds, self->n_steps);
    }
    PyMem_Free(seconds);
    return result;
}

static PyObject *program_bind(ProgramObject *self, PyObject *const *args, Py_ssize_t n_args,
                              PyObject *names) {
    PyObject *call[N_PARAMETERS];
    if (read_call("bind", args, n_args, names, call) < 0) {
        return NULL;
    }
    return bound_call_new(self, call[0], call[1]);
}

static PyObject *program_set_vars(ProgramObject *self, PyObject *vars) {
    int64_t values[MAX_VARS];
    if (read_vars(self, vars, values) < 0) {
        return NULL;
    }
    memcpy(self->vars, values, sizeof(int64_t) * (size_t)self->n_vars);
    Py_RETURN_NONE;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* The GIL stays held, though a run in progress is waited for, so that two moves of one slot can
 * not cross: the memory that the last one exported is then the memory that kernels are pointed to.
 * A run needs no GIL to come to its end. */
static PyObject *program_move_slot(ProgramObject *self, PyObject *args) {
    Py_ssize_t slot;
    PyObject *buffer;
    if (!PyArg_ParseTuple(args, "nO:move_slot", &slot, &buffer)) {
        return NULL;
    }
    fixed_slot *fixed = program_fixed(self, slot);
    Py_buffer view;
    if (fixed == NULL) {
        return NULL;
    }
    if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) < 0) {
        raise_from_current(PyExc_ValueError, "slot %zd: the buffer must be C-contiguous", slot);
        return NULL;
    }
    if (view.len < fixed->view.len) {
        PyErr_Format(PyExc_ValueError, "slot %zd: the buffer has %zd bytes, but %zd are needed",
                     slot, view.len, fixed->view.len);
        PyBuffer_Release(&view);
        return NULL;
    }
    executor_refresh_after_fork(self->executor);
    executor_move(self->executor, (size_t)slot, view.buf);
    Py_buffer left = fixed->view;
    fixed->view = view;
    PyBuffer_Release(&left);
    Py_RETURN_NONE;
}

/* ---- stopping -------------------------------------------------------------------------------- */

/* The GIL stays held; see program_move_slot. */
static PyObject *program_stop(ProgramObject *self, PyObject *error) {
    if (!PyObject_IsInstance(error, PyExc_Exception)) {
        return PyErr_Format(PyExc_TypeError, "stop() takes an exception, not %R", error);
    }
    if (self->stopped == NULL) {
        self->stopped = Py_NewRef(error);
        executor_refresh_after_fork(self->executor);
        executor_stop(self->executor);
        release_fixed(self);
    }
    Py_RETURN_NONE;
}

static PyObject *program_uses_memory(ProgramObject *self, PyObject *memory) {
    return PyBool_FromLong(program_uses(self, memory));
}

/* ---- the type -------------------------------------------------------------------------------- */

static PyMethodDef program_methods[] = {
    {"run", (PyCFunction)(void (*)(void))program_run, METH_FASTCALL | METH_KEYWORDS,
     "run($self, buffers=(), vars=None)\n--\n\n"
     "Checks the buffers of the external slots, then runs all steps."},
    {"run_profiled", (PyCFunction)(void (*)(void))program_run_profiled,
     METH_FASTCALL | METH_KEYWORDS,
     "run_profiled($self, buffers=(), vars=None)\n--\n\n"
     "Like run; returns the seconds that each step took."},
    {"bind", (PyCFunction)(void (*)(void))program_bind, METH_FASTCALL | METH_KEYWORDS,
     "bind($self, buffers=(), vars=None)\n--\n\n"
     "Checks the buffers once; the returned BoundCall runs on them with no further check."},
    {"run_direct", (PyCFunction)(void (*)(void))program_run_direct, METH_FASTCALL,
     "run_direct($self, inputs, outputs, vars, /)\n--\n\n"
     "Like run, and `last` becomes the outputs; does nothing and returns False where `direct` is "
     "off when its turn has come."},
    {"set_vars", (PyCFunction)program_set_vars, METH_O,
     "set_vars($self, vars)\n--\n\n"
     "Sets the variables for the runs that bring none."},
    {"move_slot", (PyCFunction)program_move_slot, METH_VARARGS,
     "move_slot($self, slot, buffer, /)\n--\n\n"
     "Has all later runs use other memory for a fixed slot."},
    {"stop", (PyCFunction)program_stop, METH_O,
     "stop($self, error, /)\n--\n\n"
     "Lets the memory of fixed slots go; all later runs raise the error."},
    {"uses", (PyCFunction)program_uses_memory, METH_O,
     "uses($self, memory, /)\n--\n\n"
     "Whether it holds this object as the memory of a fixed slot."},
    {"set_limits", (PyCFunction)program_set_limits, METH_O,
     "set_limits($self, limits, /)\n--\n\n"
     "Has all later runs leave out what lies beyond each step's limit; None: nothing."},
    {"push_limits", (PyCFunction)program_push_limits, METH_O,
     "push_limits($self, limits, /)\n--\n\n"
     "Has later runs of the calling thread go by these limits, in place of any others."},
    {"pop_limits", (PyCFunction)program_pop_limits, METH_NOARGS,
     "pop_limits($self)\n--\n\nUndoes the calling thread's last push_limits."},
    {0},
};

static PyMemberDef program_members[] = {
    {"n_steps", T_PYSSIZET, offsetof(ProgramObject, n_steps), READONLY, "How many steps."},
    {"n_vars", T_PYSSIZET, offsetof(ProgramObject, n_vars), READONLY, "How many variables."},
    {"n_externals", T_PYSSIZET, offsetof(ProgramObject, n_externals), READONLY,
     "How many buffers each run brings."},
    {"direct", T_BOOL, offsetof(ProgramObject, direct), 0, "Whether run_direct runs it."},
    {"last", T_OBJECT, offsetof(ProgramObject, last), 0,
     "The outputs of the last direct run, or whatever was assigned since; or None."},
    {0},
};

static PyObject *program_accesses(ProgramObject *self, void *unused) {
    (void)unused;
    core_state *state = PyType_GetModuleState(TYPE_OF(self));
    return accesses_of(state, self->touched, self->n_touched);
}

static PyGetSetDef program_getset[] = {
    {"accesses", (getter)program_accesses, NULL,
     "What every run touches beside the buffers that it brings, as an Accesses.", NULL},
    {0},
};

static PyType_Slot program_slots[] = {
    {Py_tp_doc, "Program(pool, slots, steps, n_vars, *, owner=None, exclusive_with=None, queue=None, "
                "resident=(), touches=(), sources=(), limit_slot=-1)\n--\n\n"
                "A prepared list of kernel calls; see the type stub for the shape of its parts."},
    {Py_tp_new, program_new},
    {Py_tp_dealloc, program_dealloc},
    {Py_tp_traverse, program_traverse},
    {Py_tp_clear, program_clear},
    {Py_tp_methods, program_methods},
    {Py_tp_members, program_members},
    {Py_tp_getset, program_getset},
    {0, NULL},
};

PyType_Spec program_spec = {
    .name = "ostinato.backends.cpu._core.Program",
    .basicsize = sizeof(ProgramObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = program_slots,
};
