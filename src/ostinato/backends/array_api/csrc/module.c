/* The extension module ostinato.backends.array_api._fresh_runs: runs that are one call each. */
#include "fresh_run.h"
#include "given_memory.h"
#include "native_module.h"

static int fresh_runs_exec(PyObject *module) {
    fresh_runs_state *state = PyModule_GetState(module);
    PyObject *order_module = import_order(&order);
    Py_XDECREF(order_module);
    if (order_module == NULL || add_type(module, &given_memory_spec, &state->memory_type) < 0) {
        return -1;
    }
    return add_type(module, &fresh_run_spec, &state->run_type);
}

static int fresh_runs_traverse(PyObject *module, visitproc visit, void *arg) {
    fresh_runs_state *state = PyModule_GetState(module);
    Py_VISIT(state->memory_type);
    Py_VISIT(state->run_type);
    return 0;
}

static int fresh_runs_clear(PyObject *module) {
    fresh_runs_state *state = PyModule_GetState(module);
    Py_CLEAR(state->memory_type);
    Py_CLEAR(state->run_type);
    return 0;
}

static void fresh_runs_free(void *module) { (void)fresh_runs_clear(module); }

static PyModuleDef_Slot fresh_runs_slots[] = {
    {Py_mod_exec, fresh_runs_exec},
    {0, NULL},
};

static PyModuleDef fresh_runs_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ostinato.backends.array_api._fresh_runs",
    .m_doc = "Runs of compiled graphs that are one call of a function each.",
    .m_size = sizeof(fresh_runs_state),
    .m_slots = fresh_runs_slots,
    .m_traverse = fresh_runs_traverse,
    .m_clear = fresh_runs_clear,
    .m_free = fresh_runs_free,
};

PyMODINIT_FUNC PyInit__fresh_runs(void) { return PyModuleDef_Init(&fresh_runs_module); }
