/* ThreadPool: the Python face of pool.c. Programs made with one share its workers. */
#include "thread_pool.h"

static PyObject *thread_pool_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"threads", "recover_stolen_cores", NULL};
    Py_ssize_t threads;
    int recover_stolen_cores = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n|$p:ThreadPool", names, &threads,
                                     &recover_stolen_cores)) {
        return NULL;
    }
    if (threads < 1 || threads > POOL_MAX_THREADS) {
        return PyErr_Format(PyExc_ValueError, "threads is %zd, but must lie in 1..%d", threads,
                            POOL_MAX_THREADS);
    }
    ThreadPoolObject *self = (ThreadPoolObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->pool = pool_create((int)threads, recover_stolen_cores);
    if (self->pool == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void thread_pool_dealloc(ThreadPoolObject *self) {
    PyTypeObject *type = TYPE_OF(self);
    if (self->pool != NULL) {
        Py_BEGIN_ALLOW_THREADS /* joining takes as long as the slowest worker takes to wake */
        pool_destroy(self->pool);
        Py_END_ALLOW_THREADS
    }
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *thread_pool_threads(ThreadPoolObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(pool_threads(self->pool));
}

static PyObject *thread_pool_workers(ThreadPoolObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(pool_workers(self->pool));
}

static PyObject *thread_pool_recovers_stolen_cores(ThreadPoolObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(pool_recovers_stolen_cores(self->pool));
}

static PyObject *thread_pool_repr(ThreadPoolObject *self) {
    return PyUnicode_FromFormat("ThreadPool(%d)", pool_threads(self->pool));
}

static PyGetSetDef thread_pool_getset[] = {
    {"threads", (getter)thread_pool_threads, NULL,
     "How many threads share the work, the calling one included.", NULL},
    {"workers", (getter)thread_pool_workers, NULL,
     "How many threads have been started: none before the first step worth sharing.", NULL},
    {"recovers_stolen_cores", (getter)thread_pool_recovers_stolen_cores, NULL,
     "Whether workers that lost their cores to other processes are moved.", NULL},
    {0},
};

static PyType_Slot thread_pool_slots[] = {
    {Py_tp_doc, "ThreadPool(threads, *, recover_stolen_cores=False)\n--\n\n"
                "Threads that share the steps of programs; `threads` counts the caller."},
    {Py_tp_new, thread_pool_new},
    {Py_tp_dealloc, thread_pool_dealloc},
    {Py_tp_repr, thread_pool_repr},
    {Py_tp_getset, thread_pool_getset},
    {0, NULL},
};

PyType_Spec thread_pool_spec = {
    .name = "ostinato.backends.cpu._core.ThreadPool",
    .basicsize = sizeof(ThreadPoolObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = thread_pool_slots,
};
