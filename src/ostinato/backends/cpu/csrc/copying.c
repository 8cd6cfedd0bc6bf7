#include "copying.h"

#include <stdbool.h>
#include <string.h>

/* A block, or a part of one. */
typedef struct {
    const char *source;
    char *target;
    int64_t rows;
    int64_t lanes;
    const copy_axis *row; /* what a step from row to row, and from lane to lane, is */
    const copy_axis *lane;
} block;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* The lanes of a block from `low` to `high`. */
static block part_of(const block *whole, int64_t low, int64_t high) {
    block part = *whole;
    part.source += low * whole->lane->source;
    part.target += low * whole->lane->target;
    part.lanes = high - low;
    return part;
}

/* ---- elements of one size -------------------------------------------------------------------- */

/* Elements need not be aligned to their size, and memcpy of a constant size is one instruction. */
#define DEFINE_MOVES(type)                                                                         \
    static void fill_##type(const block *part, int64_t fill) {                                     \
        int64_t stride = part->lane->target;                                                       \
        type element = (type)fill;                                                                 \
        for (int64_t row = 0; row < part->rows; row++) {                                           \
            char *target = part->target + row * part->row->target;                                 \
            for (int64_t i = 0; i < part->lanes; i++) {                                            \
                memcpy(target + i * stride, &element, sizeof(element));                            \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static void move_##type(const block *part) {                                                   \
        int64_t step = part->lane->source, stride = part->lane->target;                            \
        for (int64_t row = 0; row < part->rows; row++) {                                           \
            const char *source = part->source + row * part->row->source;                           \
            char *target = part->target + row * part->row->target;                                 \
            for (int64_t i = 0; i < part->lanes; i++) {                                            \
                type element;                                                                      \
                memcpy(&element, source + i * step, sizeof(element));                              \
                memcpy(target + i * stride, &element, sizeof(element));                            \
            }                                                                                      \
        }                                                                                          \
    }

DEFINE_MOVES(uint8_t)
DEFINE_MOVES(uint16_t)
DEFINE_MOVES(uint32_t)
DEFINE_MOVES(uint64_t)

static void fill(int64_t element, const block *part, int64_t number) {
    switch (element) {
    case 1:
        fill_uint8_t(part, number);
        break;
    case 2:
        fill_uint16_t(part, number);
        break;
    case 4:
        fill_uint32_t(part, number);
        break;
    default:
        fill_uint64_t(part, number);
    }
}

/* Rows of which each is in one piece, in the source and in the target. */
static void move_whole_rows(const block *part, size_t nbytes) {
    for (int64_t row = 0; row < part->rows; row++) {
        memcpy(part->target + row * part->row->target, part->source + row * part->row->source,
               nbytes);
    }
}

static void move(int64_t element, const block *part) {
    if (part->lane->source == element && part->lane->target == element) {
        move_whole_rows(part, (size_t)(part->lanes * element));
        return;
    }
    switch (element) {
    case 1:
        move_uint8_t(part);
        break;
    case 2:
        move_uint16_t(part);
        break;
    case 4:
        move_uint32_t(part);
        break;
    default:
        move_uint64_t(part);
    }
}

/* ---- transposing ----------------------------------------------------------------------------- */

typedef uint32_t four __attribute__((vector_size(16)));

/* Four rows of four elements of 4 bytes, which in the source are its columns. */
static void transpose_square(const char *source, int64_t step, char *target, int64_t stride) {
    four a, b, c, d;
    memcpy(&a, source, sizeof(a));
    memcpy(&b, source + step, sizeof(b));
    memcpy(&c, source + 2 * step, sizeof(c));
    memcpy(&d, source + 3 * step, sizeof(d));
    four low_ab = __builtin_shuffle(a, b, (four){0, 4, 1, 5});
    four low_cd = __builtin_shuffle(c, d, (four){0, 4, 1, 5});
    four high_ab = __builtin_shuffle(a, b, (four){2, 6, 3, 7});
    four high_cd = __builtin_shuffle(c, d, (four){2, 6, 3, 7});
    four rows[4] = {
        __builtin_shuffle(low_ab, low_cd, (four){0, 1, 4, 5}),
        __builtin_shuffle(low_ab, low_cd, (four){2, 3, 6, 7}),
        __builtin_shuffle(high_ab, high_cd, (four){0, 1, 4, 5}),
        __builtin_shuffle(high_ab, high_cd, (four){2, 3, 6, 7}),
    };
    for (int i = 0; i < 4; i++) {
        memcpy(target + i * stride, &rows[i], sizeof(rows[i]));
    }
}

/* A part of a block whose rows stand side by side in the source, and its lanes in the target: a
 * few lanes at a time, so that what is read of the source is read once. */
static void transpose(int64_t element, const block *part) {
    enum { TOGETHER = 16 };
    int64_t step = part->lane->source, stride = part->row->target;
    for (int64_t first = 0; first < part->lanes; first += TOGETHER) {
        block strip = part_of(part, first, smaller(first + TOGETHER, part->lanes));
        int64_t row = 0;
        for (; element == 4 && strip.lanes == TOGETHER && row + 4 <= part->rows; row += 4) {
            for (int64_t lane = 0; lane < TOGETHER; lane += 4) {
                transpose_square(strip.source + lane * step + row * element, step,
                                 strip.target + row * stride + lane * element, stride);
            }
        }
        strip.source += row * element;
        strip.target += row * stride;
        strip.rows -= row;
        move(element, &strip);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static int64_t floor_divided(int64_t a, int64_t b) {
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* Narrows the lanes `*low` to `*high` to those where a condition holds, of which `value` is the
 * value at lane 0. */
static void narrow(int64_t value, int64_t factor, int64_t *low, int64_t *high) {
    if (factor > 0) {
        *low = larger(*low, -floor_divided(value, factor));
    } else if (factor < 0) {
        *high = smaller(*high, floor_divided(value, -factor) + 1);
    } else if (value < 0) {
        *high = *low;
    }
    *high = larger(*low, *high);
}

/* The lanes of a row, counted from the block's first one, that are read from the source. */
static void readable(const copy_plan *plan, const int64_t *position, int64_t row, int64_t lanes,
                     int64_t *low, int64_t *high) {
    int64_t count = plan->axis_count;
    *low = 0;
    *high = lanes;
    for (int64_t i = 0; i < plan->condition_count; i++) {
        const copy_condition *condition = &plan->conditions[i];
        int64_t value = condition->constant + condition->factors[count - 2] * row;
        for (int64_t axis = 0; axis < count; axis++) {
            value += condition->factors[axis] * position[axis];
        }
        narrow(value, condition->factors[count - 1], low, high);
    }
    *low = smaller(*low, lanes);
    *high = larger(*low, smaller(*high, lanes));
}

static bool rows_are_alike(const copy_plan *plan) {
    for (int64_t i = 0; i < plan->condition_count; i++) {
        if (plan->conditions[i].factors[plan->axis_count - 2] != 0) {
            return false;
        }
    }
    return true;
}

/* Rows of which the lanes from `low` to `high` are read from the source. */
static void copy_rows(const copy_plan *plan, const block *rows, int64_t low, int64_t high) {
    int64_t element = plan->element;
    const copy_axis *row = rows->row, *lane = rows->lane;
    block before = part_of(rows, 0, low), after = part_of(rows, high, rows->lanes);
    block part = part_of(rows, low, high);
    if (before.lanes > 0) {
        fill(element, &before, plan->fill);
    }
    if (after.lanes > 0) {
        fill(element, &after, plan->fill);
    }
    if (row->source == element && lane->target == element && lane->source != element) {
        transpose(element, &part);
    } else {
        move(element, &part);
    }
}

static void copy_block(const copy_plan *plan, const int64_t *position, const block *whole) {
    int64_t low, high, together = rows_are_alike(plan) ? whole->rows : 1;
    for (int64_t row = 0; row < whole->rows; row += together) {
        block rows = *whole;
        rows.source += row * whole->row->source;
        rows.target += row * whole->row->target;
        rows.rows = together;
        readable(plan, position, row, whole->lanes, &low, &high);
        copy_rows(plan, &rows, low, high);
    }
}

static int64_t pieces(int64_t extent, int64_t size) {
    return (extent + size - 1) / size;
}

void copy_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                 char *scratch) {
    (void)vars;
    (void)scratch;
    const copy_plan *plan = (const copy_plan *)buffers[2];
    int64_t count = plan->axis_count, position[COPY_MAX_AXES];
    const copy_axis *row = &plan->axes[count - 2], *lane = &plan->axes[count - 1];
    int64_t across = pieces(lane->extent, plan->lanes), down = pieces(row->extent, plan->rows);
    for (int64_t item = begin; item < end; item++) {
        int64_t rest = item / across / down;
        position[count - 1] = item % across * plan->lanes;
        position[count - 2] = item / across % down * plan->rows;
        for (int64_t axis = count - 3; axis >= 0; axis--) {
            position[axis] = rest % plan->axes[axis].extent;
            rest /= plan->axes[axis].extent;
        }
        block whole = {buffers[0] + plan->source_start, buffers[1] + plan->target_start,
                       smaller(plan->rows, row->extent - position[count - 2]),
                       smaller(plan->lanes, lane->extent - position[count - 1]), row, lane};
        for (int64_t axis = 0; axis < count; axis++) {
            whole.source += position[axis] * plan->axes[axis].source;
            whole.target += position[axis] * plan->axes[axis].target;
        }
        copy_block(plan, position, &whole);
    }
}
