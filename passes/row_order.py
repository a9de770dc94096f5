# SPDX-License-Identifier: Apache-2.0
"""Rows sorted by group, stable. On a GPU a row's place is counted: no library sorts, and no host waits.

A row comes behind all rows of groups before its own, and behind those of its own group that came before it. Few rows
are compared with all. Of many, blocks count how many rows each group has, and a running sum over groups, and within
each over blocks, says where a block's rows of a group end; within its block a row is compared with all.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.attributes import (
    ConstantAttributes,
    CopyAtAttributes,
    ExternAttributes,
    GatherAttributes,
    IotaAttributes,
    PadAttributes,
    ScanAttributes,
    SliceAttributes,
)
from fusec.ir.nodes import Value
from fusec.ir.types import DType, i32, i64
from fusec.passes.rewrite import Rewriter

MOST_COMPARED = 4096
"""Rows that are compared with all: 2²⁴ comparisons take some 3 µs of an H200, about a launch."""

BLOCKS = ((1 << 16, 512), (1 << 62, 1024))
"""Rows of a block, of up to so many rows in all."""


@dataclass(frozen=True)
class RowOrder:
    """order: the rows' numbers, sorted by group; ends: behind which of them each group ends. places: of each row its
    place in ``order``; None on a CPU, where nothing asks for it."""

    order: Value
    ends: Value
    places: Value | None


def rows_by_group(r: Rewriter, number: Value, groups: int, *, gpu: bool) -> RowOrder:
    """Sorts rows by their groups' numbers [rows], i64 in ``[0, groups]``: those of the last one belong to none."""
    (rows,) = number.type.static_shape
    if not gpu:
        sort = ExternAttributes("aten.argsort.stable", "($0,), {'stable': True}", (number.type,), "rows by expert")
        order = r.emit("extern", number, attributes=sort, hint="order")
        return RowOrder(order, _counted(r, number, groups, i64), None)
    small = r.cast(number, i32)
    if rows <= MOST_COMPARED:
        places, ends = _compared(r, small, groups), _counted(r, small, groups, i32)
    else:
        places, ends = _in_blocks(r, small, groups)
    every = _iota(r, (rows,), 0, number)
    order = r.emit("scatter", every, places, attributes=CopyAtAttributes((0,), (rows,)), hint="order")
    return RowOrder(order, ends, places)


def _counted(r: Rewriter, number: Value, groups: int, dtype: DType) -> Value:
    """How many rows have each group or one before."""
    every = _iota(r, (groups, 1), 0, number, number.type.dtype)
    counted = r.emit("le", r.reshape(number, (1, *number.type.shape)), every)
    return r.reduce("reduce_sum", r.cast(counted, dtype), (1,), hint="ends")


def _compared(r: Rewriter, number: Value, groups: int) -> Value:
    """How many rows come before each: ``number * rows + row`` is less."""
    (rows,) = number.type.static_shape
    key = r.emit("mul", number, _constant(r, rows, number))
    key = r.emit("add", key, _iota(r, (rows,), 0, number))
    before = r.emit("lt", r.reshape(key, (1, rows)), r.reshape(key, (rows, 1)))
    return r.reduce("reduce_sum", r.cast(before, i32), (1,), hint="places")


def _in_blocks(r: Rewriter, number: Value, groups: int) -> tuple[Value, Value]:
    """Each row's place, and the ends of the groups."""
    (rows,) = number.type.static_shape
    block = next(size for most, size in BLOCKS if rows <= most)
    blocks = -(-rows // block)
    if rows % block:
        fill = _constant(r, groups, number)
        number = r.emit("pad", number, fill, attributes=PadAttributes((0,), (blocks * block - rows,)))
    of_each = _iota(r, (groups + 1, 1, 1), 0, number)
    counted = r.emit("eq", r.reshape(number, (1, blocks, block)), of_each)
    counts = r.reduce("reduce_sum", r.cast(counted, i32), (2,), hint="counts")
    flat = r.reshape(counts, ((groups + 1) * blocks,))
    upto = r.emit("cumsum", flat, attributes=ScanAttributes(0), hint="upto")
    whole = (groups + 1, blocks)
    last = SliceAttributes.of_axes(whole, {0: (0, groups), 1: (blocks - 1, blocks)})
    ends = r.reshape(r.emit("slice", r.reshape(upto, whole), attributes=last), (groups,))
    own, other = r.reshape(number, (blocks, block, 1)), r.reshape(number, (blocks, 1, block))
    here, there = _iota(r, (1, block, 1), 1, number), _iota(r, (1, 1, block), 2, number)
    later = r.emit("logical_and", r.emit("eq", own, other), r.emit("ge", there, here))
    from_it_on = r.reduce("reduce_sum", r.cast(later, i32), (2,), hint="from_it_on")
    at = r.emit("mul", r.reshape(number, (blocks, block)), _constant(r, blocks, number))
    at = r.emit("add", at, _iota(r, (blocks, 1), 0, number))
    end = r.emit("gather", upto, at, attributes=GatherAttributes(0))
    places = r.reshape(r.emit("sub", end, from_it_on, hint="places"), (blocks * block,))
    if rows % block:
        cut = SliceAttributes.of_axes((blocks * block,), {0: (0, rows)})
        places = r.emit("slice", places, attributes=cut)
    return places, ends


def _iota(r: Rewriter, shape: tuple[int, ...], axis: int, like: Value, dtype: DType = i32) -> Value:
    return r.emit("iota", attributes=IotaAttributes(shape, axis, dtype, like.type.device))


def _constant(r: Rewriter, number: int, like: Value) -> Value:
    return r.constant_of(ConstantAttributes(number, like.type.dtype, like.type.device))
