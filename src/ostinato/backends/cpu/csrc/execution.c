#include "execution.h"

#include "limits.h"
#include "program_state.h"

int program_ready(ProgramObject *program) {
    if (program->pool == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this program has been garbage collected");
        return -1;
    }
    executor_refresh_after_fork(program->executor); /* holding the GIL: one thread at a time */
    if (program->limits != program->applied || program->n_of_threads > 0) {
        program_apply_limits(program);
    }
    return 0;
}

void raise_outcome(const ProgramObject *program, executor_outcome outcome) {
    if (outcome.status == EXECUTOR_STOPPED) {
        raise_stopped(program);
        return;
    }
    PyObject *type = program->queue == NULL ? PyExc_ValueError : program->queue->variable_error;
    PyObject *problem = PyList_GetItem(program->problems, (Py_ssize_t)outcome.problem);
    PyErr_Format(type, "%U, got %lld", problem, (long long)outcome.size);
}

int program_execute(ProgramObject *program, const bindings *b, const int64_t *vars,
                    double *seconds) {
    if (program_ready(program) < 0) {
        return -1;
    }
    executor_outcome outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = executor_run(program->executor, b->addresses, vars, seconds);
    Py_END_ALLOW_THREADS
    if (outcome.status != EXECUTOR_RAN) {
        raise_outcome(program, outcome);
        return -1;
    }
    return 0;
}
