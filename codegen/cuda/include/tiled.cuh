// A matrix product by fused multiply-adds, for any card and for f32 and f64: tiles in shared memory, several steps
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
//     kM, kN, kK, kBatches, kGroup           extents; rows of tiles walked together
//     left(batch, row, k), right(batch, k, column)   the element's address, or its value
//     finish<kCount>(batch, row, column, values)     stores kCount neighbours of a row
//
// Shared memory holds [K][M] and [K][N]: a thread reads four neighbours at once, a warp's threads 4 x 8 fragments of
// 4 x 4 that lie side by side, so that no two of them meet in a bank. Operands that run along K are turned on the way.
#pragma once
#include "scalar.cuh"

namespace fusec {

/// Starts a copy of kBytes (4, 8 or 16) into shared memory; zeros where not `inside`.
template <int kBytes>
__device__ inline void copy_async(void* to, const void* from, bool inside) {
    const u32 address = static_cast<u32>(__cvta_generic_to_shared(to));
    const int bytes = inside ? kBytes : 0;
    if constexpr (kBytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(kBytes), "r"(bytes)
                     : "memory");
}
__device__ inline void copies_end_step() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kSteps>
__device__ inline void wait_for_all_steps_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kSteps) : "memory");
}

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

    /// Starts fetching one operand's part of a step: `extent` places along M or N of `whole`, from `first` on.
    template <bool kAlongK, int kVector, bool kComputed, int kExtent, int kRow, int kWhole, typename Element>
    __device__ static void fetch(T* to, int first, int k0, Element element) {
        constexpr int kPerRow = kExtent / kVector, kUnits = kPerRow * Plan::kTileK;
#pragma unroll
        for (int u = 0; u < kUnits; u += kThreads) {
            const int unit = u + threadIdx.x;
            if (kUnits % kThreads != 0 && unit >= kUnits) break;
            const int k = kAlongK ? unit % Plan::kTileK : unit / kPerRow;
            const int at = kAlongK ? unit / Plan::kTileK : unit % kPerRow * kVector;
            const bool inside = (kWhole % kExtent == 0 || first + at < kWhole) &&
                                (Plan::kK % Plan::kTileK == 0 || k0 + k < Plan::kK);
            T* place = to + k * kRow + at;
            if constexpr (kComputed)
                *place = inside ? T(element(first + at, k0 + k)) : T(0);
            else
                copy_async<kVector * sizeof(T)>(place, inside ? element(first + at, k0 + k) : element(0, 0), inside);
        }
    }

    __device__ static void run(const Plan& plan) {
        extern __shared__ __align__(16) char memory[];
        T* const shared = reinterpret_cast<T*>(memory);
        constexpr int kRowTiles = (Plan::kM + Plan::kTileM - 1) / Plan::kTileM;
        constexpr int kColumnTiles = (Plan::kN + Plan::kTileN - 1) / Plan::kTileN;
        const int batch = blockIdx.x / (kRowTiles * kColumnTiles), tile = blockIdx.x % (kRowTiles * kColumnTiles);
        const int group = tile / (Plan::kGroup * kColumnTiles), within = tile % (Plan::kGroup * kColumnTiles);
        const int rows = minimum(kRowTiles - group * Plan::kGroup, Plan::kGroup);
        const int row0 = (group * Plan::kGroup + within % rows) * Plan::kTileM, column0 = within / rows * Plan::kTileN;

        auto fetch_step = [&](int step) {
            T* const to = shared + step % Plan::kStages * kStage;
            const int k0 = step * Plan::kTileK;
            fetch<Plan::kLeftAlongK, Plan::kLeftVector, Plan::kLeftComputed, Plan::kTileM, kLeftRow, Plan::kM>(
                to, row0, k0, [&](int row, int k) { return plan.left(batch, row, k); });
            fetch<Plan::kRightAlongK, Plan::kRightVector, Plan::kRightComputed, Plan::kTileN, kRightRow, Plan::kN>(
                to + Plan::kTileK * kLeftRow, column0, k0, [&](int column, int k) { return plan.right(batch, k, column); });
        };
#pragma unroll
        for (int step = 0; step < Plan::kStages - 1; ++step) {
            if (step < kSteps) fetch_step(step);
            copies_end_step();
        }

        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int row = warp % kWarpsM * kWarpM + lane / kLanesN * kFragment;
        const int column = warp / kWarpsM * kWarpN + lane % kLanesN * kFragment;
        T sums[Plan::kThreadM][Plan::kThreadN] = {};
        for (int step = 0; step < kSteps; ++step) {
            wait_for_all_steps_but<Plan::kStages - 2>();
            __syncthreads();
            if (step + Plan::kStages - 1 < kSteps) fetch_step(step + Plan::kStages - 1);
            copies_end_step();
            const T* const left = shared + step % Plan::kStages * kStage + row;
            const T* const right = shared + step % Plan::kStages * kStage + Plan::kTileK * kLeftRow + column;
#pragma unroll
            for (int k = 0; k < Plan::kTileK; ++k) {
                Vec<T, kFragment> a[kFragmentsM], b[kFragmentsN];
#pragma unroll
                for (int f = 0; f < kFragmentsM; ++f)
                    a[f] = load<kFragment>(left + k * kLeftRow + f * kLanesM * kFragment);
#pragma unroll
                for (int f = 0; f < kFragmentsN; ++f)
                    b[f] = load<kFragment>(right + k * kRightRow + f * kLanesN * kFragment);
#pragma unroll
                for (int i = 0; i < Plan::kThreadM; ++i)
#pragma unroll
                    for (int j = 0; j < Plan::kThreadN; ++j)
                        sums[i][j] += a[i / kFragment][i % kFragment] * b[j / kFragment][j % kFragment];
            }
        }

#pragma unroll
        for (int i = 0; i < Plan::kThreadM; ++i) {
            const int at_row = row0 + row + i / kFragment * kLanesM * kFragment + i % kFragment;
            if (Plan::kM % Plan::kTileM != 0 && at_row >= Plan::kM) continue;
#pragma unroll
            for (int f = 0; f < kFragmentsN; ++f) {
                const int at = column0 + column + f * kLanesN * kFragment;
                Vec<T, kFragment> four;
#pragma unroll
                for (int j = 0; j < kFragment; ++j) four[j] = sums[i][f * kFragment + j];
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
