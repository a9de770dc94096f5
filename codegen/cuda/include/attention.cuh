// SPDX-License-Identifier: Apache-2.0
// Attention on Hopper: one warpgroup fetches queries, keys and values; the others multiply, 64 queries each.
//
// A block of keys costs two matmuls, S = Q K^T and O += P V, with the softmax between them. A consumer starts the next S
// before the O of the block at hand, and computes the softmax while O is still being multiplied; consumers may ping-pong
// at the tensor cores, so that one's softmax runs under the others' matmuls (Shah et al., FlashAttention-3, 2024). P stays
// in registers. Where blocks are persistent, the queries and keys of the next block of queries come while the last results leave.
//
// A kernel's own part is a struct `Plan`, one query block of one head:
//
//     using Type                              bf16 or f16: of values, and of weights
//     using Scored                            of queries and keys, of 8 bits; without it Type
//     kDepth, kValues, kKeys                  columns of queries and of values (multiples of 16, of 32 in 8 bits), keys in a block
//     kConsumers, kStages, kPingPong          warpgroups that multiply; blocks of keys prefetched; ping-pong
//     kScale                                  of scores, in units of log2: weights are exp2(kScale * score - ...), or
//     kSubtractsFirst                         exp2(kScale * (score - ...)): exact where scores are huge
//     factor, plain, scaled(raw)              where scores are products times what data say of a block: set by `begin`.
//                                             weights are exp2(factor * score - ...). Unless it is plain, products are
//                                             `scaled` before all else
//     kGuarded                                a row whose scores are all -inf gives zeros, not NaN
//     kStaged                                 results leave through shared memory, 64 x 64 at a time
//     kHeads, kBlocks, kPersistent            blocks of queries of a head; a block of threads does one after another
//     heads(), blocks()                       how many there are, where kBlocks is -1
//     begin(block)                            sets which head and queries a block does, and its keys:
//     first, whole, part, last                from `first`; the mask leaves all of [whole, part) in; up to `last`
//     kMaskedBefore, kMaskedAfter             whether there are blocks of keys outside [whole, part), on either side
//     load_queries(to, full, column)          start the copy of 128 bytes of kRows rows from a column
//     load_keys(to, full, key, column), load_values(...)                               kKeys
//     Row at(row, key)                        what a row's scores have in common, where offset 0 is `key`
//     score_masked(raw, Row, offset, number), score_whole(...)
//                                             the score as the user changed it; -infinity where masked. `number` is `offset`
//     finish(row, column, values, staged)     two neighbours of a row: stores what is not staged, packs what is
//     send(from, row, column)                 starts the copy of 64 x 64 results out of shared memory
//
// `row` and `column` are positions within a block; `key` is the position of a block's first key, but for `at`.
#pragma once
#include "barrier.cuh"
#include "base.cuh"
#include "fragment.cuh"
#include "scalar.cuh"
#include "softmax.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace fusec {

template <bool kValue>
struct Flag {
    static constexpr bool value = kValue;
};

/// What queries and keys are.
template <typename Plan, typename = void>
struct ScoredOf {
    using type = typename Plan::Type;
};
template <typename Plan>
struct ScoredOf<Plan, Void<typename Plan::Scored>> {
    using type = typename Plan::Scored;
};

/// Sizes in bytes and counts that follow from a plan.
template <typename Plan>
struct AttentionLayout {
    using Scored = typename ScoredOf<Plan>::type;
    static constexpr int kDepthBox = kDepth<Scored>, kBox = 64;  // columns of a box: 128 bytes
    static constexpr int kRows = 64 * Plan::kConsumers;
    static constexpr int kDepthBoxes = (Plan::kDepth + kDepthBox - 1) / kDepthBox, kValueBoxes = (Plan::kValues + kBox - 1) / kBox;
    static constexpr int kQueryBox = kRows * 128, kKeyBox = Plan::kKeys * 128;
    static constexpr int kBoxes = kDepthBoxes > kValueBoxes ? kDepthBoxes : kValueBoxes;
    static constexpr int kQueries = (Plan::kPersistent ? kDepthBoxes : kBoxes) * kQueryBox;
    static constexpr int kResults = Plan::kPersistent ? kValueBoxes * kQueryBox : 0;  // else where queries were
    static constexpr int kKeyBytes = kDepthBoxes * kKeyBox, kValueBytes = kValueBoxes * kKeyBox;
    static constexpr int kShared = 1024 + kQueries + kResults + Plan::kStages * (kKeyBytes + kValueBytes);
    static constexpr int kThreads = kWarpgroup * (Plan::kConsumers + 1);
};

template <typename Plan>
struct AttentionBarriers {
    Barrier queries, queries_read, keys[Plan::kStages], keys_read[Plan::kStages], values[Plan::kStages], values_read[Plan::kStages];

    __device__ void init() {
        queries.init(1);
        queries_read.init(Plan::kConsumers);
        for (int i = 0; i < Plan::kStages; ++i) {
            keys[i].init(1);
            values[i].init(1);
            keys_read[i].init(Plan::kConsumers);
            values_read[i].init(Plan::kConsumers);
        }
        fence_barrier_init();
    }
};

template <typename Plan>
__device__ void fetch_attention(const Plan& plan, char* queries, char* keys, char* values, AttentionBarriers<Plan>& bars,
                                Ring<1>& query, Ring<Plan::kStages>& ring) {
    using L = AttentionLayout<Plan>;
    if (Plan::kPersistent) bars.queries_read.wait(query.parity ^ 1);
    query.advance();
    bars.queries.arrive_expecting(L::kDepthBoxes * L::kQueryBox);
    for (int b = 0; b < L::kDepthBoxes; ++b) plan.load_queries(queries + b * L::kQueryBox, bars.queries, b * L::kDepthBox);
    for (int key = plan.first; key < plan.last; key += Plan::kKeys) {
        int i = ring.stage;
        bars.keys_read[i].wait(ring.parity ^ 1);
        bars.keys[i].arrive_expecting(L::kKeyBytes);
        for (int b = 0; b < L::kDepthBoxes; ++b)
            plan.load_keys(keys + i * L::kKeyBytes + b * L::kKeyBox, bars.keys[i], key, b * L::kDepthBox);
        bars.values_read[i].wait(ring.parity ^ 1);
        bars.values[i].arrive_expecting(L::kValueBytes);
        for (int b = 0; b < L::kValueBoxes; ++b)
            plan.load_values(values + i * L::kValueBytes + b * L::kKeyBox, bars.values[i], key, b * L::kBox);
        ring.advance();
    }
}

/// A consumer's state of its 64 rows; a thread has two of them.
template <typename Plan>
struct Online {
    using L = AttentionLayout<Plan>;
    static constexpr int kScores = Plan::kKeys / 2, kOut = Plan::kValues / 2;
    float out[kOut];
    u32 weights[Plan::kKeys / 16][4];
    float row_max[2] = {-infinity, -infinity}, row_sum[2] = {0, 0}, rescale[2] = {1, 1};
    bool grew = true;  // in any row of the warp

    /// scores = Q K^T, started.
    __device__ void multiply_scores(float (&scores)[kScores], const char* queries, const char* keys) {
        u64 q = describe_k_major(queries), k = describe_k_major(keys);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < Plan::kDepth * 4 / L::kDepthBox; ++step)
            Wgmma<Plan::kKeys>::template shared<typename L::Scored>(
                scores, step_k<false>(step_bytes(q, step / 4 * L::kQueryBox), step % 4),
                step_k<false>(step_bytes(k, step / 4 * L::kKeyBox), step % 4), step > 0);
        wgmma_commit();
    }

    /// out += P V, started.
    __device__ void multiply_values(const char* values) {
        u64 v = describe_transposed(values, L::kKeyBox);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < Plan::kKeys / 16; ++step)
            Wgmma<Plan::kValues>::template registers<typename Plan::Type, true>(out, weights[step], step_k<true>(v, step), 1);
        wgmma_commit();
    }

    __device__ void rescale_out() {
        if (!grew) return;
#pragma unroll
        for (int i = 0; i < kOut; ++i) out[i] *= rescale[i / 2 % 2];
    }

    /// Scores to weights, not yet rounded; the running maximum and sum.
    template <bool kMasked>
    __device__ void soften(const Plan& plan, float (&scores)[kScores], int row, int key) {
        key += fragment_column();
        if constexpr (ScoreScale<Plan>::kByBlock)
            if (!plan.plain)
#pragma unroll
                for (int i = 0; i < kScores; ++i) scores[i] = plan.scaled(scores[i]);
        const typename Plan::Row rows[2] = {plan.at(row, key), plan.at(row + 8, key)};
#pragma unroll
        for (int i = 0; i < kScores; ++i) {
            int along = i / 4 * 8 + i % 2;
            scores[i] = kMasked ? plan.score_masked(scores[i], rows[i / 2 % 2], along, along)
                                : plan.score_whole(scores[i], rows[i / 2 % 2], along, along);
        }
        float highest[2] = {row_max[0], row_max[1]}, sum[2] = {0, 0};
        Shift<Plan> shift[2];
#pragma unroll
        for (int i = 0; i < kScores; ++i) highest[i / 2 % 2] = fmaxf(highest[i / 2 % 2], scores[i]);
#pragma unroll
        for (int h = 0; h < 2; ++h) rescale[h] = raise_max(plan, row_max[h], quad_max(highest[h]), shift[h]);
        grew = __any_sync(0xffffffff, rescale[0] != 1.0f || rescale[1] != 1.0f);
#pragma unroll
        for (int i = 0; i < kScores; ++i) {
            scores[i] = shift[i / 2 % 2].weight(scores[i]);
            sum[i / 2 % 2] += scores[i];
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) row_sum[h] = row_sum[h] * rescale[h] + sum[h];
    }

    __device__ void round_weights(const float (&scores)[kScores]) {
#pragma unroll
        for (int step = 0; step < Plan::kKeys / 16; ++step)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                weights[step][e] = Plan::Type::pack(scores[8 * step + 2 * e], scores[8 * step + 2 * e + 1]);
    }
};

/// The first of the named barriers that a consumer's threads have to themselves.
constexpr int kOwnBarrier = 4;

/// The order of consumers at the tensor cores.
template <typename Plan>
struct PingPong {
    static constexpr int kFirst = 1, kThreads = 2 * kWarpgroup;
    int own;

    __device__ explicit PingPong(int consumer) : own(consumer) {
        if (Plan::kPingPong && own == Plan::kConsumers - 1) named_arrive(kFirst, kThreads);
    }
    __device__ void take() {
        if (Plan::kPingPong) named_sync(kFirst + own, kThreads);
    }
    __device__ void give() {
        if (Plan::kPingPong) named_arrive(kFirst + (own + 1 == Plan::kConsumers ? 0 : own + 1), kThreads);
    }
    /// Takes the turn that nobody is left to take.
    __device__ void end() {
        if (Plan::kPingPong && own == 0) named_sync(kFirst, kThreads);
    }
};

template <typename Plan>
__device__ void store_attention(const Plan& plan, Online<Plan>& o, char* results, int consumer) {
    using L = AttentionLayout<Plan>;
    int thread = threadIdx.x % kWarpgroup, lane = thread % kWarp, row = consumer * 64 + fragment_row();
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) inverse[h] = inverse_of<Plan>(o.row_sum[h]);
    u32 box = shared_address(results) + consumer * 64 * 128;
    if (Plan::kPersistent && Plan::kStaged) {
        if (thread == 0) store_wait_read<0>();
        named_sync(kOwnBarrier + consumer, kWarpgroup);
    }
#pragma unroll
    for (int q = 0; q < Plan::kValues / 16; ++q) {
        u32 staged[4][1];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float values[2] = {o.out[8 * q + 2 * i] * inverse[i % 2], o.out[8 * q + 2 * i + 1] * inverse[i % 2]};
            plan.finish(row + i % 2 * 8, q * 16 + i / 2 * 8 + fragment_column(), values, staged[i]);
        }
        if (Plan::kStaged)
            store_matrices(swizzled(box + q / 4 * L::kQueryBox, thread / kWarp * 16 + lane % 16, q % 4 * 2 + lane / 16),
                           staged[0][0], staged[1][0], staged[2][0], staged[3][0]);
    }
    if (!Plan::kStaged) return;
    fence_async_shared();
    named_sync(kOwnBarrier + consumer, kWarpgroup);
    if (thread == 0) {
        for (int b = 0; b < L::kValueBoxes; ++b)
            plan.send(results + b * L::kQueryBox + consumer * 64 * 128, consumer * 64, b * L::kBox);
        store_commit();
    }
}

template <typename Plan>
__device__ void attend(const Plan& plan, char* queries, char* keys, char* values, char* results,
                       AttentionBarriers<Plan>& bars, int consumer, PingPong<Plan>& ping_pong, Ring<1>& query,
                       Ring<Plan::kStages>& ring) {
    using L = AttentionLayout<Plan>;
    Online<Plan> o;
    const char* own = queries + consumer * 64 * 128;
    int row = consumer * 64 + fragment_row(), key = plan.first;
    bool tells = threadIdx.x % kWarpgroup == 0;
    Ring<Plan::kStages> before = ring;
#pragma unroll
    for (int i = 0; i < o.kOut; ++i) o.out[i] = 0;
    bars.queries.wait(query.parity);
    query.advance();

    if (key < plan.last) {
        float scores[Plan::kKeys / 2];
        bars.keys[ring.stage].wait(ring.parity);
        ping_pong.take();
        o.multiply_scores(scores, own, keys + ring.stage * L::kKeyBytes);
        ping_pong.give();
        wgmma_wait<0>();
        keep_here(scores);
        if (tells) bars.keys_read[ring.stage].arrive();
        o.template soften<true>(plan, scores, row, key);
        o.round_weights(scores);
        ring.advance();
        key += Plan::kKeys;
    }
    auto step = [&](auto masked) {
        float scores[Plan::kKeys / 2];
        bars.keys[ring.stage].wait(ring.parity);
        ping_pong.take();
        o.multiply_scores(scores, own, keys + ring.stage * L::kKeyBytes);
        o.rescale_out();
        bars.values[before.stage].wait(before.parity);
        o.multiply_values(values + before.stage * L::kValueBytes);
        ping_pong.give();
        wgmma_wait<1>();
        keep_here(scores);
        if (tells) bars.keys_read[ring.stage].arrive();
        o.template soften<decltype(masked)::value>(plan, scores, row, key);
        wgmma_wait<0>();
        keep_here(o.out);
        if (tells) bars.values_read[before.stage].arrive();
        o.round_weights(scores);
        ring.advance();
        before.advance();
        key += Plan::kKeys;
    };
    if (Plan::kMaskedBefore)
        while (key < plan.whole && key < plan.last) step(Flag<true>{});
    while (key < plan.part) step(Flag<false>{});
    if (Plan::kMaskedAfter)
        while (key < plan.last) step(Flag<true>{});
    if (Plan::kPersistent && tells) bars.queries_read.arrive();
    if (plan.first < plan.last) {
        o.rescale_out();
        bars.values[before.stage].wait(before.parity);
        o.multiply_values(values + before.stage * L::kValueBytes);
        wgmma_wait<0>();
        keep_here(o.out);
        if (tells) bars.values_read[before.stage].arrive();
    }
    store_attention<Plan>(plan, o, results, consumer);
}

template <typename Plan>
__device__ int head_count(const Plan& plan) {
    if constexpr (Plan::kBlocks < 0)
        return plan.heads();
    else
        return Plan::kHeads;
}

/// Blocks of queries of a head.
template <typename Plan>
__device__ int block_count(const Plan& plan) {
    if constexpr (Plan::kBlocks < 0)
        return plan.blocks();
    else
        return Plan::kBlocks;
}

/// Calls `todo` for each block of queries that this block does. A persistent one does pairs of the longest and the shortest.
template <typename Plan, typename Todo>
__device__ void for_blocks(Plan& plan, Todo&& todo) {
    if constexpr (!Plan::kPersistent) {
        plan.begin(blockIdx.x);
        todo();
    } else {
        const int heads = head_count(plan), blocks = block_count(plan), pairs = (blocks + 1) / 2;
        for (int pair = blockIdx.x; pair < heads * pairs; pair += gridDim.x)
            for (int half = 0; half < 2; ++half) {
                int head = pair / pairs, first = pair % pairs;
                if (half && first == blocks / 2) continue;
                plan.begin(head * blocks + (half ? blocks - 1 - first : first));
                todo();
            }
    }
}

template <typename Plan>
__device__ void attention(Plan plan) {
    using L = AttentionLayout<Plan>;
    extern __shared__ char memory[];
    __shared__ AttentionBarriers<Plan> bars;
    char* queries = memory + (1024 - shared_address(memory) % 1024) % 1024;
    char* keys = queries + L::kQueries;
    char* values = keys + Plan::kStages * L::kKeyBytes;
    char* results = Plan::kPersistent ? values + Plan::kStages * L::kValueBytes : queries;
    if (threadIdx.x == 0) bars.init();
    __syncthreads();
    int group = warpgroup_id();
    Ring<1> query;
    Ring<Plan::kStages> ring;
    if (group == Plan::kConsumers) {
        lower_registers<Plan::kConsumers == 3 ? 32 : 24>();
        if (threadIdx.x == Plan::kConsumers * kWarpgroup)
            for_blocks(plan, [&] { fetch_attention<Plan>(plan, queries, keys, values, bars, query, ring); });
    } else {
        raise_registers<Plan::kConsumers == 3 ? 160 : 240>();
        PingPong<Plan> ping_pong(group);
        for_blocks(plan, [&] { attend<Plan>(plan, queries, keys, values, results, bars, group, ping_pong, query, ring); });
        ping_pong.end();
        if (Plan::kStaged && threadIdx.x % kWarpgroup == 0) store_wait_read<0>();
    }
}

}  // namespace fusec
