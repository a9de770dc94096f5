// SPDX-License-Identifier: Apache-2.0
// Matmuls of a warp (sm_80 and later): acc[16, 8] += a[16, K] b[K, 8], K = 32 bytes (16 half floats, 8 tf32).
//
// Operands lie in shared memory in rows of 64 bytes, or of a multiple of 128, in units of 16 bytes. A row's units are
// swapped by its number, so that the same unit of eight rows lies in different banks. Rows run along K, or ("transposed")
// along M or N.
//
// Lane t of the warp holds acc[row, column] at d[i]:  row = t / 4 + 8 * (i / 2),  column = 2 * (t % 4) + i % 2,
// so an accumulator of 16 columns rounded and packed is an a operand of half floats.
#pragma once
#include "base.cuh"
#include "fragment.cuh"

namespace fusec {

template <typename T>
constexpr bool is_half = true;
template <>
constexpr bool is_half<tf32> = false;

/// Where a unit of a row lies, in bytes. kSwap: see `Swap`.
template <int kRowBytes, int kSwap>
__device__ inline int offset_in_rows(int row, int unit) {
    static_assert(kRowBytes == 64 || kRowBytes % 128 == 0, "rows of 64 bytes or of a multiple of 128");
    if (kSwap == 2) return row * kRowBytes + ((unit ^ (row & 3) << 1) << 4);
    if (kRowBytes == 64) return row * kRowBytes + ((unit ^ (row >> 1 & 3)) << 4);
    return row * kRowBytes + ((unit ^ (row & 7)) << 4);
}

/// Which rows are read side by side: eight, or of transposed operands of 32 bits four.
template <typename T, bool kTransposed>
constexpr int kSwapOf = kTransposed && !is_half<T> ? 2 : 1;

/// As `load_matrices`, each matrix transposed.
__device__ inline void load_matrices_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/// A word of shared memory.
__device__ inline u32 load_word(u32 address) {
    u32 word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
    return word;
}

/// float32 rounded to the ten bits of mantissa that tensor cores read: to nearest, where they would cut.
__device__ inline u32 rounded_to_tf32(u32 x) {
    u32 rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(x)));
    return rounded;
}

/// A warp's part of an operand, read in fragments of 16 positions along M or N by 32 bytes of K.
///
/// The words of a left fragment are (positions 0-7, first half of K), (8-15, first), (0-7, second), (8-15, second): an a
/// operand. Those of a right one are two b operands: (0-7, first), (0-7, second), (8-15, first), (8-15, second).
template <typename T, bool kTransposed, int kRowBytes, bool kLeft>
struct Fragments {
    static constexpr int kSwap = kSwapOf<T, kTransposed>;
    int at;

    /// `first`: the warp's first position along M or N, a multiple of its number of positions (a power of two).
    __device__ explicit Fragments(int first) {
        const int lane = lane_id(), matrix = lane / 8, within = lane % 8;
        const int half = kLeft ? matrix % 2 : matrix / 2, deep = kLeft ? matrix / 2 : matrix % 2;
        if constexpr (!kTransposed)
            at = offset_in_rows<kRowBytes, kSwap>(first + half * 8 + within, deep);
        else if constexpr (is_half<T>)
            at = offset_in_rows<kRowBytes, kSwap>(deep * 8 + within, first / 8 + half);
        else
            at = offset_in_rows<kRowBytes, kSwap>(lane % 4, first / 4 + lane / 16) + lane / 4 % 4 * 4;
    }

    /// Fragment i along M or N, at step k.
    __device__ void read(u32 (&words)[4], u32 base, int i, int k) const {
        if constexpr (!kTransposed) {
            load_matrices(words, base + (at ^ k % 4 << 5) + k / 4 * 128 + i * 16 * kRowBytes);
        } else if constexpr (is_half<T>) {
            load_matrices_transposed(words, base + (at ^ i % 4 << 5) + i / 4 * 128 + k * 16 * kRowBytes);
        } else {
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                const int half = kLeft ? q % 2 : q / 2, deep = kLeft ? q / 2 : q % 2;
                const int unit = i % 2 * 4 + half * 2;
                words[q] = load_word(base + (at ^ unit << 4) + i / 2 * 128 + (k * 8 + deep * 4) * kRowBytes);
            }
        }
        if constexpr (!is_half<T>)
#pragma unroll
            for (int q = 0; q < 4; ++q) words[q] = rounded_to_tf32(words[q]);
    }
};

/// d += a b. `b`: two words.
template <typename T>
__device__ inline void multiply_add(float (&d)[4], const u32 (&a)[4], const u32* b);

template <>
__device__ inline void multiply_add<bf16>(float (&d)[4], const u32 (&a)[4], const u32* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ inline void multiply_add<f16>(float (&d)[4], const u32 (&a)[4], const u32* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ inline void multiply_add<tf32>(float (&d)[4], const u32 (&a)[4], const u32* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// The row and the first column of a lane's accumulators.
__device__ inline int accumulator_row() { return lane_id() / 4; }
__device__ inline int accumulator_column() { return lane_id() % 4 * 2; }

/// Four words in each of four neighbouring lanes, transposed: lane t gets word t of the four. Packed pairs of four
/// accumulators of a row become eight neighbours.
__device__ inline void transpose_words(u32 (&w)[4]) {
    const bool odd = lane_id() & 1, high = lane_id() & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const u32 other = __shfl_xor_sync(0xffffffff, odd ? w[i] : w[i + 1], 1);
        if (odd)
            w[i] = other;
        else
            w[i + 1] = other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 other = __shfl_xor_sync(0xffffffff, high ? w[i] : w[i + 2], 2);
        if (high)
            w[i] = other;
        else
            w[i + 2] = other;
    }
}

}  // namespace fusec
