#include "given_memory.h"

typedef struct {
    PyObject_HEAD
    PyObject *array; /* owns the memory */
    void *start;
    Py_ssize_t nbytes;
} GivenMemoryObject;

PyObject *given_memory(PyTypeObject *type, PyObject *array, Py_ssize_t nbytes) {
    PyObject *ready = PyObject_CallMethod(array, "block_until_ready", NULL);
    PyObject *address =
        ready == NULL ? NULL : PyObject_CallMethod(array, "unsafe_buffer_pointer", NULL);
    void *start = address == NULL ? NULL : PyLong_AsVoidPtr(address);
    Py_XDECREF(address);
    Py_XDECREF(ready);
    if (PyErr_Occurred()) {
        return NULL;
    }
    GivenMemoryObject *self = (GivenMemoryObject *)PyType_GenericAlloc(type, 0);
    if (self != NULL) {
        self->array = Py_NewRef(array);
        self->start = start;
        self->nbytes = nbytes;
    }
    return (PyObject *)self;
}

static int given_memory_buffer(GivenMemoryObject *self, Py_buffer *view, int flags) {
    return PyBuffer_FillInfo(view, (PyObject *)self, self->start, self->nbytes, 0, flags);
}

static void given_memory_dealloc(GivenMemoryObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_XDECREF(self->array);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot given_memory_slots[] = {
    {Py_tp_doc, "The memory of an array that a framework has computed."},
    {Py_tp_dealloc, given_memory_dealloc},
    {Py_bf_getbuffer, given_memory_buffer},
    {0, NULL},
};

PyType_Spec given_memory_spec = {
    .name = "ostinato.backends.array_api._fresh_runs.GivenMemory",
    .basicsize = sizeof(GivenMemoryObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = given_memory_slots,
};
