/* What the Python-facing files share: the module's types, and readers that name what they read. */
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

/* The order of submissions, which all contexts share. */
extern const order_api *order;

/* The calling thread, as the order of submissions has it; asked for once. */
static inline order_thread *calling_thread(void) {
    static _Thread_local order_thread *known __attribute__((tls_model("initial-exec")));
    if (known == NULL) {
        known = order->thread();
    }
    return known;
}

extern PyType_Spec arena_spec;
extern PyType_Spec thread_pool_spec;
extern PyType_Spec program_spec;
extern PyType_Spec bound_call_spec;
extern PyType_Spec command_queue_spec;
extern PyType_Spec recording_spec;

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
extern const char *const block_names[BLOCK_VARS];

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
    struct ProgramObject *turns_with; /* the program whose lock its runs take; or NULL */
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

/* ---- reading arguments (arguments.c); each sets an exception and returns -1 on failure ----- */

/* Where a value stands, for messages: "step 3: grain ...". */
typedef struct {
    const char *owner; /* "step", "slot" */
    Py_ssize_t index;
    const char *name; /* "grain" */
} place;

/* An int of [low, INT64_MAX]: TypeError when it is no int, ValueError outside. */
int read_int(PyObject *value, int64_t low, place where, int64_t *out);

/* The address of a function: not zero, unless `or_null`. */
int read_address(PyObject *value, bool or_null, place where, void **out);

/* A new tuple of a sequence's items, or NULL with a TypeError. */
PyObject *read_sequence(PyObject *value, place where);

/* Item `index` of a sequence, as a new reference. */
PyObject *sequence_item(PyObject *sequence, Py_ssize_t index);

/* Exactly program->n_vars ints. None, or no object at all, gives the program's own. */
int read_vars(const ProgramObject *program, PyObject *value, int64_t *out);

/* Gives a fresh exception the current one as its cause. */
void raise_from_current(PyObject *type, const char *format, ...);

/* ---- construction of programs (program_parse.c) ---------------------------------------------- */

int program_parse(ProgramObject *self, core_state *state, PyObject *pool, PyObject *slots,
                  PyObject *steps);

/* ---- buffers of a run (bindings.c) ---------------------------------------------------------- */

bindings *bindings_new(Py_ssize_t n_externals);
void bindings_free(bindings *b);

/* Checks and exports one buffer per external slot, from two sequences, or NULL for none. With `vars` a slot needs the bytes it takes for
 * these variables; with NULL, the bytes it takes at most. Nothing stays exported on failure. */
int bindings_acquire(bindings *b, const ProgramObject *program, PyObject *buffers,
                     PyObject *outputs, const int64_t *vars);
void bindings_release(bindings *b);

/* The bytes that a slot needs for these variables; with NULL, at most. */
Py_ssize_t required_nbytes(const external_slot *slot, const int64_t *vars);

/* ---- recording and the variable block (command_queue.c, recording.c) ------------------------- */

/* The optional arguments `queue` and `resident` of Program(...). */
int program_join(ProgramObject *self, core_state *state, PyObject *queue, PyObject *resident);

/* Whether the calling thread records what it submits to a queue; or -1, with an exception, where it
 * records for another context. */
int queue_records(const CommandQueueObject *queue, order_thread *thread);

/* Appends a call to the recording that is being made. */
int queue_record(CommandQueueObject *queue, BoundCallObject *call);

/* A queue's recorded calls, moved into a Recording. */
PyObject *recording_new(core_state *state, recorded_call *calls, Py_ssize_t n_calls);
void release_calls(recorded_call *calls, Py_ssize_t n_calls);

/* Replaces the variables that live in the block by what it holds. VariableError when one is out of
 * its bounds, or a bound buffer is too small for it. */
int read_block(const ProgramObject *program, const bindings *b, int64_t *vars);

/* Whether a program runs on this memory: a slot that it holds itself, or one of its sources. Of a
 * tuple, on all of them. */
bool program_uses(const ProgramObject *program, PyObject *memory);

/* Whether a bound call does, or one of its buffers is this object's. */
bool call_uses(const BoundCallObject *call, PyObject *object);

/* ---- order (touches.c) ----------------------------------------------------------------------- */

/* An object that stands for what belongs to it. */
order_range order_token(const void *object, bool written);

/* What each run touches; the optional argument `touches` of Program(...) is a part of that. */
int program_parse_touched(ProgramObject *self, PyObject *touches);

/* Submits a run of a program on bound buffers; see order_enter. */
static inline int program_enter(const ProgramObject *program, const bindings *b,
                                order_thread *thread, order_entry *entry) {
    entry->ranges[0] = program->touched;
    entry->n_ranges[0] = (size_t)program->n_touched;
    entry->ranges[1] = b->ranges;
    entry->n_ranges[1] = (size_t)b->held;
    return order_enter(order, thread, entry);
}

/* A new Accesses of these ranges. */
PyObject *accesses_of(core_state *state, const order_range *ranges, Py_ssize_t n_ranges);

/* ---- limits (limits.c) ----------------------------------------------------------------------- */

int program_check_limit_slot(ProgramObject *self);

/* Puts those of the calling thread's runs in force. */
void program_apply_limits(ProgramObject *self);

PyObject *program_set_limits(ProgramObject *self, PyObject *limits);
PyObject *program_push_limits(ProgramObject *self, PyObject *limits);
PyObject *program_pop_limits(ProgramObject *self, PyObject *unused);

/* ---- running (program.c, bound_call.c) ------------------------------------------------------ */

PyObject *bound_call_new(ProgramObject *program, PyObject *buffers, PyObject *vars);

/* The variables that a call runs with when it does not read the block: its own, or the program's. */
void bound_call_vars(const BoundCallObject *call, int64_t *out);

/* The fixed slot of this number; or NULL with an IndexError. */
fixed_slot *program_fixed(ProgramObject *self, Py_ssize_t slot);

/* Whether a program can run at all, and its locks are this process's. Limits that the calling
 * thread's runs have hold from now on. */
int program_ready(ProgramObject *program);
void raise_stopped(const ProgramObject *program);

/* Raises what a run of the program that did not run all steps ended with. */
void raise_outcome(const ProgramObject *program, executor_outcome outcome);

/* Runs the program without the GIL. Fails only for one that was garbage or is stopped, or where a
 * step refuses a size. */
int program_execute(ProgramObject *program, const bindings *b, const int64_t *vars,
                    double *seconds);

#endif
