/* The buffers that a run brings for the external slots: checked, exported, released. */
#ifndef OSTINATO_BINDINGS_H
#define OSTINATO_BINDINGS_H

#include "python_types.h"

bindings *bindings_new(Py_ssize_t n_externals);
void bindings_free(bindings *b);

/* Checks and exports one buffer per external slot, from two sequences, or NULL for none. With `vars`
 * a slot needs the bytes it takes for these variables; with NULL, the bytes it takes at most. Nothing
 * stays exported on failure. */
int bindings_acquire(bindings *b, const ProgramObject *program, PyObject *buffers,
                     PyObject *outputs, const int64_t *vars);
void bindings_release(bindings *b);

/* The bytes that a slot needs for these variables; with NULL, at most. */
Py_ssize_t required_nbytes(const external_slot *slot, const int64_t *vars);

#endif
