/* Program: prepared steps, the memory they work on, and the ways to run them. */
#include "python_types.h"

/* ---- life ------------------------------------------------------------------------------------ */

/* The first of several programs that take turns has the lock: the others hold on to that one. */
static int take_turns(ProgramObject *self, PyObject *other) {
    if (other == NULL || other == Py_None) {
        return 0;
    }
    if (Py_TYPE(other) != TYPE_OF(self)) {
        PyErr_Format(PyExc_TypeError, "turns_with must be a Program, not %R",
                     (PyObject *)Py_TYPE(other));
        return -1;
    }
    ProgramObject *program = (ProgramObject *)other, *first = program->turns_with;
    self->turns_with = (ProgramObject *)Py_NewRef((PyObject *)(first != NULL ? first : program));
    return 0;
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"pool",       "slots", "steps",    "n_vars", "owner",
                            "turns_with", "queue", "resident", NULL};
    PyObject *pool, *slots, *steps, *owner = NULL, *turns_with = NULL;
    PyObject *queue = Py_None, *resident = NULL;
    Py_ssize_t n_vars;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOn|$OOOO:Program", names, &pool, &slots,
                                     &steps, &n_vars, &owner, &turns_with, &queue, &resident)) {
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
    self->owner = Py_XNewRef(owner);
    core_state *state = PyType_GetModuleState(type);
    if (take_turns(self, turns_with) < 0 || program_join(self, state, queue, resident) < 0 ||
        program_parse(self, state, pool, slots, steps) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int program_traverse(ProgramObject *self, visitproc visit, void *arg) {
    Py_VISIT(TYPE_OF(self));
    Py_VISIT(self->pool);
    Py_VISIT(self->owner);
    Py_VISIT(self->stopped);
    Py_VISIT((PyObject *)self->turns_with);
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
 * the missing pool tells program_execute to refuse. The program that it takes turns with takes
 * turns with none, so it closes no cycle, and others may still need its lock. */
static int program_clear(ProgramObject *self) {
    Py_CLEAR(self->pool);
    release_fixed(self);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->stopped);
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
    Py_XDECREF((PyObject *)self->turns_with);
    PyMem_Free(self->fixed);
    PyMem_Free(self->externals);
    bindings_free(self->spare);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* ---- running --------------------------------------------------------------------------------- */

/* A new exception: one that is raised again and again would gather tracebacks. */
static void raise_alike(PyObject *error) {
    PyObject *args = PyObject_GetAttrString(error, "args");
    if (args != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), args);
        Py_DECREF(args);
    }
}

void raise_stopped(const ProgramObject *program) { raise_alike(program->stopped); }

int program_ready(ProgramObject *program) {
    if (program->pool == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this program has been garbage collected");
        return -1;
    }
    executor_refresh_after_fork(program->executor); /* holding the GIL: one thread at a time */
    return 0;
}

int program_execute(ProgramObject *program, const bindings *b, const int64_t *vars,
                    double *seconds) {
    if (program_ready(program) < 0) {
        return -1;
    }
    bool ran;
    Py_BEGIN_ALLOW_THREADS
    ran = executor_run(program->executor, b->addresses, vars, seconds);
    Py_END_ALLOW_THREADS
    if (!ran) {
        raise_stopped(program);
        return -1;
    }
    return 0;
}

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

/* Variables are read before and set after the buffers are checked against them: a run that is
 * refused changes nothing. The run keeps its own copy, so another thread that sets variables
 * meanwhile can not make it overrun buffers that were checked for fewer rows. */
static int run_checked(ProgramObject *self, PyObject *buffers, PyObject *vars, double *seconds) {
    int64_t values[MAX_VARS];
    if (program_records(self)) {
        PyErr_SetString(self->queue->capture_error,
                        "run reads its results back, which a recording can not hold; record a "
                        "bound call, commit_no_wait or a session instead");
        return -1;
    }
    if (read_vars(self, vars, values) < 0) {
        return -1;
    }
    bindings *b = take_bindings(self);
    if (b == NULL) {
        return -1;
    }
    int status = bindings_acquire(b, self, buffers, values);
    if (status == 0) {
        memcpy(self->vars, values, sizeof(int64_t) * (size_t)self->n_vars);
        status = program_execute(self, b, values, seconds);
    }
    put_bindings(self, b);
    return status;
}

/* The arguments (buffers=(), vars=None) of run, run_profiled and bind. By hand, because the
 * generic parser takes longer than a small program. */
static int read_call(const char *method, PyObject *const *args, Py_ssize_t n_args,
                     PyObject *names, PyObject *call[2]) {
    static const char *const parameters[2] = {"buffers", "vars"};
    call[0] = call[1] = NULL;
    if (n_args > 2) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most 2 arguments (%zd given)", method, n_args);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n_args; i++) {
        call[i] = args[i];
    }
    Py_ssize_t n_names = names == NULL ? 0 : PyTuple_Size(names);
    for (Py_ssize_t i = 0; i < n_names; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        int which = PyUnicode_CompareWithASCIIString(name, parameters[0]) == 0   ? 0
                    : PyUnicode_CompareWithASCIIString(name, parameters[1]) == 0 ? 1
                                                                                 : -1;
        if (which < 0 || call[which] != NULL) {
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
    PyObject *call[2];
    if (read_call("run", args, n_args, names, call) < 0 ||
        run_checked(self, call[0], call[1], NULL) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
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
    PyObject *call[2];
    if (read_call("run_profiled", args, n_args, names, call) < 0) {
        return NULL;
    }
    double *seconds = PyMem_Calloc((size_t)self->n_steps, sizeof(double));
    if (seconds == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *result = NULL;
    if (run_checked(self, call[0], call[1], seconds) == 0) {
        result = list_of_seconds(seconds, self->n_steps);
    }
    PyMem_Free(seconds);
    return result;
}

static PyObject *program_bind(ProgramObject *self, PyObject *const *args, Py_ssize_t n_args,
                              PyObject *names) {
    PyObject *call[2];
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

static fixed_slot *find_fixed(ProgramObject *self, Py_ssize_t slot) {
    for (Py_ssize_t i = 0; i < self->n_fixed; i++) {
        if (self->fixed[i].slot == slot) {
            return &self->fixed[i];
        }
    }
    PyErr_Format(PyExc_IndexError, "the program has no fixed slot %zd", slot);
    return NULL;
}

/* The GIL stays held, though a run in progress is waited for, so that two moves of one slot can
 * not cross: the memory that the last one exported is then the memory that kernels are pointed to.
 * A run needs no GIL to come to its end. */
static PyObject *program_move_slot(ProgramObject *self, PyObject *args) {
    Py_ssize_t slot;
    PyObject *buffer;
    if (!PyArg_ParseTuple(args, "nO:move_slot", &slot, &buffer)) {
        return NULL;
    }
    fixed_slot *fixed = find_fixed(self, slot);
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

/* ---- limits ---------------------------------------------------------------------------------- */

static int check_limits(const ProgramObject *self, const Py_buffer *limits) {
    if (limits->len != self->n_steps * (Py_ssize_t)sizeof(int64_t)) {
        PyErr_Format(PyExc_ValueError, "limits has %zd bytes, but %zd steps need 8 each",
                     limits->len, self->n_steps);
        return -1;
    }
    if ((uintptr_t)limits->buf % sizeof(int64_t) != 0) {
        PyErr_SetString(PyExc_ValueError, "limits is not aligned to 8 bytes");
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->n_steps; i++) {
        if (((const int64_t *)limits->buf)[i] < 0) {
            PyErr_Format(PyExc_ValueError, "step %zd: the limit is negative", i);
            return -1;
        }
    }
    return 0;
}

/* The GIL stays held; see program_move_slot. */
static PyObject *program_set_limits(ProgramObject *self, PyObject *args) {
    Py_buffer limits, target, source;
    if (!PyArg_ParseTuple(args, "y*w*y*:set_limits", &limits, &target, &source)) {
        return NULL;
    }
    PyObject *result = NULL;
    if (target.len != source.len) {
        PyErr_Format(PyExc_ValueError, "target has %zd bytes, but source has %zd", target.len,
                     source.len);
    } else if (check_limits(self, &limits) == 0) {
        executor_refresh_after_fork(self->executor);
        executor_limit(self->executor, limits.buf, target.buf, source.buf, (size_t)target.len);
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&limits);
    PyBuffer_Release(&target);
    PyBuffer_Release(&source);
    return result;
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
    {"set_limits", (PyCFunction)program_set_limits, METH_VARARGS,
     "set_limits($self, limits, target, source, /)\n--\n\n"
     "Has all later runs leave out what lies beyond each step's limit."},
    {0},
};

static PyMemberDef program_members[] = {
    {"n_steps", T_PYSSIZET, offsetof(ProgramObject, n_steps), READONLY, "How many steps."},
    {"n_vars", T_PYSSIZET, offsetof(ProgramObject, n_vars), READONLY, "How many variables."},
    {"n_externals", T_PYSSIZET, offsetof(ProgramObject, n_externals), READONLY,
     "How many buffers each run brings."},
    {0},
};

static PyType_Slot program_slots[] = {
    {Py_tp_doc, "Program(pool, slots, steps, n_vars, *, owner=None, turns_with=None, queue=None, "
                "resident=())\n--\n\n"
                "A prepared list of kernel calls; see the type stub for the shape of its parts."},
    {Py_tp_new, program_new},
    {Py_tp_dealloc, program_dealloc},
    {Py_tp_traverse, program_traverse},
    {Py_tp_clear, program_clear},
    {Py_tp_methods, program_methods},
    {Py_tp_members, program_members},
    {0, NULL},
};

PyType_Spec program_spec = {
    .name = "ostinato.backends.cpu._core.Program",
    .basicsize = sizeof(ProgramObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = program_slots,
};
