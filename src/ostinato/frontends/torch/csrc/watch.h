/* Watch: the weights of a module, and whether anything about them has changed. */
#ifndef OSTINATO_WATCH_H
#define OSTINATO_WATCH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec watch_spec;

/* 1 when all is as it was, 0 when something has changed, -1 with an exception. */
int watch_intact(PyObject *watch);

#endif
