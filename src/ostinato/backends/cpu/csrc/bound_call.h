/* BoundCall: a program with its buffers, checked once and held. */
#ifndef OSTINATO_BOUND_CALL_H
#define OSTINATO_BOUND_CALL_H

#include "python_types.h"

extern PyType_Spec bound_call_spec;

PyObject *bound_call_new(ProgramObject *program, PyObject *buffers, PyObject *vars);

#endif
