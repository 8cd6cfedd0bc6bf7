/* GraphCall: a bound call that runs as a GraphRun where it can. */
#ifndef OSTINATO_CUDA_GRAPH_CALL_H
#define OSTINATO_CUDA_GRAPH_CALL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec graph_call_spec;

#endif
