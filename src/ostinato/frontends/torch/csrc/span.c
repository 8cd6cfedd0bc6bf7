#include "span.h"

#include "runtime_types.h"

typedef struct {
    PyObject_HEAD
    void *data;
    Py_ssize_t nbytes;
    PyObject *owner;
} SpanObject;

PyObject *span_new(PyTypeObject *type, void *data, Py_ssize_t nbytes, PyObject *owner) {
    SpanObject *self = PyObject_New(SpanObject, type);
    if (self != NULL) {
        self->data = data;
        self->nbytes = nbytes;
        self->owner = Py_NewRef(owner);
    }
    return (PyObject *)self;
}

static int span_buffer(SpanObject *self, Py_buffer *view, int flags) {
    return PyBuffer_FillInfo(view, (PyObject *)self, self->data, self->nbytes, 0, flags);
}

/* Tensors are no part of cycles that begin here: a span lives for one run. */
static void span_dealloc(SpanObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    Py_DECREF(self->owner);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot span_slots[] = {
    {Py_tp_doc, "The memory of a tensor, for one run."},
    {Py_tp_dealloc, span_dealloc},
    {Py_bf_getbuffer, span_buffer},
    {0, NULL},
};

PyType_Spec span_spec = {
    .name = "ostinato.frontends.torch._runtime.Span",
    .basicsize = sizeof(SpanObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = span_slots,
};
