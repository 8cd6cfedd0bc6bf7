#include "program_state.h"

fixed_slot *program_fixed(ProgramObject *self, Py_ssize_t slot) {
    for (Py_ssize_t i = 0; i < self->n_fixed; i++) {
        if (self->fixed[i].slot == slot) {
            return &self->fixed[i];
        }
    }
    PyErr_Format(PyExc_IndexError, "the program has no fixed slot %zd", slot);
    return NULL;
}

bool program_uses(const ProgramObject *program, PyObject *memory) {
    for (Py_ssize_t i = 0; PyTuple_Check(memory) && i < PyTuple_Size(memory); i++) {
        if (!program_uses(program, PyTuple_GetItem(memory, i))) {
            return false;
        }
    }
    if (PyTuple_Check(memory)) {
        return true;
    }
    for (Py_ssize_t i = 0; i < program->n_fixed; i++) {
        if (program->fixed[i].view.obj == memory) {
            return true;
        }
    }
    Py_ssize_t n_sources = program->sources == NULL ? 0 : PyTuple_Size(program->sources);
    for (Py_ssize_t i = 0; i < n_sources; i++) {
        if (PyTuple_GetItem(program->sources, i) == memory) {
            return true;
        }
    }
    return false;
}

/* A new exception: one that is raised again and again would gather tracebacks. */
static void raise_alike(PyObject *error) {
    PyObject *args = PyObject_GetAttrString(error, "args");
    if (args != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), args);
        Py_DECREF(args);
    }
}

void raise_stopped(const ProgramObject *program) { raise_alike(program->stopped); }
