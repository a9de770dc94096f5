// What every attention has: an order of blocks, reductions along the rows of accumulators, powers of two.
#pragma once
#include "base.cuh"

namespace fusec {

__device__ inline float power_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/// What a row's maximum may grow by before sums and results are rescaled to it, in units of log2: weights of up to 2^8 are
/// as exact as those up to 1, in f16, too.
constexpr float kGrowth = 8;

/// Sum, and maximum without NaN, over the four lanes that share a row.
__device__ inline float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}
__device__ inline float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

struct HeadAndTurn {
    int head, turn;
};

/// Blocks of queries of one head after another, which share keys and values in L2. With a group, that many heads side by
/// side, each turn of all of them before the next: the first turns are the longest.
template <int kHeads, int kTurns, int kGroup>
__device__ HeadAndTurn head_and_turn(int block) {
    if constexpr (kGroup == 0) return {block / kTurns, block % kTurns};
    constexpr int kEach = kGroup ? kGroup : 1;
    int group = block / (kTurns * kEach), inside = block % (kTurns * kEach);
    int heads = min(kEach, kHeads - group * kEach);
    return {group * kEach + inside % heads, inside / heads};
}

}  // namespace fusec
