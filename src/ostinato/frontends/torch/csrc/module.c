/* The extension module ostinato.frontends.torch._runtime: calls on PyTorch's tensors. */
#include "native_module.h"
#include "prepared_call.h"
#include "runtime_types.h"
#include "span.h"
#include "watch.h"

static int runtime_exec(PyObject *module) {
    runtime_state *state = PyModule_GetState(module);
    if (add_type(module, &span_spec, &state->span_type) < 0 ||
        add_type(module, &watch_spec, &state->watch_type) < 0) {
        return -1;
    }
    return add_type(module, &prepared_call_spec, &state->call_type);
}

static int runtime_traverse(PyObject *module, visitproc visit, void *arg) {
    runtime_state *state = PyModule_GetState(module);
    Py_VISIT(state->span_type);
    Py_VISIT(state->watch_type);
    Py_VISIT(state->call_type);
    return 0;
}

static int runtime_clear(PyObject *module) {
    runtime_state *state = PyModule_GetState(module);
    Py_CLEAR(state->span_type);
    Py_CLEAR(state->watch_type);
    Py_CLEAR(state->call_type);
    return 0;
}

static void runtime_free(void *module) { (void)runtime_clear(module); }

static PyModuleDef_Slot runtime_slots[] = {
    {Py_mod_exec, runtime_exec},
    {0, NULL},
};

static PyModuleDef runtime_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ostinato.frontends.torch._runtime",
    .m_doc = "Calls on PyTorch's tensors: their memory, new results, and weights that change.",
    .m_size = sizeof(runtime_state),
    .m_slots = runtime_slots,
    .m_traverse = runtime_traverse,
    .m_clear = runtime_clear,
    .m_free = runtime_free,
};

PyMODINIT_FUNC PyInit__runtime(void) { return PyModuleDef_Init(&runtime_module); }
