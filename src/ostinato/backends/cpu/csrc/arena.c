/* Arena: a block of zeroed memory that Python code can view and kernels can be pointed into. */
#include "arena.h"

#include <sys/stat.h>

#include "memory.h"

typedef struct {
    PyObject_HEAD
    memory_block block;
    bool sealed;
} ArenaObject;

static PyObject *arena_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"nbytes", "huge_pages", NULL};
    Py_ssize_t nbytes;
    int huge_pages = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n|$p:Arena", names, &nbytes, &huge_pages)) {
        return NULL;
    }
    if (nbytes < 0) {
        return PyErr_Format(PyExc_ValueError, "nbytes is %zd, but must not be negative", nbytes);
    }
    ArenaObject *self = (ArenaObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (!memory_map(&self->block, (size_t)nbytes, huge_pages)) {
        Py_DECREF(self);
        return PyErr_Format(PyExc_MemoryError, "the system has no %zd bytes for an arena", nbytes);
    }
    return (PyObject *)self;
}

/* A file that is shorter than what is mapped would end the process at the first use of the rest. */
static int check_length(int file, Py_ssize_t nbytes) {
    struct stat status;
    if (fstat(file, &status) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    if ((uintmax_t)status.st_size < (uintmax_t)nbytes) {
        PyErr_Format(PyExc_ValueError, "the file has %lld bytes, but %zd are to be mapped",
                     (long long)status.st_size, nbytes);
        return -1;
    }
    return 0;
}

static PyObject *arena_map_file(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"file", "nbytes", "shared", NULL};
    int file, shared = 0;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "in|$p:map_file", names, &file, &nbytes,
                                     &shared)) {
        return NULL;
    }
    if (nbytes < 0) {
        return PyErr_Format(PyExc_ValueError, "nbytes is %zd, but must not be negative", nbytes);
    }
    if (check_length(file, nbytes) < 0) {
        return NULL;
    }
    ArenaObject *self = (ArenaObject *)PyType_GenericAlloc(type, 0);
    if (self != NULL && !memory_map_file(&self->block, file, (size_t)nbytes, shared)) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* Exports of the buffer, those to programs included, hold references: none is left by now. */
static void arena_dealloc(ArenaObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    memory_unmap(&self->block);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int arena_getbuffer(ArenaObject *self, Py_buffer *view, int flags) {
    return PyBuffer_FillInfo(view, (PyObject *)self, self->block.address,
                             (Py_ssize_t)self->block.nbytes, self->sealed, flags);
}

static PyObject *arena_seal(ArenaObject *self, PyObject *unused) {
    (void)unused;
    if (!memory_seal(&self->block)) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    self->sealed = true;
    Py_RETURN_NONE;
}

static PyObject *arena_address(ArenaObject *self, void *unused) {
    (void)unused;
    return PyLong_FromVoidPtr(self->block.address);
}

static PyObject *arena_nbytes(ArenaObject *self, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(self->block.nbytes);
}

static PyObject *arena_repr(ArenaObject *self) {
    return PyUnicode_FromFormat("Arena(%zd) at %p", (Py_ssize_t)self->block.nbytes,
                                (void *)self->block.address);
}

static PyMethodDef arena_methods[] = {
    {"map_file", (PyCFunction)(void (*)(void))arena_map_file,
     METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     "map_file($type, file, nbytes, *, shared=False)\n--\n\n"
     "Memory with the first bytes of a file, by its descriptor, as contents."},
    {"seal", (PyCFunction)arena_seal, METH_NOARGS,
     "seal($self, /)\n--\n\nMakes the bytes code: to be run and read, and never written again."},
    {0},
};

static PyGetSetDef arena_getset[] = {
    {"address", (getter)arena_address, NULL, "Address of the first byte.", NULL},
    {"nbytes", (getter)arena_nbytes, NULL, "Length in bytes.", NULL},
    {0},
};

static PyType_Slot arena_slots[] = {
    {Py_tp_doc, "Arena(nbytes, *, huge_pages=True)\n--\n\n"
                "Zeroed, page-aligned memory, exported as a writable buffer of bytes."},
    {Py_tp_new, arena_new},
    {Py_tp_dealloc, arena_dealloc},
    {Py_tp_repr, arena_repr},
    {Py_tp_getset, arena_getset},
    {Py_tp_methods, arena_methods},
    {Py_bf_getbuffer, arena_getbuffer},
    {0, NULL},
};

PyType_Spec arena_spec = {
    .name = "ostinato.backends.cpu._core.Arena",
    .basicsize = sizeof(ArenaObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = arena_slots,
};
