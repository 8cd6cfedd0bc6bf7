/* Runs of programs, once their buffers are checked and their turn has come. */
#ifndef OSTINATO_EXECUTION_H
#define OSTINATO_EXECUTION_H

#include "python_types.h"

/* Whether a program can run at all, and its locks are this process's. Limits that the calling
 * thread's runs have hold from now on. */
int program_ready(ProgramObject *program);

/* Raises what a run of the program that did not run all steps ended with. */
void raise_outcome(const ProgramObject *program, executor_outcome outcome);

/* Runs the program without the GIL. Fails only for one that was garbage or is stopped, or where a
 * step refuses a size. */
int program_execute(ProgramObject *program, const bindings *b, const int64_t *vars,
                    double *seconds);

#endif
