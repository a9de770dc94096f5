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
    ExtentAttributes,
    ExternAttributes,
    GatherAttributes,
    IotaAttributes,
    PadAttributes,
    ScanAttributes,
    SliceAttributes,
)
from fusec.ir.index import mul, sub
from fusec.ir.indexing import ceildiv, most
from fusec.ir.nodes import Value
from fusec.ir.types import Dim, DType, i32, i64
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
    (rows,) = number.type.shape
    if not gpu:
        sort = ExternAttributes("aten.argsort.stable", "($0,), {'stable': True}", (number.type,), "rows by expert")
        order = r.emit("extern", number, attributes=sort, hint="order")
        return RowOrder(order, _counted(r, number, groups, i64), None)
    small = r.cast(number, i32)
    if most(rows) <= MOST_COMPARED:
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
    (rows,) = number.type.shape
    key = r.emit("mul", number, _extent(r, rows, number))
    key = r.emit("add", key, _iota(r, (rows,), 0, number))
    before = r.emit("lt", r.reshape(key, (1, rows)), r.reshape(key, (rows, 1)))
    return r.reduce("reduce_sum", r.cast(before, i32), (1,), hint="places")


def _in_blocks(r: Rewriter, number: Value, groups: int) -> tuple[Value, Value]:
    """Each row's place, and the ends of the groups."""
    (rows,) = number.type.shape
    block = next(size for limit, size in BLOCKS if most(rows) <= limit)
    blocks = ceildiv(rows, block)
    whole = mul(blocks, block)
    if whole != rows:
        number = _filled(r, number, whole, groups)
    of_each = _iota(r, (groups + 1, 1, 1), 0, number)
    counted = r.emit("eq", r.reshape(number, (1, blocks, block)), of_each)
    counts = r.reduce("reduce_sum", r.cast(counted, i32), (2,), hint="counts")
    flat = r.reshape(counts, (mul(blocks, groups + 1),))
    upto = r.emit("cumsum", flat, attributes=ScanAttributes(0), hint="upto")
    last = SliceAttributes((0, sub(blocks, 1)), (groups, blocks), (1, 1))
    ends = r.reshape(r.emit("slice", r.reshape(upto, (groups + 1, blocks)), attributes=last), (groups,))
    own, other = r.reshape(number, (blocks, block, 1)), r.reshape(number, (blocks, 1, block))
    here, there = _iota(r, (1, block, 1), 1, number), _iota(r, (1, 1, block), 2, number)
    later = r.emit("logical_and", r.emit("eq", own, other), r.emit("ge", there, here))
    from_it_on = r.reduce("reduce_sum", r.cast(later, i32), (2,), hint="from_it_on")
    at = r.emit("mul", r.reshape(number, (blocks, block)), _extent(r, blocks, number))
    at = r.emit("add", at, _iota(r, (blocks, 1), 0, number))
    end = r.emit("gather", upto, at, attributes=GatherAttributes(0))
    places = r.reshape(r.emit("sub", end, from_it_on, hint="places"), (whole,))
    if whole != rows:
        places = r.emit("slice", places, attributes=SliceAttributes((0,), (rows,), (1,)))
    return places, ends


def _filled(r: Rewriter, number: Value, extent: Dim, fill: int) -> Value:
    """The numbers up to an extent, with one for all that are beyond."""
    (rows,) = number.type.shape
    padding = sub(extent, rows)
    if isinstance(padding, int):
        return r.emit("pad", number, _constant(r, fill, number), attributes=PadAttributes((0,), (padding,)))
    at, count = _iota(r, (extent,), 0, number), _extent(r, rows, number)
    known = r.emit("minimum", at, r.emit("sub", count, _constant(r, 1, number)))
    found = r.emit("gather", number, known, attributes=GatherAttributes(0))
    return r.emit("select", r.emit("lt", at, count), found, _constant(r, fill, number))


def _iota(r: Rewriter, shape: tuple[Dim, ...], axis: int, like: Value, dtype: DType = i32) -> Value:
    return r.emit("iota", attributes=IotaAttributes(shape, axis, dtype, like.type.device))


def _extent(r: Rewriter, extent: Dim, like: Value) -> Value:
    """An extent as a number."""
    if isinstance(extent, int):
        return _constant(r, extent, like)
    return r.emit("extent", attributes=ExtentAttributes((extent,), like.type.dtype, like.type.device))


def _constant(r: Rewriter, number: int, like: Value) -> Value:
    return r.constant_of(ConstantAttributes(number, like.type.dtype, like.type.device))
