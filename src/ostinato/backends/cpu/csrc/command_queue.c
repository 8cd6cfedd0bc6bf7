/* CommandQueue: whether the calls of a context's programs run or are recorded, and the block of
 * variables that calls read when they are not to bring their own. */
#include "command_queue.h"

#include "arguments.h"
#include "recorded_calls.h"
#include "recording.h"
#include "touches.h"
#include "variable_block.h"

/* ---- life ------------------------------------------------------------------------------------ */

static int check_error_type(PyObject *type, const char *name) {
    if (PyType_Check(type) && PyObject_IsSubclass(type, PyExc_Exception) == 1) {
        return 0;
    }
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_TypeError, "%s must be a type of exceptions, not %R", name, type);
    }
    return -1;
}

static PyObject *queue_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"capture_error", "variable_error", "label", NULL};
    PyObject *capture_error, *variable_error, *label = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:CommandQueue", names, &capture_error,
                                     &variable_error, &label) ||
        check_error_type(capture_error, names[0]) < 0 ||
        check_error_type(variable_error, names[1]) < 0) {
        return NULL;
    }
    CommandQueueObject *self = (CommandQueueObject *)PyType_GenericAlloc(type, 0);
    if (self != NULL) {
        self->label = Py_NewRef(label != NULL ? label : Py_None);
        self->capture_error = Py_NewRef(capture_error);
        self->variable_error = Py_NewRef(variable_error);
        self->block[2] = 1; /* as for step 0 */
    }
    return (PyObject *)self;
}

static int queue_traverse(CommandQueueObject *self, visitproc visit, void *arg) {
    Py_VISIT(TYPE_OF(self));
    Py_VISIT(self->label);
    Py_VISIT(self->capture_error);
    Py_VISIT(self->variable_error);
    for (Py_ssize_t i = 0; i < self->n_calls; i++) {
        Py_VISIT((PyObject *)self->calls[i].call);
    }
    return 0;
}

/* Records no longer; what was recorded is the caller's. `failure` becomes a new reference to what
 * made the recording fail, or to None. */
static recorded_call *take_calls(CommandQueueObject *self, Py_ssize_t *n_calls,
                                 PyObject **failure) {
    recorded_call *calls = self->calls;
    *n_calls = self->n_calls;
    self->calls = NULL;
    self->n_calls = self->capacity = 0;
    uint64_t recording = self->recording;
    self->recording = 0;
    *failure = order->end_recording(recording);
    return calls;
}

static void drop_calls(CommandQueueObject *self) {
    Py_ssize_t n_calls;
    PyObject *failure;
    recorded_call *calls = take_calls(self, &n_calls, &failure);
    Py_DECREF(failure);
    release_calls(calls, n_calls); /* last: it may run code that comes back here */
}

/* The exception types stay: they close no cycle that their own clearing would not break. */
static int queue_clear(CommandQueueObject *self) {
    drop_calls(self);
    return 0;
}

static void queue_dealloc(CommandQueueObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    PyObject_GC_UnTrack(self);
    drop_calls(self);
    Py_XDECREF(self->label);
    Py_XDECREF(self->capture_error);
    Py_XDECREF(self->variable_error);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* ---- programs -------------------------------------------------------------------------------- */

int program_join(ProgramObject *self, core_state *state, PyObject *queue, PyObject *resident) {
    if (queue != NULL && queue != Py_None) {
        if (Py_TYPE(queue) != state->command_queue_type) {
            PyErr_Format(PyExc_TypeError, "queue must be a CommandQueue, not %R",
                         (PyObject *)Py_TYPE(queue));
            return -1;
        }
        self->queue = (CommandQueueObject *)Py_NewRef(queue);
    }
    return program_parse_resident(self, resident);
}

int queue_records(const CommandQueueObject *queue, order_thread *thread) {
    if (queue->recording != 0 && order->is_recording(queue->recording, thread)) {
        return 1;
    }
    if (thread->exclusive == 0) {
        return 0;
    }
    return order->refuse_elsewhere(thread, queue->recording, queue->label, queue->capture_error)
               ? -1
               : 0;
}

/* ---- recording ------------------------------------------------------------------------------- */

int queue_record(CommandQueueObject *queue, BoundCallObject *call) {
    if (queue->n_calls == queue->capacity) {
        Py_ssize_t capacity = queue->capacity == 0 ? 16 : 2 * queue->capacity;
        recorded_call *grown = PyMem_Realloc(queue->calls, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        queue->calls = grown;
        queue->capacity = capacity;
    }
    queue->calls[queue->n_calls++] = (recorded_call){
        .call = (BoundCallObject *)Py_NewRef((PyObject *)call),
        .from_block = queue->from_block && call->program->n_resident > 0,
    };
    return 0;
}

static PyObject *queue_begin(CommandQueueObject *self, PyObject *exclusive) {
    int alone = PyObject_IsTrue(exclusive);
    if (alone < 0) {
        return NULL;
    }
    if (order->is_recording(self->recording, NULL)) {
        PyErr_SetString(self->capture_error, "the queue records already");
        return NULL;
    }
    drop_calls(self); /* of a recording that another thread was making when the process forked */
    self->recording = order->begin_recording(self->label, alone);
    if (self->recording == 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *queue_end(CommandQueueObject *self, PyObject *unused) {
    (void)unused;
    if (!order->is_recording(self->recording, calling_thread())) {
        PyErr_SetString(self->capture_error, "this thread does not record");
        return NULL;
    }
    core_state *state = PyType_GetModuleState(TYPE_OF(self));
    Py_ssize_t n_calls;
    PyObject *failure;
    recorded_call *calls = take_calls(self, &n_calls, &failure);
    if (failure != Py_None) {
        PyErr_SetObject(self->capture_error, failure);
        release_calls(calls, n_calls);
        Py_DECREF(failure);
        return NULL;
    }
    Py_DECREF(failure);
    return recording_new(state, calls, n_calls);
}

static PyObject *queue_cancel(CommandQueueObject *self, PyObject *unused) {
    (void)unused;
    drop_calls(self);
    Py_RETURN_NONE;
}

static PyObject *queue_uses(CommandQueueObject *self, PyObject *object) {
    for (Py_ssize_t i = 0; i < self->n_calls; i++) {
        if (call_uses(self->calls[i].call, object)) {
            Py_RETURN_TRUE;
        }
    }
    Py_RETURN_FALSE;
}

static PyObject *queue_recording(CommandQueueObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(order->is_recording(self->recording, calling_thread()));
}

static PyObject *queue_number(CommandQueueObject *self, void *unused) {
    (void)unused;
    bool made = order->is_recording(self->recording, NULL);
    return PyLong_FromUnsignedLongLong(made ? self->recording : 0);
}

/* ---- the block ------------------------------------------------------------------------------- */

static PyObject *queue_get_from_block(CommandQueueObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->from_block);
}

static int queue_set_from_block(CommandQueueObject *self, PyObject *value, void *unused) {
    (void)unused;
    int enable = value == NULL ? 0 : PyObject_IsTrue(value);
    if (enable < 0) {
        return -1;
    }
    self->from_block = enable;
    return 0;
}

static PyObject *queue_get_block(CommandQueueObject *self, void *unused) {
    (void)unused;
    return Py_BuildValue("(LLL)", (long long)self->block[0], (long long)self->block[1],
                         (long long)self->block[2]);
}

static int queue_set_block(CommandQueueObject *self, PyObject *value, void *unused) {
    (void)unused;
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "the block can not be deleted");
        return -1;
    }
    PyObject *items = read_sequence(value, (place){"block", 0, "its value"});
    if (items == NULL) {
        return -1;
    }
    int64_t block[BLOCK_VARS];
    int status = 0;
    if (PyTuple_Size(items) != BLOCK_VARS) {
        PyErr_Format(PyExc_ValueError, "the block has %d values, not %zd", BLOCK_VARS,
                     PyTuple_Size(items));
        status = -1;
    }
    for (Py_ssize_t i = 0; status == 0 && i < BLOCK_VARS; i++) {
        status = read_int(PyTuple_GetItem(items, i), INT64_MIN, (place){"block", i, "value"},
                          &block[i]);
    }
    Py_DECREF(items);
    if (status == 0) {
        memcpy(self->block, block, sizeof block);
    }
    return status;
}

/* ---- the type -------------------------------------------------------------------------------- */

static PyMethodDef queue_methods[] = {
    {"begin", (PyCFunction)queue_begin, METH_O,
     "begin($self, exclusive, /)\n--\n\nRecords the calling thread's calls from now on."},
    {"end", (PyCFunction)queue_end, METH_NOARGS,
     "end($self)\n--\n\nRecords no longer; returns what was recorded, or raises what made it fail."},
    {"cancel", (PyCFunction)queue_cancel, METH_NOARGS,
     "cancel($self)\n--\n\nRecords no longer, and forgets what was recorded."},
    {"uses", (PyCFunction)queue_uses, METH_O,
     "uses($self, object, /)\n--\n\n"
     "Whether what was recorded so far runs on this memory, or is a call of this program."},
    {0},
};

static PyObject *queue_accesses(CommandQueueObject *self, void *unused) {
    (void)unused;
    order_range token = order_token(self, true);
    return accesses_of(PyType_GetModuleState(TYPE_OF(self)), &token, 1);
}

static PyGetSetDef queue_getset[] = {
    {"recording", (getter)queue_recording, NULL,
     "Whether calls of the calling thread are recorded.", NULL},
    {"recording_number", (getter)queue_number, NULL,
     "The number of the recording that a thread is making, or 0.", NULL},
    {"from_block", (getter)queue_get_from_block, (setter)queue_set_from_block,
     "Whether bound calls read resident variables from the block.", NULL},
    {"block", (getter)queue_get_block, (setter)queue_set_block,
     "The values of token, position and kv_len.", NULL},
    {"accesses", (getter)queue_accesses, NULL,
     "What a write of the block or of its mode touches, as an Accesses.", NULL},
    {0},
};

static PyMemberDef queue_members[] = {
    {"n_calls", T_PYSSIZET, offsetof(CommandQueueObject, n_calls), READONLY,
     "How many calls the recording that is being made has."},
    {0},
};

static PyType_Slot queue_slots[] = {
    {Py_tp_doc, "CommandQueue(capture_error, variable_error, label=None)\n--\n\n"
                "Whether programs' bound calls run or are recorded, and a block of variables."},
    {Py_tp_new, queue_new},
    {Py_tp_dealloc, queue_dealloc},
    {Py_tp_traverse, queue_traverse},
    {Py_tp_clear, queue_clear},
    {Py_tp_methods, queue_methods},
    {Py_tp_getset, queue_getset},
    {Py_tp_members, queue_members},
    {0, NULL},
};

PyType_Spec command_queue_spec = {
    .name = "ostinato.backends.cpu._core.CommandQueue",
    .basicsize = sizeof(CommandQueueObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = queue_slots,
};
