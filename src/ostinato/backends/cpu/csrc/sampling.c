#include "sampling.h"

#include <stdbool.h>
#include <string.h>

/* Tokens whose weights are added up at a time, before the one that is drawn is looked for. */
enum { CHUNK = 512, SUMS = 8 };

/* The tokens that are kept: those of a greater weight than `least`, and of that weight those up to
 * the number `last`. A weight of 0 is never kept. */
typedef struct {
    float least;
    int64_t last;
} cut;

static bool keeps(const cut *c, const float *weights, int64_t token) {
    float weight = weights[token];
    return weight > c->least || (weight == c->least && token <= c->last && weight > 0);
}

/* The sum of the kept weights of some tokens, in an order that depends on their number alone. */
static double kept_sum(const cut *c, const float *weights, int64_t begin, int64_t end) {
    double sums[SUMS] = {0};
    float least = c->least;
    int64_t whole = begin + (end - begin) / SUMS * SUMS;
    for (int64_t at = begin; at < whole; at += SUMS) {
        for (int i = 0; i < SUMS; i++) {
            float weight = weights[at + i];
            bool tie = weight == least && at + i <= c->last;
            sums[i] += weight > least || tie ? (double)weight : 0.0;
        }
    }
    double total = 0;
    for (int64_t at = whole; at < end; at++) {
        total += keeps(c, weights, at) ? (double)weights[at] : 0.0;
    }
    for (int i = 0; i < SUMS; i++) {
        total += sums[i];
    }
    return total;
}

/* ---- the weight at a rank -------------------------------------------------------------------- */

static uint32_t bits_of(float weight) {
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return bits;
}

static float weight_of(uint32_t bits) {
    float weight;
    memcpy(&weight, &bits, sizeof weight);
    return weight;
}

/* What is looked for, from the greatest weight down: where the number of tokens, or the sum of their
 * weights, reaches a target, which needs none of those up to a weight. */
typedef struct {
    const float *weights;
    int64_t tokens;
    double target;
    bool by_weight;
    float unneeded;
} rank;

/* A search that has got as far as the leading bits of a weight. */
typedef struct {
    uint32_t bits;  /* those that are known */
    int shift;      /* how many are not */
    double reached; /* by the tokens of greater weights */
} progress;

/* Finds the next digit of `p`; false if the target is not reached. */
static bool find_digit(const rank *r, progress *p, int width, weight_histogram *h) {
    int shift = p->shift - width;
    uint32_t digits = (uint32_t)1 << width;
    memset(h->counts, 0, sizeof *h->counts * digits);
    memset(h->sums, 0, sizeof *h->sums * digits);
    for (int64_t token = 0; token < r->tokens; token++) {
        float weight = r->weights[token];
        uint32_t bits = bits_of(weight);
        if (weight > r->unneeded && (uint64_t)bits >> p->shift == (uint64_t)p->bits >> p->shift) {
            uint32_t digit = bits >> shift & (digits - 1);
            h->counts[digit]++;
            h->sums[digit] += weight;
        }
    }
    for (uint32_t digit = digits; digit-- > 0;) {
        double more = r->by_weight ? h->sums[digit] : (double)h->counts[digit];
        if (h->counts[digit] > 0 && p->reached + more >= r->target) {
            p->bits |= digit << shift;
            p->shift = shift;
            return true;
        }
        p->reached += more;
    }
    return false;
}

/* The fewest tokens of the first ranks that reach the target, at least one; all of them if they do
 * not. */
static cut cut_at(const rank *r, weight_histogram *h) {
    static const int widths[] = {12, 10, 10};
    cut all = {0, r->tokens};
    progress p = {0, 32, 0};
    for (int digit = 0; digit < 3; digit++) {
        if (!find_digit(r, &p, widths[digit], h)) {
            /* Later digits: in another order, sums may fall a little short. */
            return digit == 0 ? all : (cut){weight_of(p.bits), r->tokens};
        }
    }
    cut found = {weight_of(p.bits), -1};
    double each = r->by_weight ? (double)found.least : 1.0;
    for (int64_t token = 0; token < r->tokens; token++) {
        if (r->weights[token] == found.least) {
            if (found.last >= 0 && p.reached >= r->target) {
                break;
            }
            found.last = token;
            p.reached += each;
        }
    }
    return found;
}

/* The narrower of two cuts. */
static cut narrower(cut a, cut b) {
    if (a.least == b.least) {
        return a.last < b.last ? a : b;
    }
    return a.least > b.least ? a : b;
}

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct {
    const float *weights;
    int64_t tokens;
    float uniform, top_p, min_p;
    int64_t top_k;
} row;

/* The token of the greatest weight, of several the first; 0 if none is above 0. */
static int64_t first_rank(const row *r) {
    float greatest[SUMS] = {0}, most = 0;
    int64_t whole = r->tokens / SUMS * SUMS;
    for (int64_t at = 0; at < whole; at += SUMS) {
        for (int i = 0; i < SUMS; i++) {
            float weight = r->weights[at + i];
            greatest[i] = weight > greatest[i] ? weight : greatest[i];
        }
    }
    for (int64_t at = whole; at < r->tokens; at++) {
        most = r->weights[at] > most ? r->weights[at] : most;
    }
    for (int i = 0; i < SUMS; i++) {
        most = greatest[i] > most ? greatest[i] : most;
    }
    for (int64_t token = 0; most > 0; token++) {
        if (r->weights[token] == most) {
            return token;
        }
    }
    return 0;
}

/* The tokens that the filters of a row keep. */
static cut filtered(const row *r, weight_histogram *h) {
    cut kept = {0, r->tokens};
    if (r->top_k > 0 && r->top_k < r->tokens) {
        rank first = {r->weights, r->tokens, (double)r->top_k, false, 0};
        kept = cut_at(&first, h);
    }
    if (r->top_p < 1) {
        double share = r->top_p > 0 ? r->top_p : 0;
        double whole = kept_sum(&kept, r->weights, 0, r->tokens);
        /* Tokens of this weight or less add up to less than what may be left out. */
        float rare = (float)((1 - share) * whole / (double)r->tokens / 2);
        rank first = {r->weights, r->tokens, share * whole, true, rare};
        kept = narrower(kept, cut_at(&first, h));
    }
    if (r->min_p > 0) {
        cut likely = {r->min_p * r->weights[first_rank(r)], r->tokens};
        kept = narrower(kept, likely);
    }
    return kept;
}

/* The first of some tokens at which the sum of kept weights exceeds what is drawn, else the last
 * that is kept, else -1. */
static int64_t find(const row *r, const cut *kept, int64_t begin, int64_t end, double sum,
                    double drawn) {
    int64_t last = -1;
    for (int64_t token = begin; token < end; token++) {
        if (keeps(kept, r->weights, token)) {
            last = token;
            sum += r->weights[token];
            if (sum > drawn) {
                break;
            }
        }
    }
    return last;
}

static int32_t draw(const row *r, weight_histogram *h) {
    if (r->top_k == 1 || r->min_p > 1) {
        return (int32_t)first_rank(r);
    }
    cut kept = filtered(r, h);
    double total = 0;
    for (int64_t at = 0; at < r->tokens; at += CHUNK) {
        int64_t end = at + CHUNK < r->tokens ? at + CHUNK : r->tokens;
        total += kept_sum(&kept, r->weights, at, end);
    }
    double drawn = r->uniform > 0 ? r->uniform * total : 0, sum = 0;
    for (int64_t at = 0; at < r->tokens; at += CHUNK) {
        int64_t end = at + CHUNK < r->tokens ? at + CHUNK : r->tokens;
        double more = kept_sum(&kept, r->weights, at, end);
        if (sum + more > drawn) {
            return (int32_t)find(r, &kept, at, end, sum, drawn);
        }
        sum += more;
    }
    for (int64_t token = r->tokens - 1; token > 0; token--) {
        if (keeps(&kept, r->weights, token)) {
            return (int32_t)token;
        }
    }
    return 0;
}

void draw_kernel(char *const *buffers, const int64_t *vars, int64_t begin, int64_t end,
                 char *scratch) {
    (void)vars;
    int64_t tokens = *(const int64_t *)buffers[0];
    for (int64_t item = begin; item < end; item++) {
        row r = {
            .weights = (const float *)buffers[1] + item * tokens,
            .tokens = tokens,
            .uniform = ((const float *)buffers[2])[item],
            .top_k = ((const int64_t *)buffers[3])[item],
            .top_p = ((const float *)buffers[4])[item],
            .min_p = ((const float *)buffers[5])[item],
        };
        ((int32_t *)buffers[6])[item] = draw(&r, (weight_histogram *)scratch);
    }
}
