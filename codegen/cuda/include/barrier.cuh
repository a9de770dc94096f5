// SPDX-License-Identifier: Apache-2.0
// Waiting: mbarriers in shared memory, named barriers of a block, barriers of a cluster, and proxy fences.
#pragma once
#include "base.cuh"

namespace fusec {

/// An mbarrier: a phase ends when all its arrivals have come, and all the bytes that were announced.
struct Barrier {
    u64 state;

    /// By one thread; then `fence_barrier_init` and a barrier of the block (or cluster) before anyone uses it.
    __device__ void init(int arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals));
    }

    __device__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
    }

    /// Arrives at the barrier at the same offset in another block of the cluster. For readers that give a buffer back:
    /// the scope is the block's, because a release to the cluster waits for all of the thread's memory traffic.
    __device__ void arrive_at(int block) {
        asm volatile(
            "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(this)),
            "r"(block)
            : "memory");
    }

    /// Arrives, and announces bytes that TMA copies will bring.
    __device__ void arrive_expecting(int bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                     : "memory");
    }

    /// Waits until the phase of this parity has ended. A fresh barrier is in phase 0; the phase before it, of
    /// parity 1, counts as ended.
    __device__ void wait(u32 parity) {
        asm volatile(
            "{ .reg .pred done;\n"
            "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
            "@done bra over;\n"
            "bra again;\n"
            "over: }" ::"r"(shared_address(this)),
            "r"(parity)
            : "memory");
    }
};

/// A slot in a ring of `kStages` buffers, and the parity of the round.
template <int kStages>
struct Ring {
    int stage = 0;
    u32 parity = 0;

    __device__ void advance() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }

    /// As far as `steps` advances.
    __device__ void skip(int steps) {
        int slot = stage + steps;
        parity ^= slot / kStages & 1;
        stage = slot % kStages;
    }
};

__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// What this thread wrote to shared memory before is seen by TMA copies and wgmma after.
__device__ inline void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Barrier `id` (1 to 15; 0 is __syncthreads) of `threads` threads of the block.
__device__ inline void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts as arrived without waiting; `threads` is the sum of those that arrive and those that sync.
__device__ inline void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Lets the kernel behind this one set itself up, on SMs that are free, and waits until the kernel before has ended:
/// nothing that a kernel may write is touched before. Where a launch does not overlap, nothing happens.
__device__ inline void start_after_the_kernel_ahead() {
    asm volatile("griddepcontrol.launch_dependents;\n griddepcontrol.wait;" ::: "memory");
}

__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}
__device__ inline int cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// The same offset in shared memory in another block of the cluster.
template <typename T>
__device__ inline T* in_block(T* own, int block) {
    u64 there;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(block));
    return reinterpret_cast<T*>(there);
}

}  // namespace fusec
