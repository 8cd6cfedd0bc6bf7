/* The list of submissions, for the files of its own module; see order.h. */
#ifndef OSTINATO_ORDER_LIST_H
#define OSTINATO_ORDER_LIST_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "order.h"

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

#endif
