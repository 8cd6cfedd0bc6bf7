// Times of the parts of a segment: nothing of it is left but where OST_STAMPED is defined.
#pragma once
#include "base.cuh"

namespace ost {

// Clock cycles that the first thread of a block has waited: for values of other blocks, and for
// weights from memory.
struct waits {
    long long values, weights;
};

#ifdef OST_STAMPED

__shared__ waits waited;

// The time from here to the end of the scope is time that the block waits.
struct waiting {
    long long waits::*const what;
    const long long since;

    explicit waiting(long long waits::*what) : what(what), since(clock64()) {}
    ~waiting() {
        if (threadIdx.x == 0) waited.*what += clock64() - since;
    }
};

// A clock that all multiprocessors share; it may stand still for a microsecond.
inline long long nanoseconds() {
#ifdef __CUDA_ARCH__
    long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#else
    return clock64();
#endif
}

// The log of a block, four words an entry. The first has the cycles and nanoseconds of the begin and
// of the end. Each other one is of a part: its number, from 1 on; cycles at its end; cycles that the
// block has waited since the begin, for values and for weights. What is not written stays 0.
struct part_log {
    static constexpr int words = 4;

    long long *const first, *next;

    // Called by all threads before the block's first barrier.
    part_log(long long* logs, int entries)
        : first(logs + (long long)blockIdx.x * entries * words), next(first + words) {
        if (threadIdx.x != 0) return;
        waited = {0, 0};
        mark(first);
    }

    // Called by all threads that compute, once all of them have ended the part.
    void end_part(int number) {
        if (threadIdx.x != 0) return;
        next[0] = number + 1;
        next[1] = clock64();
        next[2] = waited.values;
        next[3] = waited.weights;
        next += words;
    }

    void end() {
        if (threadIdx.x == 0) mark(first + 2);
    }

   private:
    // The cycles and nanoseconds of a moment: of that when the shared clock moves on.
    static void mark(long long* at) {
        const long long before = nanoseconds();
        long long now = before;
        while (now == before) now = nanoseconds();
        at[0] = clock64();
        at[1] = now;
    }
};

#else

struct waiting {
    explicit waiting(long long waits::*) {}
};

#endif

}  // namespace ost
