/* The memory that submissions touch: their position in the order of submissions. */
#ifndef OSTINATO_TOUCHES_H
#define OSTINATO_TOUCHES_H

#include "python_types.h"

/* The order of submissions, which all contexts share. */
extern const order_api *order;

/* The calling thread, as the order of submissions has it; asked for once. */
static inline order_thread *calling_thread(void) {
    static _Thread_local order_thread *known __attribute__((tls_model("initial-exec")));
    if (known == NULL) {
        known = order->thread();
    }
    return known;
}

/* An object that stands for what belongs to it. */
order_range order_token(const void *object, bool written);

/* What each run touches; the optional argument `touches` of Program(...) is a part of that. */
int program_parse_touched(ProgramObject *self, PyObject *touches);

/* Submits a run of a program on bound buffers; see order_enter. */
static inline int program_enter(const ProgramObject *program, const bindings *b,
                                order_thread *thread, order_entry *entry) {
    entry->ranges[0] = program->touched;
    entry->n_ranges[0] = (size_t)program->n_touched;
    entry->ranges[1] = b->ranges;
    entry->n_ranges[1] = (size_t)b->held;
    return order_enter(order, thread, entry);
}

/* A new Accesses of these ranges. */
PyObject *accesses_of(core_state *state, const order_range *ranges, Py_ssize_t n_ranges);

#endif
