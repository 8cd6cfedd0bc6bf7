/* BoundCall: a program with its buffers, checked once and held, to be run with nothing in between.
 *
 * Calling it goes through tp_call: the vectorcall protocol joined the stable ABI in Python 3.12
 * only, and for a call without arguments tp_call costs a few nanoseconds more and allocates nothing
 * (the empty tuple is a singleton). */
#include "python_types.h"

PyObject *bound_call_new(ProgramObject *program, PyObject *buffers, PyObject *vars) {
    core_state *state = PyType_GetModuleState(TYPE_OF(program));
    PyTypeObject *type = state->bound_call_type;
    BoundCallObject *self = (BoundCallObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->program = (ProgramObject *)Py_NewRef((PyObject *)program);
    self->has_vars = vars != NULL && vars != Py_None;
    self->needs_block = program->n_resident > 0 && program->queue != NULL &&
                        (program->queue->from_block || !self->has_vars);
    self->bindings = bindings_new(program->n_externals);
    if (self->bindings == NULL) {
        PyErr_NoMemory();
    } else if (read_vars(program, vars, self->vars) == 0 &&
               bindings_acquire(self->bindings, program, buffers,
                                self->has_vars ? self->vars : NULL) == 0) {
        return (PyObject *)self;
    }
    Py_DECREF(self);
    return NULL;
}

void bound_call_vars(const BoundCallObject *call, int64_t *out) {
    const ProgramObject *program = call->program;
    memcpy(out, call->has_vars ? call->vars : program->vars,
           sizeof(int64_t) * (size_t)program->n_vars);
}

/* A call of a program whose queue records, or which reads the variable block. */
static int call_attended(BoundCallObject *self) {
    ProgramObject *program = self->program;
    CommandQueueObject *queue = program->queue;
    if (self->needs_block && !queue->from_block) {
        PyErr_SetString(queue->variable_error,
                        "this call takes Variables from the variable block, in dev-state mode "
                        "only: turn that on with set_dev_state_mode(True)");
        return -1;
    }
    if (queue->recording) {
        if (program->stopped != NULL) {
            raise_stopped(program);
            return -1;
        }
        return queue_record(queue, self);
    }
    int64_t vars[MAX_VARS];
    bound_call_vars(self, vars);
    if (queue->from_block && read_block(program, self->bindings, vars) < 0) {
        return -1;
    }
    return program_execute(program, self->bindings, vars, NULL);
}

static PyObject *bound_call_call(BoundCallObject *self, PyObject *args, PyObject *kwargs) {
    if (PyTuple_Size(args) != 0 || (kwargs != NULL && PyDict_Size(kwargs) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a BoundCall takes no arguments");
        return NULL;
    }
    ProgramObject *program = self->program;
    if (program == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this call has been garbage collected");
        return NULL;
    }
    int status;
    if (program->queue != NULL && (program->queue->attention || self->needs_block)) {
        status = call_attended(self);
    } else if (self->has_vars) {
        status = program_execute(program, self->bindings, self->vars, NULL);
    } else {
        int64_t followed[MAX_VARS]; /* a copy: set_vars may come while the GIL is released */
        bound_call_vars(self, followed);
        status = program_execute(program, self->bindings, followed, NULL);
    }
    if (status < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static int bound_call_traverse(BoundCallObject *self, visitproc visit, void *arg) {
    Py_VISIT(TYPE_OF(self));
    Py_VISIT((PyObject *)self->program);
    for (Py_ssize_t i = 0; self->bindings != NULL && i < self->bindings->held; i++) {
        Py_VISIT(self->bindings->views[i].obj);
    }
    return 0;
}

static int bound_call_clear(BoundCallObject *self) {
    Py_CLEAR(self->program);
    if (self->bindings != NULL) {
        bindings_release(self->bindings);
    }
    return 0;
}

static void bound_call_dealloc(BoundCallObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    PyObject_GC_UnTrack(self);
    (void)bound_call_clear(self);
    bindings_free(self->bindings);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyType_Slot bound_call_slots[] = {
    {Py_tp_doc, "A program bound to its buffers by Program.bind(); calling it runs the program."},
    {Py_tp_dealloc, bound_call_dealloc},
    {Py_tp_call, bound_call_call},
    {Py_tp_traverse, bound_call_traverse},
    {Py_tp_clear, bound_call_clear},
    {0, NULL},
};

PyType_Spec bound_call_spec = {
    .name = "ostinato.backends.cpu._core.BoundCall",
    .basicsize = sizeof(BoundCallObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = bound_call_slots,
};
