// SPDX-License-Identifier: Apache-2.0
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

/// The size in units of log2 from which on the maximum's product, rounded, is too far from the exact one of its score in a
/// multiply-add: half a last digit is 8. Of two scores there the lower one weighs nothing beside the higher.
constexpr float kLarge = 134217728;

/// The least power of two that is no less than `x`.
constexpr float power_from(float x) {
    float power = 1;
    while (power < x) power *= 2;
    while (power * 0.5f >= x) power *= 0.5f;
    return power;
}

/// What scores are multiplied by, in units of log2: a plan's constant, or what data say of a block.
template <typename Plan, typename = void>
struct ScoreScale {
    static constexpr bool kByBlock = false;
    static constexpr float kPower = power_from(Plan::kScale);
    __device__ static float get(const Plan&) { return Plan::kScale; }
    __device__ static float power(float) { return kPower; }
};
template <typename Plan>
struct ScoreScale<Plan, Void<decltype(Plan::factor)>> {
    static constexpr bool kByBlock = true;
    __device__ static float get(const Plan& plan) { return plan.factor; }
    /// The least power of two that is no less than a normal number.
    __device__ static float power(float x) { return __uint_as_float((__float_as_uint(x) + 0x7fffffu) & 0x7f800000u); }
};

/// What a row's scores are multiplied by and shifted by: weights are 2 to the power of a multiply-add. A large maximum is
/// multiplied by a power of two, which is exact. With kSubtractsFirst the maximum is subtracted before.
template <typename Plan>
struct Shift {
    float scale, shift;

    __device__ void set(float highest, float given) {
        const bool none = highest == -infinity;
        scale = given;
        shift = none ? 0.0f : Plan::kSubtractsFirst ? highest : highest * given;
        if (Plan::kSubtractsFirst || none || fabsf(shift) < kLarge) return;
        const float power = ScoreScale<Plan>::power(given);
        scale = power;
        shift = highest * power;
    }

    __device__ float weight(float score) const {
        if (Plan::kSubtractsFirst) return fast_exp2((score - shift) * Plan::kScale);
        return fast_exp2(fmaf(score, scale, -shift));
    }
};

/// Raises a row's running maximum to `highest` where that is much more, and sets what the row's weights are shifted by;
/// gives the factor for sums and results so far.
template <typename Plan>
__device__ float raise_max(const Plan& plan, float& row_max, float highest, Shift<Plan>& shift) {
    const float scale = ScoreScale<Plan>::get(plan);
    if ((highest - row_max) * scale <= kGrowth) highest = row_max;
    shift.set(highest, scale);
    const float rescale = shift.weight(row_max);
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
template <int kGroup>
__device__ HeadAndBlock head_and_block(int block, int all_heads, int turns) {
    if constexpr (kGroup == 0) return {block / turns, block % turns};
    constexpr int kEach = kGroup ? kGroup : 1;
    int group = block / (turns * kEach), inside = block % (turns * kEach);
    int heads = min(kEach, all_heads - group * kEach);
    return {group * kEach + inside % heads, inside / heads};
}

template <int kHeads, int kTurns, int kGroup>
__device__ HeadAndBlock head_and_block(int block) {
    return head_and_block<kGroup>(block, kHeads, kTurns);
}

}  // namespace fusec
