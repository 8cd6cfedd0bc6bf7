/* Limits: how many of its steps' items a program runs; see limits.c for their form. */
#ifndef OSTINATO_LIMITS_H
#define OSTINATO_LIMITS_H

#include "python_types.h"

int program_check_limit_slot(ProgramObject *self);

/* Puts those of the calling thread's runs in force. */
void program_apply_limits(ProgramObject *self);

PyObject *program_set_limits(ProgramObject *self, PyObject *limits);
PyObject *program_push_limits(ProgramObject *self, PyObject *limits);
PyObject *program_pop_limits(ProgramObject *self, PyObject *unused);

#endif
