/* Recording: bound calls in the order in which they were made, run again as one. */
#include "recording.h"

#include <stdlib.h>

#include "execution.h"
#include "program_state.h"
#include "recorded_calls.h"
#include "touches.h"
#include "variable_block.h"

typedef struct {
    PyObject_HEAD
    recorded_call *calls; /* NULL after the garbage collector broke a cycle: unusable */
    Py_ssize_t n_calls;
    Py_ssize_t n_vars; /* of all calls together */
    int64_t *spare;    /* room for those, for the next replay; NULL while a replay has it */
    order_range *touched; /* by all calls together */
    Py_ssize_t n_touched;
} RecordingObject;

static int64_t *allocate_vars(Py_ssize_t n_vars) {
    return PyMem_Malloc(sizeof(int64_t) * (size_t)(n_vars > 0 ? n_vars : 1));
}

/* ---- what it touches ------------------------------------------------------------------------- */

static int by_begin(const void *a, const void *b) {
    uintptr_t x = ((const order_range *)a)->begin, y = ((const order_range *)b)->begin;
    return x < y ? -1 : x > y;
}

/* Sorts ranges and joins those that overlap; how many are left. */
static Py_ssize_t join_ranges(order_range *ranges, Py_ssize_t count) {
    qsort(ranges, (size_t)count, sizeof *ranges, by_begin);
    Py_ssize_t last = -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (last >= 0 && ranges[i].begin < ranges[last].end) {
            ranges[last].end = ranges[i].end > ranges[last].end ? ranges[i].end : ranges[last].end;
            ranges[last].written |= ranges[i].written;
        } else if (ranges[i].begin < ranges[i].end) {
            ranges[++last] = ranges[i];
        }
    }
    return last + 1;
}

static int collect_ranges(RecordingObject *self) {
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < self->n_calls; i++) {
        const BoundCallObject *call = self->calls[i].call;
        count += call->program->n_touched + call->bindings->held;
    }
    self->touched = PyMem_Malloc(sizeof(order_range) * (size_t)(count > 0 ? count : 1));
    if (self->touched == NULL) {
        return -1;
    }
    order_range *at = self->touched;
    for (Py_ssize_t i = 0; i < self->n_calls; i++) {
        const BoundCallObject *call = self->calls[i].call;
        const ProgramObject *program = call->program;
        memcpy(at, program->touched, sizeof *at * (size_t)program->n_touched);
        at += program->n_touched;
        memcpy(at, call->bindings->ranges, sizeof *at * (size_t)call->bindings->held);
        at += call->bindings->held;
    }
    self->n_touched = join_ranges(self->touched, count);
    return 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

PyObject *recording_new(core_state *state, recorded_call *calls, Py_ssize_t n_calls) {
    RecordingObject *self = (RecordingObject *)PyType_GenericAlloc(state->recording_type, 0);
    if (self == NULL) {
        release_calls(calls, n_calls);
        return NULL;
    }
    if (calls == NULL && (calls = PyMem_Calloc(1, sizeof *calls)) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->calls = calls;
    self->n_calls = n_calls;
    for (Py_ssize_t i = 0; i < n_calls; i++) {
        self->n_vars += calls[i].call->program->n_vars;
    }
    self->spare = allocate_vars(self->n_vars);
    if (self->spare == NULL || collect_ranges(self) < 0) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int recording_traverse(RecordingObject *self, visitproc visit, void *arg) {
    Py_VISIT(TYPE_OF(self));
    for (Py_ssize_t i = 0; i < self->n_calls; i++) {
        Py_VISIT((PyObject *)self->calls[i].call);
    }
    return 0;
}

static int recording_clear(RecordingObject *self) {
    recorded_call *calls = self->calls;
    Py_ssize_t n_calls = self->n_calls;
    self->calls = NULL;
    self->n_calls = 0;
    release_calls(calls, n_calls);
    return 0;
}

static void recording_dealloc(RecordingObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    PyObject_GC_UnTrack(self);
    (void)recording_clear(self);
    PyMem_Free(self->spare);
    PyMem_Free(self->touched);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* ---- replaying ------------------------------------------------------------------------------- */

/* Everything that can go wrong, before anything runs; and each call's variables, one call's behind
 * the other's. */
static int prepare(RecordingObject *self, int64_t *vars) {
    if (self->calls == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this recording has been garbage collected");
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->n_calls; i++) {
        BoundCallObject *call = self->calls[i].call;
        ProgramObject *program = call->program;
        if (program == NULL) {
            PyErr_SetString(PyExc_RuntimeError, "a call has been garbage collected");
            return -1;
        }
        if (program_ready(program) < 0) {
            return -1;
        }
        if (program->stopped != NULL) {
            raise_stopped(program);
            return -1;
        }
        bound_call_vars(call, vars);
        if (self->calls[i].from_block && read_block(program, call->bindings, vars) < 0) {
            return -1;
        }
        vars += program->n_vars;
    }
    return 0;
}

/* Without the GIL. The program that was stopped meanwhile or refused a size, or NULL. */
static const ProgramObject *run_all(const RecordingObject *self, const int64_t *vars,
                                    executor_outcome *outcome) {
    for (Py_ssize_t i = 0; i < self->n_calls; i++) {
        const BoundCallObject *call = self->calls[i].call;
        const ProgramObject *program = call->program;
        *outcome = executor_run(program->executor, call->bindings->addresses, vars, NULL);
        if (outcome->status != EXECUTOR_RAN) {
            return program;
        }
        vars += program->n_vars;
    }
    return NULL;
}

/* A replay that finds the spare room taken is one of several at once, and allocates. */
static int replay_in_order(RecordingObject *self) {
    int64_t *vars = self->spare;
    self->spare = NULL;
    if (vars == NULL && (vars = allocate_vars(self->n_vars)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int status = prepare(self, vars);
    if (status == 0) {
        const ProgramObject *failed;
        executor_outcome outcome;
        Py_BEGIN_ALLOW_THREADS
        failed = run_all(self, vars, &outcome);
        Py_END_ALLOW_THREADS
        if (failed != NULL) {
            raise_outcome(failed, outcome);
            status = -1;
        }
    }
    if (self->spare == NULL) {
        self->spare = vars;
    } else {
        PyMem_Free(vars);
    }
    return status;
}

static PyObject *recording_replay(RecordingObject *self, PyObject *unused) {
    (void)unused;
    order_thread *thread = calling_thread();
    order_entry entry = {.ranges = {self->touched}, .n_ranges = {(size_t)self->n_touched}};
    if (order_enter(order, thread, &entry) < 0) {
        return NULL;
    }
    int status = replay_in_order(self);
    order_leave(order, thread, &entry);
    if (status < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- what it uses ---------------------------------------------------------------------------- */

static PyObject *recording_accesses(RecordingObject *self, void *unused) {
    (void)unused;
    return accesses_of(PyType_GetModuleState(TYPE_OF(self)), self->touched, self->n_touched);
}

static PyObject *recording_uses(RecordingObject *self, PyObject *object) {
    for (Py_ssize_t i = 0; i < self->n_calls; i++) {
        if (call_uses(self->calls[i].call, object)) {
            Py_RETURN_TRUE;
        }
    }
    Py_RETURN_FALSE;
}

/* ---- the type -------------------------------------------------------------------------------- */

static PyMethodDef recording_methods[] = {
    {"replay", (PyCFunction)recording_replay, METH_NOARGS,
     "replay($self)\n--\n\nChecks all calls, then runs them, in order."},
    {"uses", (PyCFunction)recording_uses, METH_O,
     "uses($self, object, /)\n--\n\n"
     "Whether a call is one of this program, or runs on this buffer."},
    {0},
};

static PyMemberDef recording_members[] = {
    {"n_calls", T_PYSSIZET, offsetof(RecordingObject, n_calls), READONLY, "How many calls."},
    {0},
};

static PyGetSetDef recording_getset[] = {
    {"accesses", (getter)recording_accesses, NULL, "What a replay touches, as an Accesses.", NULL},
    {0},
};

static PyType_Slot recording_slots[] = {
    {Py_tp_doc, "Bound calls that a CommandQueue recorded."},
    {Py_tp_dealloc, recording_dealloc},
    {Py_tp_traverse, recording_traverse},
    {Py_tp_clear, recording_clear},
    {Py_tp_methods, recording_methods},
    {Py_tp_members, recording_members},
    {Py_tp_getset, recording_getset},
    {0, NULL},
};

PyType_Spec recording_spec = {
    .name = "ostinato.backends.cpu._core.Recording",
    .basicsize = sizeof(RecordingObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = recording_slots,
};
