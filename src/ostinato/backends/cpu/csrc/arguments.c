/* Readers of Python values; their errors name the position of a value and the expected type. */
#include "arguments.h"

#include <stdarg.h>

void raise_from_current(PyObject *type, const char *format, ...) {
    PyObject *cause_type, *cause, *traceback;
    PyErr_Fetch(&cause_type, &cause, &traceback);
    PyErr_NormalizeException(&cause_type, &cause, &traceback);
    va_list arguments;
    va_start(arguments, format);
    PyErr_FormatV(type, format, arguments);
    va_end(arguments);

    PyObject *raised_type, *raised, *raised_traceback;
    PyErr_Fetch(&raised_type, &raised, &raised_traceback);
    PyErr_NormalizeException(&raised_type, &raised, &raised_traceback);
    if (cause != NULL) {
        if (traceback != NULL) {
            PyException_SetTraceback(cause, traceback);
        }
        PyException_SetCause(raised, cause); /* takes the reference */
    }
    Py_XDECREF(cause_type);
    Py_XDECREF(traceback);
    PyErr_Restore(raised_type, raised, raised_traceback);
}

int read_int(PyObject *value, int64_t low, place where, int64_t *out) {
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (number == -1 && PyErr_Occurred()) {
        raise_from_current(PyExc_TypeError, "%s %zd: %s must be an int, not %R", where.owner,
                           where.index, where.name, (PyObject *)Py_TYPE(value));
        return -1;
    }
    if (overflow != 0 || number < low) {
        PyErr_Format(PyExc_ValueError, "%s %zd: %s is %R, but must lie in %lld..%lld", where.owner,
                     where.index, where.name, value, (long long)low, (long long)INT64_MAX);
        return -1;
    }
    *out = number;
    return 0;
}

int read_address(PyObject *value, bool or_null, place where, void **out) {
    int64_t address;
    if (read_int(value, or_null ? 0 : 1, where, &address) < 0) {
        return -1;
    }
    *out = (void *)(uintptr_t)address;
    return 0;
}

PyObject *read_sequence(PyObject *value, place where) {
    PyObject *items = PySequence_Tuple(value);
    if (items == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        raise_from_current(PyExc_TypeError, "%s %zd: %s must be a sequence, not %R", where.owner,
                           where.index, where.name, (PyObject *)Py_TYPE(value));
    }
    return items;
}

PyObject *sequence_item(PyObject *sequence, Py_ssize_t index) {
    PyObject *item;
    if (PyTuple_CheckExact(sequence)) {
        item = PyTuple_GetItem(sequence, index);
    } else if (PyList_CheckExact(sequence)) {
        item = PyList_GetItem(sequence, index); /* checks the index: lists may shrink meanwhile */
    } else {
        return PySequence_GetItem(sequence, index);
    }
    Py_XINCREF(item);
    return item;
}

int read_vars(const ProgramObject *program, PyObject *value, int64_t *out) {
    if (value == NULL || value == Py_None) {
        memcpy(out, program->vars, sizeof(int64_t) * (size_t)program->n_vars);
        return 0;
    }
    Py_ssize_t count = PySequence_Size(value);
    if (count < 0) {
        return -1;
    }
    if (count != program->n_vars) {
        PyErr_Format(PyExc_ValueError, "the program has %zd variables, but %zd values were given",
                     program->n_vars, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = sequence_item(value, i);
        if (item == NULL) {
            return -1;
        }
        int failed = read_int(item, INT64_MIN, (place){"variable", i, "value"}, &out[i]);
        Py_DECREF(item);
        if (failed) {
            return -1;
        }
    }
    return 0;
}
