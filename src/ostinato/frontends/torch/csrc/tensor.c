#include "tensor.h"

#include <string.h>

const exchange_api *exchange_of(PyObject *capsule) {
    const exchange_api *api = PyCapsule_GetPointer(capsule, EXCHANGE_CAPSULE);
    if (api != NULL && api->header.version.major != EXCHANGE_MAJOR) {
        PyErr_Format(PyExc_ValueError, "the exchange API has major version %u, expected %d",
                     api->header.version.major, EXCHANGE_MAJOR);
        return NULL;
    }
    return api;
}

void *first_element(const dl_tensor *tensor) {
    return (char *)tensor->data + tensor->byte_offset;
}

int tensor_type_read(tensor_type *type, PyObject *given) {
    int code, bits;
    PyObject *shape;
    memset(type, 0, sizeof *type);
    if (!PyArg_ParseTuple(given, "(ii)O!:type", &code, &bits, &PyTuple_Type, &shape)) {
        return -1;
    }
    Py_ssize_t ndim = PyTuple_Size(shape);
    type->dtype = (dl_dtype){(uint8_t)code, (uint8_t)bits, 1};
    type->ndim = (int32_t)ndim;
    type->nbytes = bits / 8;
    type->shape = PyMem_Calloc((size_t)ndim + 1, sizeof(int64_t));
    if (type->shape == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < ndim; i++) {
        type->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (type->shape[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
        type->nbytes *= (Py_ssize_t)type->shape[i];
    }
    return 0;
}

void tensor_type_free(tensor_type *type) {
    PyMem_Free(type->shape);
    type->shape = NULL;
}

bool tensor_type_fits(const tensor_type *type, const dl_tensor *tensor) {
    if (tensor->device.type != DEVICE_CPU || tensor->ndim != type->ndim ||
        tensor->dtype.code != type->dtype.code || tensor->dtype.bits != type->dtype.bits ||
        tensor->dtype.lanes != 1) {
        return false;
    }
    int64_t step = 1;
    for (int32_t i = type->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] != type->shape[i]) {
            return false;
        }
        if (tensor->strides != NULL && type->shape[i] != 1 && tensor->strides[i] != step &&
            type->nbytes > 0) {
            return false;
        }
        step *= type->shape[i];
    }
    /* Kernels read elements at their natural alignment. */
    return (uintptr_t)first_element(tensor) % (type->dtype.bits / 8u) == 0;
}

static void set_error(void *context, const char *kind, const char *message) {
    (void)context;
    PyGILState_STATE state = PyGILState_Ensure();
    PyErr_Format(PyExc_MemoryError, "%s: %s", kind, message);
    PyGILState_Release(state);
}

PyObject *tensor_new(const exchange_api *api, const tensor_type *type, void **data) {
    dl_tensor prototype = {
        .device = {DEVICE_CPU, 0},
        .ndim = type->ndim,
        .dtype = type->dtype,
        .shape = type->shape,
    };
    dl_managed *made = NULL;
    void *object = NULL;
    if (api->allocate(&prototype, &made, NULL, set_error) != 0 || made == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_NoMemory();
        }
        return NULL;
    }
    *data = first_element(&made->tensor);
    if (api->import_owned(made, &object) != 0) {
        return NULL;
    }
    return object;
}
