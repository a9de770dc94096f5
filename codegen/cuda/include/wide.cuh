// SPDX-License-Identifier: Apache-2.0
// Rows wider than a block: the blocks of a cluster hold parts of them in shared memory, and reduce together.
#pragma once
#include "barrier.cuh"
#include "reduce.cuh"

namespace fusec {

// A cluster's barrier where threads of a warp may have gone different ways (loops over parts that end unevenly).
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ inline void arrive_in_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }

/// Brings `bytes` of memory to shared memory, both at multiples of 16; `arrived` counts them. By one thread.
__device__ inline void load_bytes(void* to, const void* from, int bytes, Barrier& arrived) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(&arrived))
        : "memory");
}

// The blocks of a cluster, in each of which all threads have the block's own value; all must have started.
// slots: one element a block, of shared memory that nothing else uses.
template <int BLOCKS, typename Op, typename T>
T reduce_cluster(T value, Op op, T* slots) {
    if (threadIdx.x < BLOCKS) *in_block(slots + cluster_rank(), threadIdx.x) = value;
    arrive_in_cluster();
    wait_for_cluster();
    value = slots[0];
#pragma unroll
    for (int k = 1; k < BLOCKS; ++k) value = op(value, slots[k]);
    return value;
}

}  // namespace fusec
