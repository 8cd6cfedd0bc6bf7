/* The extension module ostinato.plan._order. */
#include <pthread.h>

#include "native_module.h"
#include "order_list.h"
#include "order_types.h"
#include "recordings.h"

static order_thread *current_thread(void) { return &order_this_thread; }

static const order_api api = {
    .list = &submissions,
    .thread = current_thread,
    .enter = order_enter_slowly,
    .leave = order_leave_slowly,
    .begin_recording = begin_recording,
    .end_recording = end_recording,
    .is_recording = is_recording,
    .refuse_elsewhere = refuse_elsewhere,
};
static void forget_other_threads(void) {
    order_forget_other_threads();
    recordings_forget_other_threads();
}

static PyObject *order_in_flight(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    Py_ssize_t count = 0;
    for (const order_entry *entry = submissions.oldest; entry != NULL; entry = entry->after) {
        count++;
    }
    return PyLong_FromSsize_t(count);
}

static PyObject *order_set_hook(PyObject *module, PyObject *callable) {
    (void)module;
    PyObject *former = submissions.hook;
    submissions.hook = callable == Py_None ? NULL : Py_NewRef(callable);
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
    return PyErr_Occurred() ? NULL : PyBool_FromLong(is_recording(known, &order_this_thread));
}

static PyObject *order_refuse_elsewhere(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long number;
    PyObject *label, *error_type;
    if (!PyArg_ParseTuple(args, "KOO:refuse_elsewhere", &number, &label, &error_type) ||
        refuse_elsewhere(&order_this_thread, number, label, error_type)) {
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
