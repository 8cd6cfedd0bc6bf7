/* The type FreshRun. */
#ifndef OSTINATO_FRESH_RUN_H
#define OSTINATO_FRESH_RUN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "order.h"

typedef struct {
    PyTypeObject *memory_type;
    PyTypeObject *run_type;
} fresh_runs_state;

/* The order of submissions, once the module is there. */
extern const order_api *order;

extern PyType_Spec fresh_run_spec;

#endif
