// SPDX-License-Identifier: Apache-2.0
// Integers, positions within a block, and 16-bit floats. Compiles under NVRTC, with no other header.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

namespace fusec {

/// For specializations on what a type has.
template <typename... T>
using Void = void;

/// What cuTensorMapEncodeTiled writes: a kernel takes it as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    u64 opaque[16];
};

/// Of parts of one tensor.
template <int kCount>
struct TensorMaps {
    TensorMap map[kCount];
};

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;

__device__ inline int lane_id() { return threadIdx.x % kWarp; }

/// The same value in every lane, and known to the compiler to be.
__device__ inline int warp_id() { return __shfl_sync(0xffffffff, threadIdx.x / kWarp, 0); }
__device__ inline int warpgroup_id() { return __shfl_sync(0xffffffff, threadIdx.x / kWarpgroup, 0); }

/// True in one lane of the calling warp, all of whose lanes must be here.
__device__ inline bool elect_one() {
    u32 chosen;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(chosen));
    return chosen;
}

/// The address of shared memory as instructions take it.
__device__ inline u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// 16-bit floats in memory. They widen to float by themselves, and are made from float by rounding to nearest even: in a
// pair with 0, which a Hopper GPU does at the rate of additions, and a single one at a quarter of it.

struct bf16 {
    u16 bits;

    bf16() = default;
    __device__ explicit bf16(float value) : bits(static_cast<u16>(pack(value, 0.0f))) {}
    __device__ operator float() const { return __uint_as_float(u32(bits) << 16); }

    /// Two floats rounded to nearest even, `low` in the low half.
    __device__ static u32 pack(float low, float high) {
        u32 both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
    }
    __device__ static float low(u32 both) { return __uint_as_float(both << 16); }
    __device__ static float high(u32 both) { return __uint_as_float(both & 0xffff0000u); }
    __device__ static float at(u32 both, int index) { return index ? high(both) : low(both); }
};

struct f16 {
    u16 bits;

    f16() = default;
    __device__ explicit f16(float value) : bits(static_cast<u16>(pack(value, 0.0f))) {}
    __device__ explicit f16(double value) { asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(value)); }
    __device__ operator float() const { return widen(bits); }

    __device__ static u32 pack(float low, float high) {
        u32 both;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
    }
    __device__ static float widen(u16 bits) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
    __device__ static float low(u32 both) { return widen(static_cast<u16>(both)); }
    __device__ static float high(u32 both) { return widen(static_cast<u16>(both >> 16)); }
    __device__ static float at(u32 both, int index) { return index ? high(both) : low(both); }
};

/// float32 operands whose mantissa is read to 10 bits.
struct tf32 {};

// Floats of 8 bits (sm_89 and later), made from float by rounding to nearest even. e4m3 has no infinity: what is beyond
// its numbers is NaN.

struct f8e4m3 {
    unsigned char bits;

    f8e4m3() = default;
    __device__ explicit f8e4m3(float value) : bits(static_cast<unsigned char>(pack(value, 0.0f))) {}
    __device__ operator float() const {
        u32 both;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"(u16(bits)));
        return f16::low(both);
    }

    /// Two floats, `low` in the low byte.
    __device__ static u16 pack(float low, float high) {
        u16 both;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(inside(high)), "f"(inside(low)));
        return both;
    }
    __device__ static float inside(float value) { return fabsf(value) <= 464.0f ? value : __int_as_float(0x7fffffff); }
};

struct f8e5m2 {
    unsigned char bits;

    f8e5m2() = default;
    __device__ explicit f8e5m2(float value) : bits(static_cast<unsigned char>(pack(value, 0.0f))) {}
    __device__ operator float() const { return f16::widen(u16(bits << 8)); }

    __device__ static u16 pack(float low, float high) {
        u16 both;
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
        if (fabsf(low) >= 61440.0f) both = u16((both & 0xff80) | 0x7c);
        if (fabsf(high) >= 61440.0f) both = u16((both & 0x80ff) | 0x7c00);
        return both;
    }
};

/// Operands of 8 bits, the left one's type first; bytes with a sign, which are added up in 32 bits.
struct f8e4m3_f8e5m2 {};
struct f8e5m2_f8e4m3 {};
struct s8 {};

}  // namespace fusec
