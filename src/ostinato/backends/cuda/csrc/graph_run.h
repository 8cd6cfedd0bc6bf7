/* The types Epoch and GraphRun. */
#ifndef OSTINATO_CUDA_GRAPH_RUN_H
#define OSTINATO_CUDA_GRAPH_RUN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Heap types, created anew by each interpreter that imports the module. */
typedef struct {
    PyTypeObject *epoch_type, *run_type, *call_type;
} graph_calls_state;

extern PyType_Spec epoch_spec;
extern PyType_Spec graph_run_spec;

#endif
