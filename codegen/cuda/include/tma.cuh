// SPDX-License-Identifier: Apache-2.0
// Global to shared memory and back, a box of a tensor at a time (the Tensor Memory Accelerator).
//
// A tensor map says shape, strides, box and swizzle. Coordinates are in elements, the fastest axis first. What lies
// outside the tensor reads as zeros, and is not stored. With a 128-byte swizzle a box's rows are 128 bytes, the box
// starts at a multiple of 1024 bytes, and unit u (of 16 bytes) of row r lies at unit u ^ (r % 8).
#pragma once
#include "barrier.cuh"
#include "base.cuh"

namespace fusec {

__device__ inline void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

#define FUSEC_LOAD_HEAD "cp.async.bulk.tensor."
#define FUSEC_LOAD_KIND ".shared::cluster.global.mbarrier::complete_tx::bytes"

/// Starts a copy into shared memory of this block; its bytes are counted at `full`. By one thread.
__device__ inline void load_tile(void* to, const TensorMap* map, Barrier& full, int x, int y) {
    asm volatile(FUSEC_LOAD_HEAD "2d" FUSEC_LOAD_KIND " [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "r"(x), "r"(y)
                 : "memory");
}
__device__ inline void load_tile(void* to, const TensorMap* map, Barrier& full, int x, int y, int z) {
    asm volatile(FUSEC_LOAD_HEAD "3d" FUSEC_LOAD_KIND " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
__device__ inline void load_tile(void* to, const TensorMap* map, Barrier& full, int x, int y, int z, int w) {
    asm volatile(FUSEC_LOAD_HEAD "4d" FUSEC_LOAD_KIND " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
__device__ inline void load_tile(void* to, const TensorMap* map, Barrier& full, int x, int y, int z, int w, int v) {
    asm volatile(FUSEC_LOAD_HEAD "5d" FUSEC_LOAD_KIND
                                 " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
                 : "memory");
}

#define FUSEC_MULTICAST FUSEC_LOAD_KIND ".multicast::cluster"

/// As `load_tile`, to the same offset in every block of the cluster whose bit is set in `blocks`; each counts the bytes
/// at its own barrier.
__device__ inline void load_tile_multicast(void* to, const TensorMap* map, Barrier& full, u16 blocks, int x, int y) {
    asm volatile(FUSEC_LOAD_HEAD "2d" FUSEC_MULTICAST " [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "h"(blocks), "r"(x), "r"(y)
                 : "memory");
}
__device__ inline void load_tile_multicast(void* to, const TensorMap* map, Barrier& full, u16 blocks, int x, int y,
                                           int z) {
    asm volatile(FUSEC_LOAD_HEAD "3d" FUSEC_MULTICAST " [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "h"(blocks), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
__device__ inline void load_tile_multicast(void* to, const TensorMap* map, Barrier& full, u16 blocks, int x, int y,
                                           int z, int w) {
    asm volatile(FUSEC_LOAD_HEAD "4d" FUSEC_MULTICAST
                                 " [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "h"(blocks), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
__device__ inline void load_tile_multicast(void* to, const TensorMap* map, Barrier& full, u16 blocks, int x, int y,
                                           int z, int w, int v) {
    asm volatile(FUSEC_LOAD_HEAD "5d" FUSEC_MULTICAST
                                 " [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "h"(blocks), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
                 : "memory");
}

/// Either of these: `blocks` 0 is this block alone.
template <typename... Coordinates>
__device__ inline void fetch_tile(void* to, const TensorMap* map, Barrier& full, u16 blocks, Coordinates... at) {
    if (blocks)
        load_tile_multicast(to, map, full, blocks, at...);
    else
        load_tile(to, map, full, at...);
}

#define FUSEC_WINDOWS_KIND ".shared::cluster.global.im2col.mbarrier::complete_tx::bytes"

/// Starts a copy of windows' channels: coordinates of the first window's first position, and the position in each window, the
/// fastest axis first (im2col mode).
__device__ inline void load_windows(void* to, const TensorMap* map, Barrier& full, int c, int w, int n, u16 x) {
    asm volatile(FUSEC_LOAD_HEAD "3d" FUSEC_WINDOWS_KIND
                                 " [%0], [%1, {%3, %4, %5}], [%2], {%6};" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "r"(c), "r"(w), "r"(n), "h"(x)
                 : "memory");
}
__device__ inline void load_windows(void* to, const TensorMap* map, Barrier& full, int c, int w, int h, int n, u16 x,
                                    u16 y) {
    asm volatile(FUSEC_LOAD_HEAD "4d" FUSEC_WINDOWS_KIND
                                 " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "r"(c), "r"(w), "r"(h), "r"(n), "h"(x), "h"(y)
                 : "memory");
}
__device__ inline void load_windows(void* to, const TensorMap* map, Barrier& full, int c, int w, int h, int d, int n,
                                    u16 x, u16 y, u16 z) {
    asm volatile(FUSEC_LOAD_HEAD "5d" FUSEC_WINDOWS_KIND
                                 " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "h"(x), "h"(y), "h"(z)
                 : "memory");
}

#define FUSEC_WINDOWS_MULTICAST FUSEC_WINDOWS_KIND ".multicast::cluster"

__device__ inline void load_windows_multicast(void* to, const TensorMap* map, Barrier& full, u16 blocks, int c, int w,
                                              int n, u16 x) {
    asm volatile(FUSEC_LOAD_HEAD "3d" FUSEC_WINDOWS_MULTICAST
                                 " [%0], [%1, {%4, %5, %6}], [%2], {%7}, %3;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "h"(blocks), "r"(c), "r"(w), "r"(n), "h"(x)
                 : "memory");
}
__device__ inline void load_windows_multicast(void* to, const TensorMap* map, Barrier& full, u16 blocks, int c, int w,
                                              int h, int n, u16 x, u16 y) {
    asm volatile(FUSEC_LOAD_HEAD "4d" FUSEC_WINDOWS_MULTICAST
                                 " [%0], [%1, {%4, %5, %6, %7}], [%2], {%8, %9}, %3;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "h"(blocks), "r"(c), "r"(w), "r"(h), "r"(n), "h"(x), "h"(y)
                 : "memory");
}
__device__ inline void load_windows_multicast(void* to, const TensorMap* map, Barrier& full, u16 blocks, int c, int w,
                                              int h, int d, int n, u16 x, u16 y, u16 z) {
    asm volatile(FUSEC_LOAD_HEAD "5d" FUSEC_WINDOWS_MULTICAST
                                 " [%0], [%1, {%4, %5, %6, %7, %8}], [%2], {%9, %10, %11}, %3;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(&full)), "h"(blocks), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "h"(x),
                 "h"(y), "h"(z)
                 : "memory");
}

/// Either of these: `blocks` 0 is this block alone.
template <typename... Coordinates>
__device__ inline void fetch_windows(void* to, const TensorMap* map, Barrier& full, u16 blocks, Coordinates... at) {
    if (blocks)
        load_windows_multicast(to, map, full, blocks, at...);
    else
        load_windows(to, map, full, at...);
}

#define FUSEC_STORE "cp.async.bulk.tensor."
#define FUSEC_STORE_KIND ".global.shared::cta.bulk_group"

/// Starts a copy out of shared memory, after `fence_async_shared` by its writers and a barrier. By one thread, which
/// then commits.
__device__ inline void store_tile(const TensorMap* map, const void* from, int x, int y) {
    asm volatile(FUSEC_STORE "2d" FUSEC_STORE_KIND " [%0, {%2, %3}], [%1];" ::"l"(map), "r"(shared_address(from)),
                 "r"(x), "r"(y)
                 : "memory");
}
__device__ inline void store_tile(const TensorMap* map, const void* from, int x, int y, int z) {
    asm volatile(FUSEC_STORE "3d" FUSEC_STORE_KIND " [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(shared_address(from)),
                 "r"(x), "r"(y), "r"(z)
                 : "memory");
}
__device__ inline void store_tile(const TensorMap* map, const void* from, int x, int y, int z, int w) {
    asm volatile(FUSEC_STORE "4d" FUSEC_STORE_KIND " [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(shared_address(from)), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
__device__ inline void store_tile(const TensorMap* map, const void* from, int x, int y, int z, int w, int v) {
    asm volatile(FUSEC_STORE "5d" FUSEC_STORE_KIND " [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
                 "r"(shared_address(from)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
                 : "memory");
}
__device__ inline void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until all but the last `kPending` committed stores of this thread have read shared memory.
template <int kPending>
__device__ inline void store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Waits until all stores of this thread have reached global memory.
__device__ inline void store_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#undef FUSEC_LOAD_HEAD
#undef FUSEC_LOAD_KIND
#undef FUSEC_MULTICAST
#undef FUSEC_WINDOWS_KIND
#undef FUSEC_WINDOWS_MULTICAST
#undef FUSEC_STORE
#undef FUSEC_STORE_KIND

}  // namespace fusec
