/* Calls of one compiled function on inputs and on arrays that stay. */
#ifndef OSTINATO_STAGE_CALL_H
#define OSTINATO_STAGE_CALL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

/* Everything that a call needs besides its inputs. */
typedef struct {
    PyObject *parts;    /* owns what follows */
    PyObject *function; /* arrays in, a sequence of arrays out */
    PyObject *operands; /* tuple: (table, key); table None: key is the number of an input */
    PyObject *states;   /* tuple: (number of the result, table, key, copy or None) */
    PyObject *outputs;  /* tuple: (number of the result, read, shape, dtype, nbytes) */
    PyObject *take;     /* what becomes of an input first; None: nothing */
    PyObject *settings; /* makes a context manager for the call; None: there is none */
    PyObject *finish;   /* called with the results; None: not needed */
} stage_call;

/* Takes apart `parts`, the tuple of the fields that follow it. 0; -1 with an exception. */
int stage_call_fill(stage_call *call, PyObject *parts);

void stage_call_clear(stage_call *call);

/* Runs it on a list of inputs, and exchanges the arrays of states: a list of the outputs, or NULL
 * with an exception. */
PyObject *stage_call_run(const stage_call *call, PyTypeObject *memory_type, PyObject *inputs);

#endif
