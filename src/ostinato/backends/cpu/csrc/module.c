/* The extension module ostinato.backends.cpu._core: its types and its ready-made kernels. */
#include "amx.h"
#include "arena.h"
#include "bound_call.h"
#include "command_queue.h"
#include "copying.h"
#include "experts.h"
#include "memory.h"
#include "native_module.h"
#include "program.h"
#include "python_types.h"
#include "recording.h"
#include "sampling.h"
#include "selection.h"
#include "thread_pool.h"
#include "touches.h"

/* A copy step of a program: bytes [begin, end) of argument 1 to argument 0. memmove, because a
 * plan may ask for the copy of a buffer onto itself. */
static void memcpy_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                          char *scratch) {
    (void)vars;
    (void)scratch;
    memmove(buffers[0] + begin, buffers[1] + begin, (size_t)(end - begin));
}

/* Bytes [begin, end) of argument 0 are needed no more: they cost no memory until they are written
 * again. A kernel, so that a program that excludes others can do it between their runs. */
static void discard_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                           char *scratch) {
    (void)vars;
    (void)scratch;
    memory_discard(buffers[0] + begin, (size_t)(end - begin));
}

static int add_address(PyObject *module, const char *name, void *address) {
    PyObject *value = PyLong_FromVoidPtr(address);
    int status = value == NULL ? -1 : PyModule_AddObjectRef(module, name, value);
    Py_XDECREF(value);
    return status;
}

static int core_exec(PyObject *module) {
    core_state *state = PyModule_GetState(module);
    PyObject *order_module = import_order(&order);
    if (order_module == NULL) {
        return -1;
    }
    state->accesses_factory = PyObject_GetAttrString(order_module, "Accesses");
    Py_DECREF(order_module);
    if (state->accesses_factory == NULL) {
        return -1;
    }
    if (add_type(module, &arena_spec, &state->arena_type) < 0 ||
        add_type(module, &thread_pool_spec, &state->pool_type) < 0 ||
        add_type(module, &program_spec, &state->program_type) < 0 ||
        add_type(module, &bound_call_spec, &state->bound_call_type) < 0 ||
        add_type(module, &command_queue_spec, &state->command_queue_type) < 0 ||
        add_type(module, &recording_spec, &state->recording_type) < 0 ||
        PyModule_AddIntMacro(module, MAX_VARS) < 0) {
        return -1;
    }
    if (add_address(module, "memcpy_kernel", (void *)(uintptr_t)memcpy_kernel) < 0 ||
        add_address(module, "copy_kernel", (void *)(uintptr_t)copy_kernel) < 0 ||
        add_address(module, "flat_nonzero_kernel", (void *)(uintptr_t)flat_nonzero_kernel) < 0 ||
        add_address(module, "suppress_kernel", (void *)(uintptr_t)suppress_kernel) < 0 ||
        add_address(module, "draw_kernel", (void *)(uintptr_t)draw_kernel) < 0 ||
        add_address(module, "select_experts_kernel", (void *)(uintptr_t)select_experts_kernel) < 0 ||
        add_address(module, "stage_experts_kernel", (void *)(uintptr_t)stage_experts_kernel) < 0) {
        return -1;
    }
    return add_address(module, "discard_kernel", (void *)(uintptr_t)discard_kernel);
}

static int core_traverse(PyObject *module, visitproc visit, void *arg) {
    core_state *state = PyModule_GetState(module);
    Py_VISIT(state->arena_type);
    Py_VISIT(state->pool_type);
    Py_VISIT(state->program_type);
    Py_VISIT(state->bound_call_type);
    Py_VISIT(state->command_queue_type);
    Py_VISIT(state->recording_type);
    Py_VISIT(state->accesses_factory);
    return 0;
}

static int core_clear(PyObject *module) {
    core_state *state = PyModule_GetState(module);
    Py_CLEAR(state->arena_type);
    Py_CLEAR(state->pool_type);
    Py_CLEAR(state->program_type);
    Py_CLEAR(state->bound_call_type);
    Py_CLEAR(state->command_queue_type);
    Py_CLEAR(state->recording_type);
    Py_CLEAR(state->accesses_factory);
    return 0;
}

static void core_free(void *module) { (void)core_clear(module); }

static PyMethodDef core_methods[] = {
    {"permit_amx", permit_amx, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, core_exec},
    {0, NULL},
};

static PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ostinato.backends.cpu._core",
    .m_doc = "The CPU backend's native core: memory, threads, and programs of kernel calls.",
    .m_size = sizeof(core_state),
    .m_methods = core_methods,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
    .m_free = core_free,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&core_module); }
