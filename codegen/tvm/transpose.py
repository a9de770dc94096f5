# SPDX-License-Identifier: Apache-2.0
"""Copies of 16-bit elements that transpose: those of two rows of the source, which become neighbours, travel as 32
bits.

So rows of values become a matmul's left operand, with the keys side by side: 16 rows of 32 bits become as many columns
in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.casts import memory_type
from fusec.codegen.tvm.context import Context, flat_index, load_index
from fusec.codegen.tvm.domain import outer_loops
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.vector import Code
from fusec.ir import index as ix
from fusec.ir import indexing
from fusec.ir.index import Index, symbol
from fusec.tile.nodes import Iter, Map, Store
from fusec.tile.scalar import Load, reindex

SIDE = 16
"""Rows, and elements of 32 bits, of a block."""


@dataclass(frozen=True, eq=False)
class Transpose:
    """A copy in blocks: ``across`` is adjacent in the source, ``along`` in the target; the others run outside.

    source, target: flat positions.
    """

    statement: Map | Store
    load: Load
    source: Index
    target: Index
    others: tuple[Iter, ...]
    across: Iter
    along: Iter


def find_transpose(statement: Map | Store, context: Context) -> Transpose | None:
    """How the statement is done in blocks; None where it is no such copy, or has nothing to gain."""
    load, domain = statement.value, statement.domain
    if not (isinstance(load, Load) and load.dtype == statement.target.dtype and load.dtype.bits == 16):
        return None
    if not context.target.has_avx512 or load.gathers:
        return None
    variables = {it.var for it in domain}
    if any(it.limit is not None and ix.symbols_of(it.limit) & variables for it in domain):
        return None
    source, target = load_index(load), flat_index(statement.index, statement.target.strides)
    across = next((it for it in domain if indexing.coefficient(source, it.var) == 1), None)
    along = next((it for it in domain if indexing.coefficient(target, it.var) == 1), None)
    if across is None or along is None or across is along or across.limit is not None:
        return None
    if indexing.coefficient(source, along.var) is None or indexing.coefficient(target, across.var) is None:
        return None
    if across.extent < SIDE or along.extent < 2 * SIDE:
        return None
    others = tuple(it for it in domain if it not in (across, along))
    return Transpose(statement, load, source, target, others, across, along)


def emit_transpose(context: Context, code: Code, transpose: Transpose) -> tuple[Map | Store, ...]:
    """Writes the blocks; returns what is left to do, the last rows and columns."""
    step = 2 * SIDE
    count: Index = transpose.along.extent
    if transpose.along.limit is not None:
        count = ix.maximum(ix.minimum(transpose.along.limit, count), 0)
    blocks = ix.floordiv(count, step)
    outer_loops(context, code, transpose.others, lambda inner: _blocks(context, inner, transpose, blocks))
    rests: list[Map | Store] = []
    done = transpose.across.extent // SIDE * SIDE
    if done < transpose.across.extent:
        rests.append(_rest(transpose, transpose.across, done, transpose.across.extent - done, None, code))
    if (start := ix.mul(blocks, step)) != count:
        domain = tuple(replace(it, extent=done) if it is transpose.across else it for it in transpose.statement.domain)
        short = replace(transpose, statement=replace(transpose.statement, domain=domain))
        rests.append(_rest(short, transpose.along, start, step, ix.sub(count, start), code))
    return tuple(rests)


def _rest(transpose: Transpose, it: Iter, start: Index, extent: int, limit: Index | None, code: Code) -> Map | Store:
    """The statement with an iterator from ``start`` on."""
    statement = transpose.statement
    if isinstance(limit, int):
        extent, limit = min(extent, limit), None
    var = symbol(code.fresh(it.var.name), 0, extent - 1)
    offset = {it.var: ix.add(var, start)}
    domain = tuple(Iter(var, extent, limit) if other is it else other for other in statement.domain)
    index = tuple(indexing.substitute(i, offset) for i in statement.index)
    return replace(statement, domain=domain, index=index, value=reindex(statement.value, offset))


def _blocks(context: Context, code: Code, transpose: Transpose, blocks: Index) -> None:
    """All blocks at one point of the other iterators."""
    dtype = context.index_type
    row, column = tir.variable(code.fresh("row"), dtype), tir.variable(code.fresh("column"), dtype)
    inner = code.nested()
    first = inner.let_index(tirx.Mul(row, context.integer(SIDE)), dtype)
    start = inner.let_index(tirx.Mul(column, context.integer(2 * SIDE)), dtype)
    _block(context, inner, transpose, first, start)
    columns = tir.loop(column, context.index(blocks), inner.statements, dtype=dtype)
    code.append(tir.loop(row, context.integer(transpose.across.extent // SIDE), [columns], dtype=dtype))


def _block(context: Context, code: Code, transpose: Transpose, first: Node, start: Node) -> None:
    def offset(flat: Index, across: int, along: int, count: int) -> Node:
        at = {
            transpose.across.var: tirx.Add(first, context.integer(across)),
            transpose.along.var: tirx.Add(start, context.integer(along)),
        }
        return tir.ramp(context.index(flat, at), count, 1, context.index_type)

    element = memory_type(transpose.load.dtype)
    memory, target = context.memory[transpose.load.buffer], context.memory[transpose.statement.target]
    rows = []
    for pair in range(SIDE):
        low, high = (
            _lower_halves(code, Value(tirx.BufferLoad(memory, [offset(transpose.source, 0, i, SIDE)]), element, SIDE))
            for i in (2 * pair, 2 * pair + 1)
        )
        shifted = code.bitwise("shift_left", high, code.constant(high, 16))
        rows.append(code.reinterpret(code.bitwise("bitwise_or", low, shifted), "float32"))
    for j, row in enumerate(transposed(code, rows)):
        node = tirx.reinterpret(f"{element}x{2 * SIDE}", row.node)
        code.append(tirx.BufferStore(target, node, [offset(transpose.target, j, 0, 2 * SIDE)]))


def _lower_halves(code: Code, row: Value) -> Value:
    """Elements as the lower halves of 32 bits."""
    return code.convert(code.reinterpret(code.let(row), "uint16"), "uint32")


def transposed(code: Code, rows: list[Value]) -> list[Value]:
    """A square of vectors transposed: 2-by-2 blocks of ever larger size are swapped."""
    size, step = len(rows), 1
    while step < size:
        swapped = list(rows)
        for i in range(size):
            if i & step:
                continue
            a, b = rows[i], rows[i + step]
            upper = [lane if not lane & step else size + lane - step for lane in range(size)]
            lower = [lane + step if not lane & step else size + lane for lane in range(size)]
            swapped[i] = code.let(tir.shuffle(a, b, upper))
            swapped[i + step] = code.let(tir.shuffle(a, b, lower))
        rows, step = swapped, step * 2
    return rows
