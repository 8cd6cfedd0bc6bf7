/* The objects of the module's types, for the files that work on them. */
#ifndef OSTINATO_PYTHON_TYPES_H
#define OSTINATO_PYTHON_TYPES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>
#include <string.h>

#include "executor.h"
#include "order.h"
#include "pool.h"

/* Under the stable ABI Py_TYPE is a function that takes nothing but a PyObject. */
#define TYPE_OF(self) Py_TYPE((PyObject *)(self))

/* Heap types, created anew by each interpreter that imports the module. */
typedef struct {
    PyTypeObject *arena_type;
    PyTypeObject *pool_type;
    PyTypeObject *program_type;
    PyTypeObject *bound_call_type;
    PyTypeObject *command_queue_type;
    PyTypeObject *recording_type;
    PyObject *accesses_factory; /* ostinato.plan._order.Accesses */
} core_state;

typedef struct {
    PyObject_HEAD
    thread_pool *pool;
} ThreadPoolObject;

/* A memory slot that each run brings along. */
typedef struct {
    Py_ssize_t slot;       /* its number among all slots, for messages */
    Py_ssize_t nbytes;     /* the bytes it must have, whatever the variables are */
    symbolic_fn nbytes_of; /* or NULL: the bytes it must have for given variables */
    bool written;
} external_slot;

/* A memory slot that the program itself holds. */
typedef struct {
    Py_ssize_t slot;
    Py_buffer view; /* exported as long as the program uses it */
} fixed_slot;

/* The buffers of one run. Allocated once and used again and again. */
typedef struct {
    Py_ssize_t held; /* this many views are acquired */
    Py_buffer *views;
    char **addresses;
    order_range *ranges; /* what the run touches of the views */
} bindings;

/* Runs copy the variables to their stack, which keeps them free of locks and of malloc. */
#define MAX_VARS 256

/* The block of variables that a queue holds: token, position, kv_len. */
#define BLOCK_VARS 3

/* A variable that can be read from the block instead of being brought by a call. */
typedef struct {
    Py_ssize_t variable;
    Py_ssize_t entry;
    int64_t min, max; /* values beyond would overrun buffers */
} resident_var;

typedef struct BoundCallObject BoundCallObject;

/* A call as it was made while its queue recorded. */
typedef struct {
    BoundCallObject *call;
    bool from_block; /* it reads the block, whatever the queue's mode is later on */
} recorded_call;

/* Where the calls of a context's programs go: they run at once, or are recorded, if the thread that
 * makes them is the one that records. All of it is guarded by the GIL. */
typedef struct {
    PyObject_HEAD
    uint64_t recording; /* the recording that is being made, or was cancelled by a fork; or 0 */
    bool from_block;
    int64_t block[BLOCK_VARS];
    recorded_call *calls;
    Py_ssize_t n_calls;
    Py_ssize_t capacity;
    PyObject *label;          /* names the context in messages */
    PyObject *capture_error;  /* exception types of the layer above */
    PyObject *variable_error;
} CommandQueueObject;

/* For how many of its steps' items programs run; see Program.set_limits. */
typedef struct {
    const order_thread *thread; /* whose runs it holds for */
    PyObject *limits;           /* bytes, or NULL: all */
} thread_limits;

typedef struct ProgramObject {
    PyObject_HEAD
    executor *executor;
    CommandQueueObject *queue; /* or NULL: its calls always run at once */
    Py_ssize_t n_resident;
    resident_var resident[BLOCK_VARS];
    PyObject *pool;        /* NULL after the garbage collector broke a cycle: unusable */
    PyObject *owner;       /* keeps the machine code alive; or NULL */
    PyObject *sources;     /* a tuple of what else it runs on, for `uses`; or NULL */
    PyObject *stopped;     /* what runs raise since the program was stopped; or NULL */
    PyObject *problems;    /* a list: what is wrong with sizes that steps refuse; or NULL */
    struct ProgramObject *exclusive_with; /* the program whose lock its runs take; or NULL */
    order_range *touched;  /* by every run, beside the buffers that it brings */
    Py_ssize_t n_touched;
    bool direct;           /* run_direct runs it */
    PyObject *last;        /* the results of the last run that gave some; or NULL */
    Py_ssize_t limit_slot; /* the fixed slot that has limits which kernels read; or -1 */
    PyObject *limits;      /* bytes, or NULL: for the runs of threads that have none of their own */
    PyObject *applied;     /* bytes, or NULL: those that the executor goes by */
    thread_limits *of_threads;
    Py_ssize_t n_of_threads;
    Py_ssize_t n_fixed;
    fixed_slot *fixed;
    Py_ssize_t n_externals;
    external_slot *externals;
    Py_ssize_t n_vars;
    int64_t vars[MAX_VARS]; /* what runs that bring no variables use; guarded by the GIL */
    Py_ssize_t n_steps;
    bindings *spare;       /* for the next run; NULL while a run has it */
} ProgramObject;

struct BoundCallObject {
    PyObject_HEAD
    ProgramObject *program; /* NULL after the garbage collector broke a cycle: unusable */
    bindings *bindings;
    bool has_vars;    /* else it follows the program's */
    bool needs_block; /* it runs only while the queue's mode is to read the block */
    int64_t vars[MAX_VARS];
};

#endif
