/* Set-up that the native modules share: their types, and the order of submissions. */
#ifndef OSTINATO_NATIVE_MODULE_H
#define OSTINATO_NATIVE_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "order.h"

/* Adds a type to a module, and gives `type` a reference of its own. -1 with an exception. */
static inline int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

/* Imports ostinato.plan._order, whose order_api lives as long as the process. A new reference; NULL
 * with an exception. */
static inline PyObject *import_order(const order_api **order) {
    PyObject *module = PyImport_ImportModule("ostinato.plan._order");
    PyObject *capsule = module == NULL ? NULL : PyObject_GetAttrString(module, "api");
    *order = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, ORDER_CAPSULE);
    Py_XDECREF(capsule);
    if (*order == NULL) {
        Py_CLEAR(module);
    }
    return module;
}

#endif
