// SPDX-License-Identifier: Apache-2.0
// What a tile of a matmul on Hopper is (gemm.cuh): its sizes in bytes, its accumulators, and the order of tiles.
#pragma once
#include "base.cuh"
#include "wgmma.cuh"

namespace fusec {

constexpr int kBoxRow = 128;
constexpr int kConsumers = 2;

/// What products of a type are added up in.
template <typename T>
struct SumOf {
    using type = float;
};
template <>
struct SumOf<s8> {
    using type = int;
};

/// Sizes in bytes and counts that follow from a plan.
template <typename Plan>
struct Layout {
    static constexpr int kA = Plan::kTileM * kBoxRow;
    static constexpr int kB = Plan::kTileN * kBoxRow;
    static constexpr int kStage = kA + Plan::kDots * kB;
    static constexpr int kCluster = Plan::kClusterM * Plan::kClusterN;
    static constexpr int kRows = Plan::kPingPong ? Plan::kTileM : Plan::kTileM / kConsumers;
    static constexpr int kFragments = kRows / 64;
    static constexpr int kColumns = Plan::kDots * Plan::kTileN;
    static constexpr int kChunk = 64 * kBoxRow;
    static constexpr int kBuffers = Plan::kStaged == 1 ? 2 : Plan::kStaged;
    static constexpr int kStaging = kConsumers * kBuffers * kChunk;
    static constexpr int kShared = 1024 + Plan::kStages * kStage + kStaging;
    using Sum = typename SumOf<typename Plan::Type>::type;
};

/// The accumulators of a consumer's thread.
template <typename Plan>
using Sums = typename Layout<Plan>::Sum[Layout<Plan>::kFragments][Layout<Plan>::kColumns / 2];

/// Tiles of this block's cluster, in an order that keeps the operands of blocks at work in L2.
template <typename Plan>
struct Tiles {
    static constexpr int kColumns = (Plan::kColumnTiles + Plan::kClusterN - 1) / Plan::kClusterN;
    int batch, row, column;

    /// Rows of clusters.
    __device__ static int all_rows(const Plan& plan) {
        if constexpr (Plan::kRowTiles < 0)
            return (plan.row_tiles() + Plan::kClusterM - 1) / Plan::kClusterM;
        else
            return (Plan::kRowTiles + Plan::kClusterM - 1) / Plan::kClusterM;
    }

    __device__ static int count(const Plan& plan) {
        int each = all_rows(plan) * kColumns;
        if constexpr (Plan::kBatches < 0)
            return each * plan.batches();
        else
            return each * Plan::kBatches;
    }

    __device__ explicit Tiles(const Plan& plan, int number, int rank) {
        const int all = all_rows(plan), each = all * kColumns, most = min(Plan::kGroup, all);
        batch = Plan::kBatches == 1 ? 0 : number / each;
        int inside = number - batch * each;
        int group = inside / (most * kColumns);
        int first = group * most;
        int rows = min(most, all - first);
        inside -= group * most * kColumns;
        row = (first + inside % rows) * Plan::kClusterM + rank % Plan::kClusterM;
        column = inside / rows * Plan::kClusterN + rank / Plan::kClusterM;
    }
};

}  // namespace fusec
