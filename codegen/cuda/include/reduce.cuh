// SPDX-License-Identifier: Apache-2.0
// Reductions over the threads of a block. Every thread of a group gets the result.
#pragma once
#include "scalar.cuh"

namespace fusec {

struct Sum {
    template <typename T>
    T operator()(T a, T b) const { return a + b; }
};
struct Product {
    template <typename T>
    T operator()(T a, T b) const { return a * b; }
};
struct Maximum {
    template <typename T>
    T operator()(T a, T b) const { return maximum(a, b); }
};
struct Minimum {
    template <typename T>
    T operator()(T a, T b) const { return minimum(a, b); }
};
struct Any {
    bool operator()(bool a, bool b) const { return a || b; }
};
struct All {
    bool operator()(bool a, bool b) const { return a && b; }
};

template <int LANES, typename Op, typename T>
T reduce_within_warp(T value, Op op) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value = op(value, T(__shfl_xor_sync(0xffffffffu, value, distance)));
    return value;
}

// Groups of LANES neighbouring threads: a power of two up to a warp, or a power of two of warps.
// scratch: one element a warp, of shared memory that no thread still reads.
template <int LANES, typename Op, typename T>
T reduce_lanes(T value, Op op, T* scratch) {
    value = reduce_within_warp<(LANES < 32 ? LANES : 32)>(value, op);
    if constexpr (LANES > 32) {
        constexpr int WARPS = LANES / 32;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) scratch[warp] = value;
        __syncthreads();
        value = reduce_within_warp<WARPS>(scratch[warp / WARPS * WARPS + lane % WARPS], op);
    }
    return value;
}

// Groups of COUNT threads, each STRIDE after the one before. scratch: one element a thread, as above.
template <int COUNT, int STRIDE, typename Op, typename T>
T reduce_strided(T value, Op op, T* scratch) {
    if constexpr (COUNT > 1) {
        scratch[threadIdx.x] = value;
        __syncthreads();
        const int first = threadIdx.x / (COUNT * STRIDE) * (COUNT * STRIDE) + threadIdx.x % STRIDE;
        value = scratch[first];
        for (int k = 1; k < COUNT; ++k) value = op(value, scratch[first + k * STRIDE]);
    }
    return value;
}

}  // namespace fusec
