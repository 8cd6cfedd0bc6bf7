/* The order of submissions: those that touch the same memory take effect in the order in which they
 * are made.
 *
 * A submission is an entry of one list, appended when it is made and unlinked when it has taken
 * effect. It waits for those before it that touch a byte that it writes, or write one that it
 * touches, and for no others. Entries only wait for older ones, so there is no circular wait. The
 * list is guarded by the GIL. */
#ifndef OSTINATO_ORDER_H
#define OSTINATO_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes [begin, end) that a submission touches. */
typedef struct {
    uintptr_t begin, end;
    bool written;
} order_range;

#define ORDER_RANGE_SETS 2

typedef struct order_entry {
    struct order_entry *before, *after; /* in the list */
    const order_range *ranges[ORDER_RANGE_SETS];
    size_t n_ranges[ORDER_RANGE_SETS];
    const void *thread; /* the thread of the submission; NULL while it is queued */
    bool listed;
    bool awaited; /* a thread sleeps until it leaves */
    bool queued;  /* lives in an object of its own rather than on a thread's stack */
} order_entry;

/* The state of one thread. */
typedef struct {
    int depth;          /* > 0: within a submission of its own, which what it submits is part of */
    uint64_t number;    /* of the thread, once it has recorded: no two have the same; else 0 */
    uint64_t exclusive; /* the last exclusive recording that it began; it may have ended since */
} order_thread;

/* The list of submissions. */
typedef struct {
    order_entry *oldest, *newest;
    void *hook; /* called where threads may be switched; NULL: nothing is */
} order_list;

/* What other extension modules find in the capsule ORDER_CAPSULE. All need the GIL. */
typedef struct {
    order_list *list;

    order_thread *(*thread)(void);

    /* Submits an entry and waits for its turn. 0; or -1 with an exception, when a signal handler
     * raised one: the entry is withdrawn. Within a submission of the thread's own, does nothing. */
    int (*enter)(order_thread *thread, order_entry *entry);

    /* What was entered has taken effect. */
    void (*leave)(order_thread *thread, order_entry *entry);

    /* A new recording of the calling thread; `label` names its context. An exclusive one fails when
     * its thread submits to another context. 0 with an exception when out of memory. */
    uint64_t (*begin_recording)(void *label, bool exclusive);

    /* Ends a recording; a new reference to what made it fail, or to None. */
    void *(*end_recording)(uint64_t recording);

    /* Whether a recording is being made: by a thread, or by any where that is NULL. */
    bool (*is_recording)(uint64_t recording, const order_thread *thread);

    /* Whether a thread that submits to another context than that of its exclusive recording is
     * refused: the recording will fail, and an exception of this type is set. `label` names the
     * context that it submits to, `recording` is that one's. */
    bool (*refuse_elsewhere)(order_thread *thread, uint64_t recording, void *label,
                             void *error_type);
} order_api;

#define ORDER_CAPSULE "ostinato.plan._order.api"

/* As enter and leave, without a call where nothing else is in flight. */

static inline int order_enter(const order_api *api, order_thread *thread, order_entry *entry) {
    order_list *list = api->list;
    if (list->oldest != NULL || list->hook != NULL || thread->depth > 0) {
        return api->enter(thread, entry);
    }
    entry->before = entry->after = NULL;
    entry->thread = thread;
    entry->listed = true;
    entry->awaited = entry->queued = false;
    list->oldest = list->newest = entry;
    thread->depth = 1;
    return 0;
}

static inline void order_leave(const order_api *api, order_thread *thread, order_entry *entry) {
    order_list *list = api->list;
    if (list->oldest != entry || list->newest != entry || entry->awaited || list->hook != NULL) {
        api->leave(thread, entry);
        return;
    }
    list->oldest = list->newest = NULL;
    thread->depth = 0;
}

#endif
