/* The emulator of CUDA blocks: threads as fibers, barriers, and a check of every memory access.
 *
 * Kernels are compiled with -fsanitize=thread, whose calls before each load and store come here,
 * to __tsan_read4 and its kin: the sanitizer's own runtime is not linked. A launch runs its blocks
 * one after another, or all of them by turns. Each thread of a block is a fiber, which runs until it
 * waits at a barrier or in a warp operation. Blocks that run by turns have the same addresses of
 * shared memory: what is there is exchanged.
 *
 * What is found: accesses outside of the arguments, misaligned ones, reads of shared memory or of
 * write-only arguments before a write, writes of read-only arguments, data races (two accesses, one
 * of them a write, with no barrier between), divergent barriers, and launches that do not end.
 */
#define _GNU_SOURCE
#include "engine.h"

#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define LANES 32
#define MAX_THREADS 1024
#define MAX_REGIONS 1024 /* more than a kernel has arguments */
#define STACK_BYTES (256 << 10)
#define GUARD_BYTES (16 << 10)
#define ACCESS_LIMIT (1ull << 34)
#define MOST_IDLE_ROUNDS 1000
#define MOST_TOGETHER 4
#define SHARED_REGIONS 2
#define LINE 4 /* the logarithm of its bytes, which are those of the widest access */

EXPORT struct emu_state emu_state;
EXPORT _Alignas(1024) unsigned char emu_dynamic_shared[EMU_DYNAMIC_SHARED];

/* -- fibers ------------------------------------------------------------------------------------ */

#if defined(__x86_64__)

typedef void *Stack;
void emu_switch(Stack *from, Stack to);
__asm__(".text\n.globl emu_switch\n.hidden emu_switch\n.type emu_switch,@function\nemu_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
        ".size emu_switch,.-emu_switch\n");

static Stack new_stack(unsigned char *bottom, size_t bytes, void (*entry)(void)) {
    void **top = (void **)(bottom + bytes) - 1;
    *--top = (void *)entry; /* a return into it leaves the stack as a call would */
    for (int i = 0; i < 6; i++) *--top = NULL;
    return top;
}

#else
#include <ucontext.h>

typedef ucontext_t Stack[1];
#define emu_switch(from, to) swapcontext(*(from), (to))
#endif

enum Waiting { RUNS, AT_BARRIER, IN_WARP, ENDED };

typedef struct {
    Stack stack;
    unsigned char *bottom; /* of its stack */
    enum Waiting waiting;
    int site;      /* the barrier or warp operation that it waits in */
    int members;   /* threads of the barrier: the first ones of the block */
    int kind;      /* of the warp operation */
    uint32_t mask; /* of the warp operation */
    int source;    /* the lane that a shuffle reads */
    uint64_t value;
} Thread;

/* -- memory ------------------------------------------------------------------------------------ */

/* An access: the run of a block (0: none), and the progress of its barriers then. */
typedef struct {
    uint32_t block, barrier, sync;
    uint16_t thread;
    uint8_t atomic : 1, copied : 1;
    uint8_t seen : 1; /* of a read: the block has seen what an atomic has written */
} Event;

/* Where blocks write the same bits with nothing between, that is no race: there are two writes. */
typedef struct {
    Event write, other_write, read, other_read;
} Cell;

/* What happened to the memory of a region. Neighbouring grains that were always accessed together
 * share the cell of their first one: within each line of memory, these are runs of equal length. */
typedef struct {
    Cell *cells;   /* by grain */
    uint8_t *runs; /* by line, the logarithm of a run's grains */
} History;

typedef struct {
    uintptr_t low, high;
    int grain; /* the logarithm of its bytes */
    int flags;
    History history; /* none of memory that is read only */
} Region;

/* A block that runs, and what it has in shared memory while others do. */
typedef struct {
    Thread threads[MAX_THREADS];
    unsigned index;
    uint32_t number; /* of all blocks that ever ran */
    int alive;
    uint32_t barrier; /* barriers that the block has passed */
    uint32_t sync[MAX_THREADS / LANES];
    int acquired; /* the block has updated an atomic */
    int fenced[MAX_THREADS];
    /* Of blocks that run together: the barriers that this one had passed when it last released, and
     * those that each other one had when this one acquired. */
    uint32_t released, known[MOST_TOGETHER];
    void *shared[SHARED_REGIONS];
    History histories[SHARED_REGIONS];
} Block;

/* A write of bits that may be there already. */
typedef struct {
    void *pc, *pointer;
    size_t bytes;
    unsigned char before[16];
    const Region *region;
    uintptr_t at;
    Event event;
    const char *did;
} Pending;

static struct {
    Block blocks[MOST_TOGETHER], *own;
    int order[MAX_THREADS];
    Thread *now;
    int thread, block_threads, together;
    Stack scheduler;
    const struct emu_launch *launch;
    uint32_t first_block, blocks_before; /* of the launch; they count up for ever */
    unsigned char *published; /* by block of the launch: fenced, then updated an atomic */
    Region regions[MAX_REGIONS];
    int region_count;
    Region *shared[SHARED_REGIONS];
    int shared_count;
    History free; /* of regions to come */
    Region *last;
    uintptr_t image_low, image_high;
    uint64_t accesses;
    Pending pending; /* if it has bytes */
    int yielded; /* the thread that ran last only waits for others */
    int stuck;   /* all threads have done so for long */
    int failed;
    void *pc;
    char message[1024];
    uint64_t random;
} run = {.own = run.blocks, .blocks_before = 1};

static void settle(void);

static void leave(void) {
    settle();
    emu_switch(&run.now->stack, run.scheduler);
}

static void fail(void *pc, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int n = vsnprintf(run.message, sizeof run.message, format, list);
    va_end(list);
    if (run.now && n > 0 && n < (int)sizeof run.message)
        snprintf(run.message + n, sizeof run.message - n, " (thread %d of block %u)", run.thread,
                 emu_state.block.x);
    run.failed = 1;
    run.pc = pc;
    if (run.now) leave(); /* for good */
}

static inline int ordered(const Event *event, int shared) {
    if (event->block != run.own->number) {
        if (shared || event->block < run.first_block) return 1; /* of an earlier block's memory */
        uint32_t other = event->block - run.first_block;
        if (run.together) return event->barrier < run.own->known[other];
        return run.own->acquired && run.published[other];
    }
    if (event->copied || event->thread == run.thread || event->barrier < run.own->barrier) return 1;
    int warp = event->thread / LANES;
    return warp == run.thread / LANES && event->sync < run.own->sync[warp];
}

static Region *find(uintptr_t address) {
    if (run.last && address >= run.last->low && address < run.last->high) return run.last;
    for (int i = 0; i < run.region_count; i++) {
        Region *region = &run.regions[i];
        if (address >= region->low && address < region->high) return run.last = region;
    }
    return NULL;
}

/* The name of a region, in messages. */
static const char *name_of(const Region *region) {
    static char name[32];
    int number = (int)(region - run.regions);
    if (number < run.launch->region_count)
        snprintf(name, sizeof name, "%s", run.launch->regions[number].name);
    else
        snprintf(name, sizeof name, "shared memory");
    return name;
}

static void outside(void *pc, uintptr_t address, size_t bytes, const char *does) {
    const Region *nearest = NULL;
    int64_t least = INT64_MAX;
    for (int i = 0; i < run.region_count; i++) {
        const Region *region = &run.regions[i];
        int64_t off = address < region->low ? (int64_t)(region->low - address)
                                            : (int64_t)(address - region->high);
        if (off < least) least = off, nearest = region;
    }
    if (nearest == NULL || least > 4096) {
        fail(pc, "%s %zu bytes at %#zx, which is in no argument", does, bytes, (size_t)address);
        return;
    }
    long long element = ((long long)address - (long long)nearest->low) / (1ll << nearest->grain);
    fail(pc, "%s %zu bytes at element %lld of %s, which has %zu elements", does, bytes, element,
         name_of(nearest), (size_t)(nearest->high - nearest->low) >> nearest->grain);
}

static void race(void *pc, const Region *region, uintptr_t address, const Event *event,
                 const char *does, const char *did) {
    fail(pc, "data race: %s element %zu of %s, which thread %d of %s has %s with no barrier between",
         does, (size_t)(address - region->low) >> region->grain, name_of(region), event->thread,
         event->block == run.own->number ? "the same block" : "another block", did);
}

static size_t lines_of(const Region *region) {
    return (region->high - region->low + ((size_t)1 << LINE) - 1) >> LINE;
}

/* The cell of the grains from `first` on, and how many it is of: `last` is the last of interest. */
static inline Cell *cell_at(const Region *region, size_t first, size_t last, size_t *count) {
    History history = region->history;
    size_t line = first >> (LINE - region->grain);
    int run = history.runs[line], kept = run;
    while (first & (((size_t)1 << run) - 1) || first + ((size_t)1 << run) - 1 > last) run--;
    if (run < kept) { /* from now on, its parts are accessed one by one */
        size_t begin = line << (LINE - region->grain);
        size_t end = begin + ((size_t)1 << (LINE - region->grain));
        for (size_t i = begin; i < end; i += (size_t)1 << run)
            history.cells[i] = history.cells[i >> kept << kept];
        history.runs[line] = (uint8_t)run;
    }
    *count = (size_t)1 << run;
    return &history.cells[first];
}

/* Whether a write that blocks had no order for has left all bits as they were. */
static void settle(void) {
    Pending *kept = &run.pending;
    size_t bytes = kept->bytes;
    kept->bytes = 0;
    if (bytes && !run.failed && memcmp(kept->pointer, kept->before, bytes))
        race(kept->pc, kept->region, kept->at, &kept->event, "writes", kept->did);
}

/* Whether one of a cell's reads by the block has found what an atomic has written. */
static inline int has_seen(const Cell *cell, int shared) {
    if (!cell->write.atomic) return 0;
    const Event *reads[] = {&cell->read, &cell->other_read};
    for (int i = 0; i < 2; i++)
        if (reads[i]->seen && reads[i]->block == run.own->number && ordered(reads[i], shared))
            return 1;
    return 0;
}

/* Whether a cell may be read: all writes are in order, or the block itself has written what others
 * write, or has seen in an atomic read what an atomic wrote. */
static inline int may_read(const Cell *cell, int shared, int atomic) {
    if (ordered(&cell->write, shared) && ordered(&cell->other_write, shared)) return 1;
    const Event *writes[] = {&cell->write, &cell->other_write};
    int good = 1;
    for (int i = 0; i < 2; i++)
        if (!ordered(writes[i], shared) && !(atomic && writes[i]->atomic)) good = 0;
    for (int i = 0; i < 2 && !good; i++) {
        int own = writes[i]->block == run.own->number && ordered(writes[i], shared);
        good = cell->other_write.block && own; /* both have written the same */
    }
    return good || has_seen(cell, shared);
}

static void access_memory(void *pc, void *pointer, size_t bytes, int writes, int atomic) {
    uintptr_t address = (uintptr_t)pointer;
    if (address - (uintptr_t)&emu_state < sizeof emu_state || run.now == NULL) return;
    settle();
    if (run.failed) return;
    if (address - (uintptr_t)run.now->bottom < STACK_BYTES) return;
    if (++run.accesses > ACCESS_LIMIT) {
        fail(pc, "does not end: %llu accesses to memory", (unsigned long long)ACCESS_LIMIT);
        return;
    }
    const char *does = atomic ? "updates" : writes ? "writes" : "reads";
    Region *region = find(address);
    if (region == NULL || address + bytes > region->high) {
        int constant = !writes && address >= run.image_low && address + bytes <= run.image_high;
        if (region || !constant) outside(pc, address, bytes, does);
        return;
    }
    if ((bytes & (bytes - 1)) == 0 && bytes <= 16 && address % bytes) {
        fail(pc, "%s %zu misaligned bytes of %s", does, bytes, name_of(region));
        return;
    }
    if (region->history.cells == NULL) {
        if (writes) fail(pc, "writes %s, which is read only", name_of(region));
        return;
    }
    int shared = region->flags & EMU_SHARED;
    Event now = {run.own->number, run.own->barrier, run.own->sync[run.thread / LANES],
                 (uint16_t)run.thread, (uint8_t)atomic, 0, 0};
    size_t first = (address - region->low) >> region->grain, count;
    size_t last = (address + bytes - 1 - region->low) >> region->grain;
    for (size_t i = first; i <= last; i += count) {
        Cell *cell = cell_at(region, i, last, &count);
        uintptr_t at = region->low + (i << region->grain);
        if (!writes || atomic) {
            uint32_t since = shared ? run.own->number : run.first_block;
            if ((region->flags & EMU_UNSET) && cell->write.block < since) {
                fail(pc, "reads element %zu of %s, which nothing has written", i, name_of(region));
                return;
            }
        }
        if (!writes) {
            if (!may_read(cell, shared, atomic)) {
                int first_is_ordered = ordered(&cell->write, shared);
                const Event *event = first_is_ordered ? &cell->other_write : &cell->write;
                race(pc, region, at, event, does, "written");
                return;
            }
            Event *kept = &cell->read, *other = &cell->other_read;
            now.seen = atomic || has_seen(cell, shared);
            int same_thread = kept->thread == now.thread && kept->block == now.block;
            if (!same_thread && !ordered(kept, shared)) kept = other;
            *kept = now;
            continue;
        }
        const Event *before[] = {&cell->write, &cell->other_write, &cell->read, &cell->other_read};
        int same = 0; /* bits are to be the same */
        for (int e = 0; e < 4; e++) {
            const Event *event = before[e];
            if (ordered(event, shared) || (atomic && event->atomic)) continue;
            const char *did = e < 2 ? "written" : "read";
            if (run.together && !atomic && event->block != now.block && bytes <= 16) {
                run.pending = (Pending){pc, pointer, bytes, {0}, region, at, *event, did};
                memcpy(run.pending.before, pointer, bytes);
                same = 1;
                continue;
            }
            race(pc, region, at, event, does, did);
            return;
        }
        if (same && cell->write.block != now.block) cell->other_write = cell->write;
        if (!same) *cell = (Cell){{0}, {0}, {0}, {0}};
        cell->write = now;
    }
}

#define PC __builtin_return_address(0)

/* Most accesses are of a thread's own stack: kernels are not optimised. */
static inline void access_any(void *pc, void *pointer, size_t bytes, int writes) {
    const Thread *now = run.now;
    if (now != NULL && (uintptr_t)pointer - (uintptr_t)now->bottom < STACK_BYTES &&
        !run.pending.bytes)
        return;
    access_memory(pc, pointer, bytes, writes, 0);
}

#define ACCESS(bytes)                                                                              \
    EXPORT void __tsan_read##bytes(void *p) { access_any(PC, p, bytes, 0); }                       \
    EXPORT void __tsan_write##bytes(void *p) { access_any(PC, p, bytes, 1); }                      \
    EXPORT void __tsan_unaligned_read##bytes(void *p) { access_any(PC, p, bytes, 0); }             \
    EXPORT void __tsan_unaligned_write##bytes(void *p) { access_any(PC, p, bytes, 1); }            \
    EXPORT void __tsan_volatile_read##bytes(void *p) { access_any(PC, p, bytes, 0); }              \
    EXPORT void __tsan_volatile_write##bytes(void *p) { access_any(PC, p, bytes, 1); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)

EXPORT void __tsan_init(void) {}
EXPORT void __tsan_read_range(void *p, size_t bytes) { access_memory(PC, p, bytes, 0, 0); }
EXPORT void __tsan_write_range(void *p, size_t bytes) { access_memory(PC, p, bytes, 1, 0); }

/* What this block did before its last barrier is ordered before what other blocks do once they have
 * acquired it. */
static void release(void) { run.own->released = run.own->barrier; }
static void acquire(void) {
    for (int i = 0; run.together && i < run.launch->grid; i++)
        run.own->known[run.blocks[i].number - run.first_block] = run.blocks[i].released;
}

#define RELEASES(order) ((order) == __ATOMIC_RELEASE || (order) >= __ATOMIC_ACQ_REL)
#define ACQUIRES(order) ((order) == __ATOMIC_ACQUIRE || (order) >= __ATOMIC_ACQ_REL)
#define ATOMIC(bits)                                                                               \
    EXPORT uint##bits##_t __tsan_atomic##bits##_load(const uint##bits##_t *p, int order) {         \
        access_memory(PC, (void *)p, bits / 8, 0, 1);                                              \
        if (ACQUIRES(order)) acquire();                                                            \
        return *p;                                                                                 \
    }                                                                                              \
    EXPORT void __tsan_atomic##bits##_store(uint##bits##_t *p, uint##bits##_t value, int order) {  \
        access_memory(PC, p, bits / 8, 1, 1);                                                      \
        if (RELEASES(order)) release();                                                            \
        *p = value;                                                                                \
    }                                                                                              \
    EXPORT uint##bits##_t __tsan_atomic##bits##_fetch_add(uint##bits##_t *p, uint##bits##_t value, \
                                                          int order) {                             \
        access_memory(PC, p, bits / 8, 1, 1);                                                      \
        if (ACQUIRES(order)) acquire();                                                            \
        if (RELEASES(order)) release();                                                            \
        uint##bits##_t before = *p;                                                                \
        *p += value;                                                                               \
        return before;                                                                             \
    }
ATOMIC(8) ATOMIC(16) ATOMIC(32) ATOMIC(64)

EXPORT void emu_fence(void) { run.own->fenced[run.thread] = 1; }

EXPORT void emu_atomic(void *p, size_t bytes) {
    access_memory(PC, p, bytes, 1, 1);
    /* Between a fence and here, the thread's block has made its writes visible; what other blocks
     * have published by now is visible to this one. Barriers carry both to the other threads. */
    if (run.own->fenced[run.thread]) run.published[run.own->number - run.first_block] = 1;
    run.own->acquired = 1;
}

EXPORT void emu_fail(const char *problem) { fail(PC, "%s", problem); }

/* -- barriers and warps ------------------------------------------------------------------------ */

static void wait_as(enum Waiting waiting, int site) {
    run.now->waiting = waiting;
    run.now->site = site;
    leave();
}

EXPORT uint64_t emu_barrier_of(int site, uint64_t value, int threads) {
    if (run.thread >= threads || threads > run.block_threads) {
        fail(PC, "waits at a barrier of %d threads", threads);
        return 0;
    }
    run.now->value = value;
    run.now->kind = EMU_SYNC;
    run.now->members = threads;
    wait_as(AT_BARRIER, site);
    return run.now->value; /* the number of threads that gave 1 */
}

EXPORT uint64_t emu_barrier(int site, uint64_t value) {
    return emu_barrier_of(site, value, run.block_threads);
}

/* Lets the other threads of the block go on. */
EXPORT void emu_yield(void) {
    if (run.stuck) fail(PC, "waits for what never comes");
    run.yielded = 1;
    leave();
}

/* A copy that another unit makes: threads that wait for it are ordered behind it. */
EXPORT void emu_copy(void *to, const void *from, size_t bytes) {
    access_memory(PC, (void *)from, bytes, 0, 0);
    Region *region = find((uintptr_t)to);
    if (region == NULL || (uintptr_t)to + bytes > region->high ||
        region->history.cells == NULL) {
        outside(PC, (uintptr_t)to, bytes, "copies");
        return;
    }
    size_t first = ((uintptr_t)to - region->low) >> region->grain, count;
    size_t last = ((uintptr_t)to + bytes - 1 - region->low) >> region->grain;
    for (size_t i = first; i <= last; i += count)
        cell_at(region, i, last, &count)->write = (Event){run.own->number, .copied = 1};
    memcpy(to, from, bytes);
}

EXPORT uint64_t emu_warp(int kind, int site, uint32_t mask, uint64_t value, int source) {
    Thread *now = run.now;
    if (!(mask >> run.thread % LANES & 1)) {
        fail(PC, "takes part in a warp operation whose mask %#x leaves its lane out", mask);
        return 0;
    }
    now->kind = kind;
    now->mask = mask;
    now->value = value;
    now->source = source;
    wait_as(IN_WARP, site);
    return now->value;
}

/* Let the lanes of a warp operation go on, once all of them are there. */
static int release_warp(int first) {
    int lanes = run.block_threads - first < LANES ? run.block_threads - first : LANES, done = 0;
    uint64_t values[LANES];
    for (int i = 0; i < lanes; i++) values[i] = run.own->threads[first + i].value;
    uint32_t all = lanes == LANES ? ~0u : (1u << lanes) - 1;
    for (int i = 0; i < lanes; i++) {
        Thread *head = &run.own->threads[first + i];
        if (head->waiting != IN_WARP) continue;
        uint32_t mask = head->mask & all;
        int there = 1;
        uint32_t votes = 0;
        for (int l = 0; l < lanes && there; l++) {
            const Thread *lane = &run.own->threads[first + l];
            if (!(mask >> l & 1)) continue;
            there = lane->waiting == IN_WARP && lane->site == head->site &&
                    lane->kind == head->kind && (lane->mask & all) == mask;
            votes |= (uint32_t)(values[l] != 0) << l;
        }
        if (!there) continue;
        for (int l = 0; l < lanes; l++) {
            Thread *lane = &run.own->threads[first + l];
            if (!(mask >> l & 1)) continue;
            lane->waiting = RUNS;
            if (lane->kind == EMU_BALLOT) lane->value = votes;
            if (lane->kind != EMU_SHUFFLE) continue;
            if (lane->source < 0 || lane->source >= lanes || !(mask >> lane->source & 1)) {
                run.now = lane, run.thread = first + l;
                run.failed = 1;
                snprintf(run.message, sizeof run.message,
                         "reads lane %d in a shuffle, which takes no part in it (thread %d of "
                         "block %u)",
                         lane->source, run.thread, emu_state.block.x);
                return 0;
            }
            lane->value = values[lane->source];
        }
        if (head->kind == EMU_SYNC && mask == all) run.own->sync[first / LANES]++;
        done = 1;
    }
    return done;
}

static int release_barrier(void) {
    const Thread *head = &run.own->threads[0];
    int members = head->waiting == AT_BARRIER ? head->members : 0;
    uint64_t count = 0;
    for (int i = 0; i < members; i++) {
        const Thread *thread = &run.own->threads[i];
        if (thread->waiting != AT_BARRIER || thread->site != head->site) return 0;
        if (thread->members != members) return 0;
        count += thread->value;
    }
    if (members == 0) return 0;
    for (int i = 0; i < members; i++) {
        run.own->threads[i].waiting = RUNS;
        run.own->threads[i].value = count;
    }
    run.own->barrier++;
    return 1;
}

static void describe_divergence(void) {
    static const char *const states[] = {"runs", "waits at a barrier", "waits in a warp operation",
                                         "has ended"};
    const Thread *a = &run.own->threads[0], *b = a;
    for (int i = 1; i < run.block_threads && a == b; i++) {
        const Thread *t = &run.own->threads[i];
        if (t->waiting != a->waiting || t->site != a->site) b = t;
    }
    run.now = NULL;
    fail(NULL, "divergent barrier in block %u: thread 0 %s (number %d), thread %d %s (number %d)",
         emu_state.block.x, states[a->waiting], a->site, (int)(b - run.own->threads),
         states[b->waiting], b->site);
}

/* -- launches ---------------------------------------------------------------------------------- */

static void fiber_main(void) {
    for (;;) {
        run.launch->call(run.launch->arguments);
        run.now->waiting = ENDED;
        run.now->site = 0;
        run.own->alive--;
        leave();
    }
}

static int make_fiber(Thread *thread) {
    if (thread->bottom == NULL) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        unsigned char *all = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (all == MAP_FAILED) return -1;
        mprotect(all, GUARD_BYTES, PROT_NONE);
        thread->bottom = all;
    }
#if defined(__x86_64__)
    thread->stack = new_stack(thread->bottom, STACK_BYTES, fiber_main);
#else
    getcontext(thread->stack);
    thread->stack->uc_stack.ss_sp = thread->bottom;
    thread->stack->uc_stack.ss_size = STACK_BYTES;
    makecontext(thread->stack, fiber_main, 0);
#endif
    return 0;
}

static uint32_t random_below(uint32_t n) {
    run.random = run.random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((run.random >> 33) % n);
}

/* Ascending for the seed 0, descending for 1, else some order. */
static void arrange(int *order, int n, uint64_t seed) {
    for (int i = 0; i < n; i++) order[i] = seed == 1 ? n - 1 - i : i;
    if (seed < 2) return;
    for (int i = n - 1; i > 0; i--) {
        int j = (int)random_below((uint32_t)i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/* Lets a block run; what other blocks have in shared memory is kept. */
static void enter(Block *block) {
    emu_state.block.x = block->index;
    if (block == run.own) return;
    for (int i = 0; i < run.shared_count; i++) {
        Region *region = run.shared[i];
        size_t bytes = region->high - region->low;
        memcpy(run.own->shared[i], (void *)region->low, bytes);
        memcpy((void *)region->low, block->shared[i], bytes);
        region->history = block->histories[i];
    }
    run.own = block;
}

static void start_block(Block *block, unsigned index) {
    block->index = index;
    block->number = run.blocks_before++;
    block->barrier = block->released = 0;
    block->acquired = 0;
    memset(block->known, 0, sizeof block->known);
    memset(block->sync, 0, sizeof block->sync);
    memset(block->fenced, 0, sizeof block->fenced);
    for (int i = 0; i < run.block_threads; i++) block->threads[i].waiting = RUNS;
    block->alive = run.block_threads;
}

/* Lets each thread of the block that can go on do so. Returns whether any did more than wait. */
static int run_round(void) {
    int progress = 0, yields = 0;
    for (int i = 0; i < run.block_threads; i++) {
        int number = run.order[i];
        Thread *thread = &run.own->threads[number];
        if (thread->waiting != RUNS) continue;
        run.yielded = 0;
        run.now = thread;
        run.thread = number;
        emu_state.thread.x = (unsigned)number;
        emu_switch(&run.scheduler, thread->stack);
        if (run.failed) return 0;
        progress |= !run.yielded;
        yields |= run.yielded;
    }
    run.now = NULL;
    for (int first = 0; first < run.block_threads; first += LANES) {
        progress |= release_warp(first);
        if (run.failed) return 0;
    }
    progress |= release_barrier();
    if (!progress && !yields && run.own->alive) describe_divergence();
    return progress;
}

/* Runs blocks that may wait for one another until all have ended. */
static void run_blocks(int count) {
    int idle = 0; /* turns in which threads only waited for others */
    for (int alive = count; alive && !run.failed;) {
        int progress = 0;
        alive = 0;
        for (int i = 0; i < count && !run.failed; i++) {
            if (!run.blocks[i].alive) continue;
            enter(&run.blocks[i]);
            while (run.own->alive && !run.failed && run_round()) {
                progress = 1;
                if (run.launch->seed > 1 && count > 1 && random_below(4) == 0) break;
            }
            alive += run.own->alive != 0;
        }
        idle = progress ? 0 : idle + 1;
        run.stuck = idle > MOST_IDLE_ROUNDS;
    }
}

static void on_signal(int number) {
    if (run.now == NULL) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    fail(NULL, number == SIGFPE ? "divides an integer by zero, or the least one by -1"
                                : "overflows the stack, or reads a wild address");
}

/* Memory for histories: that of the launch before where it is enough. */
static int prepare_histories(size_t lines, size_t cells) {
    static size_t lines_room, cells_room;
    static Cell *all_cells;
    static uint8_t *all_runs;
    if (cells > cells_room) {
        if (all_cells) munmap(all_cells, cells_room * sizeof(Cell));
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        cells_room = cells * 2;
        all_cells = mmap(NULL, cells_room * sizeof(Cell), PROT_READ | PROT_WRITE, flags, -1, 0);
        if (all_cells == MAP_FAILED) {
            all_cells = NULL, cells_room = 0;
            return -1;
        }
    }
    if (lines > lines_room) {
        free(all_runs);
        lines_room = lines * 2;
        all_runs = malloc(lines_room);
        if (all_runs == NULL) {
            lines_room = 0;
            return -1;
        }
    }
    run.free = (History){all_cells, all_runs};
    return 0;
}

/* The history of a region, in which nothing has happened. */
static History new_history(const Region *region) {
    History history = run.free;
    size_t lines = lines_of(region);
    memset(history.runs, LINE - region->grain, lines);
    run.free.runs += lines;
    run.free.cells += lines << (LINE - region->grain);
    return history;
}

static int prepare_regions(const struct emu_launch *launch, int blocks) {
    size_t lines = 0, cells = 0;
    if (launch->region_count > MAX_REGIONS) return -1;
    run.region_count = launch->region_count;
    for (int i = 0; i < launch->region_count; i++) {
        const struct emu_region *given = &launch->regions[i];
        Region *region = &run.regions[i];
        *region = (Region){(uintptr_t)given->start, (uintptr_t)given->start + given->bytes,
                           __builtin_ctz(given->grain), given->flags, {NULL, NULL}};
        size_t own = lines_of(region) * (given->flags & EMU_SHARED ? blocks : 1);
        if (!(given->flags & EMU_WRITTEN)) continue;
        lines += own;
        cells += own << (LINE - region->grain);
    }
    if (prepare_histories(lines, cells)) return -1;
    run.shared_count = 0;
    for (int i = 0; i < launch->region_count; i++) {
        Region *region = &run.regions[i];
        if (!(region->flags & EMU_WRITTEN)) continue;
        region->history = new_history(region);
        if (!(region->flags & EMU_SHARED) || blocks == 1) continue;
        if (run.shared_count == SHARED_REGIONS) return -1;
        run.shared[run.shared_count] = region;
        for (int b = 0; b < blocks; b++) {
            Block *block = &run.blocks[b];
            block->histories[run.shared_count] = b ? new_history(region) : region->history;
            free(block->shared[run.shared_count]);
            block->shared[run.shared_count] = calloc(region->high - region->low + 1, 1);
            if (block->shared[run.shared_count] == NULL) return -1;
        }
        run.shared_count++;
    }
    run.last = NULL;
    return 0;
}

/* The error of the last launch, and the address of the code that made it. */
EXPORT const char *emu_message(void **pc) {
    *pc = run.pc;
    return run.message;
}

/* Run a launch. Returns 0, or -1 with a message. */
EXPORT int emu_launch(const struct emu_launch *launch) {
    run.launch = launch;
    run.block_threads = launch->block;
    run.failed = 0;
    run.pc = NULL;
    run.now = NULL;
    run.message[0] = 0;
    run.accesses = 0;
    run.random = launch->seed;
    run.image_low = (uintptr_t)launch->image_low;
    run.image_high = (uintptr_t)launch->image_high;
    run.together = launch->together;
    run.pending.bytes = 0;
    run.stuck = 0;
    run.own = run.blocks;
    int blocks_at_once = launch->together ? launch->grid : 1;
    int failed = blocks_at_once > MOST_TOGETHER || prepare_regions(launch, blocks_at_once);
    for (int b = 0; b < blocks_at_once && !failed; b++)
        for (int i = 0; i < launch->block && !failed; i++)
            failed = make_fiber(&run.blocks[b].threads[i]);
    unsigned char *published = calloc(launch->grid, 1);
    int *blocks = malloc(launch->grid * sizeof *blocks);
    if (failed || published == NULL || blocks == NULL) {
        free(published);
        free(blocks);
        snprintf(run.message, sizeof run.message, "no memory for the emulation");
        return -1;
    }
    run.published = published;
    static unsigned char signal_stack[1 << 16];
    stack_t alternate = {.ss_sp = signal_stack, .ss_size = sizeof signal_stack}, stack_before;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_NODEFER | SA_ONSTACK};
    struct sigaction division_before, fault_before;
    sigaltstack(&alternate, &stack_before);
    sigaction(SIGFPE, &action, &division_before);
    sigaction(SIGSEGV, &action, &fault_before);
    emu_state.block_size = (struct emu_index){(unsigned)launch->block, 1, 1};
    emu_state.grid_size = (struct emu_index){(unsigned)launch->grid, 1, 1};
    arrange(blocks, launch->grid, launch->seed);
    arrange(run.order, launch->block, launch->seed);
    run.first_block = run.blocks_before;
    for (int i = 0; i < launch->grid && !run.failed; i += blocks_at_once) {
        for (int b = 0; b < blocks_at_once; b++)
            start_block(&run.blocks[b], (unsigned)blocks[i + b]);
        run_blocks(blocks_at_once);
    }
    run.now = NULL;
    sigaction(SIGFPE, &division_before, NULL);
    sigaction(SIGSEGV, &fault_before, NULL);
    sigaltstack(&stack_before, NULL);
    free(published);
    free(blocks);
    return run.failed ? -1 : 0;
}
