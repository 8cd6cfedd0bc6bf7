/* Readers of Python values; each sets an exception and returns -1 on failure. */
#ifndef OSTINATO_ARGUMENTS_H
#define OSTINATO_ARGUMENTS_H

#include "python_types.h"

/* Where a value stands, for messages: "step 3: grain ...". */
typedef struct {
    const char *owner; /* "step", "slot" */
    Py_ssize_t index;
    const char *name; /* "grain" */
} place;

/* An int of [low, INT64_MAX]: TypeError when it is no int, ValueError outside. */
int read_int(PyObject *value, int64_t low, place where, int64_t *out);

/* The address of a function: not zero, unless `or_null`. */
int read_address(PyObject *value, bool or_null, place where, void **out);

/* A new tuple of a sequence's items, or NULL with a TypeError. */
PyObject *read_sequence(PyObject *value, place where);

/* Item `index` of a sequence, as a new reference. */
PyObject *sequence_item(PyObject *sequence, Py_ssize_t index);

/* Exactly program->n_vars ints. None, or no object at all, gives the program's own. */
int read_vars(const ProgramObject *program, PyObject *value, int64_t *out);

/* Gives a fresh exception the current one as its cause. */
void raise_from_current(PyObject *type, const char *format, ...);

#endif
