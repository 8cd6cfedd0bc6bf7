#include "stage_call.h"

#include "given_memory.h"

int stage_call_fill(stage_call *call, PyObject *parts) {
    stage_call found = {.parts = parts};
    if (!PyTuple_Check(parts)) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple of the parts of a call");
        return -1;
    }
    if (!PyArg_ParseTuple(parts, "OO!O!O!OOO:parts", &found.function, &PyTuple_Type,
                          &found.operands, &PyTuple_Type, &found.states, &PyTuple_Type,
                          &found.outputs, &found.take, &found.settings, &found.finish)) {
        return -1;
    }
    stage_call_clear(call);
    *call = found;
    Py_INCREF(parts);
    return 0;
}

void stage_call_clear(stage_call *call) {
    PyObject *parts = call->parts;
    *call = (stage_call){.parts = NULL};
    Py_XDECREF(parts);
}

static PyObject *operand(const stage_call *call, PyObject *source, PyObject *inputs) {
    PyObject *table = PyTuple_GetItem(source, 0), *key = PyTuple_GetItem(source, 1);
    if (table == NULL || key == NULL) {
        return NULL;
    }
    if (table != Py_None) {
        return PyObject_GetItem(table, key);
    }
    PyObject *input = PyList_GetItem(inputs, PyLong_AsSsize_t(key));
    if (input == NULL || call->take == Py_None) {
        return Py_XNewRef(input);
    }
    return PyObject_CallFunctionObjArgs(call->take, input, NULL);
}

static PyObject *collect_operands(const stage_call *call, PyObject *inputs) {
    Py_ssize_t count = PyTuple_Size(call->operands);
    PyObject *operands = PyTuple_New(count);
    for (Py_ssize_t i = 0; operands != NULL && i < count; i++) {
        PyObject *found = operand(call, PyTuple_GetItem(call->operands, i), inputs);
        if (found == NULL || PyTuple_SetItem(operands, i, found) < 0) {
            Py_CLEAR(operands);
        }
    }
    return operands;
}

/* Leaves a context; an exception that is set stays, unless leaving raises another one. */
static int leave(PyObject *context) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *left = PyObject_CallMethod(context, "__exit__", "OOO", Py_None, Py_None, Py_None);
    if (left == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return -1;
    }
    Py_DECREF(left);
    PyErr_Restore(type, value, trace);
    return 0;
}

static PyObject *call_with_settings(const stage_call *call, PyObject *operands) {
    PyObject *context = PyObject_CallNoArgs(call->settings);
    PyObject *entered = context == NULL ? NULL : PyObject_CallMethod(context, "__enter__", NULL);
    PyObject *results = NULL;
    if (entered != NULL) {
        results = PyObject_Call(call->function, operands, NULL);
        if (leave(context) < 0) {
            Py_CLEAR(results);
        }
    }
    Py_XDECREF(entered);
    Py_XDECREF(context);
    return results;
}

static int exchange_state(PyObject *state, PyObject *results) {
    Py_ssize_t number;
    PyObject *table, *key, *copy;
    if (!PyArg_ParseTuple(state, "nOOO:state", &number, &table, &key, &copy)) {
        return -1;
    }
    PyObject *array = PySequence_GetItem(results, number);
    if (array != NULL && copy != Py_None) {
        PyObject *copied = PyObject_CallFunctionObjArgs(copy, array, NULL);
        Py_DECREF(array);
        array = copied;
    }
    int status = array == NULL ? -1 : PyObject_SetItem(table, key, array);
    Py_XDECREF(array);
    return status;
}

/* With a shape, `read` makes an array of a shape, a dtype and a buffer; else, of the result. */
static PyObject *read_output(PyObject *output, PyObject *results, PyTypeObject *memory_type) {
    Py_ssize_t number, nbytes;
    PyObject *read, *shape, *dtype;
    if (!PyArg_ParseTuple(output, "nOOOn:output", &number, &read, &shape, &dtype, &nbytes)) {
        return NULL;
    }
    PyObject *result = PySequence_GetItem(results, number), *array = NULL;
    if (result != NULL && shape == Py_None) {
        array = PyObject_CallFunctionObjArgs(read, result, NULL);
    } else if (result != NULL) {
        PyObject *memory = given_memory(memory_type, result, nbytes);
        if (memory != NULL) {
            array = PyObject_CallFunctionObjArgs(read, shape, dtype, memory, NULL);
            Py_DECREF(memory);
        }
    }
    Py_XDECREF(result);
    return array;
}

/* What follows the call of the function. */
static PyObject *end_run(const stage_call *call, PyTypeObject *memory_type, PyObject *results) {
    if (call->finish != Py_None) {
        PyObject *finished = PyObject_CallFunctionObjArgs(call->finish, results, NULL);
        if (finished == NULL) {
            return NULL;
        }
        Py_DECREF(finished);
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(call->states); i++) {
        if (exchange_state(PyTuple_GetItem(call->states, i), results) < 0) {
            return NULL;
        }
    }
    Py_ssize_t count = PyTuple_Size(call->outputs);
    PyObject *outputs = PyList_New(count);
    for (Py_ssize_t i = 0; outputs != NULL && i < count; i++) {
        PyObject *array = read_output(PyTuple_GetItem(call->outputs, i), results, memory_type);
        if (array == NULL || PyList_SetItem(outputs, i, array) < 0) {
            Py_CLEAR(outputs);
        }
    }
    return outputs;
}

PyObject *stage_call_run(const stage_call *shared, PyTypeObject *memory_type, PyObject *inputs) {
    const stage_call own = *shared, *call = &own; /* what is called may bind it anew */
    Py_INCREF(own.parts);
    PyObject *operands = collect_operands(call, inputs), *results = NULL, *outputs = NULL;
    if (operands != NULL) {
        results = call->settings == Py_None ? PyObject_Call(call->function, operands, NULL)
                                            : call_with_settings(call, operands);
        Py_DECREF(operands); /* before it is read: a donated operand is gone */
    }
    if (results != NULL) {
        outputs = end_run(call, memory_type, results);
        Py_DECREF(results);
    }
    Py_DECREF(own.parts);
    return outputs;
}
