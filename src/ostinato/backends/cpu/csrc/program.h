/* Program: prepared steps, the memory they work on, and the ways to run them. */
#ifndef OSTINATO_PROGRAM_H
#define OSTINATO_PROGRAM_H

#include "python_types.h"

extern PyType_Spec program_spec;

#endif
