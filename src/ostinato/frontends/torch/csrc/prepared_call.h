/* PreparedCall: a run on tensors of known shapes, without Python in between. */
#ifndef OSTINATO_PREPARED_CALL_H
#define OSTINATO_PREPARED_CALL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec prepared_call_spec;

#endif
