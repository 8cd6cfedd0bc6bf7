/* Watch: the weights of a module, and whether anything about them has changed.
 *
 * One loop over pointers and numbers, since it runs before each call. An entry of a dictionary must
 * hold the very object that it held, a dictionary that is watched as a whole must have as many
 * entries, and a tensor must have its memory, its dtype, its shape and strides, and its version, the
 * number that PyTorch increments at each write in place. */
#include "watch.h"

#include "runtime_types.h"
#include "tensor.h"

typedef struct {
    PyObject *dict, *key, *value;
    Py_ssize_t size; /* of the dictionary, whose entries do not matter; else -1 */
} known_entry;

typedef struct {
    PyObject *tensor;
    void *data;
    int64_t version;
    dl_dtype dtype;
    int32_t ndim;
    int64_t *layout; /* PyMem: the shape, then the strides; NULL: not taken down */
} known_tensor;

typedef struct {
    PyObject_HEAD
    const exchange_api *api;
    PyObject *capsule;
    PyObject *descriptor; /* of a tensor's version */
    descrgetfunc get;
    Py_ssize_t n_entries, n_tensors;
    known_entry *entries;
    known_tensor *tensors;
} WatchObject;

/* A version that tensors made in inference mode have: they record none. */
#define NO_VERSION (-1)

/* A tensor as it is now, by its view, whose shape and strides belong to the tensor. */
static int read_tensor(const WatchObject *self, PyObject *tensor, bool versioned, dl_tensor *view,
                       known_tensor *out) {
    if (self->api->view(tensor, view) != 0) {
        return -1;
    }
    out->data = first_element(view);
    out->dtype = view->dtype;
    out->ndim = view->ndim;
    out->layout = NULL;
    out->version = NO_VERSION;
    if (!versioned) {
        return 0;
    }
    PyObject *number = self->get(self->descriptor, tensor, (PyObject *)Py_TYPE(tensor));
    if (number == NULL) {
        return -1;
    }
    out->version = PyLong_AsLongLong(number);
    Py_DECREF(number);
    return out->version == -1 && PyErr_Occurred() ? -1 : 0;
}

/* The stride of an axis; without strides, tensors are in C order. */
static int64_t stride_of(const dl_tensor *view, int32_t axis) {
    if (view->strides != NULL) {
        return view->strides[axis];
    }
    int64_t stride = 1;
    for (int32_t inner = axis + 1; inner < view->ndim; inner++) {
        stride *= view->shape[inner];
    }
    return stride;
}

/* Takes down the shape and the strides. */
static int keep_layout(known_tensor *known, const dl_tensor *view) {
    int64_t *layout = PyMem_Calloc(2 * (size_t)view->ndim + 1, sizeof(int64_t));
    if (layout == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int32_t axis = 0; axis < view->ndim; axis++) {
        layout[axis] = view->shape[axis];
        layout[view->ndim + axis] = stride_of(view, axis);
    }
    PyMem_Free(known->layout);
    known->layout = layout;
    return 0;
}

static bool same(const known_tensor *known, const known_tensor *now, const dl_tensor *view) {
    if (known->data != now->data || known->version != now->version || known->ndim != now->ndim ||
        known->dtype.code != now->dtype.code || known->dtype.bits != now->dtype.bits) {
        return false;
    }
    for (int32_t axis = 0; axis < view->ndim; axis++) {
        if (known->layout[axis] != view->shape[axis] ||
            known->layout[view->ndim + axis] != stride_of(view, axis)) {
            return false;
        }
    }
    return true;
}

/* 1 when every entry holds what it held, 0 when not, -1 with an exception. */
static int entries_intact(const WatchObject *self) {
    for (Py_ssize_t i = 0; i < self->n_entries; i++) {
        const known_entry *entry = &self->entries[i];
        if (entry->size >= 0) {
            if (PyDict_Size(entry->dict) != entry->size) {
                return 0;
            }
            continue;
        }
        PyObject *found = PyDict_GetItemWithError(entry->dict, entry->key);
        if (found != entry->value) {
            return found == NULL && PyErr_Occurred() ? -1 : 0;
        }
    }
    return 1;
}

int watch_intact(PyObject *watch) {
    WatchObject *self = (WatchObject *)watch;
    int status = entries_intact(self);
    for (Py_ssize_t i = 0; status > 0 && i < self->n_tensors; i++) {
        const known_tensor *known = &self->tensors[i];
        known_tensor now;
        dl_tensor view;
        if (read_tensor(self, known->tensor, known->version != NO_VERSION, &view, &now) < 0) {
            return -1;
        }
        status = same(known, &now, &view);
    }
    return status;
}

static PyObject *intact_method(PyObject *self, PyObject *unused) {
    (void)unused;
    int status = watch_intact(self);
    return status < 0 ? NULL : PyBool_FromLong(status);
}

static PyObject *identical_method(WatchObject *self, PyObject *unused) {
    (void)unused;
    int status = entries_intact(self);
    return status < 0 ? NULL : PyBool_FromLong(status);
}

/* The positions of the tensors that have changed. They are known as they are now from here on. */
static PyObject *take_changed_method(WatchObject *self, PyObject *unused) {
    (void)unused;
    PyObject *positions = PyList_New(0);
    for (Py_ssize_t i = 0; positions != NULL && i < self->n_tensors; i++) {
        known_tensor *known = &self->tensors[i], now;
        dl_tensor view;
        if (read_tensor(self, known->tensor, known->version != NO_VERSION, &view, &now) < 0) {
            Py_CLEAR(positions);
        } else if (!same(known, &now, &view)) {
            PyObject *position = PyLong_FromSsize_t(i);
            if (position == NULL || keep_layout(known, &view) < 0) {
                Py_CLEAR(positions);
            } else {
                known->data = now.data;
                known->dtype = now.dtype;
                known->ndim = now.ndim;
                known->version = now.version;
            }
            if (positions != NULL && PyList_Append(positions, position) < 0) {
                Py_CLEAR(positions);
            }
            Py_XDECREF(position);
        }
    }
    return positions;
}

/* ---- making ---------------------------------------------------------------------------------- */

static int read_entries(WatchObject *self, PyObject *entries) {
    Py_ssize_t count = PyTuple_Size(entries);
    self->entries = PyMem_Calloc((size_t)count + 1, sizeof(known_entry));
    if (self->entries == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *dict, *key, *value;
        if (!PyArg_ParseTuple(PyTuple_GetItem(entries, i), "O!OO:entry", &PyDict_Type, &dict, &key,
                              &value)) {
            return -1;
        }
        Py_ssize_t size = key == Py_None ? PyDict_Size(dict) : -1;
        self->entries[self->n_entries++] =
            (known_entry){Py_NewRef(dict), Py_NewRef(key), Py_NewRef(value), size};
    }
    return 0;
}

static int read_tensors(WatchObject *self, PyObject *tensors) {
    Py_ssize_t count = PyTuple_Size(tensors);
    self->tensors = PyMem_Calloc((size_t)count + 1, sizeof(known_tensor));
    if (self->tensors == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *tensor;
        int versioned;
        if (!PyArg_ParseTuple(PyTuple_GetItem(tensors, i), "Op:tensor", &tensor, &versioned)) {
            return -1;
        }
        known_tensor *known = &self->tensors[i];
        dl_tensor view;
        if (read_tensor(self, tensor, versioned != 0, &view, known) < 0 ||
            keep_layout(known, &view) < 0) {
            return -1;
        }
        known->tensor = Py_NewRef(tensor);
        self->n_tensors++;
    }
    return 0;
}

static PyObject *watch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"exchange", "version", "entries", "tensors", NULL};
    PyObject *capsule, *descriptor, *entries, *tensors;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!O!:Watch", names, &capsule, &descriptor,
                                     &PyTuple_Type, &entries, &PyTuple_Type, &tensors)) {
        return NULL;
    }
    const exchange_api *api = exchange_of(capsule);
    if (api == NULL) {
        return NULL;
    }
    descrgetfunc get = PyType_GetSlot(Py_TYPE(descriptor), Py_tp_descr_get);
    if (get == NULL) {
        return PyErr_Format(PyExc_TypeError, "version must be a descriptor, not %R",
                            (PyObject *)Py_TYPE(descriptor));
    }
    WatchObject *self = (WatchObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->api = api;
    self->capsule = Py_NewRef(capsule);
    self->descriptor = Py_NewRef(descriptor);
    self->get = get;
    if (read_entries(self, entries) < 0 || read_tensors(self, tensors) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int watch_traverse(WatchObject *self, visitproc visit, void *arg) {
    Py_VISIT(TYPE_OF(self));
    Py_VISIT(self->descriptor);
    for (Py_ssize_t i = 0; i < self->n_entries; i++) {
        Py_VISIT(self->entries[i].dict);
        Py_VISIT(self->entries[i].key);
        Py_VISIT(self->entries[i].value);
    }
    for (Py_ssize_t i = 0; i < self->n_tensors; i++) {
        Py_VISIT(self->tensors[i].tensor);
    }
    return 0;
}

static int watch_clear(WatchObject *self) {
    while (self->n_entries > 0) {
        known_entry entry = self->entries[--self->n_entries];
        Py_DECREF(entry.dict);
        Py_DECREF(entry.key);
        Py_DECREF(entry.value);
    }
    while (self->n_tensors > 0) {
        known_tensor known = self->tensors[--self->n_tensors];
        PyMem_Free(known.layout);
        Py_DECREF(known.tensor);
    }
    return 0;
}

static void watch_dealloc(WatchObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    PyObject_GC_UnTrack(self);
    (void)watch_clear(self);
    PyMem_Free(self->entries);
    PyMem_Free(self->tensors);
    Py_XDECREF(self->descriptor);
    Py_XDECREF(self->capsule);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef watch_methods[] = {
    {"intact", intact_method, METH_NOARGS,
     "intact($self, /)\n--\n\nWhether entries and tensors are as they were."},
    {"identical", (PyCFunction)identical_method, METH_NOARGS,
     "identical($self, /)\n--\n\nWhether entries hold the objects that they held."},
    {"take_changed", (PyCFunction)take_changed_method, METH_NOARGS,
     "take_changed($self, /)\n--\n\n"
     "The positions of the tensors that were written since; they count as unchanged from now on."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot watch_slots[] = {
    {Py_tp_doc,
     "Watch(exchange, version, entries, tensors)\n--\n\n"
     "Entries (dict, key, value) of dictionaries, and tensors (tensor, versioned), as they are now.\n"
     "The key None stands for the number of a dictionary's entries."},
    {Py_tp_new, watch_new},
    {Py_tp_dealloc, watch_dealloc},
    {Py_tp_traverse, watch_traverse},
    {Py_tp_clear, watch_clear},
    {Py_tp_methods, watch_methods},
    {0, NULL},
};

PyType_Spec watch_spec = {
    .name = "ostinato.frontends.torch._runtime.Watch",
    .basicsize = sizeof(WatchObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = watch_slots,
};
