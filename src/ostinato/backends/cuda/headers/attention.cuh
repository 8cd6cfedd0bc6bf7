// Attention of a few rows, each thread with some keys and some features.
#pragma once
#include "arithmetic.cuh"
#include "math.cuh"
#include "packets.cuh"
#include "products.cuh"

namespace ost {

// What some keys contribute to the result of a row: the greatest score, the total of the weights
// relative to it, and the values that they weigh, of `Count` features.
template <class T, int Count>
struct contribution {
    T most = number<T>::least(), total = 0, sums[Count] = {};

    // Makes the weights relative to a greatest score that is not below the present one.
    void rescale(T greatest) {
        const T factor = most == greatest ? T(1) : ost::exp(most - greatest);
        total *= factor;
#pragma unroll
        for (int i = 0; i < Count; i++) sums[i] *= factor;
        most = greatest;
    }

    // Adds keys, by their scores and values.
    template <int Keys>
    void add(const T (&scores)[Keys], const T (&values)[Keys][Count]) {
        T greatest = most;
#pragma unroll
        for (int k = 0; k < Keys; k++) greatest = ost::maximum(greatest, scores[k]);
        if (greatest == number<T>::least()) return;
        rescale(greatest);
#pragma unroll
        for (int k = 0; k < Keys; k++) {
            const T weight = ost::exp(scores[k] - greatest);
            total += weight;
#pragma unroll
            for (int i = 0; i < Count; i++) sums[i] = add_product(weight, values[k][i], sums[i]);
        }
    }

    // The contribution of the keys of all lanes of a warp that have the same features: those whose
    // numbers are equal modulo `Lanes`. Each of them gets the sums of `Count / (32 / Lanes)` of the
    // features, or of one, at the front of `sums`; returns the number of the first one.
    template <int Lanes>
    int gather() {
        T greatest = most;
#pragma unroll
        for (int step = Lanes; step < 32; step *= 2)
            greatest = ost::maximum(greatest, __shfl_xor_sync(0xFFFFFFFFu, greatest, step));
        rescale(greatest);
#pragma unroll
        for (int step = Lanes; step < 32; step *= 2)
            total += __shfl_xor_sync(0xFFFFFFFFu, total, step);
        const int lane = threadIdx.x % 32;
        int first = 0, count = Count;
#pragma unroll
        for (int step = Lanes; step < 32; step *= 2) {
            const bool upper = (lane & step) != 0;
            if (count == 1) {
                sums[0] += __shfl_xor_sync(0xFFFFFFFFu, sums[0], step);
                continue;
            }
            count /= 2;
#pragma unroll
            for (int i = 0; i < Count / 2; i++) {
                if (i >= count) break;
                const T given = upper ? sums[i] : sums[i + count];
                const T kept = upper ? sums[i + count] : sums[i];
                sums[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, step);
            }
            first += upper ? count : 0;
        }
        return first;
    }
};

// The sum of a feature over what groups of a block's warps have of a row's keys, with the greatest
// score and the total of the weights: a group's part has its sums, its greatest score, its total.
// Weights are powers of 2 of `scale` times a score.
template <int Features, int Groups, int Rows, int Width>
inline float sum_of_groups(
    const float (&parts)[Groups][Rows][Width], int row, int feature, float scale, float& most,
    float& whole
) {
    most = parts[0][row][Features];
#pragma unroll
    for (int i = 1; i < Groups; i++) most = ost::maximum(most, parts[i][row][Features]);
    float total = 0;
    whole = 0;
#pragma unroll
    for (int i = 0; i < Groups; i++) {
        const float own = parts[i][row][Features];
        const float weight = own == most ? 1 : near_exp2((own - most) * scale);
        total = add_product(weight, parts[i][row][feature], total);
        whole = add_product(weight, parts[i][row][Features + 1], whole);
    }
    return total;
}

// A feature of a row's result, of what parts of the keys contribute to it: `parts` has the sums of
// each, then its greatest score and its total. Called by whole warps, whose lanes have a feature
// each, and each the weight of a part.
template <int Parts, int Features, class T, class Memory>
inline T mean_of_parts(Memory parts, int feature) {
    static_assert(Parts <= 32, "a lane for each part");
    constexpr int each = Features + 2;
    const int lane = threadIdx.x % 32, own = min(lane, Parts - 1) * each + Features;
    T found[Parts], pair[2];
    load_apart<each>(found, pair, parts + feature, parts + own);
    const T greatest = lane < Parts ? pair[0] : number<T>::least();
    T most = greatest;
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
        most = ost::maximum(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    const T weight = greatest == most ? T(1) : ost::exp(greatest - most);
    T total = lane < Parts ? weight * pair[1] : T(0), sum = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) total += __shfl_xor_sync(0xFFFFFFFFu, total, step);
#pragma unroll
    for (int i = 0; i < Parts; i++)
        sum = add_product(__shfl_sync(0xFFFFFFFFu, weight, i), found[i], sum);
    return sum / (total == 0 ? T(1) : total);
}

}  // namespace ost
