// SPDX-License-Identifier: Apache-2.0
// Accumulators of wgmma in registers: their positions, and their way into shared memory.
#pragma once
#include "base.cuh"

namespace fusec {

/// The row of a thread's first accumulators within its warpgroup's 64, and the column of a pair within 8.
__device__ inline int fragment_row() { return threadIdx.x % kWarpgroup / kWarp * 16 + lane_id() / 4; }
__device__ inline int fragment_column() { return lane_id() % 4 * 2; }

/// Stores four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

/// Loads four 8x8 matrices of 16-bit elements, from addresses as those of `store_matrices`.
__device__ inline void load_matrices(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/// Where unit `unit` (16 bytes) of row `row` lies in a box with a 128-byte swizzle that starts at `box`.
__device__ inline u32 swizzled(u32 box, int row, int unit) { return box + row * 128 + ((unit ^ (row & 7)) << 4); }

}  // namespace fusec
