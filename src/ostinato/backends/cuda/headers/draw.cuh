// The choice of a token from a row of weights, by a block.
//
// Weights are compared as words: those of floats that are not negative are in their order. They are
// added as integers, in units of 2^-40 of the greatest, so that sums do not depend on an order.
//
// What goes over the row stands once, in functions of their own: a block fetches their instructions
// from memory, most of them for a single use.
#pragma once
#include "arithmetic.cuh"
#include "groups.cuh"
#include "products.cuh"

namespace ost {

// A row of weights and what a block knows of it.
template <int Threads, int Most>
struct drawing {
    typedef unsigned long long wide;

    static constexpr int warps = Threads / 32;

    // Numbers of warps, which reductions take by turns, and what a block lists.
    struct shared {
        wide parts[2][2][warps];
        int listed, common;
        unsigned keys[Most];
    };

    // The words of four tokens that are side by side.
    struct words {
        unsigned at[4];
    };

    // What a filter keeps: the tokens above a word, and the first so many of those that have it.
    struct filtered {
        unsigned least;
        wide ties, equal;  // how many are kept, and how many there are
    };

    // The measure of a token, where `counts`: 1 for those of a word; else their weights, the tokens
    // above the word and those up to a last one that have it.
    struct measure {
        unsigned least;
        int last;
        bool counts;
    };

    const float* row;
    int count;
    shared& kept;
    int turn = 0;
    float first_factor = 1, second_factor = 1;
    unsigned lowest = 0, most = 0;  // of the words that there are, or that are listed
    bool is_listed = false;

    // Words --------------------------------------------------------------------------------------

    // A weight that counts: what is not above 0 is 0.
    static unsigned word(float weight) {
        const float most = number<float>::greatest_finite();
        return weight > 0 ? bits_as<unsigned>(::fminf(weight, most)) : 0;
    }

    unsigned key(int token) const { return word(row[token]); }

    // Tokens before the first one from which a vector of four begins.
    int shift() const { return (int)((wide)row / sizeof(float) % 4); }

    // Those from a token on with which a vector begins; 0 outside of the row.
    words four_at(int first) const {
        typedef vector<float, 4> four;
        words found = {};
        if (first >= 0 && first + 4 <= count) {
            const four weights = *(const four*)(row + first);
#pragma unroll
            for (int e = 0; e < 4; e++) found.at[e] = word(weights.at[e]);
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (first + e >= 0 && first + e < count) found.at[e] = key(first + e);
        }
        return found;
    }

    // Calls a function with the word of each token from one on and before another, and its number.
    // `lane` is the thread's number among those that share them.
    template <int Lanes, class Function>
    void each(int begin, int end, int lane, Function function) const {
#pragma unroll 4
        for (int first = begin - shift() + 4 * lane; first < end; first += 4 * Lanes) {
            const words own = four_at(first);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (first + e >= begin && first + e < end) function(own.at[e], first + e);
        }
    }

    wide mass(unsigned key) const {
        return (wide)(bits_as<float>(key) * first_factor * second_factor);
    }

    // Chooses the unit of sums, by the greatest weight's word.
    void scale(unsigned most) {
        const int exponent = (int)(most >> 23) - 126;
        const int powers = 40 - exponent, half = powers / 2;
        first_factor = float_of((unsigned)(half + 127) << 23);
        second_factor = float_of((unsigned)(powers - half + 127) << 23);
    }

    // Numbers of all threads ---------------------------------------------------------------------

    // Exchanges two numbers of each warp: a lane gets those of the warp of its number. Exchanges in
    // a row use memory by turns, so that none overwrites what others still read.
    void exchange(wide& first, wide& second) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        wide(&parts)[2][warps] = kept.parts[turn];
        turn ^= 1;
        if (lane == 0) {
            parts[0][warp] = first;
            parts[1][warp] = second;
        }
        __syncthreads();
        first = lane < warps ? parts[0][lane] : 0;
        second = lane < warps ? parts[1][lane] : 0;
    }

    // Combines two numbers of each thread with those of all others; 0 changes nothing.
    template <class Op>
    void combine(wide& first, wide& second, Op op) {
        first = reduce_warp<32>(first, op);
        second = reduce_warp<32>(second, op);
        exchange(first, second);
        first = reduce_warp<32>(first, op);
        second = reduce_warp<32>(second, op);
    }

    // The first lane up to which numbers of a warp's lanes add up to more than a number, of which
    // the sum before is subtracted.
    static int lane_beyond(wide sums, wide& number) {
        const int lane = __ffs((int)__ballot_sync(0xFFFFFFFFu, sums > number)) - 1;
        const wide before = __shfl_sync(0xFFFFFFFFu, sums, lane > 0 ? lane - 1 : 0);
        if (lane > 0) number -= before;
        return lane;
    }

    // Tokens by weight ---------------------------------------------------------------------------

    // The greatest weight's word, and the lowest token that has it.
    unsigned greatest(int& token) {
        wide best = 0, none = 0;
        each<Threads>(0, count, threadIdx.x, [&](unsigned word, int i) {
            const wide own = (wide)word << 32 | (0xFFFFFFFFu - (unsigned)i);
            best = best < own ? own : best;
        });
        combine(best, none, greater());
        token = (int)(0xFFFFFFFFu - (unsigned)best);
        return (unsigned)(best >> 32);
    }

    // The number of tokens with a weight of such a word or a greater one, and their sum.
    OST_APART void at_least(unsigned least, wide& tokens, wide& sum) {
        wide found = 0, total = 0;
        const auto add = [&](unsigned own, int) {
            found += own >= least;
            total += own >= least ? mass(own) : 0;
        };
        if (is_listed)
            for (int i = threadIdx.x; i < kept.listed; i += Threads) add(kept.keys[i], i);
        else
            each<Threads>(0, count, threadIdx.x, add);
        combine(found, total, plus());
        tokens = found;
        sum = total;
    }

    // Lists the words from one on, if there is room for them, and sums up all words. What is chosen
    // after it has to be among those that are listed.
    OST_APART wide list(unsigned least) {
        const unsigned lane = threadIdx.x % 32;
        wide sum = 0, none = 0;
        __syncthreads();
        if (threadIdx.x == 0) kept.listed = 0;
        __syncthreads();
        words next = four_at(4 * threadIdx.x - shift());
        for (int start = -shift(); start < count; start += 4 * Threads) {
            const int first = start + 4 * threadIdx.x;
            const words own = next;
            next = four_at(first + 4 * Threads);  // on its way meanwhile
            unsigned lanes[4];
            int all = 0, place = 0;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const bool inside = first + e >= 0 && first + e < count;
                sum += mass(own.at[e]);
                lanes[e] = __ballot_sync(0xFFFFFFFFu, inside && own.at[e] >= least);
                all += __popc(lanes[e]);
            }
            if (all == 0) continue;
            if (lane == 0) place = atomicAdd(&kept.listed, all);
            place = __shfl_sync(0xFFFFFFFFu, place, 0);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int at = place + __popc(lanes[e] & ((1u << lane) - 1));
                if (lanes[e] >> lane & 1 && at < Most) kept.keys[at] = own.at[e];
                place += __popc(lanes[e]);
            }
        }
        combine(sum, none, plus());
        is_listed = kept.listed <= Most;
        lowest = is_listed ? least : 0;
        return sum;
    }

    // Goes on with all tokens instead of those that are listed.
    void whole() {
        is_listed = false;
        lowest = 0;
    }

    // Lists words among which the first so many are, where there are not too many of these. `some`
    // is a word that so many tokens have at least, or 0.
    void list_first(wide wanted, unsigned some) {
        unsigned low = some, high = most;
        wide tokens = 0, sum;
        whole();
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

    // The first tokens by weight that are `wanted`, or whose sum is at least, and the sum then.
    OST_APART filtered cut(bool by_sum, wide wanted, wide& sum) {
        const int bits = 32 - __clz((int)(lowest ^ most));
        unsigned low = bits == 32 ? 0 : most >> bits << bits;
        wide tokens = 0, total = 0, more = 0, above = 0;
        for (int bit = bits - 1; bit >= -2; bit--) {  // at last, for the word itself and the next
            const unsigned tried = bit >= 0 ? low | 1u << bit : low - (bit + 1);
            tokens = more;
            at_least(tried, more, above);
            if (bit >= 0 && (by_sum ? above : more) >= wanted) low = tried;
        }
        const wide own = mass(low);
        filtered found = {low, wanted - more, tokens - more};
        if (by_sum) found.ties = own == 0 ? 1 : (wanted - above + own - 1) / own;
        sum = above + found.ties * own;
        return found;
    }

    // Tokens by number ---------------------------------------------------------------------------

    wide measured(const measure& by, unsigned own, int token) const {
        const bool equal = own == by.least;
        if (by.counts) return equal;
        return own > by.least || (equal && token <= by.last) ? mass(own) : 0;
    }

    // The first token up to which a measure of tokens adds up to more than a share of the sum of
    // all, or than a number of tokens where it counts; `count` if it does not. A warp has a part of
    // the tokens, then a part of the part where that is, then a lane one of 32.
    OST_APART int first_beyond(const measure& by, double share, wide number) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        int begin = 0, end = count;
        do {
            const int part = (end - begin + warps - 1) / warps;
            const int length = part > 32 ? (part + 127) / 128 * 128 : 32;
            const int own = begin + warp * length, stop = own + length < end ? own + length : end;
            wide sum = 0, none = 0;
            each<32>(own, stop, lane, [&](unsigned word, int i) { sum += measured(by, word, i); });
            sum = reduce_warp<32>(sum, plus());
            exchange(sum, none);
            sum = scan_warp<32>(sum, plus());
            if (end - begin == count) {
                const wide all = __shfl_sync(0xFFFFFFFFu, sum, 31);
                const double wanted = share * (double)all;
                if (!by.counts) number = wanted < (double)all ? (wide)wanted : all;
                if (number >= all) return count;
            }
            begin += lane_beyond(sum, number) * length;
            end = begin + length < end ? begin + length : end;
        } while (end - begin > 32);
        const int token = begin + lane;
        const wide own = token < end ? measured(by, key(token), token) : 0;
        return begin + lane_beyond(scan_warp<32>(own, plus()), number);
    }

    // The last token whose weight is above 0 among those that are kept.
    int last(const measure& by) {
        int found = 0;
        for (int i = threadIdx.x; i < count; i += Threads) {
            const unsigned own = key(i);
            if (own != 0 && (own > by.least || (own == by.least && i <= by.last))) found = i;
        }
        __syncthreads();
        if (threadIdx.x == 0) kept.common = 0;
        __syncthreads();
        atomicMax(&kept.common, found);
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
        filtered found = {limit > 0 ? bits_as<unsigned>(limit) : 0, (wide)count, (wide)count};
        if (found.least > most) {
            found.least = most;
            found.ties = 1;
        }
        const auto shorten = [&](const filtered& other) {
            const bool fewer = other.least == found.least && other.ties < found.ties;
            if (other.least > found.least || fewer) found = other;
        };
        // Most of what is drawn has more than 2^-16 of the greatest weight.
        const unsigned steps = 16u << 23, near = most > steps ? most - steps : 0;
        wide all = 0;
        if (by_number || by_sum) all = list(near);
        if (by_number) {
            if (!is_listed || (wide)kept.listed < (wide)top_k)
                list_first((wide)top_k, is_listed ? 0 : near);
            shorten(cut(false, (wide)top_k, all));
        }
        if (by_sum) {
            const wide wanted = top_p > 0 ? (wide)::ceil((double)top_p * (double)all) : 0;
            if (wanted > 0) {
                wide tokens, listed;
                at_least(0, tokens, listed);
                if (listed < wanted) whole();
                shorten(cut(true, wanted, listed));
            } else {
                shorten({most, 1, (wide)count});
            }
        }
        measure by = {found.least, count, true};
        if (found.ties < found.equal) by.last = first_beyond(by, 0, found.ties - 1);
        by.counts = false;
        const int drawn = first_beyond(by, uniform > 0 ? (double)uniform : 0, 0);
        return drawn < count ? drawn : last(by);
    }
};

}  // namespace ost
