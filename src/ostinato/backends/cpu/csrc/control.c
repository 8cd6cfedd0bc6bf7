#include "control.h"

#include <string.h>

static bool holds(const control *c, char *const *arguments) {
    return !c->conditional || *(const uint8_t *)arguments[0] != 0;
}

static bool goes_on(const control *c, int64_t iteration, int64_t trips, char *const *arguments) {
    if (iteration >= trips || !holds(c, arguments)) {
        return false;
    }
    int64_t count = INT64_MAX;
    if (c->counted) {
        memcpy(&count, arguments[c->conditional], sizeof count);
    }
    return iteration < count;
}

size_t control_next(const control *c, size_t position, int64_t trips, char *const *arguments,
                    int64_t *vars) {
    switch (c->kind) {
    case CONTROL_IF:
        return holds(c, arguments) ? position + 1 : c->target;
    case CONTROL_ELSE:
        return c->target;
    case CONTROL_LOOP:
        vars[c->counter] = 0;
        return goes_on(c, 0, trips, arguments) ? position + 1 : c->target;
    case CONTROL_END_LOOP:
        return goes_on(c, ++vars[c->counter], trips, arguments) ? c->target : position + 1;
    default:
        return position + 1;
    }
}
