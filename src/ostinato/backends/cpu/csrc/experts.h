/* Kernels for experts whose matrices are in a file until they are needed. */
#ifndef OSTINATO_EXPERTS_H
#define OSTINATO_EXPERTS_H

#include "kernel.h"

/* The argument that select_experts reads first: constants of the call. */
typedef struct {
    int64_t first_row; /* where the list of rows starts in `groups` */
    int64_t round;     /* 0: the resident experts; from 1 on: the others */
    int64_t size;      /* how many experts a round of those stages */
} expert_choice;

/* A range of a file that the matrices of experts have a part of, in every piece. */
typedef struct {
    int64_t chunk_bytes;  /* of the file, in every piece but perhaps the last */
    int64_t matrix_bytes; /* of the file */
    int64_t room;         /* where a piece of it starts in scratch */
} expert_range;

/* The first byte of a range of an expert's matrix. */
typedef struct {
    int64_t file; /* descriptor of the open file */
    int64_t offset;
} expert_place;

/* The location of the matrices of the experts in files, and the way to pack them. A matrix is read
 * in `chunks` pieces, which `pack` takes one by one: of one range, or of several side by side. */
typedef struct {
    int64_t pack;         /* address of the kernel: a piece of each range, then its panels */
    int64_t pack_extent;  /* the extent that it runs over */
    int64_t chunks;       /* pieces of a matrix */
    int64_t chunk_stride; /* from the panels of one piece to those of the next */
    int64_t packed_bytes; /* of a packed matrix */
    int64_t piece_bytes;  /* of scratch for a piece of all ranges; the rest is the kernel's */
    int64_t experts;      /* how many there are */
    int64_t range_count;  /* how many ranges a matrix has, EXPERT_RANGES at most */
    int64_t bytes_read;   /* counted here: of all that was read */
    int64_t failures;     /* counted here: ranges of pieces that could not be read */
    int64_t numbers[];    /* an expert_range for each range; then by range, by expert, its place */
} expert_source;

enum { EXPERT_RANGES = 2 };

/* select_experts(choice, groups, slots, chosen, staged): of the parts in `groups`, laid out as
 * ostinato.backends.cpu.rules.group_rows.GroupLayout says, leaves in `chosen` those of one round, with
 * numbers of slots instead of experts. `slots` has the slot of every expert, or -1. In a round of experts
 * that are not resident, these are numbered from 0, and `staged` lists them, -1 beyond the last. */
void select_experts_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                           char *scratch);

/* stage_experts(source, staged, target): item `i * chunks + c` reads piece `c` of the matrix of
 * expert `staged[i]`, unless that is -1, and packs it into the i-th matrix of `target`. What can
 * not be read is filled with ones, which are NaNs in all formats but MXFP4, and counted. */
void stage_experts_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                          char *scratch);

#endif
