/* PreparedCall: a run on tensors of known shapes, without Python in between.
 *
 * It refuses, by returning None before anything has happened, whatever is not plainly what it was
 * prepared for: other shapes, dtypes, strides, devices, constants, changed weights. The caller then
 * takes the long way, which finds out what is the matter. */
#include "prepared_call.h"

#include "runtime_types.h"
#include "span.h"
#include "tensor.h"
#include "watch.h"

typedef struct {
    PyObject_HEAD
    const exchange_api *api;
    PyObject *capsule;
    PyObject *watch;     /* or NULL */
    PyObject *types;     /* of tensors: the classes that are plain */
    PyObject *arguments; /* for each leaf, NULL-like Ellipsis for a tensor, or the constant */
    PyObject *names;     /* of the keyword arguments, after those by position */
    PyObject *run, *variables;
    PyObject *is_neg; /* the name of the method */
    Py_ssize_t n_inputs, n_outputs;
    tensor_type *inputs, *outputs; /* inputs in the order of the arguments */
    Py_ssize_t *slots;             /* the position of each input in the run's list */
} CallObject;

/* The leaf at a position of the arguments; borrowed; NULL, perhaps with an exception, if missing. */
static PyObject *leaf_at(const CallObject *self, PyObject *args, PyObject *kwargs, Py_ssize_t i) {
    Py_ssize_t by_position = PyTuple_Size(args);
    if (i < by_position) {
        return PyTuple_GetItem(args, i);
    }
    return PyDict_GetItemWithError(kwargs, PyTuple_GetItem(self->names, i - by_position));
}

static bool is_plain(const CallObject *self, PyObject *leaf) {
    PyObject *type = (PyObject *)Py_TYPE(leaf);
    for (Py_ssize_t i = 0; i < PyTuple_Size(self->types); i++) {
        if (PyTuple_GetItem(self->types, i) == type) {
            return true;
        }
    }
    return false;
}

/* Whether the memory of a tensor holds the negatives of its elements: 1, 0, or -1 with an exception.
 * Views of complex numbers are such tensors, and DLPack does not say so. */
static int is_negative(const CallObject *self, PyObject *leaf, const tensor_type *type) {
    if (type->dtype.code != DL_FLOAT) {
        return 0;
    }
    PyObject *found = PyObject_CallMethodObjArgs(leaf, self->is_neg, NULL);
    int negative = found == NULL ? -1 : found == Py_True;
    Py_XDECREF(found);
    return negative;
}

static bool counts_fit(const CallObject *self, PyObject *args, PyObject *kwargs) {
    Py_ssize_t total = PyTuple_Size(self->arguments), named = PyTuple_Size(self->names);
    return PyTuple_Size(args) == total - named &&
           (kwargs == NULL ? 0 : PyDict_Size(kwargs)) == named;
}

/* Spans of the inputs, with room for those of the outputs; NULL where the arguments are not what this
 * call is prepared for, with an exception only if something failed. */
static PyObject *input_spans(const CallObject *self, runtime_state *state, PyObject *args,
                             PyObject *kwargs) {
    PyObject *spans = PyList_New(self->n_inputs + self->n_outputs);
    Py_ssize_t found = 0, total = PyTuple_Size(self->arguments);
    for (Py_ssize_t i = 0; spans != NULL && i < total; i++) {
        PyObject *leaf = leaf_at(self, args, kwargs, i);
        PyObject *expected = PyTuple_GetItem(self->arguments, i);
        if (expected != Py_Ellipsis) {
            if (leaf != expected) {
                Py_CLEAR(spans);
            }
            continue;
        }
        dl_tensor view;
        const tensor_type *type = &self->inputs[found];
        if (leaf == NULL || !is_plain(self, leaf)) {
            Py_CLEAR(spans);
        } else if (self->api->view(leaf, &view) != 0) {
            PyErr_Clear(); /* no tensor that could be viewed: the long way says why */
            Py_CLEAR(spans);
        } else if (!tensor_type_fits(type, &view) || is_negative(self, leaf, type) != 0) {
            Py_CLEAR(spans);
        } else {
            PyObject *span = span_new(state->span_type, first_element(&view), type->nbytes, leaf);
            if (span == NULL || PyList_SetItem(spans, self->slots[found++], span) < 0) {
                Py_CLEAR(spans);
            }
        }
    }
    return spans;
}

/* New tensors for the results, with spans of them after those of the inputs. */
static PyObject *new_results(const CallObject *self, runtime_state *state, PyObject *spans) {
    PyObject *results = PyTuple_New(self->n_outputs);
    for (Py_ssize_t i = 0; results != NULL && i < self->n_outputs; i++) {
        void *data;
        PyObject *tensor = tensor_new(self->api, &self->outputs[i], &data);
        PyObject *span = NULL;
        if (tensor != NULL) {
            span = span_new(state->span_type, data, self->outputs[i].nbytes, tensor);
        }
        if (span == NULL) {
            Py_XDECREF(tensor);
            Py_CLEAR(results);
        } else {
            (void)PyList_SetItem(spans, self->n_inputs + i, span); /* in range */
            (void)PyTuple_SetItem(results, i, tensor);
        }
    }
    return results;
}

static PyObject *call_run(CallObject *self, PyObject *args, PyObject *kwargs) {
    if (!counts_fit(self, args, kwargs)) {
        Py_RETURN_NONE;
    }
    if (self->watch != NULL) {
        int intact = watch_intact(self->watch);
        if (intact < 0) {
            return NULL;
        }
        if (intact == 0) {
            Py_RETURN_NONE;
        }
    }
    runtime_state *state = PyType_GetModuleState(TYPE_OF(self));
    PyObject *spans = input_spans(self, state, args, kwargs);
    if (spans == NULL) {
        if (PyErr_Occurred()) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    PyObject *results = new_results(self, state, spans);
    if (results != NULL) {
        PyObject *ran = PyObject_CallFunctionObjArgs(self->run, spans, self->variables, NULL);
        if (ran == NULL) {
            Py_CLEAR(results);
        }
        Py_XDECREF(ran);
    }
    Py_DECREF(spans);
    return results;
}

static PyObject *call_call(CallObject *self, PyObject *args, PyObject *unused) {
    (void)unused;
    PyObject *given, *named;
    if (!PyArg_ParseTuple(args, "O!O!:PreparedCall", &PyTuple_Type, &given, &PyDict_Type, &named)) {
        return NULL;
    }
    return call_run(self, given, named);
}

/* ---- making ---------------------------------------------------------------------------------- */

static tensor_type *read_types(PyObject *given, Py_ssize_t *count) {
    Py_ssize_t total = PyTuple_Size(given);
    tensor_type *types = PyMem_Calloc((size_t)total + 1, sizeof(tensor_type));
    if (types == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    while (*count < total) {
        PyObject *item = PyTuple_GetItem(given, *count);
        if (!PyTuple_Check(item)) {
            PyErr_SetString(PyExc_TypeError, "a type is a tuple");
            return types;
        }
        if (tensor_type_read(&types[(*count)++], item) < 0) {
            return types;
        }
    }
    return types;
}

/* Reads the positions of the inputs: each of 0..n-1 once. */
static int read_slots(CallObject *self, PyObject *given) {
    Py_ssize_t count = self->n_inputs;
    char *seen = PyMem_Calloc((size_t)count + 1, 1);
    self->slots = PyMem_Calloc((size_t)count + 1, sizeof(Py_ssize_t));
    int status = seen == NULL || self->slots == NULL ? -1 : 0;
    if (status < 0) {
        PyErr_NoMemory();
    } else if (PyTuple_Size(given) != count) {
        status = -1;
    }
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        Py_ssize_t slot = PyLong_AsSsize_t(PyTuple_GetItem(given, i));
        if (slot < 0 || slot >= count || seen[slot]) {
            status = -1;
        } else {
            seen[slot] = 1;
            self->slots[i] = slot;
        }
    }
    PyMem_Free(seen);
    if (status < 0 && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "slots must be each of 0..%zd once", count - 1);
    }
    return status;
}

static int check_arguments(const CallObject *self) {
    Py_ssize_t tensors = 0, total = PyTuple_Size(self->arguments);
    for (Py_ssize_t i = 0; i < total; i++) {
        tensors += PyTuple_GetItem(self->arguments, i) == Py_Ellipsis;
    }
    if (tensors != self->n_inputs || PyTuple_Size(self->names) > total) {
        PyErr_Format(PyExc_ValueError, "%zd types of inputs for %zd tensors of %zd arguments",
                     self->n_inputs, tensors, total);
        return -1;
    }
    return 0;
}

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"exchange", "plain",   "arguments", "names", "inputs",
                            "slots",    "outputs", "run",       "variables", "watch", NULL};
    PyObject *capsule, *plain, *arguments, *keywords, *inputs, *slots, *outputs;
    PyObject *run, *variables, *watch;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!O!O!O!O!OOO:PreparedCall", names,
                                     &capsule, &PyTuple_Type, &plain, &PyTuple_Type, &arguments,
                                     &PyTuple_Type, &keywords, &PyTuple_Type, &inputs,
                                     &PyTuple_Type, &slots, &PyTuple_Type, &outputs, &run,
                                     &variables, &watch)) {
        return NULL;
    }
    runtime_state *state = PyType_GetModuleState(type);
    const exchange_api *api = exchange_of(capsule);
    if (api == NULL) {
        return NULL;
    }
    if (watch != Py_None && Py_TYPE(watch) != state->watch_type) {
        return PyErr_Format(PyExc_TypeError, "watch must be a Watch or None, not %R",
                            (PyObject *)Py_TYPE(watch));
    }
    CallObject *self = (CallObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->api = api;
    self->capsule = Py_NewRef(capsule);
    self->watch = watch == Py_None ? NULL : Py_NewRef(watch);
    self->types = Py_NewRef(plain);
    self->arguments = Py_NewRef(arguments);
    self->names = Py_NewRef(keywords);
    self->run = Py_NewRef(run);
    self->variables = Py_NewRef(variables);
    self->is_neg = PyUnicode_InternFromString("is_neg");
    self->inputs = read_types(inputs, &self->n_inputs);
    if (!PyErr_Occurred()) {
        self->outputs = read_types(outputs, &self->n_outputs);
    }
    if (PyErr_Occurred() || check_arguments(self) < 0 || read_slots(self, slots) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int call_traverse(CallObject *self, visitproc visit, void *arg) {
    Py_VISIT(TYPE_OF(self));
    Py_VISIT(self->watch);
    Py_VISIT(self->types);
    Py_VISIT(self->arguments);
    Py_VISIT(self->names);
    Py_VISIT(self->run);
    Py_VISIT(self->variables);
    return 0;
}

static void call_dealloc(CallObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->capsule);
    Py_XDECREF(self->watch);
    Py_XDECREF(self->types);
    Py_XDECREF(self->arguments);
    Py_XDECREF(self->names);
    Py_XDECREF(self->run);
    Py_XDECREF(self->variables);
    Py_XDECREF(self->is_neg);
    for (Py_ssize_t i = 0; i < self->n_inputs; i++) {
        tensor_type_free(&self->inputs[i]);
    }
    for (Py_ssize_t i = 0; i < self->n_outputs; i++) {
        tensor_type_free(&self->outputs[i]);
    }
    PyMem_Free(self->inputs);
    PyMem_Free(self->outputs);
    PyMem_Free(self->slots);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyType_Slot call_slots[] = {
    {Py_tp_doc,
     "PreparedCall(exchange, plain, arguments, names, inputs, slots, outputs, run, variables, watch)"
     "\n--\n\n"
     "Calling it with a tuple of arguments and a dict of keyword arguments gives the tuple of\n"
     "results, or None, and nothing has happened, where these are not the expected ones."},
    {Py_tp_new, call_new},
    {Py_tp_call, call_call},
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_traverse, call_traverse},
    {0, NULL},
};

PyType_Spec prepared_call_spec = {
    .name = "ostinato.frontends.torch._runtime.PreparedCall",
    .basicsize = sizeof(CallObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = call_slots,
};
