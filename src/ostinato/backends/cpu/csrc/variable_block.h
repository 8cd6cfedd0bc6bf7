/* The block of variables that a queue holds, and the variables of programs that live in it. */
#ifndef OSTINATO_VARIABLE_BLOCK_H
#define OSTINATO_VARIABLE_BLOCK_H

#include "python_types.h"

/* The optional argument `resident` of Program(...), once the program has its queue. */
int program_parse_resident(ProgramObject *self, PyObject *resident);

/* Replaces the variables that live in the block by what it holds. VariableError when one is out of
 * its bounds, or a bound buffer is too small for it. */
int read_block(const ProgramObject *program, const bindings *b, int64_t *vars);

#endif
