// SPDX-License-Identifier: Apache-2.0
// Matmuls of a warpgroup (sm_90a): acc[64, N] += a[64, K] b[K, N], K = 32 bytes (16 half floats, 8 tf32,
// 32 numbers of 8 bits).
//
// Operands in shared memory are described by a 64-bit word and lie as TMA boxes with a 128-byte swizzle. A box whose
// rows run along K ("K-major") is 128 bytes of K wide: 8 rows are 1024 bytes. A box whose rows run along M or N ("transposed",
// 16-bit types only) is 64 elements wide; wider operands are several boxes.
//
// Thread t of the warpgroup holds acc[row, column] at d[i]:
//     row = 16 * (t / 32) + (t % 32) / 4 + 8 * (i / 2 % 2),  column = 8 * (i / 4) + 2 * (t % 4) + i % 2.
// An a operand in registers is four words for each 16 columns of K: the pairs (row, k), (row + 8, k), (row, k + 8),
// (row + 8, k + 8) with k = 2 * (t % 4), so an accumulator rounded and packed is one.
//
// Order: write registers; wgmma_fence; multiply ...; wgmma_commit; wgmma_wait<0>; read registers.
#pragma once
#include "base.cuh"

namespace fusec {

/// Orders earlier accesses to accumulators and register operands before the MMAs that follow.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until all but the last `kPending` committed groups of MMAs are done.
template <int kPending>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving accesses to accumulators across this point.
template <int kCount>
__device__ inline void keep_here(float (&d)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ inline void keep_here(int (&d)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

__device__ inline u64 describe(const void* box, u32 leading, u32 stride) {
    u64 start = (shared_address(box) & 0x3ffff) >> 4;
    return start | u64(leading >> 4) << 16 | u64(stride >> 4) << 32 | u64(1) << 62;
}

/// A K-major operand with its first row at `box`, a multiple of 1024 bytes. Step to the next K: `step_k`.
__device__ inline u64 describe_k_major(const void* box) { return describe(box, 16, 1024); }

/// A transposed operand; `box_bytes` lie between its boxes of 64 columns.
__device__ inline u64 describe_transposed(const void* box, u32 box_bytes) { return describe(box, box_bytes, 1024); }

/// The descriptor `steps` MMAs further along K: 32 bytes of a row, or 16 rows of 128 bytes.
template <bool kTransposed>
__device__ inline u64 step_k(u64 description, int steps) {
    return description + (kTransposed ? 2048 >> 4 : 32 >> 4) * steps;
}

/// The descriptor `bytes` further.
__device__ inline u64 step_bytes(u64 description, u32 bytes) { return description + (bytes >> 4); }

/// Registers a thread of the calling warpgroup may use from here on, a multiple of 8. All its warps must call.
template <int kCount>
__device__ inline void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// The instructions for kColumns (a multiple of 8 up to 256) of result:
///
///     shared<T, kTransposedA, kTransposedB>(d, a, b, add)    both operands described
///     registers<T, kTransposedB>(d, a, b, add)           a in four registers, b described
///
/// T is bf16, f16, tf32 or, with operands in shared memory, of 8 bits: f8e4m3, f8e5m2, both of them (f8e4m3_f8e5m2,
/// f8e5m2_f8e4m3), or s8, whose accumulators are int. `add` 0 overwrites the accumulators. The header "wgmma_shapes.cuh" is written for the shapes
/// that a kernel uses.
template <int kColumns>
struct Wgmma;

/// Elements of K in 128 bytes.
template <typename T>
constexpr int kDepth = 128;
template <>
constexpr int kDepth<bf16> = 64;
template <>
constexpr int kDepth<f16> = 64;
template <>
constexpr int kDepth<tf32> = 32;

template <typename A, typename B>
constexpr bool is_same = false;
template <typename A>
constexpr bool is_same<A, A> = true;

}  // namespace fusec

#include "wgmma_shapes.cuh"
