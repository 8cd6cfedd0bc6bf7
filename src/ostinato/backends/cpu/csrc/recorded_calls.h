/* Bound calls, as a queue that records them and a recording of them see them. */
#ifndef OSTINATO_RECORDED_CALLS_H
#define OSTINATO_RECORDED_CALLS_H

#include "python_types.h"

/* The variables that a call runs with when it does not read the block: its own, or the program's. */
static inline void bound_call_vars(const BoundCallObject *call, int64_t *out) {
    const ProgramObject *program = call->program;
    memcpy(out, call->has_vars ? call->vars : program->vars,
           sizeof(int64_t) * (size_t)program->n_vars);
}

/* Whether a call is one of this program, runs on this memory, or has a buffer of this object. */
bool call_uses(const BoundCallObject *call, PyObject *object);

/* Lets go of an array of recorded calls. */
void release_calls(recorded_call *calls, Py_ssize_t n_calls);

#endif
