// SPDX-License-Identifier: Apache-2.0
// Matmuls of 8-bit floats times scales that stay the same along a step of K: what each step's sums are multiplied by.
//
// (a s) (b t) summed over a step is s t times the sum of a b, unless s a or t b leaves the range of f32, or sums of them
// would. A consumer that meets such scales computes its part of the tile as the code says.
#pragma once
#include "base.cuh"
#include "fragment.cuh"
#include "gemm_tiles.cuh"

namespace fusec {

/// Plans that have no scales add up sums as they are.
template <typename Plan, typename = void>
struct StepScales {
    __device__ StepScales(const Plan&, const Tiles<Plan>&, int) {}
    __device__ void read(int) {}
    __device__ float add(float total, float part, int, int) const { return total + part; }
    __device__ void finish(Sums<Plan>&) const {}
};

/// Whether any thread of a consumer's warpgroup says so; all of them must ask.
__device__ inline bool any_of_warpgroup(int barrier, bool mine) {
    u32 any;
    asm volatile(
        "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.or.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
        : "=r"(any)
        : "r"(u32(mine)), "r"(barrier), "n"(kWarpgroup)
        : "memory");
    return any;
}

template <typename Plan>
struct StepScales<Plan, Void<decltype(Plan::kScaleColumns)>> {
    using L = Layout<Plan>;
    static_assert(Plan::kPromotes == 1, "each step has scales of its own");
    static constexpr bool kByColumn = Plan::kScaleColumns == 0;
    static constexpr int kWide = kByColumn ? Plan::kTileN : Plan::kScaleColumns;
    static constexpr int kAcross = (Plan::kTileN + kWide - 1) / kWide;
    static_assert(kWide % 8 == 0, "a thread's neighbours share a scale");
    const Plan& plan;
    const Tiles<Plan>& tile;
    int first_row;
    bool odd = false;
    float rows[L::kFragments][2], columns[Plan::kDots][kAcross];

    __device__ StepScales(const Plan& plan, const Tiles<Plan>& tile, int first_row)
        : plan(plan), tile(tile), first_row(first_row) {}

    /// Whether numbers of 8 bits times two such scales, and sums of their products, are far from the ends of f32.
    __device__ static bool is_plain(float scale) {
        float size = fabsf(scale);
        return size == 0.0f || (size >= 0x1p-60f && size <= 0x1p40f);
    }

    __device__ void read(int step) {
        int k = step * kDepth<typename Plan::Type>;
#pragma unroll
        for (int m = 0; m < L::kFragments; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                rows[m][h] = plan.row_scale(tile.batch, tile.row, first_row + m * 64 + fragment_row() + h * 8, k);
                odd |= !is_plain(rows[m][h]);
            }
        if (kByColumn) return;
#pragma unroll
        for (int p = 0; p < Plan::kDots; ++p)
#pragma unroll
            for (int c = 0; c < kAcross; ++c) {
                columns[p][c] = plan.column_scale(tile.batch, tile.column, c * kWide, k, p);
                odd |= !is_plain(columns[p][c]);
            }
    }

    /// A step's sum `i` of fragment `m` added to those before.
    __device__ float add(float total, float part, int m, int i) const {
        float scale = rows[m][i / 2 % 2];
        if (!kByColumn) scale *= columns[i / (Plan::kTileN / 2)][i % (Plan::kTileN / 2) / 4 * 8 / kWide];
        return fmaf(part, scale, total);
    }

    __device__ static int row_of(int m, int i) { return m * 64 + fragment_row() + i / 2 % 2 * 8; }
    __device__ static int column_of(int i) { return i % (Plan::kTileN / 2) / 4 * 8 + fragment_column() + i % 2; }

    /// After a tile's last step.
    __device__ void finish(Sums<Plan>& acc) {
        if (kByColumn) {
#pragma unroll
            for (int i = 0; i < L::kColumns / 2; ++i) {
                if (i / 2 % 2) continue;
                float scale = plan.column_scale(tile.batch, tile.column, column_of(i), 0, i / (Plan::kTileN / 2));
                odd |= !is_plain(scale);
#pragma unroll
                for (int m = 0; m < L::kFragments; ++m) acc[m][i] *= scale, acc[m][i + 2] *= scale;
            }
        }
        if (any_of_warpgroup(first_row / L::kRows + 1, odd)) compute_exactly(acc);
    }

    __device__ void compute_exactly(Sums<Plan>& acc) const {
        Sums<Plan> exact;
#pragma unroll 1
        for (int m = 0; m < L::kFragments; ++m)
#pragma unroll 1
            for (int i = 0; i < L::kColumns / 2; ++i)
                exact[m][i] = plan.exact(tile.batch, tile.row, tile.column, first_row + row_of(m, i), column_of(i),
                                         i / (Plan::kTileN / 2));
#pragma unroll
        for (int m = 0; m < L::kFragments; ++m)
#pragma unroll
            for (int i = 0; i < L::kColumns / 2; ++i) acc[m][i] = exact[m][i];
    }
};

}  // namespace fusec
