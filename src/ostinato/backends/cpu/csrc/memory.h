/* Zeroed, page-aligned memory straight from the operating system. */
#ifndef OSTINATO_MEMORY_H
#define OSTINATO_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *address;   /* page aligned (2 MiB aligned with huge pages); never NULL */
    size_t nbytes;   /* what the caller asked for */
    size_t reserved; /* what is mapped, and must be unmapped */
} memory_block;

/* Fills `block` and returns true, or returns false when the system has no such memory.
 * Zero bytes are allowed and still give a valid address. */
bool memory_map(memory_block *block, size_t nbytes, bool huge_pages);

/* Like memory_map, with the first bytes of a file as contents, which has at least as many. With
 * `shared`, what is written becomes the file's, which is then open for writing too; else writes
 * are this process's alone, and pages that are not written are shared by all that map the file.
 * Where the file has a huge page or more, the block starts at a boundary of one, and its pages are
 * huge if the file system can. On failure errno is set. */
bool memory_map_file(memory_block *block, int file, size_t nbytes, bool shared);

/* Gives pages within [address, address + nbytes) back to the system; they read as zero again. */
void memory_discard(char *address, size_t nbytes);

/* Makes the block code that can be run and no longer written; false, with errno set, where the
 * system forbids it. */
bool memory_seal(memory_block *block);

/* Gives the memory back; a block that was never mapped (all zero) is left alone. */
void memory_unmap(memory_block *block);

#endif
