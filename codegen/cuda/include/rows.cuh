// SPDX-License-Identifier: Apache-2.0
// Rows of an operand on their way into shared memory, as `mma.cuh` reads them there: a block's threads share out the
// units of 16 bytes, and what lies beyond the operand becomes zeros.
#pragma once
#include "copy.cuh"
#include "mma.cuh"
#include "scalar.cuh"

namespace fusec {

/// How an operand lies in memory: `kRows` rows (-1: as many as a tile is told) of `kColumns` neighbours, `kStride` elements
/// from row to row (-1: uneven).
/// kVector: neighbours that are 4, 8 or 16 bytes at a multiple of that; 0 where the operand's elements are values, which
/// are computed or read one by one.
template <int kRows_, int kColumns_, int kStride_, int kVector_>
struct InRows {
    static constexpr int kRows = kRows_, kColumns = kColumns_, kStride = kStride_, kVector = kVector_;
};

/// One tile of rows after another. Memory: `InRows`. `element(row, column)`: an element's address, or its value.
/// kRowBytes: from row to row in shared memory.
template <typename T, typename Memory, int kRows, int kColumns, int kSwap, int kThreads,
          int kRowBytes_ = kColumns * int(sizeof(T))>
struct TileOfRows {
    static constexpr int kRowBytes = kRowBytes_, kUnit = 16 / sizeof(T);
    static constexpr int kPerRow = kColumns / kUnit, kUnits = kRows * kPerRow;
    static constexpr int kTurns = (kUnits + kThreads - 1) / kThreads;
    static constexpr bool kCopied = Memory::kVector > 0, kEven = kCopied && Memory::kStride >= 0;
    static constexpr bool kStraight = kThreads % kPerRow == 0;  // a thread stays in its column
    static constexpr int kBytes = kRows * kRowBytes;
    static constexpr bool kAllRows = Memory::kRows > 0 && Memory::kRows % kRows == 0;
    static constexpr bool kAllColumns = Memory::kColumns % kColumns == 0;
    static constexpr bool kOther = Memory::kRows < 0;  // so many rows as the constructor is told

    const T* from;  // this thread's first element, or with a crooked share the tile's
    int first_row, first_column, rows;

    __device__ static int row_of(int turn) {
        if (kStraight) return threadIdx.x / kPerRow + turn * (kThreads / kPerRow);
        return (threadIdx.x + turn * kThreads) / kPerRow;
    }
    __device__ static int column_of(int turn) {
        return (kStraight ? threadIdx.x % kPerRow : (threadIdx.x + turn * kThreads) % kPerRow) * kUnit;
    }
    __device__ static i64 offset_of(int turn) {
        if (kStraight) return i64(turn * (kThreads / kPerRow)) * Memory::kStride;
        return i64(row_of(turn)) * Memory::kStride + column_of(turn);
    }

    TileOfRows() = default;

    /// The first tile starts at these positions, multiples of its size.
    template <typename Element>
    __device__ TileOfRows(int row, int column, Element element, int rows = Memory::kRows)
        : first_row(row), first_column(column), rows(rows) {
        if constexpr (kEven) from = kStraight ? element(row + row_of(0), column + column_of(0)) : element(row, column);
    }

    /// On to the tile so many rows or columns further.
    __device__ void move(int down, int across) {
        first_row += down;
        first_column += across;
        if constexpr (kEven) from += i64(down) * Memory::kStride + across;
    }

    /// Starts the copies of the tile at hand.
    template <typename Element>
    __device__ void fetch(char* to, Element element) const {
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
            if (kUnits % kThreads != 0 && turn * kThreads + threadIdx.x >= kUnits) break;
            const int row = row_of(turn), column = column_of(turn);
            fetch_unit(to + offset_in_rows<kRowBytes, kSwap>(row, column / kUnit), turn, first_row + row, first_column + column,
                       element);
        }
    }

    template <typename Element>
    __device__ void fetch_unit(char* to, int turn, int row, int column, Element element) const {
        const bool there = kAllRows || row < (kOther ? rows : Memory::kRows);
        if constexpr (!kCopied) {
            Vec<T, kUnit> unit;
#pragma unroll
            for (int e = 0; e < kUnit; ++e) {
                unit[e] = T(0.0f);
                if (there && (kAllColumns || column + e < Memory::kColumns)) unit[e] = element(row, column + e);
            }
            store(reinterpret_cast<T*>(to), unit);
        } else {
            constexpr int kVector = Memory::kVector, kEach = kVector * sizeof(T);
#pragma unroll
            for (int e = 0; e < kUnit; e += kVector) {
                const int left = kAllColumns ? kVector : minimum(Memory::kColumns - column - e, kVector);
                const bool some = there && left > 0;
                const T* slot;
                if constexpr (kEven)
                    slot = from + offset_of(turn) + e;
                else
                    slot = some ? element(row, column + e) : element(0, 0);
                if constexpr (kAllRows && kAllColumns)
                    copy_async<kEach>(to + e * sizeof(T), slot);
                else
                    copy_async<kEach>(to + e * sizeof(T), slot, some ? left * int(sizeof(T)) : 0);
            }
        }
    }
};

}  // namespace fusec
