// Attention of a few rows, each thread with some keys and some features.
#pragma once
#include "arithmetic.cuh"
#include "math.cuh"
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

}  // namespace ost
