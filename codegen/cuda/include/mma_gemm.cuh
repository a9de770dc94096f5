// SPDX-License-Identifier: Apache-2.0
// A matmul by mma.sync (sm_80 and later): steps along K are copied into shared memory
// several ahead, warps read fragments of the next 32 bytes of K under the MMAs of the last.
//
// A kernel's own part is a struct `Plan`:
//
//     using Type                             bf16, f16 or tf32
//     kTileM, kTileN, kTileK, kStages        what a block computes, a step along K, and steps in shared memory
//     kWarpM, kWarpN                         what a warp computes, powers of two; kWarpN a multiple of 32
//     kM, kN, kK, kBatches, kGroup           extents; rows of tiles in a group
//     kDots                                  dots of one left operand with several right ones
//     using Left, Right                      `InRows`: how the operands lie in memory
//     kLeftTransposed, kRightTransposed              whether rows of memory run along M or N, not along K
//     left(batch, row, k), right(dot, batch, k, column)      an element's address, or its value
//     kStaged                                results of 16 bits that leave eight neighbours at a time
//     finish(batch, row_tile, column_tile, row, column, values, staged)
//                                            two neighbours in a row: stores what is not staged, packs what is
//     send(output, batch, row_tile, column_tile, row, column, eight)
//                                            stores eight neighbours
//
// In `finish` and `send`, `row` and `column` are positions within the tile; in `left` and `right` they are the whole's.
#pragma once
#include "mma.cuh"
#include "rows.cuh"

namespace fusec {

template <typename T>
struct InMemory {
    using type = T;
};
template <>
struct InMemory<tf32> {
    using type = float;
};

template <typename Plan>
struct MmaGemm {
    using Type = typename Plan::Type;
    using T = typename InMemory<Type>::type;
    static constexpr int kItem = sizeof(T), kSubsteps = Plan::kTileK * kItem / 32;
    static constexpr int kWarpsM = Plan::kTileM / Plan::kWarpM, kWarpsN = Plan::kTileN / Plan::kWarpN;
    static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
    static constexpr int kFragmentsM = Plan::kWarpM / 16, kFragmentsN = Plan::kWarpN / 16;
    static constexpr int kSteps = (Plan::kK + Plan::kTileK - 1) / Plan::kTileK;
    static constexpr int kFetches = kSubsteps > 2 ? 1 : 0;  // not with the reads that come right after a barrier
    static_assert(kSubsteps % 2 == 0, "fragments are read into two buffers in turn");

    template <typename Memory, bool kTransposed, int kExtent>
    using Tile = TileOfRows<T, Memory, kTransposed ? Plan::kTileK : kExtent, kTransposed ? kExtent : Plan::kTileK,
                            kSwapOf<Type, kTransposed>, kThreads>;
    using LeftTile = Tile<typename Plan::Left, Plan::kLeftTransposed, Plan::kTileM>;
    using RightTile = Tile<typename Plan::Right, Plan::kRightTransposed, Plan::kTileN>;
    static constexpr int kStage = LeftTile::kBytes + Plan::kDots * RightTile::kBytes;
    static constexpr int kShared = Plan::kStages * kStage;

    /// What a step's fragments are.
    struct Step {
        u32 a[kFragmentsM][4], b[Plan::kDots][kFragmentsN][4];
    };

    __device__ static void run(const Plan& plan) {
        extern __shared__ __align__(128) char memory[];
        constexpr int kRowTiles = (Plan::kM + Plan::kTileM - 1) / Plan::kTileM;
        constexpr int kColumnTiles = (Plan::kN + Plan::kTileN - 1) / Plan::kTileN;
        const int batch = blockIdx.x / (kRowTiles * kColumnTiles), tile = blockIdx.x % (kRowTiles * kColumnTiles);
        const int group = tile / (Plan::kGroup * kColumnTiles), within = tile % (Plan::kGroup * kColumnTiles);
        const int rows = minimum(kRowTiles - group * Plan::kGroup, Plan::kGroup);
        const int row_tile = group * Plan::kGroup + within % rows, column_tile = within / rows;
        const int row0 = row_tile * Plan::kTileM, column0 = column_tile * Plan::kTileN;

        auto left_element = [&](int row, int column) {
            return Plan::kLeftTransposed ? plan.left(batch, column, row) : plan.left(batch, row, column);
        };
        auto right_element = [&](int dot) {
            return [&plan, batch, dot](int row, int column) {
                return Plan::kRightTransposed ? plan.right(dot, batch, row, column) : plan.right(dot, batch, column, row);
            };
        };
        LeftTile left(Plan::kLeftTransposed ? 0 : row0, Plan::kLeftTransposed ? row0 : 0, left_element);
        RightTile right[Plan::kDots];
#pragma unroll
        for (int p = 0; p < Plan::kDots; ++p)
            right[p] = RightTile(Plan::kRightTransposed ? 0 : column0, Plan::kRightTransposed ? column0 : 0, right_element(p));
        auto fetch = [&](int step, int stage) {
            if (step < kSteps) {
                char* const to = memory + stage * kStage;
                left.fetch(to, left_element);
                left.move(Plan::kLeftTransposed ? Plan::kTileK : 0, Plan::kLeftTransposed ? 0 : Plan::kTileK);
#pragma unroll
                for (int p = 0; p < Plan::kDots; ++p) {
                    right[p].fetch(to + LeftTile::kBytes + p * RightTile::kBytes, right_element(p));
                    right[p].move(Plan::kRightTransposed ? Plan::kTileK : 0, Plan::kRightTransposed ? 0 : Plan::kTileK);
                }
            }
            copies_end_step();
        };
#pragma unroll
        for (int step = 0; step < Plan::kStages - 1; ++step) fetch(step, step);

        const int warp = warp_id(), warp_row = warp % kWarpsM * Plan::kWarpM, warp_column = warp / kWarpsM * Plan::kWarpN;
        const Fragments<Type, Plan::kLeftTransposed, LeftTile::kRowBytes, true> a(warp_row);
        const Fragments<Type, Plan::kRightTransposed, RightTile::kRowBytes, false> b(warp_column);
        const u32 shared = shared_address(memory);
        Step steps[2];
        auto read = [&](int stage, int k, Step& into) {
            const u32 from = shared + stage * kStage;
#pragma unroll
            for (int i = 0; i < kFragmentsM; ++i) a.read(into.a[i], from, i, k);
#pragma unroll
            for (int p = 0; p < Plan::kDots; ++p)
#pragma unroll
                for (int j = 0; j < kFragmentsN; ++j)
                    b.read(into.b[p][j], from + LeftTile::kBytes + p * RightTile::kBytes, j, k);
        };
        float sums[Plan::kDots][kFragmentsM][2 * kFragmentsN][4] = {};
        auto multiply = [&](const Step& s) {
#pragma unroll
            for (int p = 0; p < Plan::kDots; ++p)
#pragma unroll
                for (int j = 0; j < 2 * kFragmentsN; ++j)
#pragma unroll
                    for (int each = 0; each < kFragmentsM; ++each) {
                        const int i = j % 2 ? kFragmentsM - 1 - each : each;  // an operand is used twice in a row
                        multiply_add<Type>(sums[p][i][j], s.a[i], s.b[p][j / 2] + j % 2 * 2);
                    }
        };
        wait_for_all_steps_but<Plan::kStages - 2>();
        __syncthreads();
        read(0, 0, steps[0]);
        int stage = 0;
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
            for (int k = 0; k < kSubsteps; ++k) {
                if (k == kSubsteps - 1) {  // the next step's first fragments are read under this one's last MMAs
                    wait_for_all_steps_but<Plan::kStages - 2>();
                    __syncthreads();
                    stage = stage + 1 == Plan::kStages ? 0 : stage + 1;
                }
                read(stage, (k + 1) % kSubsteps, steps[(k + 1) % 2]);
                if (k == kFetches) fetch(step + Plan::kStages - 1, stage == 0 ? Plan::kStages - 1 : stage - 1);
                multiply(steps[k % 2]);
            }
        }

        constexpr int kStaged = Plan::kStaged;
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = warp_row + i * 16 + half * 8 + accumulator_row();
#pragma unroll
                for (int first = 0; first < 2 * kFragmentsN; first += 4) {
                    u32 staged[kStaged > 0 ? kStaged : 1][4];
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        float values[Plan::kDots][2];
                        u32 packed[kStaged > 0 ? kStaged : 1];
#pragma unroll
                        for (int p = 0; p < Plan::kDots; ++p) {
                            values[p][0] = sums[p][i][first + j][2 * half];
                            values[p][1] = sums[p][i][first + j][2 * half + 1];
                        }
                        const int column = warp_column + (first + j) * 8 + accumulator_column();
                        plan.finish(batch, row_tile, column_tile, row, column, values, packed);
#pragma unroll
                        for (int o = 0; o < kStaged; ++o) staged[o][j] = packed[o];
                    }
#pragma unroll
                    for (int o = 0; o < kStaged; ++o) {
                        transpose_words(staged[o]);
                        const Vec<u32, 4> eight{{staged[o][0], staged[o][1], staged[o][2], staged[o][3]}};
                        plan.send(o, batch, row_tile, column_tile, row, warp_column + (first + lane_id() % 4) * 8, eight);
                    }
                }
            }
    }
};

template <typename Plan>
__device__ void mma_gemm(const Plan& plan) {
    MmaGemm<Plan>::run(plan);
}

}  // namespace fusec
