/* GraphRun: a run that is one CUDA graph, between copies by the processor. */
#ifndef OSTINATO_CUDA_GRAPH_RUN_H
#define OSTINATO_CUDA_GRAPH_RUN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "order.h"

/* The order of submissions, which module.c finds. */
extern const order_api *order;

/* Heap types, created anew by each interpreter that imports the module. */
typedef struct {
    PyTypeObject *epoch_type, *run_type, *call_type;
} graph_calls_state;

/* The entry points of the driver; each returns 0 where it succeeds. */
typedef struct {
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*launch)(void *graph, void *stream);
    int (*synchronize)(void *stream);
} driver_calls;

typedef struct {
    void *target;
    const void *source;
    size_t nbytes;
} transfer;

/* The time in which a program's memory stays where it is. */
typedef struct {
    PyObject_HEAD
    bool over;
} EpochObject;

typedef struct {
    PyObject_HEAD
    EpochObject *epoch;
    driver_calls calls;
    void *context, *graph, *stream;
    const int64_t *signal; /* changes when the graph is done; NULL: it has no such word */
    transfer *transfers; /* those before the graph, then those behind it */
    Py_ssize_t n_before, n_transfers;
    order_range *ranges;
    Py_ssize_t n_ranges;
    PyObject *refuse, *owners;
    long process;
} GraphRunObject;

extern PyType_Spec epoch_spec;
extern PyType_Spec graph_run_spec;

/* Runs it when its turn has come. 1 where its epoch is over, and nothing has happened; -1 with an
 * exception. */
int graph_run_in_order(GraphRunObject *self, order_thread *thread);

#endif
