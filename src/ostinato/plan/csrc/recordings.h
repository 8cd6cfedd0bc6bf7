/* Recordings that are being made: the thread of each, and what makes it fail; see order_api. */
#ifndef OSTINATO_RECORDINGS_H
#define OSTINATO_RECORDINGS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "order.h"

uint64_t begin_recording(void *label, bool exclusive);
void *end_recording(uint64_t number);
bool is_recording(uint64_t number, const order_thread *thread);
bool refuse_elsewhere(order_thread *thread, uint64_t number, void *label, void *error_type);

/* Makes a recording fail when it ends; the first message stays. */
void fail_recording(uint64_t number, PyObject *message);

void recordings_forget_other_threads(void);

#endif
