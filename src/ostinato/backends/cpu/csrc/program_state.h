/* What a program holds: its fixed slots, and the error that stopped it. */
#ifndef OSTINATO_PROGRAM_STATE_H
#define OSTINATO_PROGRAM_STATE_H

#include "python_types.h"

/* The fixed slot of this number; or NULL with an IndexError. */
fixed_slot *program_fixed(ProgramObject *self, Py_ssize_t slot);

/* Whether a program runs on this memory: a slot that it holds itself, or one of its sources. Of a
 * tuple, on all of them. */
bool program_uses(const ProgramObject *program, PyObject *memory);

/* Raises a new exception like the one that the program was stopped with. */
void raise_stopped(const ProgramObject *program);

#endif
