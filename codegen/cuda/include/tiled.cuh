// SPDX-License-Identifier: Apache-2.0
// A matmul by fused multiply-adds, for any GPU and for f32 and f64: tiles in shared memory, several steps
// fetched ahead, a block of accumulators in every thread's registers.
//
// A kernel's own part is a struct `Plan`:
//
//     using Type                             element of the operands in shared memory, and of the sums
//     kTileM, kTileN, kTileK, kStages        what a block computes, a step along K, and steps in shared memory
//     kThreadM, kThreadN                     what a thread computes, multiples of 4
//     kLeftAlongK, kRightAlongK              whether the operand's memory runs along K
//     kLeftVector, kRightVector              neighbours (along M or N) that are 16 bytes at a multiple of 16; else 1
//     kLeftComputed, kRightComputed          the operand is a value, not memory
//     kLeftStride, kLeftStrideK, ...         elements from a neighbour along M (N), along K; -1 where that varies
//     kM, kN, kK, kBatches, kGroup           extents; rows of tiles in a group
//     rows()                                 M, where kM is -1
//     left(batch, row, k), right(batch, k, column)   the element's address, or its value
//     finish<kCount>(batch, row, column, values)     stores kCount neighbours of a row
//
// Shared memory holds [K][M] and [K][N]: a thread reads four neighbours at once, a warp's threads 4 x 8 fragments of
// 4 x 4 that lie side by side, so that no two of them meet in a bank. Operands that run along K are transposed on the way.
#pragma once
#include "copy.cuh"
#include "scalar.cuh"

namespace fusec {

template <typename Plan>
struct Tiled {
    using T = typename Plan::Type;
    static constexpr int kFragment = 4, kLanesM = 4, kLanesN = 8;
    static constexpr int kWarpM = kLanesM * Plan::kThreadM, kWarpN = kLanesN * Plan::kThreadN;
    static constexpr int kWarpsM = Plan::kTileM / kWarpM, kWarpsN = Plan::kTileN / kWarpN;
    static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
    static constexpr int kPad = 16 / sizeof(T);
    static constexpr int kLeftRow = Plan::kTileM + kPad, kRightRow = Plan::kTileN + kPad;
    static constexpr int kStage = Plan::kTileK * (kLeftRow + kRightRow);
    static constexpr int kSteps = (Plan::kK + Plan::kTileK - 1) / Plan::kTileK;
    static constexpr int kFragmentsM = Plan::kThreadM / kFragment, kFragmentsN = Plan::kThreadN / kFragment;

    // Where registers are to spare, sums of 32 products (128 of doubles) are added up, whose error does not grow with
    // K as one sum's does: of K 300 it is half of what sums of 128 leave, and no larger than cuBLAS's.
    static constexpr bool kInBlocks = Plan::kThreadM * Plan::kThreadN <= 32;
    static constexpr int kBlock = sizeof(T) > 4 ? 128 : 32;
    static constexpr int kBlockSteps = kBlock / Plan::kTileK > 1 ? kBlock / Plan::kTileK : 1;

    __device__ static int rows_of(const Plan& plan) {
        if constexpr (Plan::kM < 0)
            return plan.rows();
        else
            return Plan::kM;
    }

    /// How a block's threads share one operand's part of a step, `kExtent` positions along M or N of `whole`; kWhole says
    /// how many where it is no less than 0.
    template <bool kAlongK, int kVector, bool kComputed, int kExtent, int kWhole, int kStride, int kStrideK>
    struct Share {
        static constexpr int kRow = kExtent + kPad, kPerRow = kExtent / kVector;
        static constexpr int kUnits = kPerRow * Plan::kTileK, kTurns = (kUnits + kThreads - 1) / kThreads;
        static constexpr int kTurnK = kAlongK ? 0 : kThreads / kPerRow, kTurnAt = kAlongK ? kThreads / Plan::kTileK : 0;
        static_assert(kAlongK ? kThreads % Plan::kTileK == 0 : kThreads % kPerRow == 0, "a thread's steps go along one axis");
        static constexpr bool kEven = kStride >= 0 && kStrideK >= 0;

        int k, at, first, whole;
        const T* from;

        template <typename Element>
        __device__ Share(int first, int whole, Element element) : first(first), whole(whole) {
            k = kAlongK ? threadIdx.x % Plan::kTileK : threadIdx.x / kPerRow;
            at = kAlongK ? threadIdx.x / Plan::kTileK : threadIdx.x % kPerRow * kVector;
            if constexpr (!kComputed && kEven) from = element(first + at, k);
        }

        /// Starts the copies of the step at `k0`; steps come one after another.
        template <typename Element>
        __device__ void fetch(T* to, int k0, Element element) {
            to += k * kRow + at;
#pragma unroll
            for (int turn = 0; turn < kTurns; ++turn) {
                if (kUnits % kThreads != 0 && turn * kThreads + threadIdx.x >= kUnits) break;
                const int my_k = k0 + k + turn * kTurnK, my_at = first + at + turn * kTurnAt;
                const bool inside =
                    ((kWhole >= 0 && kWhole % kExtent == 0) || my_at < whole) && (Plan::kK % Plan::kTileK == 0 || my_k < Plan::kK);
                T* const slot = to + turn * (kTurnK * kRow + kTurnAt);
                if constexpr (kComputed)
                    *slot = inside ? T(element(my_at, my_k)) : T(0);
                else if constexpr (kEven)
                    copy_async<kVector * sizeof(T)>(slot, from + turn * (kTurnK * kStrideK + kTurnAt * kStride), inside);
                else
                    copy_async<kVector * sizeof(T)>(slot, inside ? element(my_at, my_k) : element(0, 0), inside);
            }
            if constexpr (!kComputed && kEven) from += Plan::kTileK * kStrideK;
        }
    };

    __device__ static void run(const Plan& plan) {
        extern __shared__ __align__(16) char memory[];
        T* const shared = reinterpret_cast<T*>(memory);
        const int whole_rows = rows_of(plan), row_tiles = (whole_rows + Plan::kTileM - 1) / Plan::kTileM;
        constexpr int kColumnTiles = (Plan::kN + Plan::kTileN - 1) / Plan::kTileN;
        const int batch = blockIdx.x / (row_tiles * kColumnTiles), tile = blockIdx.x % (row_tiles * kColumnTiles);
        const int group = tile / (Plan::kGroup * kColumnTiles), within = tile % (Plan::kGroup * kColumnTiles);
        const int rows = minimum(row_tiles - group * Plan::kGroup, Plan::kGroup);
        const int row0 = (group * Plan::kGroup + within % rows) * Plan::kTileM, column0 = within / rows * Plan::kTileN;

        auto left_element = [&](int row, int k) { return plan.left(batch, row, k); };
        auto right_element = [&](int column, int k) { return plan.right(batch, k, column); };
        Share<Plan::kLeftAlongK, Plan::kLeftVector, Plan::kLeftComputed, Plan::kTileM, Plan::kM, Plan::kLeftStride,
              Plan::kLeftStrideK>
            left_share(row0, whole_rows, left_element);
        Share<Plan::kRightAlongK, Plan::kRightVector, Plan::kRightComputed, Plan::kTileN, Plan::kN, Plan::kRightStride,
              Plan::kRightStrideK>
            right_share(column0, Plan::kN, right_element);
        auto fetch = [&](int step, int stage) {
            if (step < kSteps) {
                left_share.fetch(shared + stage * kStage, step * Plan::kTileK, left_element);
                right_share.fetch(shared + stage * kStage + Plan::kTileK * kLeftRow, step * Plan::kTileK, right_element);
            }
            copies_end_step();
        };
#pragma unroll
        for (int step = 0; step < Plan::kStages - 1; ++step) fetch(step, step);

        // Lanes 0 and 1 lie below one another, so that half a warp reads eight fragments of one operand, two of the other.
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int row = warp % kWarpsM * kWarpM + (lane / 16 * 2 + lane % 2) * kFragment;
        const int column = warp / kWarpsM * kWarpN + lane / 2 % kLanesN * kFragment;
        Vec<T, kFragment> a[2][kFragmentsM], b[2][kFragmentsN];
        auto read = [&](const T* from, int k, int into) {
#pragma unroll
            for (int f = 0; f < kFragmentsM; ++f)
                a[into][f] = load<kFragment>(from + row + k * kLeftRow + f * kLanesM * kFragment);
#pragma unroll
            for (int f = 0; f < kFragmentsN; ++f)
                b[into][f] =
                    load<kFragment>(from + Plan::kTileK * kLeftRow + column + k * kRightRow + f * kLanesN * kFragment);
        };
        T sums[Plan::kThreadM][Plan::kThreadN] = {};
        T totals[kInBlocks ? Plan::kThreadM : 1][kInBlocks ? Plan::kThreadN : 1] = {};
        auto end_block = [&] {
#pragma unroll
            for (int i = 0; i < Plan::kThreadM; ++i)
#pragma unroll
                for (int j = 0; j < Plan::kThreadN; ++j) {
                    totals[i][j] += sums[i][j];
                    sums[i][j] = T(0);
                }
        };
        wait_for_all_steps_but<Plan::kStages - 2>();
        __syncthreads();
        read(shared, 0, 0);
        int stage = 0;
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
            for (int k = 0; k < Plan::kTileK; ++k) {
                const int next = stage + 1 == Plan::kStages ? 0 : stage + 1;
                if (k == Plan::kTileK - 1) {  // the next step's first fragments are read under this one's last MMAs
                    wait_for_all_steps_but<Plan::kStages - 2>();
                    __syncthreads();
                    stage = next;
                }
                read(shared + stage * kStage, (k + 1) % Plan::kTileK, (k + 1) % 2);
                if (k == 1) fetch(step + Plan::kStages - 1, stage == 0 ? Plan::kStages - 1 : stage - 1);
#pragma unroll
                for (int i = 0; i < Plan::kThreadM; ++i)
#pragma unroll
                    for (int each = 0; each < Plan::kThreadN; ++each) {
                        const int j = i % 2 ? Plan::kThreadN - 1 - each : each;  // each operand is used twice in a row
                        sums[i][j] += a[k % 2][i / kFragment][i % kFragment] * b[k % 2][j / kFragment][j % kFragment];
                    }
            }
            if constexpr (kInBlocks)
                if ((step + 1) % kBlockSteps == 0 || step + 1 == kSteps) end_block();
        }

#pragma unroll
        for (int i = 0; i < Plan::kThreadM; ++i) {
            const int at_row = row0 + row + i / kFragment * kLanesM * kFragment + i % kFragment;
            if ((Plan::kM < 0 || Plan::kM % Plan::kTileM != 0) && at_row >= whole_rows) continue;
#pragma unroll
            for (int f = 0; f < kFragmentsN; ++f) {
                const int at = column0 + column + f * kLanesN * kFragment;
                Vec<T, kFragment> four;
#pragma unroll
                for (int j = 0; j < kFragment; ++j) {
                    if constexpr (kInBlocks)
                        four[j] = totals[i][f * kFragment + j];
                    else
                        four[j] = sums[i][f * kFragment + j];
                }
                if (Plan::kN % kFragment == 0) {
                    if (Plan::kN % Plan::kTileN == 0 || at < Plan::kN) plan.template finish<kFragment>(batch, at_row, at, four);
                } else {
#pragma unroll
                    for (int j = 0; j < kFragment; ++j)
                        if (at + j < Plan::kN) plan.template finish<1>(batch, at_row, at + j, Vec<T, 1>{{four[j]}});
                }
            }
        }
    }
};

}  // namespace fusec
