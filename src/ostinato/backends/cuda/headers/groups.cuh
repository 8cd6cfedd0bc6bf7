// Reductions and scans across the threads of a group, in a fixed order.
//
// A group is `Members` threads, a power of two: neighbours of one warp, or several whole warps, or
// (in columns) threads that stand `Points` apart. All of a block's threads call these together.
#pragma once
#include "arithmetic.cuh"
#include "math.cuh"

namespace ost {

// The value that is extreme so far, and its index.
template <class T, class I>
struct extreme {
    T value;
    I index;
};

struct plus {
    template <class T>
    T operator()(T x, T y) const { return add(x, y); }
};
struct times {
    template <class T>
    T operator()(T x, T y) const { return multiply(x, y); }
};
struct greater {
    template <class T>
    T operator()(T x, T y) const { return maximum(x, y); }
};
struct lesser {
    template <class T>
    T operator()(T x, T y) const { return minimum(x, y); }
};
struct log_plus {
    template <class T>
    T operator()(T x, T y) const {
        T distance = x == y ? T(0) : x < y ? y - x : x - y;  // equal infinities have none
        return maximum(x, y) + log1p(exp(-distance));
    }
};
struct either {
    bool operator()(bool x, bool y) const { return x | y; }
};
struct both {
    bool operator()(bool x, bool y) const { return x & y; }
};

// NaN counts as the extreme; of equals the first one stays.
template <bool Greatest>
struct first_extreme {
    template <class T, class I>
    extreme<T, I> operator()(extreme<T, I> x, extreme<T, I> y) const {
        bool x_nan = x.value != x.value, y_nan = y.value != y.value;
        bool better = Greatest ? y.value > x.value : y.value < x.value;
        better = (better || y_nan) && !x_nan;
        bool equal = y.value == x.value || (x_nan && y_nan);
        return better || (equal && y.index < x.index) ? y : x;
    }
};

// Exchange ----------------------------------------------------------------------------------------

template <class T>
inline T shuffle_xor(T value, int lanes) {
    if constexpr (sizeof(T) < 4) {
        return (T)__shfl_xor_sync(0xFFFFFFFFu, (int)value, lanes);
    } else {
        return __shfl_xor_sync(0xFFFFFFFFu, value, lanes);
    }
}

template <class T, class I>
inline extreme<T, I> shuffle_xor(extreme<T, I> value, int lanes) {
    T other = shuffle_xor(value.value, lanes);
    I index = shuffle_xor(value.index, lanes);
    return extreme<T, I>{other, index};
}

template <class T>
inline T shuffle_from(T value, int lane) {
    if constexpr (sizeof(T) < 4) {
        return (T)__shfl_sync(0xFFFFFFFFu, (int)value, lane);
    } else {
        return __shfl_sync(0xFFFFFFFFu, value, lane);
    }
}

// Reductions --------------------------------------------------------------------------------------

// Of up to 32 neighbours; every member has the result.
template <int Members, class Op, class T>
inline T reduce_warp(T value, Op op) {
#pragma unroll
    for (int lanes = Members / 2; lanes > 0; lanes /= 2) value = op(value, shuffle_xor(value, lanes));
    return value;
}

// Of several warps, in two steps with a barrier of the block in between; every member has the result.
// `shared` has room for a value of each warp of the block.
template <class Op, class T>
inline void reduce_in_warps(T value, Op op, T* shared) {
    value = reduce_warp<32>(value, op);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
}
template <int Members, class Op, class T>
inline T reduce_of_warps(Op op, const T* shared) {
    constexpr int warps = Members / 32;
    const T* const own = shared + threadIdx.x / Members * warps;
    if constexpr (warps > 8) return reduce_warp<warps>(own[threadIdx.x % warps], op);
    T found[warps / 2];
#pragma unroll
    for (int i = 0; i < warps / 2; i++) found[i] = op(own[i], own[i + warps / 2]);
#pragma unroll
    for (int half = warps / 4; half > 0; half /= 2) {
#pragma unroll
        for (int i = 0; i < half; i++) found[i] = op(found[i], found[i + half]);
    }
    return found[0];
}

// Of threads `Points` apart; every member has the result. `shared` has room for a block's values.
template <int Points, int Members, class Op, class T>
inline T reduce_columns(T value, Op op, T* shared) {
    shared[threadIdx.x] = value;
    OST_SYNC();
#pragma unroll
    for (int rows = Members / 2; rows > 0; rows /= 2) {
        if (threadIdx.x < rows * Points)
            shared[threadIdx.x] = op(shared[threadIdx.x], shared[threadIdx.x + rows * Points]);
        OST_SYNC();
    }
    value = shared[threadIdx.x % Points];
    OST_SYNC();
    return value;
}

// Scans -------------------------------------------------------------------------------------------

// By member, the reduction of the values up to and with its own; of up to 32 neighbours.
template <int Members, class Op, class T>
inline T scan_warp(T value, Op op) {
    const int lane = threadIdx.x % 32, member = threadIdx.x % Members;
#pragma unroll
    for (int distance = 1; distance < Members; distance *= 2) {
        T before = shuffle_from(value, lane - (member < distance ? 0 : distance));
        if (member >= distance) value = op(before, value);
    }
    return value;
}

// The value of the member before; `first` for the first one.
template <int Members, class T>
inline T shift_warp(T value, T first) {
    const int lane = threadIdx.x % 32, member = threadIdx.x % Members;
    T before = shuffle_from(value, lane - (member == 0 ? 0 : 1));
    return member == 0 ? first : before;
}

// The value of the last member.
template <int Members, class T>
inline T last_of_warp(T value) {
    return shuffle_from(value, threadIdx.x % 32 | (Members - 1));
}

}  // namespace ost
