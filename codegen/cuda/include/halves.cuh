// SPDX-License-Identifier: Apache-2.0
// Arithmetic of two 16-bit floats in a word, each result rounded to nearest even, and what lies in words of memory.
#pragma once
#include "base.cuh"

namespace fusec {

template <typename T>
__device__ u32 add_pairs(u32 a, u32 b);
template <typename T>
__device__ u32 subtract_pairs(u32 a, u32 b);
template <typename T>
__device__ u32 multiply_pairs(u32 a, u32 b);

#define FUSEC_OF_PAIRS(type, name, instruction)                                        \
    template <>                                                                        \
    __device__ inline u32 name<type>(u32 a, u32 b) {                                   \
        u32 result;                                                                    \
        asm(instruction " %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));               \
        return result;                                                                 \
    }
FUSEC_OF_PAIRS(f16, add_pairs, "add.rn.f16x2")
FUSEC_OF_PAIRS(f16, subtract_pairs, "sub.rn.f16x2")
FUSEC_OF_PAIRS(f16, multiply_pairs, "mul.rn.f16x2")
#if __CUDA_ARCH__ >= 900
FUSEC_OF_PAIRS(bf16, add_pairs, "add.rn.bf16x2")
FUSEC_OF_PAIRS(bf16, subtract_pairs, "sub.rn.bf16x2")
FUSEC_OF_PAIRS(bf16, multiply_pairs, "mul.rn.bf16x2")
#else
/// a * b + c, rounded once.
__device__ inline u32 multiply_add_pairs(u32 a, u32 b, u32 c) {
    u32 result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}
template <>
__device__ inline u32 add_pairs<bf16>(u32 a, u32 b) {
    return multiply_add_pairs(a, 0x3f803f80u, b);
}
template <>
__device__ inline u32 subtract_pairs<bf16>(u32 a, u32 b) {
    return multiply_add_pairs(b, 0xbf80bf80u, a);
}
template <>
__device__ inline u32 multiply_pairs<bf16>(u32 a, u32 b) {
    return multiply_add_pairs(a, b, 0x80008000u);
}
#endif
#undef FUSEC_OF_PAIRS

/// A word with a number in both halves, in a register: the compiler would set a constant anew for each use.
__device__ inline u32 both_halves(u32 number) { return number * 0x10001u * blockDim.y; }

/// Element `i` of those that lie in words.
template <typename T, int kWords>
__device__ inline T element(const u32 (&words)[kWords], int i) {
    if constexpr (sizeof(T) == 1) {
        return T(static_cast<unsigned char>(words[i / 4] >> i % 4 * 8));
    } else if constexpr (sizeof(T) == 2) {
        const u16 bits = static_cast<u16>(words[i / 2] >> i % 2 * 16);
        return reinterpret_cast<const T&>(bits);
    } else if constexpr (sizeof(T) == 4) {
        return reinterpret_cast<const T&>(words[i]);
    } else {
        const u64 bits = u64(words[2 * i + 1]) << 32 | words[2 * i];
        return reinterpret_cast<const T&>(bits);
    }
}

/// An element's bits, in a word's low ones.
template <typename T>
__device__ inline u32 bits_of(T value) {
    if constexpr (sizeof(T) == 1) return reinterpret_cast<const unsigned char&>(value);
    if constexpr (sizeof(T) == 2) return reinterpret_cast<const u16&>(value);
    if constexpr (sizeof(T) == 4) return reinterpret_cast<const u32&>(value);
}

/// kWords neighbouring words, read where the code says. kOnce: they are read once.
template <int kWords, bool kOnce, typename T>
__device__ inline void load_words(u32* to, const T* from) {
    if constexpr (kWords == 4 && kOnce)
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
            : "l"(from));
    else if constexpr (kWords == 4)
        asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
            : "l"(from));
    else if constexpr (kWords == 2)
        asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
    else
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
}

/// Numbers of a small array that a block has copied to its shared memory, so many bytes behind the start.
template <typename T>
__device__ inline const T* in_shared(int at) {
    extern __shared__ __align__(128) char memory[];
    return reinterpret_cast<const T*>(memory + at);
}

}  // namespace fusec
