#include "experts.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* ---- choosing -------------------------------------------------------------------------------- */

/* The experts of a round that were found so far; parts are in the order of experts. */
typedef struct {
    const expert_choice *choice;
    const int64_t *slots;
    int64_t *staged;
    int64_t last;  /* the last non-resident expert so far */
    int64_t count; /* how many of those were met */
} chooser;

/* The number of the slot that a part's expert is computed from in this round; -1: in another. */
static int64_t slot_of(chooser *c, int64_t expert) {
    int64_t slot = c->slots[expert];
    if (c->choice->round == 0 || slot >= 0) {
        return c->choice->round == 0 ? slot : -1;
    }
    if (expert != c->last) {
        c->last = expert;
        c->count++;
    }
    int64_t position = c->count - 1 - (c->choice->round - 1) * c->choice->size;
    if (position < 0 || position >= c->choice->size) {
        return -1;
    }
    c->staged[position] = expert;
    return position;
}

void select_experts_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                           char *scratch) {
    (void)vars;
    (void)scratch;
    if (begin >= end) {
        return;
    }
    const expert_choice *choice = (const expert_choice *)buffers[0];
    const int64_t *groups = (const int64_t *)buffers[1], first_row = choice->first_row;
    int64_t *chosen = (int64_t *)buffers[3], parts = 0;
    chooser c = {choice, (const int64_t *)buffers[2], (int64_t *)buffers[4], -1, 0};
    for (int64_t i = 0; i < choice->size; i++) {
        c.staged[i] = -1;
    }
    for (int64_t part = 0; part < groups[0]; part++) {
        const int64_t *source = groups + 1 + 3 * part;
        int64_t *target = chosen + 1 + 3 * parts, first = source[1], rows = source[2];
        int64_t slot = slot_of(&c, source[0]);
        if (slot < 0) {
            continue;
        }
        target[0] = slot;
        target[1] = first;
        target[2] = rows;
        memcpy(chosen + first_row + first, groups + first_row + first,
               (size_t)rows * sizeof(int64_t));
        parts++;
    }
    chosen[0] = parts;
}

/* ---- fetching -------------------------------------------------------------------------------- */

static bool read_fully(int file, char *target, size_t nbytes, off_t offset) {
    while (nbytes > 0) {
        ssize_t got = pread(file, target, nbytes, offset);
        if (got <= 0 && !(got < 0 && errno == EINTR)) {
            return false; /* an error, or the file has become shorter */
        }
        if (got > 0) {
            target += got;
            offset += got;
            nbytes -= (size_t)got;
        }
    }
    return true;
}

/* Reads a piece of one range into scratch; what a short one lacks is zero. */
static void fetch_range(expert_source *source, const expert_range *range,
                        const expert_place *place, int64_t chunk, char *target) {
    int64_t start = chunk * range->chunk_bytes, left = range->matrix_bytes - start;
    int64_t nbytes = left < range->chunk_bytes ? left : range->chunk_bytes;
    if (read_fully((int)place->file, target, (size_t)nbytes, (off_t)(place->offset + start))) {
        __atomic_fetch_add(&source->bytes_read, nbytes, __ATOMIC_RELAXED);
    } else {
        memset(target, 0xff, (size_t)nbytes);
        __atomic_fetch_add(&source->failures, 1, __ATOMIC_RELAXED);
    }
    memset(target + nbytes, 0, (size_t)(range->chunk_bytes - nbytes));
}

static void fetch_piece(expert_source *source, int64_t expert, int64_t chunk, char *target,
                        const int64_t *vars, char *scratch) {
    const expert_range *ranges = (const expert_range *)source->numbers;
    const expert_place *places = (const expert_place *)(ranges + source->range_count);
    char *arguments[EXPERT_RANGES + 1];
    for (int64_t i = 0; i < source->range_count; i++) {
        arguments[i] = scratch + ranges[i].room;
        fetch_range(source, ranges + i, places + i * source->experts + expert, chunk,
                    arguments[i]);
    }
    arguments[source->range_count] = target + chunk * source->chunk_stride;
    kernel_fn pack = (kernel_fn)(uintptr_t)source->pack;
    pack(arguments, vars, 0, source->pack_extent, scratch + source->piece_bytes);
}

void stage_experts_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                          char *scratch) {
    expert_source *source = (expert_source *)buffers[0];
    const int64_t *staged = (const int64_t *)buffers[1];
    for (int64_t item = begin; item < end; item++) {
        int64_t position = item / source->chunks, expert = staged[position];
        if (expert >= 0) {
            char *target = buffers[2] + position * source->packed_bytes;
            fetch_piece(source, expert, item % source->chunks, target, vars, scratch);
        }
    }
}
