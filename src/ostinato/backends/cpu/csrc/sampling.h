/* The choice of tokens by their weights. */
#ifndef OSTINATO_SAMPLING_H
#define OSTINATO_SAMPLING_H

#include "kernel.h"

/* Digits of a weight's bits, by which tokens are counted: 12, 10 and 10 of them. */
enum { WEIGHT_BUCKETS = 4096 };

/* How many tokens, and the sum of their weights, of each value of a digit. */
typedef struct {
    int64_t counts[WEIGHT_BUCKETS];
    double sums[WEIGHT_BUCKETS];
} weight_histogram;

/* draw(sizes, weights, uniform, top_k, top_p, min_p, tokens): item `r` draws a token for row `r`;
 * sizes[0] is the number of tokens. Scratch has a histogram. */
void draw_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                 char *scratch);

#endif
