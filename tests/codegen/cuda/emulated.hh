// What skinny_gemm.cuh and windows.cuh take of a GPU, on a CPU: each thread of a block, or of the blocks of a cluster, is a coroutine
// that goes on to the next where it waits; an MMA is computed from what the lanes of a warp hand over.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using std::max;
using std::min;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i64 = long long;
using u8 = unsigned char;
#define __device__
#define __launch_bounds__(...)
#define infinity INFINITY
#define nan_value NAN

struct Index {
    int x, y, z;
};
struct Thread {
    ucontext_t context;
    int thread, block;
    bool done;
    char* stack;
};
static Thread* here;
static ucontext_t scheduler;
static char* memories[16];
static int threads, first_block;
#define threadIdx (Index{here->thread, 0, 0})
#define blockIdx (Index{here->block, 0, 0})
#define blockDim (Index{threads, 1, 1})
static int rank_here() { return here->block - first_block; }
static void go_on() { swapcontext(&here->context, &scheduler); }

struct Meeting {
    int members, waiting, round;

    void wait() {
        const int mine = round;
        if (++waiting == members) {
            waiting = 0;
            ++round;
        } else {
            while (round == mine) go_on();
        }
    }
};
static Meeting of_block[16], of_warp[16][32], of_cluster;
#define __syncthreads() of_block[rank_here()].wait()
#define __syncthreads_or(value) fusec::syncthreads_or(value)

static float float_of(u32 bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static u32 bits_of_float(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static u32 __byte_perm(u32 a, u32 b, u32 chosen) {
    const u64 both = u64(b) << 32 | a;
    u32 found = 0;
    for (int i = 0; i < 4; ++i) found |= u32(both >> (chosen >> 4 * i & 7) * 8 & 255) << 8 * i;
    return found;
}

namespace fusec {

struct bf16 {
    u16 bits;

    bf16() = default;
    explicit bf16(float value) {
        const u32 b = bits_of_float(value);
        bits = (b & 0x7fffffff) > 0x7f800000 ? b >> 16 | 64 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
    }
    operator float() const { return float_of(u32(bits) << 16); }
    static u32 pack(float low, float high) { return u32(bf16(high).bits) << 16 | bf16(low).bits; }
    static float at(u32 both, int i) { return float_of(both >> 16 * i << 16); }
};
struct f16 {
    u16 bits;

    f16() = default;
    explicit f16(float value) {
        const _Float16 rounded = static_cast<_Float16>(value);
        memcpy(&bits, &rounded, 2);
    }
    operator float() const {
        _Float16 value;
        memcpy(&value, &bits, 2);
        return value;
    }
    static u32 pack(float low, float high) { return u32(f16(high).bits) << 16 | f16(low).bits; }
    static float at(u32 both, int i) {
        f16 value;
        value.bits = both >> 16 * i;
        return value;
    }
};

template <typename T>
u32 add_pairs(u32 a, u32 b) {
    return T::pack(T::at(a, 0) + T::at(b, 0), T::at(a, 1) + T::at(b, 1));
}
template <typename T>
u32 subtract_pairs(u32 a, u32 b) {
    return T::pack(T::at(a, 0) - T::at(b, 0), T::at(a, 1) - T::at(b, 1));
}
template <typename T>
u32 multiply_pairs(u32 a, u32 b) {
    return T::pack(T::at(a, 0) * T::at(b, 0), T::at(a, 1) * T::at(b, 1));
}

template <int kWords, bool kOnce, typename T>
void load_words(u32* to, const T* from) {
    if (reinterpret_cast<u64>(from) % (4 * kWords)) {
        fprintf(stderr, "an address that is no multiple of %d\n", 4 * kWords);
        abort();
    }
    memcpy(to, from, 4 * kWords);
}

static int lane_id() { return here->thread % 32; }
static int warp_id() { return here->thread / 32; }
static u32 lefts[16][32][32][4], rights[16][32][32][2];

/// mma.m16n8k16: d += a b.
template <typename T>
void multiply_add(float (&d)[4], const u32 (&a)[4], const u32* b) {
    const int rank = rank_here(), warp = warp_id(), lane = lane_id();
    memcpy(lefts[rank][warp][lane], a, 16);
    memcpy(rights[rank][warp][lane], b, 8);
    of_warp[rank][warp].wait();
    for (int e = 0; e < 4; ++e) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        for (int k = 0; k < 16; ++k) {
            const int quarter = k % 8 / 2;
            const u32 left = lefts[rank][warp][row % 8 * 4 + quarter][row / 8 + k / 8 * 2];
            const u32 right = rights[rank][warp][column * 4 + quarter][k / 8];
            d[e] += T::at(left, k % 2) * T::at(right, k % 2);
        }
    }
    of_warp[rank][warp].wait();
}
static int accumulator_row() { return lane_id() / 4; }
static int accumulator_column() { return lane_id() % 4 * 2; }

static const char* rows_of[16][32][32];
static u32 shared_address(const void* p) { return static_cast<const char*>(p) - memories[rank_here()]; }

/// ldmatrix.x4: lane l gives the address of row l % 8 of matrix l / 8.
static void load_matrices(u32 (&r)[4], u32 address) {
    const int rank = rank_here(), warp = warp_id(), lane = lane_id();
    if (address % 16) {
        fprintf(stderr, "a row of a matrix at no multiple of 16\n");
        abort();
    }
    rows_of[rank][warp][lane] = memories[rank] + address;
    of_warp[rank][warp].wait();
    for (int i = 0; i < 4; ++i) memcpy(&r[i], rows_of[rank][warp][i * 8 + lane / 4] + lane % 4 * 4, 4);
    of_warp[rank][warp].wait();
}
static u32 handed[16][32][32][4];
static void transpose_words(u32 (&w)[4]) {
    const int rank = rank_here(), warp = warp_id(), lane = lane_id();
    memcpy(handed[rank][warp][lane], w, 16);
    of_warp[rank][warp].wait();
    for (int i = 0; i < 4; ++i) w[i] = handed[rank][warp][lane / 4 * 4 + i][lane % 4];
    of_warp[rank][warp].wait();
}
static int any_of[16];
static int syncthreads_or(int value) {
    const int rank = rank_here();
    any_of[rank] = 0;
    of_block[rank].wait();
    any_of[rank] |= value != 0;
    of_block[rank].wait();
    return any_of[rank];
}

static void cluster_sync() { of_cluster.wait(); }
template <typename T>
T* in_block(T* own, int block) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(own) - memories[rank_here()] + memories[block]);
}

template <int kBytes>
void copy_async(void* to, const void* from, bool there) {
    if (there)
        memcpy(to, from, kBytes);
    else
        memset(to, 0, kBytes);
}
static void copies_end_step() {}
template <int kSteps>
void wait_for_all_steps_but() {}
static void __syncwarp() { of_warp[rank_here()][warp_id()].wait(); }
static Meeting of_group[16][16];
static void named_sync(int id, int threads_of_group) {
    of_group[rank_here()][id].members = threads_of_group;
    of_group[rank_here()][id].wait();
}

template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
    T at[N];
    T& operator[](int i) { return at[i]; }
    const T& operator[](int i) const { return at[i]; }
};
template <int N, typename T>
Vec<T, N> load(const T* from) {
    return *reinterpret_cast<const Vec<T, N>*>(from);
}
template <int N, typename T>
void store(T* to, const Vec<T, N>& value) {
    *reinterpret_cast<Vec<T, N>*>(to) = value;
}
template <typename T>
T maximum(T a, T b) {
    return a > b || a != a ? a : b;
}
template <typename T>
T minimum(T a, T b) {
    return a < b || a != a ? a : b;
}

}  // namespace fusec

static void (*body_of_kernel)();
static void enter() {
    body_of_kernel();
    here->done = true;
    for (;;) go_on();
}

/// Clusters of `split` blocks, one after the other.
static void launch(int blocks, int threads_of_block, int split, int shared, void (*body)()) {
    constexpr int kStack = 1 << 16;
    threads = threads_of_block;
    body_of_kernel = body;
    std::vector<Thread> all(split * threads);
    for (Thread& t : all) t.stack = static_cast<char*>(malloc(kStack));
    for (int r = 0; r < split; ++r) memories[r] = static_cast<char*>(aligned_alloc(128, shared + 128 - shared % 128));
    for (first_block = 0; first_block < blocks; first_block += split) {
        of_cluster = {split * threads, 0, 0};
        for (int r = 0; r < split; ++r) {
            memset(memories[r], 0x7f, shared);
            of_block[r] = {threads, 0, 0};
            for (int w = 0; w < threads / 32; ++w) of_warp[r][w] = {32, 0, 0};
        }
        for (int i = 0; i < split * threads; ++i) {
            Thread& t = all[i];
            t.thread = i % threads;
            t.block = first_block + i / threads;
            t.done = false;
            getcontext(&t.context);
            t.context.uc_stack.ss_sp = t.stack;
            t.context.uc_stack.ss_size = kStack;
            makecontext(&t.context, enter, 0);
        }
        for (bool any = true; any;) {
            any = false;
            for (Thread& t : all) {
                if (t.done) continue;
                any = true;
                here = &t;
                swapcontext(&scheduler, &t.context);
            }
        }
    }
    for (Thread& t : all) free(t.stack);
    for (int r = 0; r < split; ++r) free(memories[r]);
}
