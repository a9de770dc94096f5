// What every attention has: an order of blocks, reductions along the rows of accumulators, weights of scores.
#pragma once
#include "base.cuh"
#include "scalar.cuh"

namespace fusec {

/// What a row's maximum may grow by before sums and results are rescaled to it, in units of log2: weights of up to 2^8 are
/// as exact as those up to 1, in f16, too.
constexpr float kGrowth = 8;

/// Sum, and maximum without NaN, over the four lanes that share a row.
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}
__device__ inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

/// The weight of a score by a plan's kScale and kSubtractsFirst: one multiply-add, unless its rounding would show.
template <typename Plan>
__device__ float weight_of(float score, float shift) {
    if (Plan::kSubtractsFirst) return fast_exp2((score - shift) * Plan::kScale);
    return fast_exp2(fmaf(score, Plan::kScale, -shift));
}

/// Raises a row's running maximum to `highest` where that is much more, and sets what the row's weights are shifted by;
/// gives the factor for sums and results so far.
template <typename Plan>
__device__ float raise_max(float& row_max, float highest, float& shift) {
    if ((highest - row_max) * Plan::kScale <= kGrowth) highest = row_max;
    shift = highest == -infinity ? 0.0f : Plan::kSubtractsFirst ? highest : highest * Plan::kScale;
    const float rescale = weight_of<Plan>(row_max, shift);
    row_max = highest;
    return rescale;
}

/// What a row's results are multiplied by: 1 over the sum of its weights. Of a plan with kGuarded, 1 where all are 0.
template <typename Plan>
__device__ float inverse_of(float row_sum) {
    const float sum = quad_sum(row_sum);
    return Plan::kGuarded && sum == 0.0f ? 1.0f : 1.0f / sum;
}

struct HeadAndBlock {
    int head, query_block;
};

/// Blocks of queries of one head after another, which share keys and values in L2. With a group, that many heads side by
/// side, each block of queries of all of them before the next: the first blocks are the longest.
template <int kHeads, int kTurns, int kGroup>
__device__ HeadAndBlock head_and_block(int block) {
    if constexpr (kGroup == 0) return {block / kTurns, block % kTurns};
    constexpr int kEach = kGroup ? kGroup : 1;
    int group = block / (kTurns * kEach), inside = block % (kTurns * kEach);
    int heads = min(kEach, kHeads - group * kEach);
    return {group * kEach + inside % heads, inside / heads};
}

}  // namespace fusec
