/* Span: memory of a tensor under the buffer protocol, for one run. */
#ifndef OSTINATO_SPAN_H
#define OSTINATO_SPAN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec span_spec;

/* A span of `nbytes` at `data`, which `owner` keeps alive; NULL with an exception. */
PyObject *span_new(PyTypeObject *type, void *data, Py_ssize_t nbytes, PyObject *owner);

#endif
