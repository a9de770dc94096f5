// SPDX-License-Identifier: Apache-2.0
// Convolutions of groups of few channels (sm_80 and later): a block brings a tile of an image, with what windows reach
// around it, into shared memory, and its warps multiply windows where they lie.
//
// Images have their channels last. A kernel's own part is a struct `Plan`:
//
//     using Type                             bf16 or f16
//     kImages, kHeight, kWidth               of the image; kImageStep, kRowStep, kPixelStep: elements between neighbours
//     kOutHeight, kOutWidth                  windows along each axis
//     kSizeY, kSizeX, kStrideY, kStrideX, kDilationY, kDilationX, kLowY, kLowX       of the windows; padding before
//     kGroups, kDepth, kColumns              groups, and how many channels and columns each of them has
//     kRows, kWide, kTogether                windows of a block's tile, and channels that it has
//     kDown                                  of depthwise windows: rows that a lane's positions have
//     kWarps                                 of a block
//     kStaged                                results of 16 bits that leave eight neighbours at a time
//     image(n, y, x)                         where an image's first channel is
//     weight(k, column)                      an element of the right operand
//     finish(row, column, values, staged)    two neighbouring columns: stores what is not staged, packs what is
//     send(output, row, column, eight)       stores eight neighbours
//
// `row` numbers the windows of all images, `column` the columns of all groups.
#pragma once
#include "barrier.cuh"
#include "copy.cuh"
#include "mma.cuh"
#include "scalar.cuh"

namespace fusec {

/// A block's tile: its first window, how many of its windows there are, and its first channel.
template <typename Plan>
struct WindowTile {
    static constexpr int kDownwards = (Plan::kOutHeight + Plan::kRows - 1) / Plan::kRows;
    static constexpr int kAcross = (Plan::kOutWidth + Plan::kWide - 1) / Plan::kWide;
    static constexpr int kParts = Plan::kGroups * Plan::kDepth / Plan::kTogether;
    static constexpr int kInRows = (Plan::kRows - 1) * Plan::kStrideY + (Plan::kSizeY - 1) * Plan::kDilationY + 1;
    static constexpr int kInWide = (Plan::kWide - 1) * Plan::kStrideX + (Plan::kSizeX - 1) * Plan::kDilationX + 1;

    static constexpr bool kWhole = Plan::kWide == Plan::kOutWidth;  // rows: windows follow one another
    static constexpr bool kEven = Plan::kOutHeight % Plan::kRows == 0;

    int part, x, y, image;

    __device__ WindowTile() {
        int rest = blockIdx.x;
        part = rest % kParts;
        rest /= kParts;
        x = rest % kAcross * Plan::kWide;
        rest /= kAcross;
        y = rest % kDownwards * Plan::kRows;
        image = rest / kDownwards;
    }

    /// Whether there is a window so far from the first, and its number among those of all images.
    __device__ bool has(int down, int across) const {
        return down < Plan::kRows && across < Plan::kWide && y + down < Plan::kOutHeight && x + across < Plan::kOutWidth;
    }
    __device__ int row(int down, int across) const {
        return (image * Plan::kOutHeight + y + down) * Plan::kOutWidth + x + across;
    }

    /// The same of window p of the tile.
    __device__ bool has(int p) const {
        if (kWhole && kEven) return p < Plan::kRows * Plan::kWide;
        return has(p / Plan::kWide, p % Plan::kWide);
    }
    __device__ int row(int p) const {
        if (kWhole) return (image * Plan::kOutHeight + y) * Plan::kOutWidth + p;
        return row(p / Plan::kWide, p % Plan::kWide);
    }

    /// Whether a pixel of the tile's part of the image is in the image, and where.
    __device__ bool inside(int down, int across) const {
        const int v = y * Plan::kStrideY - Plan::kLowY + down, u = x * Plan::kStrideX - Plan::kLowX + across;
        return v >= 0 && v < Plan::kHeight && u >= 0 && u < Plan::kWidth;
    }
    __device__ const typename Plan::Type* pixel(const Plan& plan, int down, int across) const {
        const int v = y * Plan::kStrideY - Plan::kLowY + down, u = x * Plan::kStrideX - Plan::kLowX + across;
        return plan.image(image, v, u) + part * Plan::kTogether;
    }
};

/// Groups of 8 or 16 channels and as many columns or twice as many: MMAs of 16 windows by 8 columns of a group, along K
/// two units of eight channels at a time, each of any tap.
template <typename Plan>
struct GroupedWindows {
    using T = typename Plan::Type;
    using Tile = WindowTile<Plan>;
    static constexpr int kUnits = Plan::kTogether / 8, kDeep = Plan::kDepth / 8;
    static constexpr int kPixel = 2 * Plan::kTogether + 16;  // bytes: a unit of pixels side by side is in other banks
    static constexpr int kPixels = Tile::kInRows * Tile::kInWide, kThreads = 32 * Plan::kWarps;
    static constexpr int kTaps = Plan::kSizeY * Plan::kSizeX, kK = kTaps * Plan::kDepth, kSteps = (kK + 15) / 16;
    static constexpr int kGroups = Plan::kTogether / Plan::kDepth, kNarrow = Plan::kColumns / 8;
    static constexpr int kWindows = Plan::kRows * Plan::kWide, kTiles = (kWindows + 15) / 16;
    static constexpr int kTeams = Plan::kWarps / kGroups;
    static constexpr int kShared = kPixels * kPixel;
    static_assert(Plan::kWarps % kGroups == 0, "each warp multiplies one group");

    /// Bytes from a group's first channels of a window's first pixel to a unit along K.
    __device__ static constexpr int behind(int unit) {
        const int tap = unit / kDeep < kTaps ? unit / kDeep : 0;
        const int pixel = tap / Plan::kSizeX * Plan::kDilationY * Tile::kInWide + tap % Plan::kSizeX * Plan::kDilationX;
        return pixel * kPixel + unit % kDeep * 16;
    }

    __device__ static void run(const Plan& plan) {
        extern __shared__ __align__(128) char memory[];
#if __CUDA_ARCH__ >= 900
        start_after_the_kernel_ahead();
#endif
        const Tile tile;
        for (int i = threadIdx.x; i < kPixels * kUnits; i += kThreads) {
            const int pixel = i / kUnits, unit = i % kUnits, down = pixel / Tile::kInWide, across = pixel % Tile::kInWide;
            const bool inside = tile.inside(down, across);
            const T* const from = inside ? tile.pixel(plan, down, across) + unit * 8 : plan.image(0, 0, 0);
            copy_async<16>(memory + pixel * kPixel + unit * 16, from, inside);
        }
        copies_end_step();

        const int lane = lane_id(), warp = warp_id(), group = warp % kGroups, team = warp / kGroups;
        const int column = (tile.part * kGroups + group) * Plan::kColumns;
        u32 weights[kSteps][kNarrow][2];
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
#pragma unroll
            for (int j = 0; j < kNarrow; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int k = s * 16 + half * 8 + lane % 4 * 2, n = column + j * 8 + lane / 4;
                    const bool there = s * 16 + half * 8 < kK;
                    const T low = there ? plan.weight(k, n) : T(0.0f), high = there ? plan.weight(k + 1, n) : T(0.0f);
                    weights[s][j][half] = u32(high.bits) << 16 | low.bits;
                }
        wait_for_all_steps_but<0>();
        __syncthreads();

        const u32 shared = shared_address(memory) + group * kDeep * 16;
        int off[kSteps];
#pragma unroll
        for (int s = 0; s < kSteps; ++s) off[s] = lane / 16 ? behind(2 * s + 1) : behind(2 * s);
        for (int first = team * 2; first < kTiles; first += 2 * kTeams) {
            float sums[2][kNarrow][4] = {};
            u32 from[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int p = min((first + i) * 16 + lane % 16, kWindows - 1);
                const int pixel = p / Plan::kWide * Plan::kStrideY * Tile::kInWide + p % Plan::kWide * Plan::kStrideX;
                from[i] = shared + pixel * kPixel;
            }
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    u32 a[4];
                    load_matrices(a, from[i] + off[s]);
                    if (s * 16 + 8 >= kK) a[2] = a[3] = 0;  // beyond the last tap
#pragma unroll
                    for (int j = 0; j < kNarrow; ++j) multiply_add<T>(sums[i][j], a, weights[s][j]);
                }
            }
            leave(plan, tile, first, column, sums);
        }
    }

    /// Two tiles' results: four rows of eight columns meet in the four lanes that have them, and leave one from each.
    __device__ static void leave(const Plan& plan, const Tile& tile, int first, int column, const float (&sums)[2][kNarrow][4]) {
        constexpr int kStaged = Plan::kStaged;
        const int lane = lane_id();
#pragma unroll
        for (int j = 0; j < kNarrow; ++j) {
            u32 staged[kStaged > 0 ? kStaged : 1][4];
#pragma unroll
            for (int item = 0; item < 4; ++item) {
                const int p = (first + item / 2) * 16 + item % 2 * 8 + lane / 4;
                u32 packed[kStaged > 0 ? kStaged : 1] = {};
                const float values[1][2] = {{sums[item / 2][j][item % 2 * 2], sums[item / 2][j][item % 2 * 2 + 1]}};
                if (tile.has(p)) plan.finish(tile.row(p), column + j * 8 + lane % 4 * 2, values, packed);
#pragma unroll
                for (int o = 0; o < kStaged; ++o) staged[o][item] = packed[o];
            }
            const int p = (first + lane % 4 / 2) * 16 + lane % 2 * 8 + lane / 4;
#pragma unroll
            for (int o = 0; o < kStaged; ++o) {
                transpose_words(staged[o]);
                const Vec<u32, 4> eight{{staged[o][0], staged[o][1], staged[o][2], staged[o][3]}};
                if (tile.has(p)) plan.send(o, tile.row(p), column + j * 8, eight);
            }
        }
    }
};

/// What carries into the highest bit of a half whose exponent is all ones: an infinity or NaN.
template <typename T>
constexpr u32 kCarry = 0x00800080u;
template <>
constexpr u32 kCarry<f16> = 0x04000400u;

/// Has bit 15 or 31 where a half of the word is infinite or NaN.
template <typename T>
__device__ inline u32 not_finite(u32 both) {
    return (both & 0x7fff7fffu) + kCarry<T>;
}

/// One channel a group and one column: MMAs of a channel's positions by a band of its weights.
///
/// A position is eight windows side by side, of kDown rows. Its row of the image meets, for each row of the windows, a
/// matrix whose column n has the weights from n strides on and zeros around them: [16 positions, K] [K, 8 windows]. A
/// zero meets elements that are in none of the window, so a tile with an infinity or NaN is added up element by element.
///
/// Each channel has a plane of its own in shared memory, so that rows of the image are runs.
template <typename Plan>
struct DepthwiseWindows {
    using T = typename Plan::Type;
    using Tile = WindowTile<Plan>;
    static constexpr int kThreads = 32 * Plan::kWarps, kOctets = Plan::kTogether / 8, kTeams = Plan::kWarps / kOctets;
    static constexpr int kSteps = (7 * Plan::kStrideX + (Plan::kSizeX - 1) * Plan::kDilationX + 16) / 16;
    static constexpr int kAcross = (Plan::kWide + 7) / 8, kDown = Plan::kDown, kBands = (Plan::kRows + kDown - 1) / kDown;
    static constexpr int kInRows = ((kBands * kDown - 1) * Plan::kStrideY) + (Plan::kSizeY - 1) * Plan::kDilationY + 1;
    static constexpr int kFilled = (kAcross - 1) * 8 * Plan::kStrideX + 16 * kSteps;
    static constexpr int kPitch = kFilled / 8 % 2 ? kFilled : kFilled + 8;  // rows one below the other in other banks
    static constexpr int kPlane = kInRows * kPitch;
    static constexpr int kPositions = kBands * kAcross, kTiles = (kPositions + 15) / 16;
    static constexpr int kFirst = 7 * Plan::kStrideX, kBand = 16 * kSteps + 8 * Plan::kStrideX;
    static constexpr int kWeights = Plan::kTogether * Plan::kSizeY * 2 * kBand;
    static constexpr int kShared = 2 * (Plan::kTogether * kPlane + kWeights);
    static constexpr int kReach = (kDown - 1) * Plan::kStrideY + (Plan::kSizeY - 1) * Plan::kDilationY + 1;
    static constexpr int kStaged = Plan::kStaged;
    static_assert(Plan::kWarps % kOctets == 0 && kPitch % 8 == 0, "each warp has eight channels");

    static constexpr int kTaps = Plan::kSizeY * Plan::kSizeX, kOwn = (Plan::kTogether * kTaps + kThreads - 1) / kThreads;
    static constexpr int kPairs = kFilled / 2, kItems = kInRows * kPairs * kOctets, kBatch = 4;

    __device__ static void run(const Plan& plan) {
        extern __shared__ __align__(128) char memory[];
        T* const planes = reinterpret_cast<T*>(memory);
        T* const bands = planes + Plan::kTogether * kPlane;
#if __CUDA_ARCH__ >= 900
        start_after_the_kernel_ahead();
#endif
        const Tile tile;
        T own[kOwn];
#pragma unroll
        for (int n = 0; n < kOwn; ++n) {
            const int i = threadIdx.x + n * kThreads, channel = i / kTaps;
            if (i < Plan::kTogether * kTaps) own[n] = plan.weight(i % kTaps, tile.part * Plan::kTogether + channel);
        }
        for (int i = threadIdx.x; i < kWeights / 2; i += kThreads) reinterpret_cast<u32*>(bands)[i] = 0;
        u32 seen = 0;
        for (int first = threadIdx.x; first < kItems; first += kBatch * kThreads) fetch(plan, tile, planes, first, seen);
        __syncthreads();
        // Twice: so that pairs that begin at an odd element are words, too.
#pragma unroll
        for (int n = 0; n < kOwn; ++n) {
            const int i = threadIdx.x + n * kThreads, y = i / Plan::kSizeX, at = kFirst + i % Plan::kSizeX * Plan::kDilationX;
            if (i < Plan::kTogether * kTaps) {
                bands[2 * y * kBand + at] = own[n];
                if (at > 0) bands[(2 * y + 1) * kBand + at - 1] = own[n];
            }
        }
        if (__syncthreads_or(seen & 0x80008000u))
            add_up(plan, tile, planes, bands);
        else
            multiply(plan, tile, planes, bands);
    }

    /// Eight channels of two pixels at a time become a pair of pixels of each channel's plane. Several are asked for at a
    /// time. What is not finite leaves a bit in `seen`.
    __device__ static void fetch(const Plan& plan, const Tile& tile, T* planes, int first, u32& seen) {
        Vec<u32, 4> pixels[kBatch][2];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
            const int i = first + b * kThreads, octet = i % kOctets, pair = i / kOctets % kPairs, down = i / (kOctets * kPairs);
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                pixels[b][p] = Vec<u32, 4>{};
                if (i < kItems && tile.inside(down, pair * 2 + p))
                    pixels[b][p] = load<4>(reinterpret_cast<const u32*>(tile.pixel(plan, down, pair * 2 + p) + octet * 8));
            }
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
            const int i = first + b * kThreads, octet = i % kOctets, pair = i / kOctets % kPairs, down = i / (kOctets * kPairs);
            if (i >= kItems) break;
            u32* const to = reinterpret_cast<u32*>(planes + octet * 8 * kPlane + down * kPitch) + pair;
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                const u32 even = pixels[b][0][w], odd = pixels[b][1][w];
                seen |= not_finite<T>(even) | not_finite<T>(odd);
                to[2 * w * (kPlane / 2)] = __byte_perm(even, odd, 0x5410);
                to[(2 * w + 1) * (kPlane / 2)] = __byte_perm(even, odd, 0x7632);
            }
        }
    }

    __device__ static void multiply(const Plan& plan, const Tile& tile, const T* planes, const T* bands) {
        const int lane = lane_id(), warp = warp_id(), octet = warp % kOctets, team = warp / kOctets;
        const int first = lane % 4 * 2 - lane / 4 * Plan::kStrideX + kFirst;  // of the band, of the lane's pair
        const u32* const own = reinterpret_cast<const u32*>(bands + first % 2 * kBand + first / 2 * 2);
        const u32 shared = shared_address(planes + octet * 8 * kPlane);
        const int channel = tile.part * Plan::kTogether + octet * 8;
        for (int t = team; t < kTiles; t += kTeams) {
            const int p = min(t * 16 + lane % 16, kPositions - 1);
            const int at = p / kAcross * kDown * Plan::kStrideY * kPitch + p % kAcross * 8 * Plan::kStrideX + lane / 16 * 8;
            u32 words[kStaged > 0 ? kStaged : 1][kDown][2][2][4] = {};
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                float sums[2][kDown][4] = {};
#pragma unroll
                for (int c = 0; c < 2; ++c)
                    channel_sums(sums[c], shared + 2 * ((2 * pair + c) * kPlane + at), own + (octet * 8 + 2 * pair + c) * Plan::kSizeY * kBand);
#pragma unroll
                for (int v = 0; v < kDown; ++v)
#pragma unroll
                    for (int half = 0; half < 2; ++half)
#pragma unroll
                        for (int x = 0; x < 2; ++x) {
                            const int q = t * 16 + half * 8 + lane / 4, down = q / kAcross * kDown + v;
                            const int across = q % kAcross * 8 + lane % 4 * 2 + x;
                            if (!tile.has(down, across)) continue;
                            const float values[1][2] = {{sums[0][v][half * 2 + x], sums[1][v][half * 2 + x]}};
                            u32 packed[kStaged > 0 ? kStaged : 1];
                            plan.finish(tile.row(down, across), channel + 2 * pair, values, packed);
#pragma unroll
                            for (int o = 0; o < kStaged; ++o) words[o][v][half][x][pair] = packed[o];
                        }
            }
            if constexpr (kStaged > 0)
#pragma unroll
                for (int v = 0; v < kDown; ++v)
#pragma unroll
                    for (int half = 0; half < 2; ++half)
#pragma unroll
                        for (int x = 0; x < 2; ++x) {
                            const int q = t * 16 + half * 8 + lane / 4, down = q / kAcross * kDown + v;
                            const int across = q % kAcross * 8 + lane % 4 * 2 + x;
                            if (!tile.has(down, across)) continue;
#pragma unroll
                            for (int o = 0; o < kStaged; ++o) {
                                const u32(&w)[4] = words[o][v][half][x];
                                plan.send(o, tile.row(down, across), channel, Vec<u32, 4>{{w[0], w[1], w[2], w[3]}});
                            }
                        }
        }
    }

    /// One channel of 16 positions. A row of the image is read once for all rows of windows that it is in.
    __device__ static void channel_sums(float (&sums)[kDown][4], u32 plane, const u32* band) {
        u32 weights[Plan::kSizeY][kSteps][2];
#pragma unroll
        for (int y = 0; y < Plan::kSizeY; ++y)
#pragma unroll
            for (int s = 0; s < kSteps; ++s)
#pragma unroll
                for (int half = 0; half < 2; ++half) weights[y][s][half] = band[y * kBand + s * 8 + half * 4];
#pragma unroll
        for (int row = 0; row < kReach; ++row)
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                u32 a[4];
                if (is_read(row)) load_matrices(a, plane + 2 * (row * kPitch + s * 16));
#pragma unroll
                for (int v = 0; v < kDown; ++v) {
                    const int from = row - v * Plan::kStrideY, y = from / Plan::kDilationY;
                    if (from >= 0 && from % Plan::kDilationY == 0 && y < Plan::kSizeY) multiply_add<T>(sums[v], a, weights[y][s]);
                }
            }
    }

    /// Whether a row of the image is in one of the windows.
    __device__ static constexpr bool is_read(int row) {
        for (int v = 0; v < kDown; ++v) {
            const int from = row - v * Plan::kStrideY;
            if (from >= 0 && from % Plan::kDilationY == 0 && from / Plan::kDilationY < Plan::kSizeY) return true;
        }
        return false;
    }

    /// The same one by one: no element meets a weight of another window.
    __device__ static void add_up(const Plan& plan, const Tile& tile, const T* planes, const T* bands) {
        for (int i = threadIdx.x; i < Plan::kRows * Plan::kWide * kOctets; i += kThreads) {
            const int octet = i % kOctets, across = i / kOctets % Plan::kWide, down = i / (kOctets * Plan::kWide);
            if (!tile.has(down, across)) continue;
            const int channel = tile.part * Plan::kTogether + octet * 8, row = tile.row(down, across);
            u32 words[kStaged > 0 ? kStaged : 1][4];
            for (int pair = 0; pair < 4; ++pair) {
                float values[1][2] = {};
                for (int c = 0; c < 2; ++c) {
                    const int at = octet * 8 + 2 * pair + c;
                    for (int y = 0; y < Plan::kSizeY; ++y)
                        for (int x = 0; x < Plan::kSizeX; ++x) {
                            const int v = down * Plan::kStrideY + y * Plan::kDilationY, u = across * Plan::kStrideX + x * Plan::kDilationX;
                            const T weight = bands[(at * Plan::kSizeY + y) * 2 * kBand + kFirst + x * Plan::kDilationX];
                            values[0][c] += float(planes[at * kPlane + v * kPitch + u]) * float(weight);
                        }
                }
                u32 packed[kStaged > 0 ? kStaged : 1];
                plan.finish(row, channel + 2 * pair, values, packed);
                for (int o = 0; o < kStaged; ++o) words[o][pair] = packed[o];
            }
            for (int o = 0; o < kStaged; ++o)
                plan.send(o, row, channel, Vec<u32, 4>{{words[o][0], words[o][1], words[o][2], words[o][3]}});
        }
    }
};

template <typename Plan>
__device__ void grouped_windows(const Plan& plan) {
    GroupedWindows<Plan>::run(plan);
}
template <typename Plan>
__device__ void depthwise_windows(const Plan& plan) {
    DepthwiseWindows<Plan>::run(plan);
}

}  // namespace fusec
