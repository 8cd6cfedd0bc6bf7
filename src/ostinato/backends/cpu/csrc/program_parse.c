/* Reads and checks what Program(...) is given. A program that exists can be run without a check:
 * every argument of every step points into its slot, and every count is sane. */
#include "program_parse.h"

#include "arguments.h"
#include "bindings.h"

/* What is gathered before the executor flattens it. */
typedef struct {
    executor_slot *slots;
    Py_ssize_t *slot_nbytes;
    Py_ssize_t n_slots;
    executor_step *steps;
    Py_ssize_t n_steps;
    executor_argument *arguments;
    size_t n_arguments;
    size_t capacity;
    size_t scratch_bytes;
    size_t n_counters;
    PyObject *problems; /* a list */
} draft;

/* ---- slots ----------------------------------------------------------------------------------- */

/* (nbytes, written) or (nbytes, written, nbytes_address) */
static int parse_external(ProgramObject *self, draft *d, Py_ssize_t index, PyObject *item) {
    Py_ssize_t length = PyTuple_Size(item);
    if (length != 2 && length != 3) {
        PyErr_Format(PyExc_ValueError,
                     "slot %zd: an external slot is (nbytes, written) or "
                     "(nbytes, written, nbytes_address), not %zd items",
                     index, length);
        return -1;
    }
    int64_t nbytes;
    if (read_int(PyTuple_GetItem(item, 0), 0, (place){"slot", index, "nbytes"}, &nbytes) < 0) {
        return -1;
    }
    int written = PyObject_IsTrue(PyTuple_GetItem(item, 1));
    if (written < 0) {
        return -1;
    }
    void *nbytes_of = NULL;
    if (length == 3 && read_address(PyTuple_GetItem(item, 2), true,
                                    (place){"slot", index, "nbytes_address"}, &nbytes_of) < 0) {
        return -1;
    }
    d->slots[index] = (executor_slot){.fixed = NULL, .external = (int)self->n_externals};
    d->slot_nbytes[index] = (Py_ssize_t)nbytes;
    self->externals[self->n_externals++] = (external_slot){
        .slot = index,
        .nbytes = (Py_ssize_t)nbytes,
        .nbytes_of = (symbolic_fn)(uintptr_t)nbytes_of,
        .written = written,
    };
    return 0;
}

/* Any contiguous buffer. It stays exported, so it can neither go away nor move. Whether kernels
 * write to it is the planner's business: params may well be read-only arrays. */
static int parse_fixed(ProgramObject *self, draft *d, Py_ssize_t index, PyObject *item) {
    if (!PyObject_CheckBuffer(item)) {
        PyErr_Format(PyExc_TypeError,
                     "slot %zd must be a buffer, or (nbytes, written) for one that each run "
                     "brings, not %R",
                     index, (PyObject *)Py_TYPE(item));
        return -1;
    }
    fixed_slot *fixed = &self->fixed[self->n_fixed];
    Py_buffer *view = &fixed->view;
    if (PyObject_GetBuffer(item, view, PyBUF_SIMPLE) < 0) {
        raise_from_current(PyExc_ValueError, "slot %zd: the buffer must be C-contiguous", index);
        return -1;
    }
    fixed->slot = index;
    self->n_fixed++;
    d->slots[index] = (executor_slot){.fixed = view->buf, .external = -1};
    d->slot_nbytes[index] = view->len;
    return 0;
}

static int parse_slots(ProgramObject *self, draft *d, PyObject *slots) {
    d->n_slots = PyTuple_Size(slots);
    if (d->n_slots > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "too many slots");
        return -1;
    }
    size_t count = (size_t)d->n_slots;
    d->slots = PyMem_Calloc(count, sizeof *d->slots);
    d->slot_nbytes = PyMem_Calloc(count, sizeof *d->slot_nbytes);
    self->fixed = PyMem_Calloc(count, sizeof *self->fixed);
    self->externals = PyMem_Calloc(count, sizeof *self->externals);
    if (!d->slots || !d->slot_nbytes || !self->fixed || !self->externals) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < d->n_slots; i++) {
        PyObject *item = PyTuple_GetItem(slots, i);
        int status = PyTuple_Check(item) ? parse_external(self, d, i, item)
                                         : parse_fixed(self, d, i, item);
        if (status < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int add_argument(draft *d, executor_argument argument) {
    if (d->n_arguments == d->capacity) {
        size_t capacity = d->capacity == 0 ? 64 : 2 * d->capacity;
        executor_argument *grown = PyMem_Realloc(d->arguments, capacity * sizeof *grown);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        d->arguments = grown;
        d->capacity = capacity;
    }
    d->arguments[d->n_arguments++] = argument;
    return 0;
}

/* (slot, byte_offset). An offset at the very end is fine: that is where an empty view lies. */
static int parse_argument(draft *d, Py_ssize_t step, Py_ssize_t index, PyObject *item) {
    PyObject *pair = read_sequence(item, (place){"step", step, "an argument"});
    if (pair == NULL) {
        return -1;
    }
    int status = -1;
    int64_t slot, offset;
    if (PyTuple_Size(pair) != 2) {
        PyErr_Format(PyExc_ValueError, "step %zd: argument %zd must be (slot, byte_offset), not %R",
                     step, index, pair);
    } else if (read_int(PyTuple_GetItem(pair, 0), INT64_MIN,
                        (place){"step", step, "the slot of an argument"}, &slot) < 0 ||
               read_int(PyTuple_GetItem(pair, 1), INT64_MIN,
                        (place){"step", step, "the offset of an argument"}, &offset) < 0) {
        /* the error is set */
    } else if (slot < 0 || slot >= d->n_slots) {
        PyErr_Format(PyExc_IndexError,
                     "step %zd: argument %zd is in slot %lld, but the program has %zd slots", step,
                     index, (long long)slot, d->n_slots);
    } else if (offset < 0 || offset > d->slot_nbytes[slot]) {
        PyErr_Format(PyExc_ValueError,
                     "step %zd: argument %zd starts at byte %lld, but slot %lld has %zd bytes",
                     step, index, (long long)offset, (long long)slot, d->slot_nbytes[slot]);
    } else {
        status = add_argument(d, (executor_argument){(size_t)slot, (size_t)offset});
    }
    Py_DECREF(pair);
    return status;
}

static int parse_arguments(draft *d, Py_ssize_t step, PyObject *value) {
    PyObject *items = read_sequence(value, (place){"step", step, "args"});
    if (items == NULL) {
        return -1;
    }
    int status = 0;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(items); i++) {
        status = parse_argument(d, step, i, PyTuple_GetItem(items, i));
    }
    Py_DECREF(items);
    return status;
}

/* (kind, target, counter, conditional, counted); a counter is a variable behind those of a run. */
static int parse_control(draft *d, Py_ssize_t step, Py_ssize_t n_vars, PyObject *value,
                         control *out) {
    int64_t kind, target, counter;
#define AT(name) ((place){"step", step, name})
    PyObject *fields = read_sequence(value, AT("control"));
    if (fields == NULL) {
        return -1;
    }
    int status = -1;
    if (PyTuple_Size(fields) != 5) {
        PyErr_Format(PyExc_ValueError, "step %zd: control has %zd items, but 5 are needed", step,
                     PyTuple_Size(fields));
    } else if (read_int(PyTuple_GetItem(fields, 0), CONTROL_NONE, AT("kind"), &kind) < 0 ||
               read_int(PyTuple_GetItem(fields, 1), 0, AT("target"), &target) < 0 ||
               read_int(PyTuple_GetItem(fields, 2), 0, AT("counter"), &counter) < 0) {
        /* the error is set */
    } else if (kind > CONTROL_END_LOOP || target > d->n_steps) {
        PyErr_Format(PyExc_ValueError, "step %zd: no control of kind %lld jumps to step %lld", step,
                     (long long)kind, (long long)target);
    } else if ((kind == CONTROL_LOOP || kind == CONTROL_END_LOOP) &&
               (counter < n_vars || counter >= MAX_VARS)) {
        PyErr_Format(PyExc_ValueError, "step %zd: variable %lld is no counter: there are %zd", step,
                     (long long)counter, n_vars);
    } else {
        int conditional = PyObject_IsTrue(PyTuple_GetItem(fields, 3));
        int counted = PyObject_IsTrue(PyTuple_GetItem(fields, 4));
        *out = (control){
            .kind = (control_kind)kind,
            .conditional = conditional > 0,
            .counted = counted > 0,
            .target = (size_t)target,
            .counter = (size_t)counter,
        };
        status = conditional < 0 || counted < 0 ? -1 : 0;
        if (counter >= n_vars && (size_t)(counter - n_vars) >= d->n_counters) {
            d->n_counters = (size_t)(counter - n_vars) + 1;
        }
    }
#undef AT
    Py_DECREF(fields);
    return status;
}

/* The fields of a step, as a tuple of 6 to 8 items. */
static int parse_fields(draft *d, Py_ssize_t index, Py_ssize_t n_vars, PyObject *fields) {
    void *kernel, *extent_of;
    int64_t extent, grain, scratch_bytes;
    control found = {.kind = CONTROL_NONE};
    if (PyTuple_Size(fields) == 8 &&
        parse_control(d, index, n_vars, PyTuple_GetItem(fields, 7), &found) < 0) {
        return -1;
    }
#define AT(name) ((place){"step", index, name})
    if (read_address(PyTuple_GetItem(fields, 0), found.kind != CONTROL_NONE, AT("kernel_address"),
                     &kernel) < 0 ||
        read_int(PyTuple_GetItem(fields, 2), 0, AT("extent"), &extent) < 0 ||
        read_address(PyTuple_GetItem(fields, 3), true, AT("extent_address"), &extent_of) < 0 ||
        read_int(PyTuple_GetItem(fields, 4), 1, AT("grain"), &grain) < 0 ||
        read_int(PyTuple_GetItem(fields, 5), 0, AT("scratch_bytes"), &scratch_bytes) < 0) {
        return -1;
    }
#undef AT
    int threaded = PyTuple_Size(fields) > 6 ? PyObject_IsTrue(PyTuple_GetItem(fields, 6)) : 1;
    if (threaded < 0) {
        return -1;
    }
    d->steps[index] = (executor_step){
        .kernel = (kernel_fn)(uintptr_t)kernel,
        .extent_of = (symbolic_fn)(uintptr_t)extent_of,
        .extent = extent,
        .limit = INT64_MAX,
        .grain = grain,
        .first_argument = d->n_arguments,
        .threaded = threaded,
        .control = found,
    };
    if ((size_t)scratch_bytes > d->scratch_bytes) {
        d->scratch_bytes = (size_t)scratch_bytes;
    }
    if (parse_arguments(d, index, PyTuple_GetItem(fields, 1)) < 0) {
        return -1;
    }
    size_t given = d->n_arguments - d->steps[index].first_argument;
    size_t wanted = (size_t)found.conditional + (size_t)found.counted;
    if (found.kind != CONTROL_NONE && given != wanted) {
        PyErr_Format(PyExc_ValueError, "step %zd: control takes %zu arguments, not %zu", index,
                     wanted, given);
        return -1;
    }
    return 0;
}

/* The fields of a step that binds or checks a size: (None, args, variable, least, greatest,
 * greatest_address, problem). */
static int parse_size_fields(ProgramObject *self, draft *d, Py_ssize_t index, PyObject *fields) {
    int64_t variable, least, greatest;
    void *greatest_of;
    PyObject *problem = PyTuple_GetItem(fields, 6);
#define AT(name) ((place){"step", index, name})
    if (read_int(PyTuple_GetItem(fields, 2), -1, AT("variable"), &variable) < 0 ||
        read_int(PyTuple_GetItem(fields, 3), 0, AT("least"), &least) < 0 ||
        read_int(PyTuple_GetItem(fields, 4), INT64_MIN, AT("greatest"), &greatest) < 0 ||
        read_address(PyTuple_GetItem(fields, 5), true, AT("greatest_address"), &greatest_of) < 0) {
        return -1;
    }
#undef AT
    if (!PyUnicode_Check(problem)) {
        PyErr_Format(PyExc_TypeError, "step %zd: problem must be a str, not %R", index,
                     (PyObject *)Py_TYPE(problem));
        return -1;
    }
    if (variable >= self->n_vars) {
        PyErr_Format(PyExc_IndexError, "step %zd: there is no variable %lld", index,
                     (long long)variable);
        return -1;
    }
    size_t first = d->n_arguments, wanted = variable < 0 ? 0 : 2;
    d->steps[index] = (executor_step){
        .extent_of = (symbolic_fn)(uintptr_t)greatest_of,
        .extent = greatest,
        .limit = INT64_MAX,
        .grain = 1,
        .first_argument = first,
        .size = {variable, least, (size_t)PyList_Size(d->problems)},
    };
    if (PyList_Append(d->problems, problem) < 0 ||
        parse_arguments(d, index, PyTuple_GetItem(fields, 1)) < 0) {
        return -1;
    }
    if (d->n_arguments - first != wanted) {
        PyErr_Format(PyExc_ValueError, "step %zd: a size has %zu arguments, not %zu", index,
                     d->n_arguments - first, wanted);
        return -1;
    }
    for (size_t i = first; i < d->n_arguments; i++) {
        if (d->slot_nbytes[d->arguments[i].slot] - (Py_ssize_t)d->arguments[i].offset < 8) {
            PyErr_Format(PyExc_ValueError, "step %zd: a size takes 8 bytes", index);
            return -1;
        }
    }
    return 0;
}

static int parse_step(ProgramObject *self, draft *d, Py_ssize_t index, PyObject *item) {
    PyObject *fields = read_sequence(item, (place){"step", index, "its description"});
    if (fields == NULL) {
        return -1;
    }
    int status = -1;
    if (PyTuple_Size(fields) == 7 && PyTuple_GetItem(fields, 0) == Py_None) {
        status = parse_size_fields(self, d, index, fields);
    } else if (PyTuple_Size(fields) < 6 || PyTuple_Size(fields) > 8) {
        PyErr_Format(PyExc_ValueError,
                     "step %zd has %zd items, but a step is (kernel_address, args, extent, "
                     "extent_address, grain, scratch_bytes[, threaded[, control]])",
                     index, PyTuple_Size(fields));
    } else {
        status = parse_fields(d, index, self->n_vars, fields);
    }
    Py_DECREF(fields);
    return status;
}

static int parse_steps(ProgramObject *self, draft *d, PyObject *steps) {
    d->n_steps = PyTuple_Size(steps);
    d->steps = PyMem_Calloc((size_t)d->n_steps, sizeof *d->steps);
    if (d->steps == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < d->n_steps; i++) {
        if (parse_step(self, d, i, PyTuple_GetItem(steps, i)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int build_executor(ProgramObject *self, const draft *d) {
    executor_description description = {
        .steps = d->steps,
        .n_steps = (size_t)d->n_steps,
        .arguments = d->arguments,
        .n_arguments = d->n_arguments,
        .slots = d->slots,
        .n_externals = (size_t)self->n_externals,
        .scratch_bytes = d->scratch_bytes,
        .n_vars = (size_t)self->n_vars,
        .n_counters = d->n_counters,
        .exclusive_with = self->exclusive_with == NULL ? NULL : self->exclusive_with->executor,
    };
    self->executor = executor_create(&description, ((ThreadPoolObject *)self->pool)->pool);
    self->spare = bindings_new(self->n_externals);
    if (self->executor == NULL || self->spare == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->n_steps = d->n_steps;
    return 0;
}

int program_parse(ProgramObject *self, core_state *state, PyObject *pool, PyObject *slots,
                  PyObject *steps) {
    if (Py_TYPE(pool) != state->pool_type) {
        PyErr_Format(PyExc_TypeError, "pool must be a ThreadPool, not %R",
                     (PyObject *)Py_TYPE(pool));
        return -1;
    }
    self->pool = Py_NewRef(pool);
    draft d = {.problems = PyList_New(0)};
    PyObject *slot_items = PySequence_Tuple(slots);
    PyObject *step_items = slot_items == NULL ? NULL : PySequence_Tuple(steps);
    int status = -1;
    if (step_items != NULL && d.problems != NULL && parse_slots(self, &d, slot_items) == 0 &&
        parse_steps(self, &d, step_items) == 0) {
        status = build_executor(self, &d);
    }
    self->problems = d.problems;
    Py_XDECREF(slot_items);
    Py_XDECREF(step_items);
    PyMem_Free(d.slots);
    PyMem_Free(d.slot_nbytes);
    PyMem_Free(d.steps);
    PyMem_Free(d.arguments);
    return status;
}
