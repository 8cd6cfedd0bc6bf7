/* The module's types, for each other. */
#ifndef OSTINATO_RUNTIME_TYPES_H
#define OSTINATO_RUNTIME_TYPES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define TYPE_OF(object) Py_TYPE((PyObject *)(object))

typedef struct {
    PyTypeObject *span_type, *watch_type, *call_type;
} runtime_state;

#endif
