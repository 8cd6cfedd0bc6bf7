/* Zeroed, page-aligned memory straight from the operating system. */
#ifndef OSTINATO_MEMORY_H
#define OSTINATO_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *address;   /* page aligned (2 MiB aligned when huge pages were asked for); never NULL */
    size_t nbytes;   /* what the caller asked for */
    size_t reserved; /* what is mapped, and must be unmapped */
} memory_block;

/* Fills `block` and returns true, or returns false when the system has no such memory.
 * Zero bytes are allowed and still give a valid address. */
bool memory_map(memory_block *block, size_t nbytes, bool huge_pages);

/* Gives pages within [address, address + nbytes) back to the system; they read as zero again. */
void memory_discard(char *address, size_t nbytes);

/* Makes the block code that can be run and no longer written; false, with errno set, where the
 * system forbids it. */
bool memory_seal(memory_block *block);

/* Gives the memory back; a block that was never mapped (all zero) is left alone. */
void memory_unmap(memory_block *block);

#endif
