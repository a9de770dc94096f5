// SPDX-License-Identifier: Apache-2.0
// A matmul on Hopper: one warpgroup fetches, two multiply; persistent blocks take tiles until none is left.
//
// A kernel's own part is a struct `Plan`:
//
//     using Type                             bf16, f16, tf32, or one of 8 bits (wgmma.cuh)
//     kPromotes                              steps along K after which sums of 8-bit floats are added to others in f32:
//                                            the tensor cores' own keep 13 digits. 0: never
//     kTileM, kTileN                         what the consumers compute together, or each with kPingPong
//     kStages, kClusterM, kClusterN, kGroup  buffers prefetched; blocks that share operands; rows of tiles in a group
//     kPingPong                              ping-pong: one consumer multiplies while the other stores
//     kTransposedA, kTransposedB                     rows of memory run along M or N, not along K
//     kDots                                  dots of one a with several b, side by side: 256 columns at most
//     kSteps, kRowTiles, kColumnTiles, kBatches
//     row_tiles(), batches()                 how many there are, where kRowTiles or kBatches is -1
//     kGrouped                               whether each batch adds up rows of its own along K, which memory's rows run
//                                            across; kSteps is then the fewest steps of a tile
//     first_k(batch), past_k(batch), all_k() where a batch's rows begin and end, and all end
//     kStaged                                outputs stored through shared memory, 16 bits each
//     kEights                                outputs of 8 bits of which `finish` packs pairs, behind those that are staged:
//     store_eight(output, bytes, batch, row_tile, column_tile, row, column)
//                                            stores eight columns of a row, where they are within the result
//     load_a(to, full, blocks, batch, row_tile, row, k), load_b(to, full, blocks, batch, column_tile, column, k, dot)
//                                            start the copy of a box (`blocks` 0: to this block alone)
//     prepare()                              fetches the tensor maps themselves
//     Column, read_column(batch, row_tile, column_tile, column)
//     Point, read_point(batch, row_tile, column_tile, row, column)
//                                            what `finish` reads: whatever the row, and what differs from row to row
//     finish(batch, row_tile, column_tile, row, column, of_column, of_point, values, staged)
//                                            two neighbours in a row: stores what is not staged, packs what is
//     send(output, from, batch, row_tile, column_tile, row, column)
//                                            starts the copy of 64 x 64 results out of shared memory
//     kFetches                               whether TMA fetches what lies beside the results (a residual), to where they
//                                            are staged; of one output. `finish` takes it before `values`, two neighbours
//                                            as `Beside`:
//     fetch_beside(to, full, batch, row_tile, column_tile, row, column)
//     kDeferred                              words of two neighbours' values that an epilogue can be cut at, or 0: of
//                                            16 bits, or whole sums. With them `finish` takes what this has made in
//                                            place of `values`, and runs under the next tile's MMAs:
//     defer(batch, row_tile, column_tile, row, column, early, values, deferred)
//     Early, read_early(batch, row_tile, column_tile, column)
//                                            what `defer` reads whatever the row, read under a tile's last MMAs
//
// Where operands are 8-bit floats times scales that stay the same along a step of K, a plan also has (`block_scales.cuh`):
//     kScaleColumns                          columns side by side that share a scale of the right operand, a multiple of 8;
//                                            0: scales are the columns' own, and the same all along K
//     row_scale(batch, row_tile, row, k), column_scale(batch, column_tile, column, k, dot)
//     exact(batch, row_tile, column_tile, row, column, dot)
//                                            the sum of products as the code says, for scales that are not plain
//
// `row` and `column` are positions within the tile.
#pragma once
#include "barrier.cuh"
#include "base.cuh"
#include "block_scales.cuh"
#include "fragment.cuh"
#include "gemm_tiles.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace fusec {

/// Which blocks of its cluster a block fetches for.
template <typename Plan>
struct Shares {
    int row_part, column_part;
    u16 same_rows = 0, same_columns = 0;

    __device__ explicit Shares(int rank) : row_part(rank / Plan::kClusterM), column_part(rank % Plan::kClusterM) {
        if (Plan::kClusterN > 1)
            for (int i = 0; i < Plan::kClusterN; ++i) same_rows |= 1 << (column_part + i * Plan::kClusterM);
        if (Plan::kClusterM > 1)
            for (int i = 0; i < Plan::kClusterM; ++i) same_columns |= 1 << (row_part * Plan::kClusterM + i);
    }
};

/// The steps along K of a tile. Of a batch's own rows the last ones may be no whole step, and there may be too few.
template <typename Plan>
struct Steps {
    int first = 0, own = Plan::kSteps, rest = 0;

    __device__ Steps(const Plan& plan, const Tiles<Plan>& tile) {
        if constexpr (Plan::kGrouped) {
            first = plan.first_k(tile.batch);
            const int rows = max(plan.past_k(tile.batch) - first, 0), each = kDepth<typename Plan::Type>;
            own = (rows + each - 1) / each;
            rest = rows % each;
        }
    }

    __device__ int count() const { return Plan::kGrouped ? max(own, Plan::kSteps) : Plan::kSteps; }

    /// Where a step begins; those behind a batch's own lie behind all rows, where TMA reads zeros.
    __device__ int start(const Plan& plan, int step) const {
        const int each = kDepth<typename Plan::Type>;
        if constexpr (Plan::kGrouped)
            return step < own ? first + step * each : plan.all_k();
        else
            return step * each;
    }
};

/// Operands of the steps from `first` to `last` of one tile.
template <typename Plan>
__device__ void fetch_steps(const Plan& plan, char* buffers, Barrier* full, Barrier* empty, Ring<Plan::kStages>& ring,
                            const Tiles<Plan>& tile, const Shares<Plan>& shares, int first, int last) {
    using L = Layout<Plan>;
    const Steps<Plan> steps(plan, tile);
    constexpr int kPartM = Plan::kTileM / Plan::kClusterN, kPartN = Plan::kTileN / Plan::kClusterM;
    constexpr int kBoxM = Plan::kTransposedA ? 64 : kPartM, kBoxN = Plan::kTransposedB ? 64 : kPartN;
    static_assert(kPartM % kBoxM == 0 && kPartN % kBoxN == 0, "a block fetches whole boxes, or waits forever");
    for (int step = first; step < last; ++step) {
        empty[ring.stage].wait(ring.parity ^ 1);
        Barrier& arrived = full[ring.stage];
        arrived.arrive_expecting(L::kStage);
        char* a = buffers + ring.stage * L::kStage;
        int k = steps.start(plan, step);
#pragma unroll
        for (int i = shares.row_part * kPartM; i < (shares.row_part + 1) * kPartM; i += kBoxM)
            plan.load_a(a + i * kBoxRow, arrived, shares.same_rows, tile.batch, tile.row, i, k);
#pragma unroll
        for (int p = 0; p < Plan::kDots; ++p)
#pragma unroll
            for (int i = shares.column_part * kPartN; i < (shares.column_part + 1) * kPartN; i += kBoxN)
                plan.load_b(a + L::kA + p * L::kB + i * kBoxRow, arrived, shares.same_columns, tile.batch,
                            tile.column, i, k, p);
        ring.advance();
    }
}

/// Makes another batch's rows of a buffer zeros, in which a step is not whole. Each consumer does, before it multiplies.
template <typename Plan>
__device__ void clear_rows(char* stage, int rows) {
    constexpr int kBox = 64 * kBoxRow;
    static_assert(Layout<Plan>::kStage % kBox == 0, "operands come in boxes of 64 rows along K");
    const int each = (64 - rows) * kBoxRow, thread = threadIdx.x % kWarpgroup;
#pragma unroll
    for (int box = 0; box < Layout<Plan>::kStage / kBox; ++box)
        for (int at = thread * 16; at < each; at += kWarpgroup * 16)
            *reinterpret_cast<uint4*>(stage + box * kBox + rows * kBoxRow + at) = uint4{0, 0, 0, 0};
    fence_async_shared();
    named_sync(warpgroup_id(), kWarpgroup);
}

template <typename Plan>
__device__ void fetch_tiles(const Plan& plan, char* buffers, Barrier* full, Barrier* empty, int rank) {
    using L = Layout<Plan>;
    Shares<Plan> shares(rank);
    Ring<Plan::kStages> ring;
    const int count = Tiles<Plan>::count(plan);
    for (int number = blockIdx.x / L::kCluster; number < count; number += gridDim.x / L::kCluster) {
        const Tiles<Plan> tile(plan, number, rank);
        fetch_steps<Plan>(plan, buffers, full, empty, ring, tile, shares, 0, Steps<Plan>(plan, tile).count());
    }
}

/// Starts the MMAs of one step, which a consumer waits for.
template <typename Plan>
__device__ void multiply_step(Sums<Plan>& acc, char* stage, int first_row, bool adds) {
    using L = Layout<Plan>;
    using Type = typename Plan::Type;
    constexpr int kDepthBytes = 64 * kBoxRow;
    u64 a = Plan::kTransposedA ? describe_transposed(stage + first_row * kBoxRow, kDepthBytes)
                           : describe_k_major(stage + first_row * kBoxRow);
    u64 b = Plan::kTransposedB ? describe_transposed(stage + L::kA, kDepthBytes) : describe_k_major(stage + L::kA);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int m = 0; m < L::kFragments; ++m)
            Wgmma<L::kColumns>::template shared<Type, Plan::kTransposedA, Plan::kTransposedB>(
                acc[m], step_k<Plan::kTransposedA>(step_bytes(a, m * 64 * kBoxRow), k), step_k<Plan::kTransposedB>(b, k),
                adds || k > 0);
    wgmma_commit();
}

/// As `multiply`, with every kPromotes steps' sums added to `acc` in f32. The other consumer's MMAs run meanwhile.
template <typename Plan, int kPortions, typename Scales, typename Meanwhile, typename AtEnd>
__device__ void multiply_promoting(Sums<Plan>& acc, char* buffers, Barrier* full, Barrier* empty,
                                   Ring<Plan::kStages>& ring, int first_row, bool releases, int releases_at, int steps,
                                   Scales& scales, const Meanwhile& meanwhile, const AtEnd& at_end) {
    using L = Layout<Plan>;
    Sums<Plan> part;
    int before = 0;
#pragma unroll
    for (int m = 0; m < L::kFragments; ++m)
#pragma unroll
        for (int i = 0; i < L::kColumns / 2; ++i) acc[m][i] = 0;
    auto begin = [&](int step) {
        full[ring.stage].wait(ring.parity);
        multiply_step<Plan>(part, buffers + ring.stage * L::kStage, first_row, step % Plan::kPromotes > 0);
        scales.read(step);
    };
    auto end = [&](int step) {
        bool adds = (step + 1) % Plan::kPromotes == 0 || step + 1 == steps;
        if (adds)
            wgmma_wait<0>();
        else
            wgmma_wait<1>();
        if (step % Plan::kPromotes > 0 && releases) empty[before].arrive_at(releases_at);
        if (adds) {
            if (releases) empty[ring.stage].arrive_at(releases_at);
#pragma unroll
            for (int m = 0; m < L::kFragments; ++m) {
                keep_here(part[m]);
#pragma unroll
                for (int i = 0; i < L::kColumns / 2; ++i) acc[m][i] = scales.add(acc[m][i], part[m][i], m, i);
            }
        }
        before = ring.stage;
        ring.advance();
    };
#pragma unroll
    for (int step = 0; step < kPortions; ++step) {
        begin(step);
        meanwhile(step);
        if (step + 1 == steps) at_end();
        end(step);
    }
    for (int step = kPortions; step < steps; ++step) {
        begin(step);
        if (step + 1 == steps) at_end();
        end(step);
    }
}

/// The MMAs of one tile, from its first accumulator to its last. `meanwhile(portion)` is called while the first
/// kPortions steps are multiplied, `at_end()` under the last. `scales` are those of the tile's steps. Of step `cut - 1`
/// the first `rest` rows count, if any.
template <typename Plan, int kPortions, typename Scales, typename Meanwhile, typename AtEnd>
__device__ void multiply(Sums<Plan>& acc, char* buffers, Barrier* full, Barrier* empty, Ring<Plan::kStages>& ring,
                         int first_row, bool releases, int releases_at, int steps, Scales&& scales,
                         const Meanwhile& meanwhile, const AtEnd& at_end, int cut = 0, int rest = 0) {
    using L = Layout<Plan>;
    if constexpr (Plan::kPromotes > 0) {
        multiply_promoting<Plan, kPortions>(acc, buffers, full, empty, ring, first_row, releases, releases_at, steps,
                                            scales, meanwhile, at_end);
        scales.finish(acc);
    } else {
        int before = 0;
        auto next = [&](int step) {
            full[ring.stage].wait(ring.parity);
            if constexpr (Plan::kGrouped)
                if (rest > 0 && step + 1 == cut) clear_rows<Plan>(buffers + ring.stage * L::kStage, rest);
            multiply_step<Plan>(acc, buffers + ring.stage * L::kStage, first_row, step > 0);
            wgmma_wait<1>();
            if (step > 0 && releases) empty[before].arrive_at(releases_at);
            before = ring.stage;
            ring.advance();
        };
#pragma unroll
        for (int step = 0; step < kPortions; ++step) {
            next(step);
            meanwhile(step);
        }
        for (int step = kPortions; step < steps; ++step) next(step);
        at_end();
        wgmma_wait<0>();
        if (releases) empty[before].arrive_at(releases_at);
    }
}

/// A warpgroup's way out through shared memory: 64 x 64 results of each staged output at a time.
template <typename Plan>
struct Outlet {
    using L = Layout<Plan>;
    static constexpr int kStaged = Plan::kStaged, kWords = kStaged + Plan::kEights > 0 ? kStaged + Plan::kEights : 1;
    static constexpr int kAcross = (Plan::kTileN + 63) / 64, kChunks = L::kFragments * kAcross;
    static_assert(!Plan::kFetches || kStaged == 1, "what is fetched lies beside one output, in one of two buffers");
    char* staging;
    Barrier* arrived;
    int barrier, slot = 0;
    u32 parities = 0;

    __device__ Outlet(char* staging, Barrier* beside, int consumer)
        : staging(staging + consumer * L::kBuffers * L::kChunk), arrived(beside + consumer * 2), barrier(1 + consumer) {}

    __device__ char* chunk(int output) const { return staging + slot * L::kChunk + output * L::kChunk; }

    /// Starts to fetch what lies beside chunk `number` of a tile, to a buffer that no store reads any more.
    __device__ void fetch(const Plan& plan, const Tiles<Plan>& tile, int first_row, int number, int buffer) const {
        if constexpr (Plan::kFetches) {
            arrived[buffer].arrive_expecting(L::kChunk);
            plan.fetch_beside(staging + buffer * L::kChunk, arrived[buffer], tile.batch, tile.row, tile.column,
                              first_row + number / kAcross * 64, number % kAcross * 64);
        }
    }

    /// The same of a tile's first two chunks, when all chunks of the last tile have been sent.
    __device__ void fetch_first(const Plan& plan, const Tiles<Plan>& tile, int first_row) const {
        if (!Plan::kFetches || threadIdx.x % kWarpgroup != 0) return;
        store_wait_read<0>();
        fetch(plan, tile, first_row, 0, slot);
        if (kChunks > 1) fetch(plan, tile, first_row, 1, slot ^ 1);
    }

    /// The same of the chunk behind the one that is written now, when the one before this has left.
    __device__ void fetch_next(const Plan& plan, const Tiles<Plan>& tile, int first_row, int number) const {
        if (!Plan::kFetches || threadIdx.x % kWarpgroup != 0 || number < 2 || number >= kChunks) return;
        store_wait_read<0>();
        fetch(plan, tile, first_row, number, slot ^ 1);
    }

    /// Waits until the next chunk may be written, or what lies beside it has come.
    __device__ void open() {
        if (kStaged == 0) return;
        if (Plan::kFetches) {
            arrived[slot].wait(parities >> slot & 1);
            parities ^= 1 << slot;
            return;
        }
        if (threadIdx.x % kWarpgroup == 0) store_wait_read<L::kBuffers - kStaged>();
        named_sync(barrier, kWarpgroup);
    }

    /// Where a lane finds its row of a fragment's columns q * 16 to q * 16 + 16 of the chunk.
    __device__ u32 place(int output, int q) const {
        int thread = threadIdx.x % kWarpgroup, lane = thread % kWarp;
        int stored_row = thread / kWarp * 16 + lane % 16, stored_unit = lane / 16;
        return swizzled(shared_address(chunk(output)), stored_row, q * 2 + stored_unit);
    }

    /// What has been fetched for these columns.
    __device__ void get(int q, u32 (&beside)[4]) const {
        if (Plan::kFetches) load_matrices(beside, place(0, q));
    }

    /// Puts them down.
    __device__ void put(int q, const u32 (&staged)[4][kWords]) const {
#pragma unroll
        for (int o = 0; o < kStaged; ++o)
            store_matrices(place(o, q), staged[0][o], staged[1][o], staged[2][o], staged[3][o]);
    }

    /// Starts the copies of a whole chunk.
    __device__ void send(const Plan& plan, const Tiles<Plan>& tile, int row, int column) {
        if (kStaged == 0) return;
        fence_async_shared();
        named_sync(barrier, kWarpgroup);
        if (threadIdx.x % kWarpgroup == 0) {
#pragma unroll
            for (int o = 0; o < kStaged; ++o) {
                plan.send(o, chunk(o), tile.batch, tile.row, tile.column, row, column);
                store_commit();
            }
        }
        slot = (slot + kStaged) % L::kBuffers;
    }

    __device__ void close() const {
        if (kStaged > 0 && threadIdx.x % kWarpgroup == 0) store_wait_all();
    }
};

/// A consumer's results in groups of 64 rows by 16 columns, one fragment of 64 rows after another. A tile's last columns
/// may be half a group.
template <typename Plan>
struct Groups {
    using L = Layout<Plan>;
    static constexpr int kAcross = (Plan::kTileN + 15) / 16, kCount = L::kFragments * kAcross;

    __device__ static constexpr int fragment(int g) { return g / kAcross; }
    __device__ static constexpr int first_row(int g) { return fragment(g) * 64; }
    __device__ static constexpr int first_column(int g) { return g % kAcross * 16; }

    /// Whether pair `i` of a thread's four is within the tile.
    __device__ static constexpr bool has(int g, int i) { return first_column(g) + i / 2 * 8 < Plan::kTileN; }
    __device__ static constexpr int accumulator(int g, int i) { return g % kAcross * 8 + i * 2; }

    /// Where in a chunk of 64 columns it lies, and whether it is the chunk's last.
    __device__ static constexpr int slot(int g) { return g % kAcross % 4; }
    __device__ static constexpr bool ends_chunk(int g) { return slot(g) == 3 || g % kAcross == kAcross - 1; }
    __device__ static constexpr int chunk_column(int g) { return g % kAcross / 4 * 64; }
    __device__ static constexpr int chunk(int g) { return fragment(g) * ((kAcross + 3) / 4) + g % kAcross / 4; }

    /// Whether the next chunk is fetched now: the one before this has been on its way for a group, if this has two.
    __device__ static constexpr bool fetches(int g) { return slot(g) == 1 || (slot(g) == 0 && ends_chunk(g)); }

    __device__ static int row(int g, int i) { return first_row(g) + fragment_row() + i % 2 * 8; }
    __device__ static int column(int g, int i) { return first_column(g) + i / 2 * 8 + fragment_column(); }
};

/// Registers that a plan's record takes.
template <typename T>
constexpr int kWordsOf = sizeof(T) < 2 ? 0 : (sizeof(T) + 3) / 4;

/// What the epilogue reads of memory, ahead of where it is, as memory is far: for columns one group, for points as many
/// as fit in the registers that are left beside `kTaken`.
template <typename Plan, int kTaken>
struct Prefetched {
    using G = Groups<Plan>;
    static constexpr int kRoom = 190 - kTaken - 2 * kWordsOf<typename Plan::Column>;
    static constexpr int kFitting = kRoom / (4 * kWordsOf<typename Plan::Point> + 1);
    static constexpr int kPoints = kFitting < 1 ? 1 : kFitting > 4 ? 4 : kFitting;
    typename Plan::Column columns[2];
    typename Plan::Point points[kPoints][4];

    __device__ void read_columns(const Plan& plan, const Tiles<Plan>& tile, int g) {
        if (g >= G::kCount) return;
#pragma unroll
        for (int i = 0; i < 4; i += 2)
            if (G::has(g, i))
                columns[i / 2] = plan.read_column(tile.batch, tile.row, tile.column, G::column(g, i));
    }

    __device__ void read_points(const Plan& plan, const Tiles<Plan>& tile, int first_row, int g) {
        if (g >= G::kCount) return;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (G::has(g, i))
                points[g % kPoints][i] = plan.read_point(tile.batch, tile.row, tile.column, first_row + G::row(g, i),
                                                         G::column(g, i));
    }

    __device__ void start(const Plan& plan, const Tiles<Plan>& tile, int first_row) {
#pragma unroll
        for (int g = 0; g < kPoints; ++g) read_points(plan, tile, first_row, g);
        read_columns(plan, tile, 0);
    }

    /// After group `g`.
    __device__ void advance(const Plan& plan, const Tiles<Plan>& tile, int first_row, int g) {
        read_columns(plan, tile, g + 1);
        read_points(plan, tile, first_row, g + kPoints);
    }
};

/// Two neighbours of the results.
template <typename Plan, typename Column, typename Point, typename Values, typename Staged>
__device__ void finish_pair(const Plan& plan, const Tiles<Plan>& tile, int row, int column, const Column& of_column,
                            const Point& of_point, u32 beside, const Values& values, Staged& staged) {
    if constexpr (Plan::kFetches) {
        typename Plan::Beside of_beside;
        reinterpret_cast<u32&>(of_beside) = beside;
        plan.finish(tile.batch, tile.row, tile.column, row, column, of_column, of_point, of_beside, values, staged);
    } else {
        plan.finish(tile.batch, tile.row, tile.column, row, column, of_column, of_point, values, staged);
    }
}

/// Eight columns of a row for each lane of four that hold two columns of two rows in two halves of a group: `low` and
/// `high` are a lane's pairs in the first and in the second row. Lane 0 gets the first row's first half, lane 1 its
/// second, lanes 2 and 3 those of the second row.
__device__ inline u64 exchange_pairs(u32 low, u32 high) {
    int lane = threadIdx.x % 4;
    u32 own = lane < 2 ? low : high, other = __shfl_xor_sync(0xffffffff, lane < 2 ? high : low, 2);
    bool second = lane % 2;
    u32 firsts = __byte_perm(own, other, 0x5410), seconds = __byte_perm(own, other, 0x7632);
    u32 mine = second ? seconds : firsts, theirs = __shfl_xor_sync(0xffffffff, second ? firsts : seconds, 1);
    u32 even = second ? theirs : mine, odd = second ? mine : theirs;
    u32 here = __byte_perm(even, odd, 0x5410), there = __byte_perm(even, odd, 0x7632);
    return lane < 2 ? u64(there) << 32 | here : u64(here) << 32 | there;
}

/// Stores a group's results of 8 bits.
template <typename Plan>
__device__ void store_eights(const Plan& plan, const Tiles<Plan>& tile, int first_row, int g,
                             const u32 (&staged)[4][Outlet<Plan>::kWords]) {
    using G = Groups<Plan>;
#pragma unroll
    for (int k = Plan::kStaged; k < Plan::kStaged + Plan::kEights; ++k) {
        u64 bytes = exchange_pairs(__byte_perm(staged[0][k], staged[2][k], 0x5410),
                                   __byte_perm(staged[1][k], staged[3][k], 0x5410));
        int lane = threadIdx.x % 4;
        plan.store_eight(k - Plan::kStaged, bytes, tile.batch, tile.row, tile.column,
                         first_row + G::first_row(g) + fragment_row() + lane / 2 * 8,
                         G::first_column(g) + lane % 2 * 8);
    }
}

/// A consumer's results through the epilogue.
template <typename Plan, typename Reads>
__device__ void finish_tile(const Plan& plan, Sums<Plan>& acc, Reads& prefetched, Outlet<Plan>& outlet,
                            const Tiles<Plan>& tile, int first_row) {
    using G = Groups<Plan>;
#pragma unroll
    for (int g = 0; g < G::kCount; ++g) {
        if (G::slot(g) == 0) outlet.open();
        u32 staged[4][Outlet<Plan>::kWords] = {}, beside[4] = {};
        outlet.get(G::slot(g), beside);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (!G::has(g, i)) continue;
            typename Layout<Plan>::Sum values[Plan::kDots][2];
#pragma unroll
            for (int p = 0; p < Plan::kDots; ++p) {
                values[p][0] = acc[G::fragment(g)][p * Plan::kTileN / 2 + G::accumulator(g, i)];
                values[p][1] = acc[G::fragment(g)][p * Plan::kTileN / 2 + G::accumulator(g, i) + 1];
            }
            finish_pair(plan, tile, first_row + G::row(g, i), G::column(g, i), prefetched.columns[i / 2],
                        prefetched.points[g % Reads::kPoints][i], beside[i], values, staged[i]);
        }
        prefetched.advance(plan, tile, first_row, g);
        store_eights(plan, tile, first_row, g, staged);
        outlet.put(G::slot(g), staged);
        if (G::fetches(g)) outlet.fetch_next(plan, tile, first_row, G::chunk(g) + 1);
        if (G::ends_chunk(g)) outlet.send(plan, tile, first_row + G::first_row(g), G::chunk_column(g));
    }
}

/// The same bits in another register. A plain copy of an accumulator would be none: the compiler would move the
/// accumulators to where the copies are to be, halfway through a tile, while MMAs still write them. No block has a second
/// axis, which the compiler does not know.
__device__ inline u32 apart(u32 bits) { return bits ^ threadIdx.y; }

/// A tile's values that the epilogue goes on from, so that the next tile's MMAs can have the accumulators.
template <typename Plan>
struct Deferred {
    using L = Layout<Plan>;
    using G = Groups<Plan>;
    static constexpr int kPortions = G::kCount < Plan::kSteps ? G::kCount : Plan::kSteps;
    static constexpr int kValues = Plan::kDeferred > 0 ? Plan::kDeferred : 1;
    static constexpr int kAccumulators = L::kFragments * L::kColumns / 2 * (Plan::kPromotes > 0 ? 2 : 1);
    static constexpr int kPairs = G::kCount * 4 * kValues;
    static constexpr bool kReadsEarly = kAccumulators + kWordsOf<typename Plan::Early> * G::kAcross * 2 <= 192;
    u32 pairs[G::kCount][4][kValues];
    typename Plan::Early early[kReadsEarly ? G::kAcross : 1][2];
    Prefetched<Plan, kAccumulators + kPairs> prefetched;

    /// Under a tile's last MMAs, where there are registers for it.
    __device__ void read_early(const Plan& plan, const Tiles<Plan>& tile) {
        if (!kReadsEarly) return;
#pragma unroll
        for (int g = 0; g < G::kAcross; ++g)
#pragma unroll
            for (int i = 0; i < 4; i += 2)
                if (G::has(g, i))
                    early[kReadsEarly ? g : 0][i / 2] =
                        plan.read_early(tile.batch, tile.row, tile.column, G::column(g, i));
    }

    __device__ void take(const Plan& plan, Sums<Plan>& acc, const Tiles<Plan>& tile, int first_row) {
#pragma unroll
        for (int g = 0; g < G::kCount; ++g) {
            if (!kReadsEarly) {
#pragma unroll
                for (int i = 0; i < 4; i += 2)
                    if (G::has(g, i))
                        early[0][i / 2] = plan.read_early(tile.batch, tile.row, tile.column, G::column(g, i));
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (!G::has(g, i)) continue;
                typename L::Sum values[Plan::kDots][2];
#pragma unroll
                for (int p = 0; p < Plan::kDots; ++p) {
                    values[p][0] = acc[G::fragment(g)][p * Plan::kTileN / 2 + G::accumulator(g, i)];
                    values[p][1] = acc[G::fragment(g)][p * Plan::kTileN / 2 + G::accumulator(g, i) + 1];
                }
                plan.defer(tile.batch, tile.row, tile.column, first_row + G::row(g, i), G::column(g, i),
                          early[kReadsEarly ? g % G::kAcross : 0][i / 2], values, pairs[g][i]);
            }
        }
        prefetched.start(plan, tile, first_row);
    }

    /// A kPortions-th of the rest of the epilogue.
    __device__ void finish(const Plan& plan, int portion, Outlet<Plan>& outlet, const Tiles<Plan>& tile, int first_row) {
        constexpr int kEach = (G::kCount + kPortions - 1) / kPortions;
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            const int g = portion * kEach + e;
            if (g >= G::kCount) return;
            if (G::slot(g) == 0) outlet.open();
            u32 staged[4][Outlet<Plan>::kWords] = {}, beside[4] = {};
            outlet.get(G::slot(g), beside);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (G::has(g, i))
                    finish_pair(plan, tile, first_row + G::row(g, i), G::column(g, i), prefetched.columns[i / 2],
                                prefetched.points[g % prefetched.kPoints][i], beside[i], pairs[g][i], staged[i]);
            prefetched.advance(plan, tile, first_row, g);
            store_eights(plan, tile, first_row, g, staged);
            outlet.put(G::slot(g), staged);
            if (G::fetches(g)) outlet.fetch_next(plan, tile, first_row, G::chunk(g) + 1);
            if (G::ends_chunk(g)) outlet.send(plan, tile, first_row + G::first_row(g), G::chunk_column(g));
        }
    }
};

/// Whether a consumer's thread tells the block of the cluster that has its number when a buffer has been read.
template <typename Plan>
__device__ bool releases_buffers(int rank) {
    int thread = threadIdx.x % kWarpgroup;
    bool same = thread % Plan::kClusterM == rank % Plan::kClusterM || thread / Plan::kClusterM == rank / Plan::kClusterM;
    return thread < Layout<Plan>::kCluster && same;
}

/// As multiply_tiles, with each tile's epilogue under the MMAs of the next.
template <typename Plan>
__device__ void multiply_deferring(const Plan& plan, char* buffers, char* staging, Barrier* full, Barrier* empty,
                                   Barrier* beside, int rank) {
    using L = Layout<Plan>;
    using P = Deferred<Plan>;
    int consumer = warpgroup_id() - 1, thread = threadIdx.x % kWarpgroup, first_row = consumer * L::kRows;
    bool releases = releases_buffers<Plan>(rank), any = false;
    Outlet<Plan> outlet(staging, beside, consumer);
    Ring<Plan::kStages> ring;
    P deferred;
    Tiles<Plan> last(plan, 0, rank);
    const int count = Tiles<Plan>::count(plan);
    for (int number = blockIdx.x / L::kCluster; number < count; number += gridDim.x / L::kCluster) {
        Sums<Plan> acc;
        Tiles<Plan> tile(plan, number, rank);
        auto finish_last = [&](int portion) {
            if (any) deferred.finish(plan, portion, outlet, last, first_row);
        };
        const Steps<Plan> steps(plan, tile);
        auto at_end = [&] {
            outlet.fetch_first(plan, tile, first_row);
            deferred.read_early(plan, tile);
        };
        multiply<Plan, P::kPortions>(acc, buffers, full, empty, ring, first_row, releases, thread, steps.count(),
                                     StepScales<Plan>(plan, tile, first_row), finish_last, at_end, steps.own, steps.rest);
        deferred.take(plan, acc, tile, first_row);
        last = tile;
        any = true;
    }
    if (any)
#pragma unroll
        for (int portion = 0; portion < P::kPortions; ++portion) deferred.finish(plan, portion, outlet, last, first_row);
    outlet.close();
}

template <typename Plan>
__device__ void multiply_tiles(const Plan& plan, char* buffers, char* staging, Barrier* full, Barrier* empty,
                               Barrier* beside, int rank) {
    using L = Layout<Plan>;
    int consumer = warpgroup_id() - 1, thread = threadIdx.x % kWarpgroup, nth = 0;
    int first_row = Plan::kPingPong ? 0 : consumer * L::kRows;
    bool releases = releases_buffers<Plan>(rank);
    Outlet<Plan> outlet(staging, beside, consumer);
    Ring<Plan::kStages> ring;
    if (Plan::kPingPong && consumer == 1) named_arrive(3, 2 * kWarpgroup);
    const int count = Tiles<Plan>::count(plan);
    for (int number = blockIdx.x / L::kCluster; number < count; number += gridDim.x / L::kCluster, ++nth) {
        Tiles<Plan> tile(plan, number, rank);
        const Steps<Plan> steps(plan, tile);
        if (Plan::kPingPong && nth % 2 != consumer) {
            ring.skip(steps.count());
            continue;
        }
        Sums<Plan> acc;
        if (Plan::kPingPong) named_sync(3 + consumer, 2 * kWarpgroup);
        Prefetched<Plan, L::kFragments * L::kColumns / 2> prefetched;
        auto at_end = [&] {
            outlet.fetch_first(plan, tile, first_row);
            prefetched.start(plan, tile, first_row);
        };
        multiply<Plan, 0>(acc, buffers, full, empty, ring, first_row, releases, thread, steps.count(),
                          StepScales<Plan>(plan, tile, first_row), [](int) {}, at_end, steps.own, steps.rest);
        if (Plan::kPingPong) named_arrive(4 - consumer, 2 * kWarpgroup);
        finish_tile(plan, acc, prefetched, outlet, tile, first_row);
    }
    outlet.close();
}

/// Barriers of all buffers: a full one waits for one thread and the bytes, an empty one for `releases` arrivals.
template <typename Plan>
__device__ void start_barriers(const Plan& plan, Barrier* full, Barrier* empty, int releases) {
    if (threadIdx.x == 0) {
        plan.prepare();
        for (int i = 0; i < Plan::kStages; ++i) {
            full[i].init(1);
            empty[i].init(releases);
        }
        fence_barrier_init();
    }
}

template <typename Plan>
__device__ void gemm(const Plan& plan) {
    using L = Layout<Plan>;
    extern __shared__ char memory[];
    __shared__ Barrier full[Plan::kStages], empty[Plan::kStages], beside[Plan::kFetches ? 2 * kConsumers : 1];
    char* buffers = memory + (1024 - shared_address(memory) % 1024) % 1024;
    int rank = L::kCluster > 1 ? cluster_rank() : 0;
    if (Plan::kFetches && threadIdx.x == 0)
        for (Barrier& arrived : beside) arrived.init(1);
    start_barriers(plan, full, empty, (Plan::kPingPong ? 1 : kConsumers) * (Plan::kClusterM + Plan::kClusterN - 1));
    start_after_the_kernel_ahead();
    if (L::kCluster > 1)
        cluster_sync();
    else
        __syncthreads();
    if (warpgroup_id() == 0) {
        lower_registers<40>();
        if (warp_id() == 0 && elect_one()) fetch_tiles<Plan>(plan, buffers, full, empty, rank);
    } else {
        raise_registers<232>();
        if constexpr (Plan::kDeferred > 0)
            multiply_deferring<Plan>(plan, buffers, buffers + Plan::kStages * L::kStage, full, empty, beside, rank);
        else
            multiply_tiles<Plan>(plan, buffers, buffers + Plan::kStages * L::kStage, full, empty, beside, rank);
    }
    if (L::kCluster > 1) cluster_sync();
}

}  // namespace fusec
