// SPDX-License-Identifier: Apache-2.0
// A matmul of a large operand with few vectors, by mma.sync (sm_80 and later): a warp makes the large operand's
// fragments in registers, out of what lies in memory, such as weights of 4 bits and their scales.
//
// The large operand's lines are the 16 rows of an MMA, vectors its 8 columns. Of a line, the four lanes that share a
// fragment's row have kLane neighbours along K each, so that every lane reads memory in wide words; K runs in another
// order than the instruction's, the same for both operands. Warps of a block share out lines and K, blocks of a cluster
// K: their sums are added up in order at the end.
//
// Vectors are read as they lie, or, where there are more of them, come through shared memory: warps with the same part of
// K copy it there, kRing steps of it, in pieces of 16 bytes for a lane and a part of its neighbours.
//
// A kernel's own part is a struct `Plan`:
//
//     using Type                              bf16 or f16
//     kWarpLines, kVectors                    lines and vectors of a warp's sums, multiples of 16 and of 8
//     kLineGroups, kDepthGroups, kSplit       warps side by side along lines and along K; blocks that share out K
//     kLane, kAhead                           neighbours along K of a lane, a multiple of 8; how many of them are on the way
//     kLines, kAllVectors, kK, kBatches       extents; kK a multiple of kLane
//     kDots                                   dots of the same vectors with several large operands
//     kLinesAcross                            lines are the result's columns, not its rows
//     kRing                                   steps of vectors in shared memory; 0 where they are read as they lie
//     kCopied                                 vectors are copied, as `vector_at(batch, vector, eighth)` has their address
//     kTables                                 bytes of shared memory that `stage` fills
//     struct Fixed, Line, Vector              what is read once of a line; of kLane neighbours of it; of eight of a vector
//     fetch_fixed(batch, line), fetch_line(batch, line, block), fetch_vector(batch, vector, eighth)
//     line_pairs<part>(fixed, line, batch, at, block, pairs)    eight neighbours of each dot's operand as four pairs
//     vector_pairs(vector, batch, at, eighth, pairs)
//     finish(batch, row_tile, column_tile, row, column, values, staged)      stores two neighbours in a row
#pragma once
#include "barrier.cuh"
#include "copy.cuh"
#include "halves.cuh"
#include "mma.cuh"
#include "scalar.cuh"

namespace fusec {

struct alignas(8) TwoSums {
    float at[2];
};

template <typename Plan>
struct SkinnyGemm {
    using Type = typename Plan::Type;
    using Line = typename Plan::Line;
    using Vector = typename Plan::Vector;
    static constexpr int kParts = Plan::kLane / 8, kBlocks = Plan::kK / Plan::kLane, kChunks = (kBlocks + 3) / 4;
    static constexpr int kDeep = Plan::kRing > 0 ? 1 : kParts < 4 ? kParts : 4;  // parts of vectors that are on the way
    static constexpr int kFragments = Plan::kWarpLines / 16, kColumns = Plan::kVectors / 8, kDots = Plan::kDots;
    static constexpr int kThreads = 32 * Plan::kLineGroups * Plan::kDepthGroups;
    static constexpr int kTileLines = Plan::kLineGroups * Plan::kWarpLines, kStep = Plan::kSplit * Plan::kDepthGroups;
    static constexpr bool kTail = kBlocks % 4 != 0, kAcross = Plan::kLinesAcross;
    static constexpr int kVectorTiles = (Plan::kAllVectors + Plan::kVectors - 1) / Plan::kVectors;
    static constexpr int kLineTiles = (Plan::kLines + kTileLines - 1) / kTileLines;
    static constexpr int kPitch = kAcross ? kTileLines + 4 : Plan::kVectors + 2;
    static constexpr int kSums = (kAcross ? Plan::kVectors : kTileLines) * kPitch;  // of a dot, with gaps between rows
    static constexpr int kRowBytes = 64 * kParts, kStepBytes = Plan::kVectors * kRowBytes;
    static constexpr int kGroupThreads = 32 * Plan::kLineGroups, kPieces = Plan::kVectors * kParts * 4;

    const Plan& plan;
    int batch, first_line, first_vector, group, quarter, line_group, depth_group;
    char* ring;  // of the warps with the same part of K

    __device__ int line(int i, int half) const {
        return min(first_line + i * 16 + half * 8 + group, Plan::kLines - 1);
    }
    __device__ int vector(int j) const { return min(first_vector + j * 8 + group, Plan::kAllVectors - 1); }
    __device__ int block_of(int chunk) const {  // beyond the end the last one: what it gives becomes zeros
        return kTail ? min(chunk * 4 + quarter, kBlocks - 1) : chunk * 4 + quarter;
    }

    __device__ void fetch(int chunk, Line (&into)[kFragments][2]) const {
        const int block = block_of(chunk);
        if (chunk >= kChunks) return;
#pragma unroll
        for (int i = 0; i < kFragments; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) into[i][half] = plan.fetch_line(batch, line(i, half), block);
    }

    __device__ void fetch(int chunk, int part, Vector (&into)[kColumns]) const {
        const int block = block_of(chunk);
        if (chunk >= kChunks) return;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) into[j] = plan.fetch_vector(batch, vector(j), block * kParts + part);
    }

    /// Where a lane's part of a vector lies in a step: in its row, swapped with others so that eight lanes that read
    /// together meet eight banks of 16 bytes.
    __device__ static int place(int row, int lane, int part) {
        const int swap = kParts == 8 ? lane * 2 : kParts == 4 ? lane / 2 * 2 : 0;
        return row * kRowBytes + (((lane * kParts + part) ^ swap ^ (kParts > 1 ? row & 1 : 0)) << 4);
    }

    /// Starts the copies of a step of vectors.
    __device__ void fill(int chunk, int stage) const {
        if (chunk < kChunks) {
#pragma unroll
            for (int first = 0; first < kPieces; first += kGroupThreads) {
                const int piece = first + line_group * 32 + lane_id();
                if (kPieces % kGroupThreads != 0 && piece >= kPieces) break;
                const int at = piece % (4 * kParts), row = piece / (4 * kParts), lane = at / kParts, part = at % kParts;
                const int vector = first_vector + row, block = chunk * 4 + lane;
                const bool there = vector < Plan::kAllVectors && (!kTail || block < kBlocks);
                const int from = there ? vector : 0, eighth = there ? block * kParts + part : 0;
                char* const to = ring + stage * kStepBytes + place(row, lane, part);
                if constexpr (Plan::kCopied) {
                    copy_async<16>(to, plan.vector_at(batch, from, eighth), there);
                } else {
                    Vec<u32, 4> pairs;
                    plan.vector_pairs(plan.fetch_vector(batch, from, eighth), batch, from, eighth, pairs.at);
#pragma unroll
                    for (int i = 0; i < 4; ++i) pairs[i] = there ? pairs[i] : 0;
                    store(reinterpret_cast<u32*>(to), pairs);
                }
            }
        }
        copies_end_step();
    }

    /// Waits until a step's vectors are there, and those of the last one have been read.
    __device__ void arrive() const {
        wait_for_all_steps_but<(Plan::kRing > 2 ? Plan::kRing - 2 : 0)>();
        if constexpr (Plan::kLineGroups == 1)
            __syncwarp();
        else
            named_sync(1 + depth_group, kGroupThreads);
    }

    template <int kNumber>
    __device__ void vectors_of(u32 (&b)[kColumns][4], const Vector (&vectors)[kDeep][kColumns], int chunk, int stage) const {
        const int block = block_of(chunk), eighth = block * kParts + kNumber;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
            if constexpr (Plan::kRing > 0) {
                const char* const from = ring + stage * kStepBytes + place(j * 8 + group, quarter, kNumber);
                const Vec<u32, 4> words = load<4>(reinterpret_cast<const u32*>(from));
                if constexpr (Plan::kCopied) {
                    plan.vector_pairs(reinterpret_cast<const Vector&>(words), batch, vector(j), eighth, b[j]);
                } else {
#pragma unroll
                    for (int i = 0; i < 4; ++i) b[j][i] = words[i];
                }
            } else {
                plan.vector_pairs(vectors[kNumber % kDeep][j], batch, vector(j), eighth, b[j]);
                if (kTail && chunk * 4 + quarter >= kBlocks) b[j][0] = b[j][1] = b[j][2] = b[j][3] = 0;
            }
        }
    }

    template <int kNumber>
    __device__ void multiply(float (&sums)[kDots][kFragments][kColumns][4], const typename Plan::Fixed (&fixed)[kFragments][2],
                             const Line (&lines)[kFragments][2], Vector (&vectors)[kDeep][kColumns], int chunk,
                             int stage) const {
        const int block = block_of(chunk);
        u32 b[kColumns][4];
        vectors_of<kNumber>(b, vectors, chunk, stage);
        if constexpr (Plan::kRing == 0)
            fetch(kNumber + kDeep < kParts ? chunk : chunk + kStep, (kNumber + kDeep) % kParts, vectors[kNumber % kDeep]);
#pragma unroll
        for (int i = 0; i < kFragments; ++i) {
            u32 pairs[2][kDots][4];
#pragma unroll
            for (int half = 0; half < 2; ++half)
                plan.template line_pairs<kNumber>(fixed[i][half], lines[i][half], batch, line(i, half), block, pairs[half]);
#pragma unroll
            for (int p = 0; p < kDots; ++p)
#pragma unroll
                for (int q = 0; q < 4; q += 2) {
                    u32 a[4] = {pairs[0][p][q], pairs[1][p][q], pairs[0][p][q + 1], pairs[1][p][q + 1]};
                    if (kTail && chunk * 4 + quarter >= kBlocks) a[0] = a[1] = a[2] = a[3] = 0;
#pragma unroll
                    for (int j = 0; j < kColumns; ++j) multiply_add<Type>(sums[p][i][j], a, b[j] + q);
                }
        }
        if constexpr (kNumber + 1 < kParts) multiply<kNumber + 1>(sums, fixed, lines, vectors, chunk, stage);
    }

    __device__ void accumulate(float (&sums)[kDots][kFragments][kColumns][4], int first) const {
        typename Plan::Fixed fixed[kFragments][2];
        Line lines[Plan::kAhead][kFragments][2];
        Vector vectors[kDeep][kColumns];
#pragma unroll
        for (int step = 0; step < Plan::kRing - 1; ++step) fill(first + step * kStep, step);
#pragma unroll
        for (int a = 0; a < Plan::kAhead; ++a) fetch(first + a * kStep, lines[a]);
        if constexpr (Plan::kRing == 0)
#pragma unroll
            for (int part = 0; part < kDeep; ++part) fetch(first, part, vectors[part]);
#pragma unroll
        for (int i = 0; i < kFragments; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) fixed[i][half] = plan.fetch_fixed(batch, line(i, half));
        int stage = 0;
        for (int chunk = first; chunk < kChunks; chunk += Plan::kAhead * kStep) {
#pragma unroll
            for (int a = 0; a < Plan::kAhead; ++a) {
                const int at = chunk + a * kStep;
                if (at >= kChunks) break;
                if constexpr (Plan::kRing > 0) {
                    arrive();
                    fill(at + (Plan::kRing - 1) * kStep, stage == 0 ? Plan::kRing - 1 : stage - 1);
                }
                multiply<0>(sums, fixed, lines[a], vectors, at, stage);
                fetch(at + Plan::kAhead * kStep, lines[a]);
                if constexpr (Plan::kRing > 0) stage = stage + 1 == Plan::kRing ? 0 : stage + 1;
            }
        }
    }

    __device__ static int slot(int line, int vector) { return kAcross ? vector * kPitch + line : line * kPitch + vector; }

    /// The sums of a warp, where all of the block find them.
    __device__ static void leave(float* to, const float (&sums)[kDots][kFragments][kColumns][4], int line0) {
#pragma unroll
        for (int p = 0; p < kDots; ++p)
#pragma unroll
            for (int i = 0; i < kFragments; ++i)
#pragma unroll
                for (int j = 0; j < kColumns; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int line = line0 + i * 16 + accumulator_row() + e / 2 * 8;
                        to[p * kSums + slot(line, j * 8 + accumulator_column() + e % 2)] = sums[p][i][j][e];
                    }
    }

    /// Adds up the warps' sums of two neighbours.
    __device__ static TwoSums added(const float* sums, int at) {
        TwoSums total = *reinterpret_cast<const TwoSums*>(sums + at);
#pragma unroll
        for (int g = 1; g < Plan::kDepthGroups; ++g) {
            const TwoSums more = *reinterpret_cast<const TwoSums*>(sums + g * kDots * kSums + at);
            total.at[0] += more.at[0];
            total.at[1] += more.at[1];
        }
        return total;
    }

    __device__ static void run(const Plan& plan) {
        extern __shared__ __align__(128) char memory[];
        const int rank = blockIdx.x % Plan::kSplit, tile = blockIdx.x / Plan::kSplit;
        const int vector_tile = tile % kVectorTiles, line_tile = tile / kVectorTiles % kLineTiles;
        const int batch = tile / (kVectorTiles * kLineTiles), warp = warp_id();
        const int line0 = warp % Plan::kLineGroups * Plan::kWarpLines, depth_group = warp / Plan::kLineGroups;
#if __CUDA_ARCH__ >= 900
        start_after_the_kernel_ahead();
#endif
        if (Plan::kTables > 0) {
            plan.stage();
            __syncthreads();
        }
        float sums[kDots][kFragments][kColumns][4] = {};
        char* const behind = memory + Plan::kTables;
        const SkinnyGemm self{plan,
                              batch,
                              line_tile * kTileLines + line0,
                              vector_tile * Plan::kVectors,
                              lane_id() / 4,
                              lane_id() % 4,
                              warp % Plan::kLineGroups,
                              depth_group,
                              behind + depth_group * Plan::kRing * kStepBytes};
        self.accumulate(sums, rank * Plan::kDepthGroups + depth_group);

        if (Plan::kRing > 0) __syncthreads();  // the sums lie where the vectors did
        float* const shared = reinterpret_cast<float*>(behind);
        leave(shared + depth_group * kDots * kSums, sums, line0);
        __syncthreads();
        constexpr int kRows = kAcross ? Plan::kVectors : kTileLines, kPairs = (kAcross ? kTileLines : Plan::kVectors) / 2;
        if constexpr (Plan::kSplit > 1) {
            for (int e = threadIdx.x; e < kDots * kRows * kPairs; e += kThreads) {
                const int at = e / (kRows * kPairs) * kSums + e / kPairs % kRows * kPitch + e % kPairs * 2;
                *reinterpret_cast<TwoSums*>(shared + at) = added(shared, at);
            }
            cluster_sync();
        }
        for (int e = rank * kThreads + threadIdx.x; e < kRows * kPairs; e += Plan::kSplit * kThreads) {
            const int row = e / kPairs, column = e % kPairs * 2;
            float values[kDots][2];
            u32 staged[1];
#pragma unroll
            for (int p = 0; p < kDots; ++p) {
                const int at = p * kSums + row * kPitch + column;
                TwoSums total;
                if constexpr (Plan::kSplit == 1) {
                    total = added(shared, at);
                } else {
                    total = *reinterpret_cast<const TwoSums*>(in_block(shared, 0) + at);
#pragma unroll
                    for (int block = 1; block < Plan::kSplit; ++block) {
                        const TwoSums more = *reinterpret_cast<const TwoSums*>(in_block(shared, block) + at);
                        total.at[0] += more.at[0];
                        total.at[1] += more.at[1];
                    }
                }
                values[p][0] = total.at[0];
                values[p][1] = total.at[1];
            }
            plan.finish(batch, kAcross ? vector_tile : line_tile, kAcross ? line_tile : vector_tile, row, column, values, staged);
        }
        if constexpr (Plan::kSplit > 1) cluster_sync();
    }
};

template <typename Plan>
__device__ void skinny_gemm(const Plan& plan) {
    SkinnyGemm<Plan>::run(plan);
}

}  // namespace fusec
