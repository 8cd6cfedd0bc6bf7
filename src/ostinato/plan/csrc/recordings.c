#include "recordings.h"

#include "order_list.h"

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

uint64_t begin_recording(void *label, bool exclusive) {
    recording *made = PyMem_Malloc(sizeof *made);
    if (made == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    if (order_this_thread.number == 0) {
        order_this_thread.number = ++last_thread;
    }
    *made = (recording){
        .next = recordings,
        .number = ++last_recording,
        .thread = order_this_thread.number,
        .label = Py_NewRef((PyObject *)label),
    };
    recordings = made;
    if (exclusive) {
        order_this_thread.exclusive = made->number;
    }
    return made->number;
}

void *end_recording(uint64_t number) {
    recording *ended = find_recording(number);
    if (ended == NULL) {
        return Py_NewRef(Py_None);
    }
    recording **at = &recordings;
    while (*at != ended) {
        at = &(*at)->next;
    }
    *at = ended->next;
    if (order_this_thread.exclusive == number) {
        order_this_thread.exclusive = 0;
    }
    PyObject *failure = ended->failure != NULL ? ended->failure : Py_NewRef(Py_None);
    PyObject *label = ended->label;
    PyMem_Free(ended);
    Py_DECREF(label); /* last: it may run code that comes back here */
    return failure;
}

bool is_recording(uint64_t number, const order_thread *thread) {
    const recording *known = find_recording(number);
    return known != NULL && (thread == NULL || known->thread == thread->number);
}

void fail_recording(uint64_t number, PyObject *message) {
    recording *known = find_recording(number);
    if (known != NULL && known->failure == NULL) {
        known->failure = Py_NewRef(message);
    }
}

bool refuse_elsewhere(order_thread *thread, uint64_t number, void *label, void *error_type) {
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

/* The memory of the others is lost: it is not safe to free any here. */
void recordings_forget_other_threads(void) {
    recording **at = &recordings;
    while (*at != NULL) {
        if ((*at)->thread == order_this_thread.number) {
            at = &(*at)->next;
        } else {
            *at = (*at)->next;
        }
    }
}
