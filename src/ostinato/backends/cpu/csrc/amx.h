/* Detection of Intel AMX: tile registers, and permission of the system to use them. */
#ifndef OSTINATO_AMX_H
#define OSTINATO_AMX_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* _core.permit_amx() */
PyObject *permit_amx(PyObject *module, PyObject *unused);

#endif
