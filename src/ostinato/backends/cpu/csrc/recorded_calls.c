#include "recorded_calls.h"

#include "program_state.h"

bool call_uses(const BoundCallObject *call, PyObject *object) {
    const ProgramObject *program = call->program;
    if (program == NULL) {
        return false;
    }
    for (Py_ssize_t i = 0; i < call->bindings->held; i++) {
        if (call->bindings->views[i].obj == object) {
            return true;
        }
    }
    return (const PyObject *)program == object || program_uses(program, object);
}

void release_calls(recorded_call *calls, Py_ssize_t n_calls) {
    for (Py_ssize_t i = 0; i < n_calls; i++) {
        Py_DECREF((PyObject *)calls[i].call);
    }
    PyMem_Free(calls);
}
