/* What the files of the extension module ostinato.plan._order share. */
#ifndef OSTINATO_ORDER_MODULE_H
#define OSTINATO_ORDER_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "order.h"

#define TYPE_OF(self) Py_TYPE((PyObject *)(self))

typedef struct {
    PyTypeObject *accesses_type;
    PyTypeObject *submission_type;
} order_state;

extern PyType_Spec accesses_spec;
extern PyType_Spec submission_spec;

/* ---- the list (order.c) ---------------------------------------------------------------------- */

extern order_list submissions;

/* Found without a call: it is read by every bound call. */
extern _Thread_local order_thread order_this_thread __attribute__((tls_model("initial-exec")));

void order_append(order_entry *entry);
void order_unlink(order_entry *entry);

/* Lets a test switch threads here. -1 with the exception that it raised. */
int order_yield(const char *point);

/* An entry that has been appended, and whose thread is known, until its turn has come. */
int order_begin(order_thread *thread, order_entry *entry);

/* See order_api. */
int order_enter_slowly(order_thread *thread, order_entry *entry);
void order_leave_slowly(order_thread *thread, order_entry *entry);

/* The parent's other threads, and what they submitted, do not exist in a forked child. */
void order_forget_other_threads(void);

/* ---- recordings (recordings.c); see order_api ------------------------------------------------ */

uint64_t begin_recording(void *label, bool exclusive);
void *end_recording(uint64_t number);
bool is_recording(uint64_t number, const order_thread *thread);
bool refuse_elsewhere(order_thread *thread, uint64_t number, void *label, void *error_type);

/* Makes a recording fail when it ends; the first message stays. */
void fail_recording(uint64_t number, PyObject *message);

void recordings_forget_other_threads(void);

#endif
