/* BoundCall: a program with its buffers, checked once and held, to be run with nothing in between.
 *
 * Calling it goes through tp_call: the vectorcall protocol joined the stable ABI in Python 3.12
 * only, and for a call without arguments tp_call costs a few nanoseconds more and allocates nothing
 * (the empty tuple is a singleton). */
#include "bound_call.h"

#include "arguments.h"
#include "bindings.h"
#include "command_queue.h"
#include "execution.h"
#include "program_state.h"
#include "recorded_calls.h"
#include "touches.h"
#include "variable_block.h"

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
               bindings_acquire(self->bindings, program, buffers, NULL,
                                self->has_vars ? self->vars : NULL) == 0) {
        return (PyObject *)self;
    }
    Py_DECREF(self);
    return NULL;
}

/* Whether it reads the variable block; or -1, with an exception, where it has no other variables but
 * the mode is off. */
static int reads_block(const BoundCallObject *self) {
    const ProgramObject *program = self->program;
    if (program->queue == NULL || program->n_resident == 0) {
        return 0;
    }
    if (self->needs_block && !program->queue->from_block) {
        PyErr_SetString(program->queue->variable_error,
                        "this call takes Variables from the variable block, in dev-state mode "
                        "only: turn that on with set_dev_state_mode(True)");
        return -1;
    }
    return program->queue->from_block;
}

/* Runs it when its turn has come. */
static int run_in_order(BoundCallObject *self, order_thread *thread) {
    ProgramObject *program = self->program;
    order_entry entry;
    if (program_enter(program, self->bindings, thread, &entry) < 0) {
        return -1;
    }
    int status = program->n_resident == 0 ? 0 : reads_block(self);
    if (status == 0 && self->has_vars) {
        status = program_execute(program, self->bindings, self->vars, NULL);
    } else if (status >= 0) {
        int64_t vars[MAX_VARS]; /* a copy: set_vars may come while the GIL is released */
        bound_call_vars(self, vars);
        if (status == 0 || read_block(program, self->bindings, vars) == 0) {
            status = program_execute(program, self->bindings, vars, NULL);
        } else {
            status = -1;
        }
    }
    order_leave(order, thread, &entry);
    return status;
}

static int record_call(BoundCallObject *self) {
    if (reads_block(self) < 0) {
        return -1;
    }
    if (self->program->stopped != NULL) {
        raise_stopped(self->program);
        return -1;
    }
    return queue_record(self->program->queue, self);
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
    order_thread *thread = calling_thread();
    int status = 0;
    if (thread->number != 0 && program->queue != NULL) { /* it has recorded before */
        status = queue_records(program->queue, thread);
    }
    if (status >= 0) {
        status = status > 0 ? record_call(self) : run_in_order(self, thread);
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
