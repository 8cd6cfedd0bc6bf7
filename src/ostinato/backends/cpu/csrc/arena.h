/* Arena: a block of zeroed memory that Python code can view. */
#ifndef OSTINATO_ARENA_H
#define OSTINATO_ARENA_H

#include "python_types.h"

extern PyType_Spec arena_spec;

#endif
