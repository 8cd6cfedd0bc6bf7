/* The extension module ostinato.backends.cuda._graph_calls: calls that are one launch each.
 *
 * It links nothing of CUDA: the driver's entry points are addresses that it is given. */
#include "graph_call.h"
#include "graph_run.h"
#include "native_module.h"
#include "running.h"

static int graph_calls_exec(PyObject *module) {
    graph_calls_state *state = PyModule_GetState(module);
    PyObject *order_module = import_order(&order);
    Py_XDECREF(order_module);
    if (order_module == NULL || add_type(module, &epoch_spec, &state->epoch_type) < 0 ||
        add_type(module, &graph_run_spec, &state->run_type) < 0) {
        return -1;
    }
    return add_type(module, &graph_call_spec, &state->call_type);
}

static int graph_calls_traverse(PyObject *module, visitproc visit, void *arg) {
    graph_calls_state *state = PyModule_GetState(module);
    Py_VISIT(state->epoch_type);
    Py_VISIT(state->run_type);
    Py_VISIT(state->call_type);
    return 0;
}

static int graph_calls_clear(PyObject *module) {
    graph_calls_state *state = PyModule_GetState(module);
    Py_CLEAR(state->epoch_type);
    Py_CLEAR(state->run_type);
    Py_CLEAR(state->call_type);
    return 0;
}

static void graph_calls_free(void *module) { (void)graph_calls_clear(module); }

static PyModuleDef_Slot graph_calls_slots[] = {
    {Py_mod_exec, graph_calls_exec},
    {0, NULL},
};

static PyModuleDef graph_calls_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ostinato.backends.cuda._graph_calls",
    .m_doc = "Calls that are one launch of a CUDA graph each.",
    .m_size = sizeof(graph_calls_state),
    .m_slots = graph_calls_slots,
    .m_traverse = graph_calls_traverse,
    .m_clear = graph_calls_clear,
    .m_free = graph_calls_free,
};

PyMODINIT_FUNC PyInit__graph_calls(void) { return PyModuleDef_Init(&graph_calls_module); }
