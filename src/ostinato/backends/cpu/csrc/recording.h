/* Recording: bound calls in the order in which they were made, run again as one. */
#ifndef OSTINATO_RECORDING_H
#define OSTINATO_RECORDING_H

#include "python_types.h"

extern PyType_Spec recording_spec;

/* A queue's recorded calls, moved into a Recording. */
PyObject *recording_new(core_state *state, recorded_call *calls, Py_ssize_t n_calls);

#endif
