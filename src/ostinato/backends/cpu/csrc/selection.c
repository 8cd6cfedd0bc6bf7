#include "selection.h"

#include <stdbool.h>
#include <string.h>

/* ---- positions of true elements -------------------------------------------------------------- */

void flat_nonzero_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                         char *scratch) {
    (void)vars;
    (void)scratch;
    const mask_sizes *sizes = (const mask_sizes *)buffers[0];
    const char *mask = buffers[1];
    int64_t *found = (int64_t *)buffers[2], count = 0, at = 0;
    if (begin >= end) {
        return;
    }
    while (at < sizes->length && count < sizes->size) {
        uint64_t word = 1;
        if (at + 8 <= sizes->length) {
            memcpy(&word, mask + at, sizeof word);
        }
        int64_t stop = at + 8 < sizes->length ? at + 8 : sizes->length;
        if (word == 0) { /* eight at once: masks are often sparse */
            at = stop;
            continue;
        }
        for (; at < stop && count < sizes->size; at++) {
            if (mask[at] != 0) {
                found[count++] = at;
            }
        }
    }
    memset(found + count, 0, sizeof *found * (size_t)(sizes->size - count));
}

/* ---- boxes ----------------------------------------------------------------------------------- */

typedef struct {
    double low[2], high[2];
} box;

static double lesser(double a, double b) { return a < b ? a : b; }
static double greater(double a, double b) { return a > b ? a : b; }

static box read_box(const float *numbers, bool centered) {
    box found;
    for (int side = 0; side < 2; side++) {
        double first = numbers[side], second = numbers[side + 2];
        found.low[side] = centered ? first - second / 2 : lesser(first, second);
        found.high[side] = centered ? first + second / 2 : greater(first, second);
    }
    return found;
}

static double area(const box *b) {
    return (b->high[0] - b->low[0]) * (b->high[1] - b->low[1]);
}

/* Whether the intersection over the union of two boxes exceeds a limit; an empty box has none. */
static bool overlaps(const box *a, const box *b, double limit) {
    double common = 1;
    for (int side = 0; side < 2; side++) {
        double length = lesser(a->high[side], b->high[side]) - greater(a->low[side], b->low[side]);
        common *= greater(length, 0);
    }
    double first = area(a), second = area(b);
    bool shared = common > 0 && first > 0 && second > 0;
    return (shared ? common / (first + second - common) : 0) > limit;
}

/* ---- a heap of box numbers, the best score at the root -------------------------------------- */

static bool better(const float *scores, int64_t a, int64_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
}

static void sink(int64_t *heap, int64_t size, int64_t place, const float *scores) {
    int64_t moved = heap[place];
    for (;;) {
        int64_t child = 2 * place + 1;
        if (child >= size) {
            break;
        }
        if (child + 1 < size && better(scores, heap[child + 1], heap[child])) {
            child++;
        }
        if (!better(scores, heap[child], moved)) {
            break;
        }
        heap[place] = heap[child];
        place = child;
    }
    heap[place] = moved;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

typedef struct {
    const float *boxes;
    const float *scores;
    int64_t n, most;
    double overlap;
    float least;
    bool centered;
} candidates;

static bool is_free(const candidates *c, const int64_t *chosen, int64_t count, int64_t number) {
    box candidate = read_box(c->boxes + 4 * number, c->centered);
    for (int64_t i = 0; i < count; i++) {
        box other = read_box(c->boxes + 4 * chosen[i], c->centered);
        if (overlaps(&other, &candidate, c->overlap)) {
            return false;
        }
    }
    return true;
}

static void choose(const candidates *c, int64_t *chosen, int64_t *heap) {
    int64_t size = 0, count = 0;
    for (int64_t i = 0; i < c->n; i++) {
        if (c->scores[i] > c->least) {
            heap[size++] = i;
        }
    }
    for (int64_t place = size / 2; place-- > 0;) {
        sink(heap, size, place, c->scores);
    }
    while (size > 0 && count < c->most) {
        int64_t best = heap[0];
        heap[0] = heap[--size];
        if (size > 0) {
            sink(heap, size, 0, c->scores);
        }
        if (is_free(c, chosen, count, best)) {
            chosen[count++] = best;
        }
    }
    while (count < c->n) {
        chosen[count++] = -1;
    }
}

void suppress_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                     char *scratch) {
    (void)vars;
    const suppression_sizes *sizes = (const suppression_sizes *)buffers[0];
    for (int64_t item = begin; item < end; item++) {
        candidates c = {
            .boxes = (const float *)buffers[1] + item / sizes->classes * sizes->boxes * 4,
            .scores = (const float *)buffers[2] + item * sizes->boxes,
            .n = sizes->boxes,
            .most = *(const int64_t *)buffers[3],
            .overlap = *(const float *)buffers[4],
            .least = *(const float *)buffers[5],
            .centered = sizes->centered != 0,
        };
        choose(&c, (int64_t *)buffers[6] + item * sizes->boxes, (int64_t *)scratch);
    }
}
