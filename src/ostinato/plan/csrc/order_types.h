/* The types Accesses and Submission. */
#ifndef OSTINATO_ORDER_TYPES_H
#define OSTINATO_ORDER_TYPES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "order.h"

typedef struct {
    PyTypeObject *accesses_type;
    PyTypeObject *submission_type;
} order_state;

extern PyType_Spec accesses_spec;
extern PyType_Spec submission_spec;

#endif
