# SPDX-License-Identifier: Apache-2.0
"""Copies of small elements into groups of 32 bits, as matmuls of low-precision types want their right operand.

The last iterator walks a group, the one before it the groups beside each other. Where a group is adjacent in the
source too, it is moved as one word; where the groups are rows of the source, their vectors are interleaved. One
element at a time would take as long as the matmul itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.casts import memory_type
from fusec.codegen.tvm.context import Context, flat_index
from fusec.codegen.tvm.domain import iter_count, outer_loops
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code
from fusec.ir import index as ix
from fusec.ir import indexing
from fusec.ir.index import Expr, Index
from fusec.ir.types import i32
from fusec.tile.nodes import Map, Store
from fusec.tile.scalar import Buffer, Load

LANES = 16
"""Groups in a vector."""


def in_words(context: Context, code: Code, statement: Map | Store) -> Map | Store | None:
    """The same copy, a group an element of 32 bits; None for any other statement."""
    flats = _copied(statement)
    if flats is None:
        return None
    target, source = flats
    *outer, last = statement.domain
    if indexing.coefficient(source, last.var) != 1:
        return None
    offsets = [indexing.substitute(flat, {last.var: 0}) for flat in (target, source)]
    if any(ix.mod(offset, last.extent) != 0 for offset in offsets):
        return None
    load = statement.value
    assert isinstance(load, Load)
    to, of = (_words(context, code, b, last.extent) for b in (statement.target, load.buffer))
    at, start = (ix.floordiv(offset, last.extent) for offset in offsets)
    return replace(statement, domain=tuple(outer), target=to, index=(at,), value=Load(of, (start,)))


def emit_interleaved(context: Context, code: Code, statement: Map | Store, otherwise: Callable[[Code], None]) -> bool:
    """Writes the copy where its groups are rows of the source; ``otherwise`` writes it for an incomplete last block.

    False for any other statement, of which nothing is written.
    """
    flats = _copied(statement)
    if flats is None:
        return False
    target, source = flats
    *outer, columns, last = statement.domain
    if (
        indexing.coefficient(source, columns.var) != 1
        or columns.extent % LANES
        or indexing.coefficient(source, last.var) is None
    ):
        return False
    copy = code.nested()
    outer_loops(context, copy, outer, lambda body: _interleave(context, body, statement, target, source))
    if columns.limit is None:
        code.append(*copy.statements)
        return True
    rest = code.nested()
    otherwise(rest)
    complete = tirx.GE(iter_count(context, columns), context.integer(columns.extent))
    code.append(tir.when(complete, copy.statements, rest.statements))
    return True


def _interleave(context: Context, code: Code, statement: Map | Store, target: Index, source: Index) -> None:
    """One row of groups: vectors of the rows of the source, as many as a group has elements."""
    *_, columns, last = statement.domain
    load = statement.value
    assert isinstance(load, Load)
    counter = tir.variable(code.fresh("vector"), context.index_type)
    inner = code.nested()
    context.loops[columns.var] = inner.let_index(tirx.Mul(counter, context.integer(LANES)), context.index_type)
    rows = []
    for number in range(last.extent):
        offset = context.index(indexing.substitute(source, {last.var: number}))
        at = tir.ramp(offset, LANES, 1, context.index_type)
        row = Value(tirx.BufferLoad(context.memory[load.buffer], [at]), memory_type(load.dtype), LANES)
        rows.append(inner.let(row))
    offset = context.index(indexing.substitute(target, {last.var: 0}))
    at = tir.ramp(offset, LANES * last.extent, 1, context.index_type)
    inner.append(tirx.BufferStore(context.memory[statement.target], _interleaved(inner, rows).node, [at]))
    whole = context.integer(columns.extent // LANES)
    code.append(tir.loop(counter, whole, inner.statements, dtype=context.index_type))


def _copied(statement: Map | Store) -> tuple[Index, Index] | None:
    """The flat positions of target and source, of a copy of elements that fill 32 bits together; else None."""
    load = statement.value
    if not isinstance(load, Load) or load.dtype != statement.target.dtype or len(statement.domain) < 2:
        return None
    last, itemsize = statement.domain[-1], load.dtype.itemsize
    if itemsize >= i32.itemsize or last.extent * itemsize != i32.itemsize or last.limit is not None:
        return None
    subscripts = [i for i in load.index if isinstance(i, int | Expr)]
    if len(subscripts) != len(load.index):
        return None
    target = flat_index(statement.index, statement.target.strides)
    beside = indexing.coefficient(target, statement.domain[-2].var)
    if indexing.coefficient(target, last.var) != 1 or beside != last.extent:
        return None
    limits = [it.limit for it in statement.domain if it.limit is not None]
    if any(last.var in ix.symbols_of(limit) for limit in limits):
        return None
    return target, flat_index(subscripts, load.buffer.strides)


def _words(context: Context, code: Code, buffer: Buffer, group: int) -> Buffer:
    """The buffer's memory as integers of 32 bits."""
    size = -(-max(buffer.extent, 1) // group)
    words = Buffer(code.fresh(f"{buffer.name}_words"), i32, (size,), (1,), buffer.space)
    memory, declared = tir.memory(words.name, "int32", size, context.memory[buffer].data, buffer.dtype.itemsize)
    context.memory[words] = memory
    code.append(declared)
    return words


def _interleaved(code: Code, rows: list[Value]) -> Value:
    """The first lane of each row, then the second of each, and so on, for two or four rows."""
    while len(rows) > 1:
        half, pairs = len(rows) // 2, []
        for i in range(half):
            a, b = rows[i], rows[i + half]
            picks = [lane + side * a.lanes for lane in range(a.lanes) for side in (0, 1)]
            pairs.append(code.let(tir.shuffle(a, b, picks)))
        rows = pairs
    return rows[0]
