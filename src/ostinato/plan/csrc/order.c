/* The extension module ostinato.plan._order: the list of submissions; see order.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "order.h"

#define TYPE_OF(self) Py_TYPE((PyObject *)(self))

/* A sleeping thread looks for signals this often. */
#define SIGNAL_INTERVAL_NS 50000000L

/* Memory belongs to the process, and so does the order of what touches it. */
static order_list list;

/* Threads that wait for their turn sleep here. */
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_over = PTHREAD_COND_INITIALIZER;
static uint64_t departures; /* of awaited entries; guarded by sleep_lock */

/* Found without a call: it is read by every bound call. */
static _Thread_local order_thread this_thread __attribute__((tls_model("initial-exec")));

static order_thread *current_thread(void) { return &this_thread; }

/* ---- the list -------------------------------------------------------------------------------- */

static void append(order_entry *entry) {
    entry->before = list.newest;
    entry->after = NULL;
    if (list.newest != NULL) {
        list.newest->after = entry;
    } else {
        list.oldest = entry;
    }
    list.newest = entry;
    entry->listed = true;
}

static void unlink_entry(order_entry *entry) {
    if (entry->before != NULL) {
        entry->before->after = entry->after;
    } else {
        list.oldest = entry->after;
    }
    if (entry->after != NULL) {
        entry->after->before = entry->before;
    } else {
        list.newest = entry->before;
    }
    entry->listed = false;
    if (entry->awaited) {
        pthread_mutex_lock(&sleep_lock);
        departures++;
        pthread_cond_broadcast(&sleep_over);
        pthread_mutex_unlock(&sleep_lock);
    }
}

/* Whether both touch a byte, and one of them writes it. */
static bool range_conflict(order_range a, order_range b) {
    uintptr_t begin = a.begin > b.begin ? a.begin : b.begin;
    uintptr_t end = a.end < b.end ? a.end : b.end;
    return begin < end && (a.written || b.written);
}

static bool ranges_conflict(const order_range *a, size_t n_a, const order_range *b, size_t n_b) {
    for (size_t i = 0; i < n_a; i++) {
        for (size_t j = 0; j < n_b; j++) {
            if (range_conflict(a[i], b[j])) {
                return true;
            }
        }
    }
    return false;
}

static bool conflict(const order_entry *a, const order_entry *b) {
    for (int i = 0; i < ORDER_RANGE_SETS; i++) {
        for (int j = 0; j < ORDER_RANGE_SETS; j++) {
            if (ranges_conflict(a->ranges[i], a->n_ranges[i], b->ranges[j], b->n_ranges[j])) {
                return true;
            }
        }
    }
    return false;
}

/* The last entry before this one that it has to wait for. Never one of the same thread: that is
 * interrupted by a signal handler, and would wait for itself. */
static order_entry *blocker_of(const order_entry *entry) {
    for (order_entry *other = entry->before; other != NULL; other = other->before) {
        if (other->thread != entry->thread && conflict(other, entry)) {
            return other;
        }
    }
    return NULL;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Lets a test switch threads here. -1 with the exception that it raised. */
static int yield_at(const char *point) {
    if (list.hook == NULL) {
        return 0;
    }
    PyObject *called = Py_NewRef((PyObject *)list.hook);
    PyObject *result = PyObject_CallFunction(called, "s", point);
    Py_DECREF(called);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static void sleep_until_departure(order_entry *blocker) {
    blocker->awaited = true;
    uint64_t seen = departures; /* written with the GIL held, too */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += SIGNAL_INTERVAL_NS;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&sleep_lock);
    int status = 0;
    while (departures == seen && status == 0) {
        status = pthread_cond_timedwait(&sleep_over, &sleep_lock, &until);
    }
    pthread_mutex_unlock(&sleep_lock);
    Py_END_ALLOW_THREADS
}

static int wait_for_turn(order_entry *entry) {
    order_entry *blocker;
    while ((blocker = blocker_of(entry)) != NULL) {
        if (list.hook == NULL) {
            sleep_until_departure(blocker);
        } else if (yield_at("wait") < 0) {
            return -1;
        }
        if (PyErr_CheckSignals() < 0) {
            return -1;
        }
    }
    return yield_at("begin");
}

/* Wait until an appended entry, with its thread set, conflicts with no older one. */
static int begin(order_thread *thread, order_entry *entry) {
    if (wait_for_turn(entry) < 0) {
        if (entry->listed) {
            unlink_entry(entry);
        }
        return -1;
    }
    thread->depth++;
    return 0;
}

static int enter(order_thread *thread, order_entry *entry) {
    entry->listed = false;
    if (thread->depth > 0) {
        return 0;
    }
    if (yield_at("enter") < 0) {
        return -1;
    }
    entry->thread = thread;
    entry->awaited = entry->queued = false;
    append(entry);
    return begin(thread, entry);
}

/* Keeps the exception that is set, if one is. */
static void yield_after_leaving(void) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (yield_at("leave") < 0) {
        PyErr_WriteUnraisable(list.hook);
    }
    PyErr_Restore(type, value, trace);
}

static void leave(order_thread *thread, order_entry *entry) {
    if (!entry->listed) {
        return;
    }
    thread->depth--;
    unlink_entry(entry);
    if (list.hook != NULL) {
        yield_after_leaving();
    }
}

/* ---- recordings ------------------------------------------------------------------------------ */

/* A recording that is being made. */
typedef struct recording {
    struct recording *next;
    uint64_t number;
    uint64_t thread; /* the number of the thread that makes it */
    PyObject *label;
    PyObject *failure; /* or NULL */
} recording;

static recording *recordings;
static uint64_t last_recording, last_thread;

static recording *find_recording(uint64_t number) {
    recording *known = number == 0 ? NULL : recordings;
    while (known != NULL && known->number != number) {
        known = known->next;
    }
    return known;
}

static uint64_t begin_recording(void *label, bool exclusive) {
    recording *made = PyMem_Malloc(sizeof *made);
    if (made == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    if (this_thread.number == 0) {
        this_thread.number = ++last_thread;
    }
    *made = (recording){
        .next = recordings,
        .number = ++last_recording,
        .thread = this_thread.number,
        .label = Py_NewRef((PyObject *)label),
    };
    recordings = made;
    if (exclusive) {
        this_thread.exclusive = made->number;
    }
    return made->number;
}

static void *end_recording(uint64_t number) {
    recording *ended = find_recording(number);
    if (ended == NULL) {
        return Py_NewRef(Py_None);
    }
    recording **at = &recordings;
    while (*at != ended) {
        at = &(*at)->next;
    }
    *at = ended->next;
    if (this_thread.exclusive == number) {
        this_thread.exclusive = 0;
    }
    PyObject *failure = ended->failure != NULL ? ended->failure : Py_NewRef(Py_None);
    PyObject *label = ended->label;
    PyMem_Free(ended);
    Py_DECREF(label); /* last: it may run code that comes back here */
    return failure;
}

static bool is_recording(uint64_t number, const order_thread *thread) {
    const recording *known = find_recording(number);
    return known != NULL && (thread == NULL || known->thread == thread->number);
}

static void fail_recording(uint64_t number, PyObject *message) {
    recording *known = find_recording(number);
    if (known != NULL && known->failure == NULL) {
        known->failure = Py_NewRef(message);
    }
}

static bool refuse_elsewhere(order_thread *thread, uint64_t number, void *label,
                             void *error_type) {
    recording *known = find_recording(thread->exclusive);
    if (known == NULL || known->number == number) {
        return false;
    }
    PyObject *message = PyUnicode_FromFormat(
        "this was submitted to %S while the thread records a step for %S, which is to submit to "
        "that context alone",
        (PyObject *)label, known->label);
    if (message != NULL) {
        fail_recording(known->number, message);
        PyErr_SetObject((PyObject *)error_type, message);
        Py_DECREF(message);
    }
    return true;
}

/* ---- forks ----------------------------------------------------------------------------------- */

/* The parent's other threads, and what they submitted, do not exist in a forked child. */
static void forget_other_threads(void) {
    pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t nobody_sleeps = PTHREAD_COND_INITIALIZER;
    memcpy(&sleep_lock, &free_lock, sizeof sleep_lock);
    memcpy(&sleep_over, &nobody_sleeps, sizeof sleep_over);
    order_entry *entry = list.oldest;
    list.oldest = list.newest = NULL;
    while (entry != NULL) {
        order_entry *next = entry->after;
        if (entry->thread == &this_thread) {
            append(entry);
        } else if (entry->queued) {
            entry->listed = false;
        }
        entry = next;
    }
    recording **at = &recordings;
    while (*at != NULL) { /* the others' memory is lost: it is not safe to free any here */
        if ((*at)->thread == this_thread.number) {
            at = &(*at)->next;
        } else {
            *at = (*at)->next;
        }
    }
}

static const order_api api = {
    .list = &list,
    .thread = current_thread,
    .enter = enter,
    .leave = leave,
    .begin_recording = begin_recording,
    .end_recording = end_recording,
    .is_recording = is_recording,
    .refuse_elsewhere = refuse_elsewhere,
};

/* ---- Accesses -------------------------------------------------------------------------------- */

typedef struct {
    PyObject_VAR_HEAD
    order_range ranges[];
} AccessesObject;

#define N_RANGES(accesses) Py_SIZE((PyObject *)(accesses))

typedef struct {
    PyTypeObject *accesses_type;
    PyTypeObject *submission_type;
} order_state;

/* (address, nbytes, written) */
static int parse_range(PyObject *item, order_range *range) {
    PyObject *fields = PySequence_Tuple(item);
    if (fields == NULL) {
        return -1;
    }
    unsigned long long address = 0;
    Py_ssize_t nbytes = 0;
    int written = 0;
    int parsed = PyArg_ParseTuple(fields, "Knp;a range is (address, nbytes, written)", &address,
                                  &nbytes, &written);
    Py_DECREF(fields);
    if (!parsed) {
        return -1;
    }
    if (nbytes < 0 || address > UINTPTR_MAX - (size_t)nbytes) {
        PyErr_Format(PyExc_ValueError, "%zd bytes at %llu are no range of memory", nbytes, address);
        return -1;
    }
    *range = (order_range){(uintptr_t)address, (uintptr_t)address + (size_t)nbytes, written != 0};
    return 0;
}

static PyObject *accesses_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"ranges", NULL};
    PyObject *ranges;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Accesses", names, &ranges)) {
        return NULL;
    }
    PyObject *items = PySequence_Tuple(ranges);
    if (items == NULL) {
        return NULL;
    }
    Py_ssize_t n_ranges = PyTuple_Size(items);
    AccessesObject *self = (AccessesObject *)PyType_GenericAlloc(type, n_ranges);
    for (Py_ssize_t i = 0; self != NULL && i < n_ranges; i++) {
        if (parse_range(PyTuple_GetItem(items, i), &self->ranges[i]) < 0) {
            Py_CLEAR(self);
        }
    }
    Py_DECREF(items);
    return (PyObject *)self;
}

static void accesses_dealloc(AccessesObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static Py_ssize_t accesses_length(AccessesObject *self) { return N_RANGES(self); }

static PyObject *accesses_item(AccessesObject *self, Py_ssize_t index) {
    if (index < 0 || index >= N_RANGES(self)) {
        PyErr_SetString(PyExc_IndexError, "there is no such range");
        return NULL;
    }
    const order_range *range = &self->ranges[index];
    return Py_BuildValue("(KnN)", (unsigned long long)range->begin,
                         (Py_ssize_t)(range->end - range->begin), PyBool_FromLong(range->written));
}

static PyType_Slot accesses_slots[] = {
    {Py_tp_doc, "Accesses(ranges)\n--\n\n"
                "Ranges of memory that a submission touches, each (address, nbytes, written)."},
    {Py_tp_new, accesses_new},
    {Py_tp_dealloc, accesses_dealloc},
    {Py_sq_length, accesses_length},
    {Py_sq_item, accesses_item},
    {0, NULL},
};

static PyType_Spec accesses_spec = {
    .name = "ostinato.plan._order.Accesses",
    .basicsize = sizeof(AccessesObject),
    .itemsize = sizeof(order_range),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = accesses_slots,
};

/* ---- Submission ------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    order_entry entry;
    order_range *ranges;
    order_thread *began; /* the thread that began it, until it ends it */
    bool counted;        /* it is a level of that thread's depth */
} SubmissionObject;

/* The ranges of all Accesses in `args`, one behind the other. */
static int collect_ranges(SubmissionObject *self, order_state *state, PyObject *args) {
    Py_ssize_t n_ranges = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(args); i++) {
        PyObject *item = PyTuple_GetItem(args, i);
        if (Py_TYPE(item) != state->accesses_type) {
            PyErr_Format(PyExc_TypeError, "a Submission is made of Accesses, not %R",
                         (PyObject *)Py_TYPE(item));
            return -1;
        }
        n_ranges += N_RANGES(item);
    }
    self->ranges = PyMem_Malloc(sizeof(order_range) * (size_t)(n_ranges > 0 ? n_ranges : 1));
    if (self->ranges == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    order_range *at = self->ranges;
    for (Py_ssize_t i = 0; i < PyTuple_Size(args); i++) {
        AccessesObject *item = (AccessesObject *)PyTuple_GetItem(args, i);
        memcpy(at, item->ranges, sizeof(order_range) * (size_t)N_RANGES(item));
        at += N_RANGES(item);
    }
    self->entry.ranges[0] = self->ranges;
    self->entry.n_ranges[0] = (size_t)n_ranges;
    return 0;
}

static PyObject *submission_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Submission() takes no keyword arguments");
        return NULL;
    }
    SubmissionObject *self = (SubmissionObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (collect_ranges(self, PyType_GetModuleState(type), args) < 0 ||
        (this_thread.depth == 0 && yield_at("enter") < 0)) {
        Py_DECREF(self);
        return NULL;
    }
    self->entry.queued = true;
    append(&self->entry);
    return (PyObject *)self;
}

static void submission_dealloc(SubmissionObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    if (self->entry.listed) {
        unlink_entry(&self->entry);
    }
    PyMem_Free(self->ranges);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *submission_begin(SubmissionObject *self, PyObject *unused) {
    (void)unused;
    if (self->began != NULL || !self->entry.listed) {
        PyErr_SetString(PyExc_RuntimeError, "this submission has begun before, or was withdrawn");
        return NULL;
    }
    self->entry.thread = &this_thread;
    self->counted = this_thread.depth == 0;
    if (self->counted && begin(&this_thread, &self->entry) < 0) {
        return NULL;
    }
    self->began = &this_thread;
    return Py_NewRef((PyObject *)self);
}

static PyObject *submission_end(SubmissionObject *self, PyObject *unused) {
    (void)unused;
    if (self->began == NULL || self->began != &this_thread) {
        PyErr_SetString(PyExc_RuntimeError, "this submission is not of this thread");
        return NULL;
    }
    self->began = NULL;
    if (self->counted) {
        leave(&this_thread, &self->entry);
    } else if (self->entry.listed) {
        unlink_entry(&self->entry);
    }
    Py_RETURN_NONE;
}

static PyObject *submission_exit(SubmissionObject *self, PyObject *args) {
    (void)args;
    return submission_end(self, NULL);
}

static PyMethodDef submission_methods[] = {
    {"begin", (PyCFunction)submission_begin, METH_NOARGS,
     "begin($self)\n--\n\nWaits for what was submitted before and touches the same memory."},
    {"end", (PyCFunction)submission_end, METH_NOARGS,
     "end($self)\n--\n\nIt has taken effect: what waits for it may go on."},
    {"__enter__", (PyCFunction)submission_begin, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)submission_exit, METH_VARARGS, NULL},
    {0},
};

static PyType_Slot submission_slots[] = {
    {Py_tp_doc, "Submission(*accesses)\n--\n\n"
                "A place in the order of submissions, taken when this is made."},
    {Py_tp_new, submission_new},
    {Py_tp_dealloc, submission_dealloc},
    {Py_tp_methods, submission_methods},
    {0, NULL},
};

static PyType_Spec submission_spec = {
    .name = "ostinato.plan._order.Submission",
    .basicsize = sizeof(SubmissionObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = submission_slots,
};

/* ---- the module ------------------------------------------------------------------------------ */

static PyObject *order_in_flight(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    Py_ssize_t count = 0;
    for (const order_entry *entry = list.oldest; entry != NULL; entry = entry->after) {
        count++;
    }
    return PyLong_FromSsize_t(count);
}

static PyObject *order_set_hook(PyObject *module, PyObject *callable) {
    (void)module;
    PyObject *former = list.hook;
    list.hook = callable == Py_None ? NULL : Py_NewRef(callable);
    return former != NULL ? former : Py_NewRef(Py_None);
}

static PyObject *order_begin_recording(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *label;
    int exclusive;
    if (!PyArg_ParseTuple(args, "Op:begin_recording", &label, &exclusive)) {
        return NULL;
    }
    uint64_t number = begin_recording(label, exclusive != 0);
    return number == 0 ? NULL : PyLong_FromUnsignedLongLong(number);
}

static PyObject *order_end_recording(PyObject *module, PyObject *number) {
    (void)module;
    unsigned long long known = PyLong_AsUnsignedLongLong(number);
    return PyErr_Occurred() ? NULL : (PyObject *)end_recording(known);
}

static PyObject *order_is_recording(PyObject *module, PyObject *number) {
    (void)module;
    unsigned long long known = PyLong_AsUnsignedLongLong(number);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(is_recording(known, &this_thread));
}

static PyObject *order_refuse_elsewhere(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long number;
    PyObject *label, *error_type;
    if (!PyArg_ParseTuple(args, "KOO:refuse_elsewhere", &number, &label, &error_type) ||
        refuse_elsewhere(&this_thread, number, label, error_type)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *order_fail_recording(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long number;
    PyObject *message;
    if (!PyArg_ParseTuple(args, "KO:fail_recording", &number, &message)) {
        return NULL;
    }
    fail_recording(number, message);
    Py_RETURN_NONE;
}

static PyMethodDef order_methods[] = {
    {"in_flight", order_in_flight, METH_NOARGS,
     "in_flight($module)\n--\n\nHow many submissions have not taken effect yet."},
    {"set_hook", order_set_hook, METH_O,
     "set_hook($module, hook, /)\n--\n\n"
     "Has a callable called with the name of each point where threads may be switched; returns the "
     "former one."},
    {"begin_recording", order_begin_recording, METH_VARARGS,
     "begin_recording($module, label, exclusive, /)\n--\n\n"
     "The number of a recording of the calling thread."},
    {"end_recording", order_end_recording, METH_O,
     "end_recording($module, number, /)\n--\n\nEnds a recording; what made it fail, or None."},
    {"is_recording", order_is_recording, METH_O,
     "is_recording($module, number, /)\n--\n\nWhether the calling thread makes this recording."},
    {"refuse_elsewhere", order_refuse_elsewhere, METH_VARARGS,
     "refuse_elsewhere($module, number, label, error_type, /)\n--\n\n"
     "Raises, and makes it fail, while the calling thread makes an exclusive recording of another "
     "number."},
    {"fail_recording", order_fail_recording, METH_VARARGS,
     "fail_recording($module, number, message, /)\n--\n\n"
     "Makes a recording fail when it ends; the first message stays."},
    {0},
};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

static int order_exec(PyObject *module) {
    order_state *state = PyModule_GetState(module);
    if (add_type(module, &accesses_spec, &state->accesses_type) < 0 ||
        add_type(module, &submission_spec, &state->submission_type) < 0) {
        return -1;
    }
    static bool watching_forks;
    if (!watching_forks) {
        pthread_atfork(NULL, NULL, forget_other_threads);
        watching_forks = true;
    }
    PyObject *capsule = PyCapsule_New((void *)&api, ORDER_CAPSULE, NULL);
    int status = capsule == NULL ? -1 : PyModule_AddObjectRef(module, "api", capsule);
    Py_XDECREF(capsule);
    return status;
}

static int order_traverse(PyObject *module, visitproc visit, void *arg) {
    order_state *state = PyModule_GetState(module);
    Py_VISIT(state->accesses_type);
    Py_VISIT(state->submission_type);
    return 0;
}

static int order_clear(PyObject *module) {
    order_state *state = PyModule_GetState(module);
    Py_CLEAR(state->accesses_type);
    Py_CLEAR(state->submission_type);
    return 0;
}

static void order_free(void *module) { (void)order_clear(module); }

static PyModuleDef_Slot order_slots[] = {
    {Py_mod_exec, order_exec},
    {0, NULL},
};

static PyModuleDef order_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ostinato.plan._order",
    .m_doc = "The order of what is submitted, by the memory that it touches.",
    .m_size = sizeof(order_state),
    .m_methods = order_methods,
    .m_slots = order_slots,
    .m_traverse = order_traverse,
    .m_clear = order_clear,
    .m_free = order_free,
};

PyMODINIT_FUNC PyInit__order(void) { return PyModuleDef_Init(&order_module); }
