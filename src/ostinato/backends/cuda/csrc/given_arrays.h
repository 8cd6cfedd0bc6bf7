/* Runs on arrays that a call brings. */
#ifndef OSTINATO_CUDA_GIVEN_ARRAYS_H
#define OSTINATO_CUDA_GIVEN_ARRAYS_H

#include "running.h"

/* The method run_on of a GraphRun. */
PyObject *run_on_given(GraphRunObject *self, PyObject *args);

#endif
