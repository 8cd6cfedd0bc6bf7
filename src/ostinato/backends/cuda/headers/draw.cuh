// The choice of a token from a row of weights, by some blocks.
//
// Weights are compared as words: those of floats that are not negative are in their order. They are
// added as integers, in units of 2^-40 of the greatest, so that sums do not depend on an order.
//
// What filters keep is everything from some weight on. Its word is found in three steps, of 11 bits
// and twice 10: histograms say how many tokens begin with which bits, and how much they weigh. Each
// block has a slice of the row, and adds its histogram to the row's; in between, all blocks of the
// grid wait for one another.
#pragma once
#include "arithmetic.cuh"
#include "groups.cuh"
#include "products.cuh"
#include "segments.cuh"

namespace ost {

// Blocks that draw, those of a row side by side. A row has `Most` of them, or all that there are.
template <int Threads, int Most>
struct drawing {
    typedef unsigned long long wide;

    static constexpr int warps = Threads / 32;
    static constexpr int coarse = 2048, fine = 1024;  // bins of the first step and of the others
    static_assert(Most <= 32, "a lane for each block of a row");

    // Tokens with words that begin alike, and the sum of their weights.
    struct bin {
        wide tokens, mass;
    };
    template <int Bins>
    struct histogram {
        unsigned tokens[Bins], low[Bins], high[Bins];  // the sum in two words, for atomics
    };
    // The memory of a row: numbers of its blocks, and histograms that several have: of the first
    // step, of the others by number and of the others by sum.
    struct row_memory {
        wide best[2][Most], equal[Most], mass[Most], last[Most];
        bin first[Most > 1 ? coarse : 1], others[4][Most > 1 ? fine : 1];
    };
    static constexpr int words = sizeof(row_memory) / sizeof(wide);

    // The bin where a sum is reached, from the greatest words on: what is above it, and in it.
    struct reached {
        int position;  // -1: it is not
        wide above, mass_above, tokens;
    };
    struct shared {
        wide parts[2][2][warps];  // numbers of warps, which reductions take by turns
        histogram<coarse> first;
        histogram<fine> other;
        reached found;
    };

    // The words of four tokens that are side by side.
    struct four_words {
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

    // The settings of a row.
    struct settings {
        float uniform;
        long long top_k;
        float top_p, min_p;

        bool several() const { return top_k != 1; }
        bool by_number(int count) const { return several() && top_k > 0 && top_k < count; }
        bool by_sum() const { return several() && top_p < 1; }
        bool to_first() const { return several() && min_p > 1; }
    };

    // What any of the rows at a time needs: to choose among tokens, to filter them by number or by
    // sum, or to keep the first of those with the greatest weight.
    struct needs {
        bool several, by_number, by_sum, to_first;

        bool histograms() const { return by_number || by_sum; }
    };

    shared& kept;
    row_memory* const rows;
    unsigned* const arrived;
    const int blocks, teams, team, member;
    unsigned awaited = gridDim.x;
    int turn = 0;
    bool odd = false;  // rows take memory by turns for what they tell before the first wait

    // Of the row:
    const float* row = nullptr;
    row_memory* memory = nullptr;
    int count = 0, begin = 0, end = 0;  // all tokens, and those of the block
    float first_factor = 1, second_factor = 1;

    drawing(shared& kept, void* memory, unsigned* arrived)
        : kept(kept),
          rows((row_memory*)memory),
          arrived(arrived),
          blocks((int)gridDim.x < Most ? (int)gridDim.x : Most),
          teams((int)gridDim.x / blocks),
          team((int)blockIdx.x / blocks),
          member((int)blockIdx.x % blocks) {}

    // Words --------------------------------------------------------------------------------------

    // A weight that counts: what is not above 0 is 0.
    static unsigned word(float weight) {
        const float most = number<float>::greatest_finite();
        return weight > 0 ? bits_as<unsigned>(::fminf(weight, most)) : 0;
    }

    // Tokens before the first one from which a vector of four begins.
    int shift() const { return (int)((wide)row / sizeof(float) % 4); }

    // Those from a token on with which a vector begins; 0 outside of the row.
    four_words four_at(int first) const {
        typedef vector<float, 4> four;
        four_words found = {};
        if (first >= 0 && first + 4 <= count) {
            const four weights = *(const four*)(row + first);
#pragma unroll
            for (int e = 0; e < 4; e++) found.at[e] = word(weights.at[e]);
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (first + e >= 0 && first + e < count) found.at[e] = word(row[first + e]);
        }
        return found;
    }

    // Calls a function with the word of each token from one on and before another, and its number.
    // `lane` is the thread's number among those that share them.
    template <int Lanes, class Function>
    void each(int from, int to, int lane, Function function) const {
        const int aligned = from - ((from + shift()) & 3);
#pragma unroll 4
        for (int first = aligned + 4 * lane; first < to; first += 4 * Lanes) {
            const four_words own = four_at(first);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (first + e >= from && first + e < to) function(own.at[e], first + e);
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

    // Combines a number of each thread with those of all others; 0 changes nothing.
    template <class Op>
    wide combine(wide number, Op op) {
        wide none = 0;
        number = reduce_warp<32>(number, op);
        exchange(number, none);
        return reduce_warp<32>(number, op);
    }

    // The first lane up to which numbers of a warp's lanes add up to more than a number, of which
    // the sum before is subtracted.
    static int lane_beyond(wide sums, wide& number) {
        const int lane = __ffs((int)__ballot_sync(0xFFFFFFFFu, sums > number)) - 1;
        const wide before = __shfl_sync(0xFFFFFFFFu, sums, lane > 0 ? lane - 1 : 0);
        if (lane > 0) number -= before;
        return lane;
    }

    // Numbers of all blocks ----------------------------------------------------------------------

    bool has_row() const { return row != nullptr; }

    // Where a row has several blocks, waits for all blocks of the grid.
    void await_blocks() {
        if (blocks > 1) {
            arrive_and_wait(arrived, awaited);
            awaited += gridDim.x;
        } else {
            __syncthreads();
        }
    }

    // What other blocks have written: not what a cache has held since before.
    static wide seen(const wide& number) { return *(const volatile wide*)&number; }

    void tell(wide (&numbers)[Most], wide number) const {
        if (has_row() && threadIdx.x == 0) numbers[member] = number;
    }

    // By lane, the number of the row's block, once all have told it; 0 behind the last one.
    wide told(const wide (&numbers)[Most]) const {
        const int lane = threadIdx.x % 32;
        return has_row() && lane < blocks ? seen(numbers[lane]) : 0;
    }

    // Tokens by weight ---------------------------------------------------------------------------

    // Adds the tokens whose words begin with some bits to an empty histogram of the bits behind
    // these; `width` bits are behind both.
    template <int Bins>
    OST_APART void fill(histogram<Bins>& into, unsigned start, int width) {
        constexpr int bits = Bins == coarse ? 11 : 10;
        each<Threads>(begin, end, threadIdx.x, [&](unsigned own, int) {
            if (own == 0 || (Bins != coarse && own >> (width + bits) != start)) return;
            const unsigned at = own >> width & (Bins - 1);
            const wide weight = mass(own);
            atomicAdd(&into.tokens[at], 1u);
            if (weight == 0) return;
            const unsigned low = (unsigned)weight;
            const unsigned former = atomicAdd(&into.low[at], low);
            const unsigned high = (unsigned)(weight >> 32) + (former + low < former);
            if (high != 0) atomicAdd(&into.high[at], high);
        });
    }

    // The histogram of the row: that of its blocks, added up. `counts`: whether the row needs it.
    template <int Bins>
    void sum_up(histogram<Bins>& own, bin* all, bool counts, unsigned start, int width) {
        for (int i = threadIdx.x; i < Bins; i += Threads) own.tokens[i] = own.low[i] = own.high[i] = 0;
        __syncthreads();
        if (counts) fill(own, start, width);
        __syncthreads();
        if (blocks == 1) return;
        for (int i = threadIdx.x; counts && i < Bins; i += Threads) {
            if (own.tokens[i] == 0) continue;
            atomicAdd(&all[i].tokens, (wide)own.tokens[i]);
            const wide mass = (wide)own.high[i] << 32 | own.low[i];
            if (mass != 0) atomicAdd(&all[i].mass, mass);
        }
        await_blocks();
        for (int i = threadIdx.x; counts && i < Bins; i += Threads) {
            const wide mass = seen(all[i].mass);
            own.tokens[i] = (unsigned)seen(all[i].tokens);
            own.low[i] = (unsigned)mass;
            own.high[i] = (unsigned)(mass >> 32);
        }
        __syncthreads();
    }

    // Finds the bin where a number of tokens, or a sum of weights, is reached.
    template <int Bins>
    OST_APART reached find(const histogram<Bins>& in, bool by_sum, wide above, wide mass_above,
                           wide wanted) {
        constexpr int own = Bins / Threads;
        const int first = Bins - 1 - own * (int)threadIdx.x;
        const auto mass_of = [&](int i) { return (wide)in.high[i] << 32 | in.low[i]; };
        wide tokens = 0, sum = 0;
#pragma unroll
        for (int i = 0; i < own; i++) {
            tokens += in.tokens[first - i];
            sum += mass_of(first - i);
        }
        const wide lane_tokens = scan_warp<32>(tokens, plus()), lane_sum = scan_warp<32>(sum, plus());
        wide warp_tokens = last_of_warp<32>(lane_tokens), warp_sum = last_of_warp<32>(lane_sum);
        exchange(warp_tokens, warp_sum);
        warp_tokens = scan_warp<32>(warp_tokens, plus());
        warp_sum = scan_warp<32>(warp_sum, plus());
        const int warp = threadIdx.x / 32;
        const wide tokens_before = __shfl_sync(0xFFFFFFFFu, warp_tokens, warp > 0 ? warp - 1 : 0);
        const wide sum_before = __shfl_sync(0xFFFFFFFFu, warp_sum, warp > 0 ? warp - 1 : 0);
        reached here = {-1, above + warp_tokens, mass_above + warp_sum, 0};
        here.above = __shfl_sync(0xFFFFFFFFu, here.above, warps - 1);
        here.mass_above = __shfl_sync(0xFFFFFFFFu, here.mass_above, warps - 1);
        if (threadIdx.x == 0) kept.found = here;  // all of them
        __syncthreads();
        above += (warp > 0 ? tokens_before : 0) + lane_tokens - tokens;
        mass_above += (warp > 0 ? sum_before : 0) + lane_sum - sum;
#pragma unroll
        for (int i = 0; i < own; i++) {
            const wide more = above + in.tokens[first - i], more_mass = mass_above + mass_of(first - i);
            const bool before = (by_sum ? mass_above : above) < wanted;
            if (before && (by_sum ? more_mass : more) >= wanted)
                kept.found = {first - i, above, mass_above, in.tokens[first - i]};
            above = more;
            mass_above = more_mass;
        }
        __syncthreads();
        const reached found = kept.found;
        __syncthreads();
        return found;
    }

    // The first tokens by weight that are `wanted`, or whose sum is at least, and the sum then; all
    // of them, if they are fewer. `step` is the first of the two histograms that it takes. Called by
    // all blocks, `counts`: whether the row needs it.
    filtered cut(bool counts, bool by_sum, wide wanted, int step, wide& sum) {
        filtered found = {0, (wide)count, (wide)count};
        reached at = {-1, 0, 0, 0};
        if (counts) {
            at = find(kept.first, by_sum, 0, 0, wanted);
            sum = at.mass_above;
            counts = at.position >= 0;
        }
        unsigned start = (unsigned)at.position;
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            const int width = 10 - 10 * i;
            sum_up(kept.other, memory->others[step + i], counts, start, width);
            if (!counts) continue;
            at = find(kept.other, by_sum, at.above, at.mass_above, wanted);
            start = start << 10 | (unsigned)at.position;
        }
        if (!counts) return found;
        const wide own = mass(start);
        found = {start, wanted - at.above, at.tokens};
        if (by_sum) found.ties = own == 0 ? 1 : (wanted - at.mass_above + own - 1) / own;
        sum = at.mass_above + found.ties * own;
        return found;
    }

    // Tokens by number ---------------------------------------------------------------------------

    static bool keeps(const measure& by, unsigned own, int token) {
        return own > by.least || (own == by.least && token <= by.last);
    }

    wide measured(const measure& by, unsigned own, int token) const {
        if (by.counts) return own == by.least;
        return keeps(by, own, token) ? mass(own) : 0;
    }

    wide measured(const measure& by) {
        wide sum = 0;
        each<Threads>(begin, end, threadIdx.x, [&](unsigned own, int i) { sum += measured(by, own, i); });
        return combine(sum, plus());
    }

    // The first token of the block up to which its tokens add up to more than a number, which all
    // of them do. A warp has a part of the tokens, then a part of the part where that is, then a
    // lane one of 32.
    OST_APART int first_beyond(const measure& by, wide number) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        int start = begin, stop = end;
        do {
            const int part = (stop - start + warps - 1) / warps;
            const int length = part > 32 ? (part + 127) / 128 * 128 : 32;
            const int own = start + warp * length, until = own + length < stop ? own + length : stop;
            wide sum = 0, none = 0;
            each<32>(own, until, lane, [&](unsigned word, int i) { sum += measured(by, word, i); });
            sum = reduce_warp<32>(sum, plus());
            exchange(sum, none);
            start += lane_beyond(scan_warp<32>(sum, plus()), number) * length;
            stop = start + length < stop ? start + length : stop;
        } while (stop - start > 32);
        const int token = start + lane;
        const wide own = token < stop ? measured(by, word(row[token]), token) : 0;
        return start + lane_beyond(scan_warp<32>(own, plus()), number);
    }

    // Of the tokens of a word, the first so many of the row: the last one of them in the block.
    int last_of(unsigned least, wide ties) {
        const wide sums = scan_warp<32>(told(memory->equal), plus());
        const wide before = __shfl_sync(0xFFFFFFFFu, sums, member > 0 ? member - 1 : 0);
        const wide all = __shfl_sync(0xFFFFFFFFu, sums, member), skipped = member > 0 ? before : 0;
        if (ties >= all) return count;
        if (ties <= skipped) return -1;
        return first_beyond({least, count, true}, ties - skipped - 1);
    }

    // The token of a row ---------------------------------------------------------------------------

    // Has a row, or none, with the slice of it that is the block's.
    void take(const float* weights, int length, bool has) {
        row = has ? weights : nullptr;
        memory = rows + (has ? team : 0);
        odd = !odd;
        count = has ? length : 0;
        const int share = ((count + blocks - 1) / blocks + 3) / 4 * 4;
        begin = member * share < count ? member * share : count;
        end = begin + share < count ? begin + share : count;
    }

    // Draws; called by all blocks, which wait as often as any of their rows needs.
    void draw(const settings& by, const needs& any, int* result) {
        if (blocks > 1 && has_row() && any.histograms()) {
            wide* const all = &memory->first[0].tokens;
            constexpr int numbers = (sizeof memory->first + sizeof memory->others) / sizeof(wide);
            for (int i = member * Threads + threadIdx.x; i < numbers; i += blocks * Threads) all[i] = 0;
        }
        wide best = 0;
        each<Threads>(begin, end, threadIdx.x, [&](unsigned word, int i) {
            const wide own = (wide)word << 32 | (0xFFFFFFFFu - (unsigned)i);
            best = best < own ? own : best;
        });
        tell(memory->best[odd], combine(best, greater()));
        await_blocks();
        best = reduce_warp<32>(told(memory->best[odd]), greater());
        const unsigned most = (unsigned)(best >> 32);
        const bool known = most == 0 || by.top_k == 1, writes = has_row() && threadIdx.x == 0;
        if (known && writes && member == 0)
            *result = most == 0 ? 0 : (int)(0xFFFFFFFFu - (unsigned)best);
        if (!any.several) return;
        scale(most);
        const bool open = has_row() && !known;
        const float limit = ::fmaxf(by.min_p, 0) * bits_as<float>(most);
        filtered found = {limit > 0 ? bits_as<unsigned>(limit) : 0, (wide)count, (wide)count};
        const auto shorten = [&](const filtered& other) {
            const bool fewer = other.least == found.least && other.ties < found.ties;
            if (other.least > found.least || fewer) found = other;
        };
        if (found.least > most) {
            found.least = most;
            found.ties = 1;
        }
        const bool by_number = open && by.by_number(count), by_sum = open && by.by_sum();
        if (any.histograms())
            sum_up(kept.first, memory->first, by_number || by_sum, 0, 20);
        wide all = 0;
        if (any.by_number) shorten(cut(by_number, false, (wide)by.top_k, 0, all));
        if (any.by_sum) {
            if (by_sum && !by_number) all = find(kept.first, true, 0, 0, ~(wide)0).mass_above;
            const wide wanted = by.top_p > 0 ? (wide)::ceil((double)by.top_p * (double)all) : 0;
            shorten(cut(by_sum && wanted > 0, true, wanted, 2, all));
            if (by_sum && wanted == 0) shorten({most, 1, (wide)count});
        }
        measure kept_by = {found.least, count, true};
        if (any.histograms() || any.to_first) {
            tell(memory->equal, open ? measured(kept_by) : 0);
            await_blocks();
            if (open && found.ties < found.equal) kept_by.last = last_of(found.least, found.ties);
        }
        kept_by.counts = false;
        wide sum = 0, last = 0;
        if (open) {
            each<Threads>(begin, end, threadIdx.x, [&](unsigned own, int i) {
                sum += measured(kept_by, own, i);
                if (own != 0 && keeps(kept_by, own, i)) last = (wide)i + 1;
            });
            sum = combine(sum, plus());
            last = combine(last, greater());
            tell(memory->mass, sum);
            tell(memory->last, last);
        }
        await_blocks();
        if (!open) return;
        const wide sums = scan_warp<32>(told(memory->mass), plus());
        const wide whole = last_of_warp<32>(sums);
        const double drawn = (by.uniform > 0 ? (double)by.uniform : 0) * (double)whole;
        wide number = drawn < (double)whole ? (wide)drawn : whole;
        if (number >= whole) {
            last = reduce_warp<32>(told(memory->last), greater());
            if (writes && member == 0) *result = (int)last - 1;
        } else if (lane_beyond(sums, number) == member) {
            const int token = first_beyond(kept_by, number);
            if (writes) *result = token;
        }
    }

    // Draws all rows.
    void draw(const float* weights, int length, long long height, const float* uniform,
              const long long* top_k, const float* top_p, const float* min_p, int* result) {
        for (long long first = 0; first < height; first += teams) {
            needs any = {};
            for (long long i = first + threadIdx.x; i < height && i < first + teams; i += Threads) {
                const settings by = {uniform[i], top_k[i], top_p[i], min_p[i]};
                any.several |= by.several();
                any.by_number |= by.by_number(length);
                any.by_sum |= by.by_sum();
                any.to_first |= by.to_first();
            }
            any.several = __syncthreads_or(any.several);
            any.by_number = __syncthreads_or(any.by_number);
            any.by_sum = __syncthreads_or(any.by_sum);
            any.to_first = __syncthreads_or(any.to_first);
            const long long own = first + team;
            const bool has = team < teams && own < height;
            const long long at = has ? own : first;
            take(weights + at * length, length, has);
            draw({uniform[at], top_k[at], top_p[at], min_p[at]}, any, result + at);
        }
    }

    // The last call: the grid's count of arrivals is as it was.
    void end_of_rows() {
        if (blocks > 1) arrive_last(arrived, awaited);
    }
};

}  // namespace ost
