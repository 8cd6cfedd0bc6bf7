#include "memory.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The size of a huge page on x86-64 and on arm64 with 4 KiB pages. Elsewhere, the only effect is a
 * needless alignment. */
#define HUGE_PAGE ((size_t)2 << 20)

static size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

/* Nothing is reserved: arenas have room for the greatest sizes, of which runs touch what they use. */
static char *map_pages(size_t nbytes) {
    void *address =
        mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
             -1, 0);
    return address == MAP_FAILED ? NULL : address;
}

/* Advice only: a kernel without huge pages refuses it and the memory works all the same. */
static void advise_huge_pages(char *address, size_t nbytes) {
#ifdef MADV_HUGEPAGE
    (void)madvise(address, nbytes, MADV_HUGEPAGE);
#endif
}

/* mmap promises page alignment only, and a huge page must start on a huge-page boundary: map one
 * huge page too many, then give back what lies before and after the aligned part. */
static char *map_huge_aligned(size_t nbytes) {
    char *start = map_pages(nbytes + HUGE_PAGE);
    if (start == NULL) {
        return NULL;
    }
    size_t before = (HUGE_PAGE - (uintptr_t)start % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0) {
        munmap(start, before);
    }
    munmap(start + before + nbytes, HUGE_PAGE - before);
    return start + before;
}

bool memory_map(memory_block *block, size_t nbytes, bool huge_pages) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (nbytes > SIZE_MAX / 2) {
        return false; /* keeps the roundings below from overflowing */
    }
    bool huge = huge_pages && nbytes >= HUGE_PAGE;
    size_t reserved = round_up(nbytes > 0 ? nbytes : 1, page);
    char *address = huge ? map_huge_aligned(reserved) : map_pages(reserved);
    if (address == NULL) {
        return false;
    }
    if (huge) {
        advise_huge_pages(address, reserved);
    }
    *block = (memory_block){.address = address, .nbytes = nbytes, .reserved = reserved};
    return true;
}

bool memory_map_file(memory_block *block, int file, size_t nbytes, bool shared) {
    size_t reserved = nbytes > 0 ? round_up(nbytes, (size_t)sysconf(_SC_PAGESIZE)) : 0;
    if (reserved == 0) {
        return memory_map(block, 0, false); /* a file of no bytes can not be mapped */
    }
    bool huge = reserved >= HUGE_PAGE;
    char *place = huge ? map_huge_aligned(reserved) : NULL;
    if (huge && place == NULL) {
        return false;
    }
    /* Nothing is reserved: weights are hardly ever written. */
    int flags = shared ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE;
    void *address =
        mmap(place, reserved, PROT_READ | PROT_WRITE, huge ? flags | MAP_FIXED : flags, file, 0);
    if (address == MAP_FAILED) {
        if (huge) {
            munmap(place, reserved);
        }
        return false;
    }
    if (huge) {
        /* Where the file system has large folios, pages of the file that are written or read from
         * the disk from now on are huge, too. Those that are in memory stay as they are. */
        advise_huge_pages(address, reserved);
    }
    *block = (memory_block){.address = address, .nbytes = nbytes, .reserved = reserved};
    return true;
}

void memory_discard(char *address, size_t nbytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t before = (page - (uintptr_t)address % page) % page;
    size_t whole = nbytes > before ? (nbytes - before) / page * page : 0;
    if (whole == 0 || madvise(address + before, whole, MADV_DONTNEED) != 0) {
        before = whole = 0; /* all of it is cleared by hand */
    }
    memset(address, 0, before);
    memset(address + before + whole, 0, nbytes - before - whole);
}

bool memory_seal(memory_block *block) {
    __builtin___clear_cache(block->address, block->address + block->nbytes);
    return mprotect(block->address, block->reserved, PROT_READ | PROT_EXEC) == 0;
}

void memory_unmap(memory_block *block) {
    if (block->address != NULL) {
        munmap(block->address, block->reserved);
        *block = (memory_block){0};
    }
}
