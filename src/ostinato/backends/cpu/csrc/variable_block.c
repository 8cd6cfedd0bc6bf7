#include "variable_block.h"

#include "arguments.h"
#include "bindings.h"

static const char *const block_names[BLOCK_VARS] = {"token", "position", "kv_len"};

/* (variable, entry, min, max) */
static int parse_resident(ProgramObject *self, Py_ssize_t index, PyObject *item) {
    PyObject *fields = read_sequence(item, (place){"resident", index, "its description"});
    if (fields == NULL) {
        return -1;
    }
    int64_t values[4];
    static const char *const names[4] = {"variable", "entry", "min", "max"};
    int status = 0;
    if (PyTuple_Size(fields) != 4) {
        PyErr_Format(PyExc_ValueError,
                     "resident %zd has %zd items, but is (variable, entry, min, max)", index,
                     PyTuple_Size(fields));
        status = -1;
    }
    for (Py_ssize_t i = 0; status == 0 && i < 4; i++) {
        status = read_int(PyTuple_GetItem(fields, i), i < 2 ? 0 : INT64_MIN,
                          (place){"resident", index, names[i]}, &values[i]);
    }
    Py_DECREF(fields);
    if (status < 0) {
        return -1;
    }
    if (values[0] >= self->n_vars || values[1] >= BLOCK_VARS) {
        PyErr_Format(PyExc_IndexError,
                     "resident %zd: there is no variable %lld or no entry %lld", index,
                     (long long)values[0], (long long)values[1]);
        return -1;
    }
    self->resident[index] = (resident_var){
        .variable = (Py_ssize_t)values[0],
        .entry = (Py_ssize_t)values[1],
        .min = values[2],
        .max = values[3],
    };
    return 0;
}

int program_parse_resident(ProgramObject *self, PyObject *resident) {
    PyObject *items = resident == NULL ? PyTuple_New(0) : PySequence_Tuple(resident);
    if (items == NULL) {
        return -1;
    }
    Py_ssize_t count = PyTuple_Size(items);
    int status = 0;
    if (count > BLOCK_VARS || (count > 0 && self->queue == NULL)) {
        PyErr_Format(PyExc_ValueError,
                     "%zd variables are resident, but a queue's block has %d, and without a queue "
                     "there is none",
                     count, BLOCK_VARS);
        status = -1;
    }
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        status = parse_resident(self, i, PyTuple_GetItem(items, i));
    }
    self->n_resident = status == 0 ? count : 0;
    Py_DECREF(items);
    return status;
}

static int check_sizes(const ProgramObject *program, const bindings *b, const int64_t *vars) {
    const int64_t *block = program->queue->block;
    for (Py_ssize_t i = 0; i < b->held; i++) {
        const external_slot *slot = &program->externals[i];
        if (slot->nbytes_of != NULL && b->views[i].len < required_nbytes(slot, vars)) {
            PyErr_Format(program->queue->variable_error,
                         "the variable block (token %lld, position %lld, kv_len %lld) needs %zd "
                         "bytes in an array that has %zd",
                         (long long)block[0], (long long)block[1], (long long)block[2],
                         required_nbytes(slot, vars), b->views[i].len);
            return -1;
        }
    }
    return 0;
}

int read_block(const ProgramObject *program, const bindings *b, int64_t *vars) {
    for (Py_ssize_t i = 0; i < program->n_resident; i++) {
        const resident_var *var = &program->resident[i];
        int64_t value = program->queue->block[var->entry];
        if (value < var->min || value > var->max) {
            PyErr_Format(program->queue->variable_error,
                         "Variable '%s' is bounded by %lld..%lld, but the variable block has %lld",
                         block_names[var->entry], (long long)var->min, (long long)var->max,
                         (long long)value);
            return -1;
        }
        vars[var->variable] = value;
    }
    return program->n_resident > 0 ? check_sizes(program, b, vars) : 0;
}
