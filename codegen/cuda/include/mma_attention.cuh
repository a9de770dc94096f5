// SPDX-License-Identifier: Apache-2.0
// Attention by mma.sync (sm_80 and later): a block's warps do 32 queries each, or 16.
//
// A block of keys costs two matmuls, S = Q K^T and O += P V, with the softmax between them (Dao, FlashAttention-2, 2023).
// S, P and O stay in registers, where a rounded S is the left operand of the second matmul. With one buffer, values are
// copied under the first matmul and the next keys under the softmax and the second one; with two, the next keys and
// values under all of a block's work.
//
// A kernel's own part is a struct `Plan`, one query block of one head:
//
//     using Type                              bf16 or f16
//     kDepth, kValues                         columns of queries and of values, multiples of 16
//     kQueries, kKeys, kWarps, kStages        rows of a block, keys in a block, buffers (1 or 2)
//     using Queries, Keys, Values             `InRows`: how the operands lie in memory
//     query(row, column), key(...), value(...)  an element's address, or its value; rows of keys count from the first
//     rows                                    queries of this block that there are
//     kScale, kSubtractsFirst, kGuarded       as in `attention.cuh`, and so are
//     begin, first, whole, part, last, kMaskedBefore, kMaskedAfter, Row, at, score_masked, score_whole, finish
//     kStaged                                 results of 16 bits leave eight neighbours at a time
//     send(row, column, eight)                stores eight neighbours
#pragma once
#include "mma.cuh"
#include "rows.cuh"
#include "softmax.cuh"

namespace fusec {

template <typename Plan>
struct MmaAttention {
    using Type = typename Plan::Type;
    static constexpr int kThreads = 32 * Plan::kWarps, kKeys = Plan::kKeys;
    static constexpr int kFragments = Plan::kQueries / (16 * Plan::kWarps);
    static constexpr int kScores = kKeys / 8, kOut = Plan::kValues / 8;
    static constexpr bool kHolds = kFragments * Plan::kDepth <= 64;  // queries stay in registers

    /// Bytes from row to row: of 32 columns, or of a multiple of 64.
    static constexpr int kPitch(int columns) { return columns <= 32 ? 64 : (columns + 63) / 64 * 128; }
    static constexpr int kDeep = kPitch(Plan::kDepth), kWide = kPitch(Plan::kValues);
    using QueryTile = TileOfRows<Type, typename Plan::Queries, Plan::kQueries, Plan::kDepth, 1, kThreads, kDeep>;
    using KeyTile = TileOfRows<Type, typename Plan::Keys, kKeys, Plan::kDepth, 1, kThreads, kDeep>;
    using ValueTile = TileOfRows<Type, typename Plan::Values, kKeys, Plan::kValues, 1, kThreads, kWide>;
    static constexpr int kStage = KeyTile::kBytes + ValueTile::kBytes;
    static constexpr int kShared = QueryTile::kBytes + Plan::kStages * kStage;

    /// A warp's state of its rows; a thread has two of each fragment.
    struct Online {
        float out[kFragments][kOut][4];
        float row_max[kFragments][2], row_sum[kFragments][2];
    };

    /// Scores of one fragment's rows to weights, not yet rounded; the running maximum and sum, and results in their scale.
    template <bool kMasked>
    __device__ static void soften(const Plan& plan, float (&scores)[kScores][4], Online& o, int i, int row, int key) {
        key += accumulator_column();
        const typename Plan::Row rows[2] = {plan.at(row, key), plan.at(row + 8, key)};
        float highest[2] = {o.row_max[i][0], o.row_max[i][1]}, rescale[2], sum[2] = {0, 0};
        Shift<Plan> shift[2];
#pragma unroll
        for (int j = 0; j < kScores; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int along = j * 8 + e % 2;
                scores[j][e] = kMasked ? plan.score_masked(scores[j][e], rows[e / 2], along, along)
                                       : plan.score_whole(scores[j][e], rows[e / 2], along, along);
                highest[e / 2] = fmaxf(highest[e / 2], scores[j][e]);
            }
#pragma unroll
        for (int h = 0; h < 2; ++h) rescale[h] = raise_max(plan, o.row_max[i][h], quad_max(highest[h]), shift[h]);
#pragma unroll
        for (int j = 0; j < kScores; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                scores[j][e] = shift[e / 2].weight(scores[j][e]);
                sum[e / 2] += scores[j][e];
            }
#pragma unroll
        for (int h = 0; h < 2; ++h) o.row_sum[i][h] = o.row_sum[i][h] * rescale[h] + sum[h];
        if (!__any_sync(0xffffffff, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
        for (int j = 0; j < kOut; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) o.out[i][j][e] *= rescale[e / 2];
    }

    __device__ static void run(Plan plan) {
        extern __shared__ __align__(128) char memory[];
        plan.begin(blockIdx.x);
        const int warp_row = warp_id() * kFragments * 16, row = warp_row + accumulator_row();
        auto query = [&](int r, int c) { return plan.query(r, c); };
        auto key_at = [&](int r, int c) { return plan.key(r, c); };
        auto value_at = [&](int r, int c) { return plan.value(r, c); };
        KeyTile keys(plan.first, 0, key_at);
        ValueTile values(plan.first, 0, value_at);
        char* const stages = memory + QueryTile::kBytes;
        auto fetch_keys = [&](int stage) {
            keys.fetch(stages + stage * kStage, key_at);
            keys.move(kKeys, 0);
        };
        auto fetch_values = [&](int stage) {
            values.fetch(stages + stage * kStage + KeyTile::kBytes, value_at);
            values.move(kKeys, 0);
        };
        QueryTile(0, 0, query, plan.rows).fetch(memory, query);
        if (plan.first < plan.last) {
            fetch_keys(0);
            if (Plan::kStages == 2) fetch_values(0);
        }
        copies_end_step();

        const Fragments<Type, false, kDeep, true> q(warp_row);
        const Fragments<Type, false, kDeep, false> k(0);
        const Fragments<Type, true, kWide, false> v(0);
        const u32 at_queries = shared_address(memory), at_stages = at_queries + QueryTile::kBytes;
        u32 held[kHolds ? Plan::kDepth / 16 : 1][kFragments][4];
        if (kHolds) {
            wait_for_all_steps_but<0>();
            __syncthreads();
#pragma unroll
            for (int s = 0; s < Plan::kDepth / 16; ++s)
#pragma unroll
                for (int i = 0; i < kFragments; ++i) q.read(held[kHolds ? s : 0][i], at_queries, i, s);
        }
        Online o;
#pragma unroll
        for (int i = 0; i < kFragments; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                o.row_max[i][h] = -infinity;
                o.row_sum[i][h] = 0;
            }
#pragma unroll
            for (int j = 0; j < kOut; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) o.out[i][j][e] = 0;
        }
        int stage = 0;
        for (int key = plan.first; key < plan.last; key += kKeys) {
            const bool more = key + kKeys < plan.last;
            wait_for_all_steps_but<0>();
            __syncthreads();
            if (Plan::kStages == 1) {
                fetch_values(0);
            } else if (more) {
                fetch_keys(stage ^ 1);
                fetch_values(stage ^ 1);
            }
            copies_end_step();

            float scores[kFragments][kScores][4] = {};
            const u32 at_keys = at_stages + stage * kStage, at_values = at_keys + KeyTile::kBytes;
#pragma unroll
            for (int s = 0; s < Plan::kDepth / 16; ++s) {
                u32 a[kFragments][4];
                if (!kHolds)
#pragma unroll
                    for (int i = 0; i < kFragments; ++i) q.read(a[i], at_queries, i, s);
#pragma unroll
                for (int j = 0; j < kScores; j += 2) {
                    u32 b[4];
                    k.read(b, at_keys, j / 2, s);
#pragma unroll
                    for (int i = 0; i < kFragments; ++i)
#pragma unroll
                        for (int h = 0; h < 2; ++h)
                            multiply_add<Type>(scores[i][j + h], kHolds ? held[kHolds ? s : 0][i] : a[i], b + 2 * h);
                }
            }
            if (Plan::kStages == 1) {
                wait_for_all_steps_but<0>();
                __syncthreads();
                if (more) fetch_keys(0);
                copies_end_step();
            }
            const bool masked = (Plan::kMaskedBefore && key < plan.whole) || (Plan::kMaskedAfter && key >= plan.part);
#pragma unroll
            for (int i = 0; i < kFragments; ++i)
                if ((Plan::kMaskedBefore || Plan::kMaskedAfter) && masked)
                    soften<true>(plan, scores[i], o, i, row + i * 16, key);
                else
                    soften<false>(plan, scores[i], o, i, row + i * 16, key);
#pragma unroll
            for (int s = 0; s < kKeys / 16; ++s) {
                u32 weights[kFragments][4];
#pragma unroll
                for (int i = 0; i < kFragments; ++i)
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        weights[i][e] = Type::pack(scores[i][2 * s + e / 2][e % 2 * 2], scores[i][2 * s + e / 2][e % 2 * 2 + 1]);
#pragma unroll
                for (int j = 0; j < kOut; j += 2) {
                    u32 b[4];
                    v.read(b, at_values, j / 2, s);
#pragma unroll
                    for (int i = 0; i < kFragments; ++i)
#pragma unroll
                        for (int h = 0; h < 2; ++h) multiply_add<Type>(o.out[i][j + h], weights[i], b + 2 * h);
                }
            }
            if (Plan::kStages == 2) stage ^= 1;
        }
        store_results(plan, o, row);
    }

    __device__ static void store_results(const Plan& plan, const Online& o, int row) {
#pragma unroll
        for (int i = 0; i < kFragments; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float inverse = inverse_of<Plan>(o.row_sum[i][half]);
#pragma unroll
                for (int first = 0; first < kOut; first += 4) {
                    u32 eight[4];
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        u32 packed[1] = {0};
                        if (first + j < kOut) {
                            const float two[2] = {o.out[i][first + j][2 * half] * inverse,
                                                  o.out[i][first + j][2 * half + 1] * inverse};
                            plan.finish(row + i * 16 + half * 8, (first + j) * 8 + accumulator_column(), two, packed);
                        }
                        eight[j] = packed[0];
                    }
                    if (Plan::kStaged) {
                        transpose_words(eight);
                        const int column = (first + lane_id() % 4) * 8;
                        if (column < Plan::kValues)
                            plan.send(row + i * 16 + half * 8, column, Vec<u32, 4>{{eight[0], eight[1], eight[2], eight[3]}});
                    }
                }
            }
    }
};

template <typename Plan>
__device__ void mma_attention(const Plan& plan) {
    MmaAttention<Plan>::run(plan);
}

}  // namespace fusec
