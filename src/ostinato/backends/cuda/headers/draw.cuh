// The choice of a token from a row of weights, by a block.
//
// Weights are compared as words: those of floats that are not negative are in their order. They are
// added as integers, in units of 2^-40 of the greatest, so that sums do not depend on an order.
#pragma once
#include "arithmetic.cuh"
#include "products.cuh"

namespace ost {

// A row of weights and what a block knows of it, in shared memory.
template <int Threads, int Most>
struct drawing {
    typedef unsigned long long wide;

    static constexpr int warps = Threads / 32;

    // Parts of a reduction, its result, and a number that threads have in common.
    struct shared {
        wide parts[2][warps], sums[2];
        int listed, common;
        unsigned keys[Most];
    };

    const float* row;
    int count;
    shared& kept;
    float first_factor = 1, second_factor = 1;
    unsigned lowest = 0, most = 0;  // of the words that there are, or that are listed
    bool is_listed = false;

    // A weight that counts: what is not above 0 is 0.
    static unsigned word(float weight) {
        return weight > 0 ? bits_as<unsigned>(::fminf(weight, number<float>::greatest_finite())) : 0;
    }

    unsigned key(int token) const { return word(row[token]); }

    // Calls a function with the word of each token, and its number, in parts of four where the row
    // has vectors.
    template <class Function>
    void each(Function function) const {
        typedef vector<float, 4> four;
        const bool whole = count % 4 == 0 && (wide)row % sizeof(four) == 0;
        const int vectors = whole ? count / 4 : 0;
#pragma unroll 4
        for (int i = threadIdx.x; i < vectors; i += Threads) {
            const four weights = ((const four*)row)[i];
#pragma unroll
            for (int e = 0; e < 4; e++) function(word(weights.at[e]), 4 * i + e);
        }
        for (int i = 4 * vectors + threadIdx.x; i < count; i += Threads) function(key(i), i);
    }

    wide mass(unsigned key) const {
        return (wide)(bits_as<float>(key) * first_factor * second_factor);
    }

    // The sums of two numbers of all threads.
    void reduce(wide& first, wide& second) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            first += __shfl_xor_sync(0xFFFFFFFFu, first, step);
            second += __shfl_xor_sync(0xFFFFFFFFu, second, step);
        }
        __syncthreads();
        if (lane == 0) {
            kept.parts[0][warp] = first;
            kept.parts[1][warp] = second;
        }
        __syncthreads();
        if (threadIdx.x < 2) {
            wide sum = 0;
            for (int i = 0; i < warps; i++) sum += kept.parts[threadIdx.x][i];
            kept.sums[threadIdx.x] = sum;
        }
        __syncthreads();
        first = kept.sums[0];
        second = kept.sums[1];
    }

    // The greatest weight's word, and the lowest token that has it.
    unsigned greatest(int& token) {
        wide best = 0;
        each([&](unsigned word, int i) {
            const wide own = (wide)word << 32 | (0xFFFFFFFFu - (unsigned)i);
            best = best < own ? own : best;
        });
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const wide other = __shfl_xor_sync(0xFFFFFFFFu, best, step);
            best = best < other ? other : best;
        }
        __syncthreads();
        if (threadIdx.x % 32 == 0) kept.parts[0][threadIdx.x / 32] = best;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int i = 1; i < warps; i++)
                best = best < kept.parts[0][i] ? kept.parts[0][i] : best;
            kept.sums[0] = best;
        }
        __syncthreads();
        best = kept.sums[0];
        token = (int)(0xFFFFFFFFu - (unsigned)best);
        return (unsigned)(best >> 32);
    }

    // Goes on with all tokens instead of those that are listed.
    void whole() {
        is_listed = false;
        lowest = 0;
    }

    // Chooses the unit of sums, by the greatest weight's word.
    void scale(unsigned most) {
        const int exponent = (int)(most >> 23) - 126;
        const int powers = 40 - exponent, half = powers / 2;
        first_factor = float_of((unsigned)(half + 127) << 23);
        second_factor = float_of((unsigned)(powers - half + 127) << 23);
    }

    // The number of tokens with a weight of such a word or a greater one, and their sum.
    void at_least(unsigned least, wide& tokens, wide& sum) {
        wide found = 0, total = 0;
        const auto add = [&](unsigned own, int) {
            found += own >= least;
            total += own >= least ? mass(own) : 0;
        };
        if (is_listed)
            for (int i = threadIdx.x; i < kept.listed; i += Threads) add(kept.keys[i], i);
        else
            each(add);
        reduce(found, total);
        tokens = found;
        sum = total;
    }

    // Lists the words from one on, if there is room for them, and sums up all of them. What is
    // chosen after it has to be among these.
    wide list(unsigned least) {
        if (threadIdx.x == 0) kept.listed = 0;
        __syncthreads();
        wide sum = 0, none = 0;
        for (int start = 0; start < count; start += Threads) {
            const int token = start + threadIdx.x;
            const unsigned own = token < count ? key(token) : 0;
            sum += mass(own);
            const bool wanted = token < count && own >= least;
            const unsigned lanes = __ballot_sync(0xFFFFFFFFu, wanted);
            const int lane = threadIdx.x % 32;
            int place = 0;
            if (lane == 0 && lanes != 0) place = atomicAdd(&kept.listed, __popc(lanes));
            place = __shfl_sync(0xFFFFFFFFu, place, 0) + __popc(lanes & ((1u << lane) - 1));
            if (wanted && place < Most) kept.keys[place] = own;
        }
        reduce(sum, none);
        is_listed = kept.listed <= Most;
        lowest = is_listed ? least : 0;
        return sum;
    }

    // Lists words among which the first so many are, where there are not too many of these.
    void list_first(wide wanted) {
        unsigned low = 0, high = most;
        wide tokens = 0, sum;
        while (wanted <= Most && low < high) {
            const unsigned middle = low + (high - low + 1) / 2;
            at_least(middle, tokens, sum);
            if (tokens < wanted) high = middle - 1;
            else low = middle;
            if (tokens >= wanted && tokens <= Most) {
                list(middle);
                return;
            }
        }
    }

    // The word at which the tokens of that weight and more are `wanted` of them at least, or their
    // sum is; how many of those of that very weight are needed for it, and the sum then.
    template <bool BySum>
    unsigned cut(wide wanted, wide& ties, wide& sum) {
        const int bits = 32 - __clz((int)(lowest ^ most));
        unsigned low = bits == 32 ? 0 : most >> bits << bits;
        for (int bit = bits - 1; bit >= 0; bit--) {
            wide tokens, total;
            at_least(low | 1u << bit, tokens, total);
            if ((BySum ? total : tokens) >= wanted) low |= 1u << bit;
        }
        wide tokens, above;
        at_least(low + 1, tokens, above);
        const wide own = mass(low);
        if (BySum) ties = own == 0 ? 1 : (wanted - above + own - 1) / own;
        else ties = wanted - tokens;
        sum = above + ties * own;
        return low;
    }

    // The first token up to which a measure of tokens adds up to more than a number; `count` if it
    // does not. A warp has a part of the tokens, then a part of the part where that is.
    template <class Measure>
    int first_beyond(wide number, Measure measure) {
        int begin = 0, end = count;
        while (end - begin > warps) {
            const int length = (end - begin + warps - 1) / warps;
            const int own = begin + threadIdx.x / 32 * length;
            const int stop = own + length < end ? own + length : end;
            wide sum = 0;
            for (int i = own + threadIdx.x % 32; i < stop; i += 32) sum += measure(i);
#pragma unroll
            for (int step = 16; step > 0; step /= 2)
                sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
            __syncthreads();
            if (threadIdx.x % 32 == 0) kept.parts[0][threadIdx.x / 32] = sum;
            __syncthreads();
            int part = 0;
            while (part < warps && kept.parts[0][part] <= number) number -= kept.parts[0][part++];
            if (part == warps) return count;
            begin += part * length;
            end = begin + length < end ? begin + length : end;
        }
        for (int i = begin; i < end; i++) {
            const wide own = measure(i);
            if (own > number) return i;
            number -= own;
        }
        return count;
    }

    // The last token whose weight is above 0 among those that are kept.
    template <class Kept>
    int last(Kept is_kept) {
        int found = 0;
        for (int i = threadIdx.x; i < count; i += Threads)
            if (key(i) != 0 && is_kept(i)) found = i;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const int other = __shfl_xor_sync(0xFFFFFFFFu, found, step);
            found = found < other ? other : found;
        }
        __syncthreads();
        if (threadIdx.x == 0) kept.common = 0;
        __syncthreads();
        if (threadIdx.x % 32 == 0) atomicMax(&kept.common, found);
        __syncthreads();
        return kept.common;
    }

    // The token; see the op `draw`. All threads of the block get it.
    int draw(float uniform, long long top_k, float top_p, float min_p) {
        int token;
        most = greatest(token);
        if (most == 0) return 0;
        if (top_k == 1) return token;
        scale(most);
        const bool by_number = top_k > 0 && top_k < count, by_sum = top_p < 1;
        const float limit = ::fmaxf(min_p, 0) * bits_as<float>(most);
        unsigned least = limit > 0 ? bits_as<unsigned>(limit) : 0;
        const bool by_weight = least > 0, alone = least > most;
        if (alone) least = most;
        // Most of what is drawn has more than 2^-16 of the greatest weight.
        const unsigned steps = 16u << 23;
        wide total = list(most > steps ? most - steps : 0), ties = alone ? 1 : (wide)count;
        wide all = total;
        const auto shorten = [&](unsigned cut_at, wide needed) {
            if (cut_at > least || (cut_at == least && needed < ties)) {
                least = cut_at;
                ties = needed;
            }
        };
        if (by_number) {
            if (!is_listed || (wide)kept.listed < (wide)top_k) {
                whole();
                list_first((wide)top_k);
            }
            wide needed;
            const unsigned cut_at = cut<false>((wide)top_k, needed, all);
            shorten(cut_at, needed);
        }
        if (by_sum) {
            const wide wanted = top_p > 0 ? (wide)::ceil((double)top_p * (double)all) : 0;
            wide tokens, listed, needed = 1;
            unsigned cut_at = most;
            if (wanted > 0) {
                at_least(0, tokens, listed);
                if (listed < wanted) whole();
                cut_at = cut<true>(wanted, needed, listed);
            }
            shorten(cut_at, needed);
        }
        int last_tie = count;
        if (ties < (wide)count)
            last_tie = first_beyond(ties - 1, [&](int i) { return (wide)(key(i) == least); });
        const auto is_kept = [&](int i) {
            const unsigned own = key(i);
            return own > least || (own == least && i <= last_tie);
        };
        if (by_number || by_sum || by_weight) {
            wide none = 0, sum = 0;
            each([&](unsigned own, int i) {
                sum += own > least || (own == least && i <= last_tie) ? mass(own) : 0;
            });
            reduce(sum, none);
            total = sum;
        }
        const double share = uniform > 0 ? (double)uniform * (double)total : 0;
        if (share < (double)total) {
            const int found = first_beyond(
                (wide)share, [&](int i) { return is_kept(i) ? mass(key(i)) : 0; }
            );
            if (found < count) return found;
        }
        return last(is_kept);
    }
};

}  // namespace ost
