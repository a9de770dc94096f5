// SPDX-License-Identifier: Apache-2.0
// A matmul of few tiles on Hopper: the blocks of a cluster multiply parts of K of one tile, and each then adds up and
// finishes a share of its columns.
//
// The plan is that of "gemm.cuh" with kSplit, the number of blocks; they share no operands (kClusterM and kClusterN
// are 1), and all outputs are stored from registers (kStaged 0). Sums are added in the order of K: the result does not
// depend on which block is first.
#pragma once
#include "gemm.cuh"

namespace fusec {

struct alignas(16) Four {
    float at[4];
};

/// Reads shared memory of another block of the cluster, at the offset of `here` in this one's.
__device__ inline Four load_from(int block, const Four* here) {
    Four v;
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5;\n"
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
        : "=f"(v.at[0]), "=f"(v.at[1]), "=f"(v.at[2]), "=f"(v.at[3])
        : "r"(shared_address(here)), "r"(block));
    return v;
}

/// Groups of 16 columns of a consumer's accumulators, dealt out to the blocks in turn.
template <typename Plan>
struct Parts {
    using L = Layout<Plan>;
    static constexpr int kAcross = L::kColumns / 16, kGroups = kAcross / Plan::kDots;
    static constexpr int kMine = (kGroups + Plan::kSplit - 1) / Plan::kSplit;

    /// Where a thread leaves half `h` of a group for the others: neighbours lie side by side.
    __device__ static Four* slot(char* buffers, int group, int h) {
        int thread = threadIdx.x - kWarpgroup;
        return reinterpret_cast<Four*>(buffers) + (group * 2 + h) * kConsumers * kWarpgroup + thread;
    }

    __device__ static void leave(char* buffers, const float (&acc)[L::kColumns / 2]) {
#pragma unroll
        for (int g = 0; g < kAcross; ++g)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                *slot(buffers, g, h) =
                    Four{{acc[g * 8 + h * 4], acc[g * 8 + h * 4 + 1], acc[g * 8 + h * 4 + 2], acc[g * 8 + h * 4 + 3]}};
    }

    /// Half of a group, summed over all blocks.
    __device__ static Four sum(char* buffers, int group, int h) {
        Four parts[Plan::kSplit];
#pragma unroll
        for (int part = 0; part < Plan::kSplit; ++part) parts[part] = load_from(part, slot(buffers, group, h));
#pragma unroll
        for (int part = 1; part < Plan::kSplit; ++part)
#pragma unroll
            for (int i = 0; i < 4; ++i) parts[0].at[i] += parts[part].at[i];
        return parts[0];
    }
};

template <typename Plan>
__device__ void finish_parts(const Plan& plan, char* buffers, const Tiles<Plan>& tile, int first_row, int rank) {
    using P = Parts<Plan>;
    Four sums[P::kMine][Plan::kDots][2];
#pragma unroll
    for (int j = 0; j < P::kMine; ++j) {
        int group = min(j * Plan::kSplit + rank, P::kGroups - 1);
#pragma unroll
        for (int p = 0; p < Plan::kDots; ++p)
#pragma unroll
            for (int h = 0; h < 2; ++h) sums[j][p][h] = P::sum(buffers, p * P::kGroups + group, h);
    }
#pragma unroll
    for (int j = 0; j < P::kMine; ++j) {
        int group = j * Plan::kSplit + rank;
        if (group >= P::kGroups) break;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float values[Plan::kDots][2];
            u32 staged[1];
#pragma unroll
            for (int p = 0; p < Plan::kDots; ++p) {
                values[p][0] = sums[j][p][i / 2].at[i % 2 * 2];
                values[p][1] = sums[j][p][i / 2].at[i % 2 * 2 + 1];
            }
            int row = first_row + fragment_row() + i % 2 * 8, column = group * 16 + i / 2 * 8 + fragment_column();
            plan.finish(tile.batch, tile.row, tile.column, row, column,
                        plan.read_column(tile.batch, tile.row, tile.column, column),
                        plan.read_point(tile.batch, tile.row, tile.column, row, column), values, staged);
        }
    }
}

template <typename Plan>
__device__ void split_gemm(const Plan& plan) {
    using L = Layout<Plan>;
    static_assert(is_same<typename L::Sum, float>, "sums that are left as floats");
    static_assert(L::kFragments == 1 && L::kCluster == 1 && Plan::kStaged == 0, "one tile of 128 rows, shared by none");
    extern __shared__ char memory[];
    __shared__ Barrier full[Plan::kStages], empty[Plan::kStages];
    char* buffers = memory + (1024 - shared_address(memory) % 1024) % 1024;
    int rank = cluster_rank();
    Tiles<Plan> tile(plan, blockIdx.x / Plan::kSplit, 0);
    int first = Plan::kSteps * rank / Plan::kSplit, last = Plan::kSteps * (rank + 1) / Plan::kSplit;
    start_barriers(plan, full, empty, kConsumers);
    start_after_the_kernel_ahead();
    __syncthreads();
    Ring<Plan::kStages> ring;
    if (warpgroup_id() == 0) {
        lower_registers<40>();
        if (warp_id() == 0 && elect_one())
            fetch_steps<Plan>(plan, buffers, full, empty, ring, tile, Shares<Plan>(0), first, last);
        __syncwarp();
        cluster_sync();
    } else {
        raise_registers<232>();
        int first_row = (warpgroup_id() - 1) * L::kRows, thread = threadIdx.x % kWarpgroup;
        float acc[1][L::kColumns / 2];
        multiply<Plan, 0>(acc, buffers, full, empty, ring, first_row, thread == 0, rank, last - first,
                          StepScales<Plan>(plan, tile, first_row), [](int) {}, [] {});
        named_sync(1, kConsumers * kWarpgroup);
        Parts<Plan>::leave(buffers, acc[0]);
        cluster_sync();
        finish_parts(plan, buffers, tile, first_row, rank);
    }
    cluster_sync();
}

}  // namespace fusec
