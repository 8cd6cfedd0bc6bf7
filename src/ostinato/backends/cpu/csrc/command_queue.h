/* CommandQueue: whether the calls of a context's programs run or are recorded. */
#ifndef OSTINATO_COMMAND_QUEUE_H
#define OSTINATO_COMMAND_QUEUE_H

#include "python_types.h"

extern PyType_Spec command_queue_spec;

/* The optional arguments `queue` and `resident` of Program(...). */
int program_join(ProgramObject *self, core_state *state, PyObject *queue, PyObject *resident);

/* Whether the calling thread records what it submits to a queue; or -1, with an exception, where it
 * records for another context. */
int queue_records(const CommandQueueObject *queue, order_thread *thread);

/* Appends a call to the recording that is being made. */
int queue_record(CommandQueueObject *queue, BoundCallObject *call);

#endif
