/* Memory of a framework's array as a buffer of Python's. */
#ifndef OSTINATO_GIVEN_MEMORY_H
#define OSTINATO_GIVEN_MEMORY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec given_memory_spec;

/* The memory of an array of the host, which nothing else has, to be written. `type` is made of
 * given_memory_spec. NULL with an exception: the array failed to be computed. */
PyObject *given_memory(PyTypeObject *type, PyObject *array, Py_ssize_t nbytes);

#endif
