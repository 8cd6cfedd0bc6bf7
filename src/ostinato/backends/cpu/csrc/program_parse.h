/* The construction of programs: what Program(...) is given, read and checked. */
#ifndef OSTINATO_PROGRAM_PARSE_H
#define OSTINATO_PROGRAM_PARSE_H

#include "python_types.h"

int program_parse(ProgramObject *self, core_state *state, PyObject *pool, PyObject *slots,
                  PyObject *steps);

#endif
