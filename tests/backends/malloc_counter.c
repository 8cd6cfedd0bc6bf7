/* Preloaded into a process, counts what it allocates. Needs glibc, whose allocator stays reachable
 * under other names. */
#include <stdatomic.h>
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static _Atomic long count;

long allocations(void) { return count; }

void *malloc(size_t nbytes) {
    count++;
    return __libc_malloc(nbytes);
}

void *calloc(size_t n, size_t nbytes) {
    count++;
    return __libc_calloc(n, nbytes);
}

void *realloc(void *old, size_t nbytes) {
    count++;
    return __libc_realloc(old, nbytes);
}
