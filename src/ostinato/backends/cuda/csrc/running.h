/* Runs that are one CUDA graph, between copies by the processor. */
#ifndef OSTINATO_CUDA_RUNNING_H
#define OSTINATO_CUDA_RUNNING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "order.h"

/* The order of submissions, which module.c finds. */
extern const order_api *order;

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
    int64_t *words;        /* of the Variables whose values calls bring */
    Py_ssize_t n_words;
    transfer *transfers; /* those before the graph, then those behind it */
    Py_ssize_t n_before, n_transfers;
    order_range *ranges;
    Py_ssize_t n_ranges;
    PyObject *refuse, *owners;
    long process;
} GraphRunObject;

/* A call of the driver that failed. */
typedef struct {
    int status; /* 0: none has */
    const char *call;
} failure;

/* A run that has been launched, and not waited for. */
typedef struct {
    GraphRunObject *run; /* NULL: there is none */
    order_entry entry;
    int64_t signal;
} started_run;

/* Runs it, its turn having come, with these copies and these values of its words. 0; 1 where its
 * epoch is over, and nothing has happened; -1 where the driver has refused: `found` says what. */
int run_now(const GraphRunObject *self, const transfer *transfers, const int64_t *values,
            failure *found);

/* Reads values of Variables. 0; -1 with an exception: one is no integer of 64 bits. */
int read_values(int64_t *values, PyObject *variables, Py_ssize_t count);

/* The exception for a call of the driver that failed. -1. */
int refuse_run(const GraphRunObject *self, const failure *found);

/* Runs it when its turn has come. 1 where its epoch is over, and nothing has happened; -1 with an
 * exception. */
int run_in_order(GraphRunObject *self, order_thread *thread);

/* Launches it when its turn has come; what touches the same memory waits for `finish_in_order`. 1
 * where its epoch is over, or the thread is within a submission, and nothing has happened; -1 with
 * an exception. */
int start_in_order(GraphRunObject *self, started_run *started, order_thread *thread);

/* Waits for a run that was started. -1 with an exception. */
int finish_in_order(started_run *started, order_thread *thread);

/* The method run of a GraphRun. */
PyObject *run_in_turn(GraphRunObject *self, PyObject *variables);

#endif
