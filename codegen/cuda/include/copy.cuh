// SPDX-License-Identifier: Apache-2.0
// Copies from device memory into shared memory that run beside the arithmetic (cp.async, sm_80 and later).
//
// A thread's copies are in the order of its `copies_end_step`s; after `wait_for_all_steps_but<n>` and a barrier of the
// block, every thread reads what all threads copied in all steps but the last n.
#pragma once
#include "base.cuh"

namespace fusec {

/// Starts a copy of kBytes (4, 8 or 16), of which `bytes` are there: the rest is set to zero.
template <int kBytes>
__device__ inline void copy_async(void* to, const void* from, int bytes) {
    const u32 address = shared_address(to);
    if constexpr (kBytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(kBytes), "r"(bytes));
}
template <int kBytes>
__device__ inline void copy_async(void* to, const void* from, bool inside) {
    copy_async<kBytes>(to, from, inside ? kBytes : 0);
}
template <int kBytes>
__device__ inline void copy_async(void* to, const void* from) {
    const u32 address = shared_address(to);
    if constexpr (kBytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(kBytes));
}

__device__ inline void copies_end_step() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kSteps>
__device__ inline void wait_for_all_steps_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kSteps) : "memory");
}

}  // namespace fusec
