/* The emulator of CUDA blocks: threads as fibers, barriers, and a check of every memory access.
 *
 * Kernels are compiled with -fsanitize=thread, whose calls before each load and store come here,
 * to __tsan_read4 and its kin: the sanitizer's own runtime is not linked. A launch runs its blocks
 * one after another. Each thread of a block is a fiber, which runs until it waits at a barrier or
 * in a warp operation.
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
    uint64_t block;
    uint32_t barrier, sync;
    uint16_t thread;
    uint8_t atomic, copied;
} Event;

typedef struct {
    Event write, read, other_read;
} Cell;

typedef struct {
    uintptr_t low, high;
    unsigned grain; /* bytes of a cell */
    int flags;
    Cell *cells;
} Region;

static struct {
    Thread threads[MAX_THREADS];
    int order[MAX_THREADS];
    Thread *now;
    int thread, block_threads, alive;
    Stack scheduler;
    const struct emu_launch *launch;
    uint64_t first_block, block; /* of the launch, and the present one; they count up for ever */
    uint32_t barrier;            /* barriers that the block has passed */
    uint32_t sync[MAX_THREADS / LANES];
    unsigned char *published; /* by block of the launch: fenced, then updated an atomic */
    int acquired;             /* the block has updated an atomic */
    int fenced[MAX_THREADS];
    Region regions[MAX_REGIONS];
    int region_count;
    Region *last;
    uintptr_t image_low, image_high;
    uint64_t accesses;
    int yielded; /* the thread that ran last only waits for others */
    int failed;
    void *pc;
    char message[1024];
    uint64_t random;
} run = {.block = 1};

static void leave(void) { emu_switch(&run.now->stack, run.scheduler); }

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

static int ordered(const Event *event, int shared) {
    if (event->block != run.block) {
        if (shared || event->block < run.first_block) return 1; /* of an earlier block's memory */
        return run.acquired && run.published[event->block - run.first_block];
    }
    if (event->copied || event->thread == run.thread || event->barrier < run.barrier) return 1;
    int warp = event->thread / LANES;
    return warp == run.thread / LANES && event->sync < run.sync[warp];
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
    long long element = ((long long)address - (long long)nearest->low) / (long long)nearest->grain;
    fail(pc, "%s %zu bytes at element %lld of %s, which has %zu elements", does, bytes, element,
         name_of(nearest), (size_t)(nearest->high - nearest->low) / nearest->grain);
}

static void race(void *pc, const Region *region, uintptr_t address, const Event *event,
                 const char *does, const char *did) {
    fail(pc, "data race: %s element %zu of %s, which thread %d of %s has %s with no barrier between",
         does, (size_t)(address - region->low) / region->grain, name_of(region), event->thread,
         event->block == run.block ? "the same block" : "another block", did);
}

static void access_memory(void *pc, void *pointer, size_t bytes, int writes, int atomic) {
    uintptr_t address = (uintptr_t)pointer;
    if (address - (uintptr_t)&emu_state < sizeof emu_state || run.now == NULL) return;
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
    if (region->cells == NULL) {
        if (writes) fail(pc, "writes %s, which is read only", name_of(region));
        return;
    }
    int shared = region->flags & EMU_SHARED;
    Event now = {run.block, run.barrier, run.sync[run.thread / LANES], (uint16_t)run.thread,
                 (uint8_t)atomic, 0};
    size_t first = (address - region->low) / region->grain;
    size_t last = (address + bytes - 1 - region->low) / region->grain;
    for (size_t i = first; i <= last; i++) {
        Cell *cell = &region->cells[i];
        uintptr_t at = region->low + i * region->grain;
        if (!ordered(&cell->write, shared) && !(atomic && cell->write.atomic)) {
            race(pc, region, at, &cell->write, does, "written");
            return;
        }
        if (!writes || atomic) {
            uint64_t since = shared ? run.block : run.first_block;
            if ((region->flags & EMU_UNSET) && cell->write.block < since) {
                fail(pc, "reads element %zu of %s, which nothing has written", i, name_of(region));
                return;
            }
        }
        if (!writes) {
            Event *kept = &cell->read;
            if (kept->thread != now.thread && !ordered(kept, shared)) kept = &cell->other_read;
            *kept = now;
            continue;
        }
        const Event *reads[] = {&cell->read, &cell->other_read};
        for (int r = 0; r < 2; r++)
            if (!ordered(reads[r], shared)) {
                race(pc, region, at, reads[r], does, "read");
                return;
            }
        cell->write = now;
    }
}

#define PC __builtin_return_address(0)
#define ACCESS(bytes)                                                                              \
    EXPORT void __tsan_read##bytes(void *p) { access_memory(PC, p, bytes, 0, 0); }                 \
    EXPORT void __tsan_write##bytes(void *p) { access_memory(PC, p, bytes, 1, 0); }                \
    EXPORT void __tsan_unaligned_read##bytes(void *p) { access_memory(PC, p, bytes, 0, 0); }       \
    EXPORT void __tsan_unaligned_write##bytes(void *p) { access_memory(PC, p, bytes, 1, 0); }      \
    EXPORT void __tsan_volatile_read##bytes(void *p) { access_memory(PC, p, bytes, 0, 0); }        \
    EXPORT void __tsan_volatile_write##bytes(void *p) { access_memory(PC, p, bytes, 1, 0); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)

EXPORT void __tsan_init(void) {}
EXPORT void __tsan_read_range(void *p, size_t bytes) { access_memory(PC, p, bytes, 0, 0); }
EXPORT void __tsan_write_range(void *p, size_t bytes) { access_memory(PC, p, bytes, 1, 0); }

EXPORT void emu_fence(void) { run.fenced[run.thread] = 1; }

EXPORT void emu_atomic(void *p, size_t bytes) {
    access_memory(PC, p, bytes, 1, 1);
    /* Between a fence and here, the thread's block has made its writes visible; what other blocks
     * have published by now is visible to this one. Barriers carry both to the other threads. */
    if (run.fenced[run.thread]) run.published[run.block - run.first_block] = 1;
    run.acquired = 1;
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
    run.yielded = 1;
    leave();
}

/* A copy that another unit makes: threads that wait for it are ordered behind it. */
EXPORT void emu_copy(void *to, const void *from, size_t bytes) {
    access_memory(PC, (void *)from, bytes, 0, 0);
    Region *region = find((uintptr_t)to);
    if (region == NULL || (uintptr_t)to + bytes > region->high || region->cells == NULL) {
        outside(PC, (uintptr_t)to, bytes, "copies");
        return;
    }
    size_t first = ((uintptr_t)to - region->low) / region->grain;
    size_t last = ((uintptr_t)to + bytes - 1 - region->low) / region->grain;
    for (size_t i = first; i <= last; i++) region->cells[i].write = (Event){run.block, .copied = 1};
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
    for (int i = 0; i < lanes; i++) values[i] = run.threads[first + i].value;
    uint32_t all = lanes == LANES ? ~0u : (1u << lanes) - 1;
    for (int i = 0; i < lanes; i++) {
        Thread *head = &run.threads[first + i];
        if (head->waiting != IN_WARP) continue;
        uint32_t mask = head->mask & all;
        int there = 1;
        uint32_t votes = 0;
        for (int l = 0; l < lanes && there; l++) {
            const Thread *lane = &run.threads[first + l];
            if (!(mask >> l & 1)) continue;
            there = lane->waiting == IN_WARP && lane->site == head->site &&
                    lane->kind == head->kind && (lane->mask & all) == mask;
            votes |= (uint32_t)(values[l] != 0) << l;
        }
        if (!there) continue;
        for (int l = 0; l < lanes; l++) {
            Thread *lane = &run.threads[first + l];
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
        if (head->kind == EMU_SYNC && mask == all) run.sync[first / LANES]++;
        done = 1;
    }
    return done;
}

static int release_barrier(void) {
    const Thread *head = &run.threads[0];
    int members = head->waiting == AT_BARRIER ? head->members : 0;
    uint64_t count = 0;
    for (int i = 0; i < members; i++) {
        const Thread *thread = &run.threads[i];
        if (thread->waiting != AT_BARRIER || thread->site != head->site) return 0;
        if (thread->members != members) return 0;
        count += thread->value;
    }
    if (members == 0) return 0;
    for (int i = 0; i < members; i++) {
        run.threads[i].waiting = RUNS;
        run.threads[i].value = count;
    }
    run.barrier++;
    return 1;
}

static void describe_divergence(void) {
    static const char *const states[] = {"runs", "waits at a barrier", "waits in a warp operation",
                                         "has ended"};
    const Thread *a = &run.threads[0], *b = a;
    for (int i = 1; i < run.block_threads && a == b; i++) {
        const Thread *t = &run.threads[i];
        if (t->waiting != a->waiting || t->site != a->site) b = t;
    }
    run.now = NULL;
    fail(NULL, "divergent barrier in block %u: thread 0 %s (number %d), thread %d %s (number %d)",
         emu_state.block.x, states[a->waiting], a->site, (int)(b - run.threads), states[b->waiting],
         b->site);
}

/* -- launches ---------------------------------------------------------------------------------- */

static void fiber_main(void) {
    for (;;) {
        run.launch->call(run.launch->arguments);
        run.now->waiting = ENDED;
        run.now->site = 0;
        run.alive--;
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

static void run_block(void) {
    run.barrier = 0;
    run.acquired = 0;
    memset(run.sync, 0, sizeof run.sync);
    memset(run.fenced, 0, sizeof run.fenced);
    for (int i = 0; i < run.block_threads; i++) run.threads[i].waiting = RUNS;
    run.alive = run.block_threads;
    int idle = 0; /* rounds in which threads only waited for others */
    while (run.alive) {
        int progress = 0, yields = 0;
        for (int i = 0; i < run.block_threads; i++) {
            int number = run.order[i];
            Thread *thread = &run.threads[number];
            if (thread->waiting != RUNS) continue;
            run.yielded = 0;
            run.now = thread;
            run.thread = number;
            emu_state.thread.x = (unsigned)number;
            emu_switch(&run.scheduler, thread->stack);
            if (run.failed) return;
            progress |= !run.yielded;
            yields |= run.yielded;
        }
        run.now = NULL;
        for (int first = 0; first < run.block_threads; first += LANES) {
            progress |= release_warp(first);
            if (run.failed) return;
        }
        progress |= release_barrier();
        idle = progress ? 0 : idle + 1;
        if (!progress && run.alive && (!yields || idle > MOST_IDLE_ROUNDS)) {
            describe_divergence();
            return;
        }
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

static int prepare_regions(const struct emu_launch *launch) {
    static Cell *cells;
    static size_t room;
    size_t needed = 0;
    if (launch->region_count > MAX_REGIONS) return -1;
    run.region_count = launch->region_count;
    for (int i = 0; i < launch->region_count; i++) {
        const struct emu_region *given = &launch->regions[i];
        Region *region = &run.regions[i];
        *region = (Region){(uintptr_t)given->start, (uintptr_t)given->start + given->bytes,
                           given->grain, given->flags, NULL};
        if (given->flags & EMU_WRITTEN) needed += (given->bytes + given->grain - 1) / given->grain;
    }
    if (needed > room) {
        if (cells) munmap(cells, room * sizeof(Cell));
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        room = needed * 2;
        cells = mmap(NULL, room * sizeof(Cell), PROT_READ | PROT_WRITE, flags, -1, 0);
        if (cells == MAP_FAILED) {
            cells = NULL, room = 0;
            return -1;
        }
    }
    size_t used = 0;
    for (int i = 0; i < launch->region_count; i++) {
        Region *region = &run.regions[i];
        if (!(region->flags & EMU_WRITTEN)) continue;
        region->cells = cells + used;
        used += (region->high - region->low + region->grain - 1) / region->grain;
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
    int failed = prepare_regions(launch);
    for (int i = 0; i < launch->block && !failed; i++) failed = make_fiber(&run.threads[i]);
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
    run.first_block = run.block;
    for (int i = 0; i < launch->grid && !run.failed; i++, run.block++) {
        emu_state.block.x = (unsigned)blocks[i];
        run_block();
    }
    run.now = NULL;
    sigaction(SIGFPE, &division_before, NULL);
    sigaction(SIGSEGV, &fault_before, NULL);
    sigaltstack(&stack_before, NULL);
    free(published);
    free(blocks);
    return run.failed ? -1 : 0;
}
