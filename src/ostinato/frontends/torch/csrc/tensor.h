/* Reading, comparing and making tensors. */
#ifndef OSTINATO_TENSOR_H
#define OSTINATO_TENSOR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "dlpack.h"

/* The type of a dense tensor on the host, its elements in C order. */
typedef struct {
    dl_dtype dtype;
    int32_t ndim;
    int64_t *shape; /* PyMem */
    Py_ssize_t nbytes;
} tensor_type;

/* The functions behind a capsule, or NULL with an exception. */
const exchange_api *exchange_of(PyObject *capsule);

/* The address of a tensor's first element. */
void *first_element(const dl_tensor *tensor);

/* Reads a type of the form ((code, bits), shape); -1 with an exception. */
int tensor_type_read(tensor_type *type, PyObject *given);

void tensor_type_free(tensor_type *type);

/* Whether a tensor is of the type: the same dtype and shape, on the host, in C order. */
bool tensor_type_fits(const tensor_type *type, const dl_tensor *tensor);

/* A new tensor of the type, with the address of its elements; NULL with an exception. */
PyObject *tensor_new(const exchange_api *api, const tensor_type *type, void **data);

#endif
