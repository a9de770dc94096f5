# SPDX-License-Identifier: Apache-2.0
"""Loops over a domain: the outer iterators as loops, the last one on vector lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.casts import cast, register_type
from fusec.codegen.tvm.context import Context, Numbers, distinct
from fusec.codegen.tvm.scalars import LaneBlock, Points
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.vector import Code, bits_of
from fusec.ir import index as ix
from fusec.ir.types import DType, f32
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Apply, Const, Load, ScalarExpr

BlockBody = Callable[[Points], None]
"""Writes what happens at one block of lanes."""


def coerce(code: Code, value: Value, dtype: DType) -> Value:
    """The value as the register type of ``dtype``. Half types stay f32: the store rounds."""
    if value.type == register_type(dtype):
        return value
    return cast(code, value, f32 if register_type(dtype) == "float32" else dtype)


def lane_count(context: Context, last: Iter, values: Sequence[ScalarExpr], target: DType) -> int:
    """How many points of the last iterator to compute at once: as the widest floating type in the values allows."""
    widest = max([_compute_bits(target), *(_widest(v) for v in values)])
    lanes = context.target.lanes(widest)
    while lanes > 1 and lanes // 2 >= last.extent:
        lanes //= 2
    return lanes


def _compute_bits(dtype: DType) -> int:
    return max(32, bits_of(register_type(dtype))) if dtype.kind != "bool" else 32


def _widest(e: ScalarExpr) -> int:
    """64 where doubles or loaded 64-bit integers are computed with, else 32."""
    found = 32
    for node in distinct(e):
        if isinstance(node, Load):
            found = max(found, _compute_bits(node.dtype))
        elif isinstance(node, Apply | Const) and node.dtype.name == "f64":
            found = 64
    return found


def outer_loops(context: Context, code: Code, iters: Sequence[Iter], innermost: Callable[[Code], None]) -> None:
    """Loops over the iterators, in order, around what ``innermost`` writes."""
    if not iters:
        innermost(code)
        return
    first, *rest = iters
    var = tir.variable(first.var.name, context.index_type)
    context.loops[first.var] = var
    body = code.nested()
    if first.extent == 1 and first.limit is None:
        code.append(tir.bind(var, context.integer(0)))
        outer_loops(context, code, rest, innermost)
        return
    outer_loops(context, body, rest, innermost)
    code.append(tir.loop(var, iter_count(context, first), body.statements, dtype=context.index_type))


def iter_count(context: Context, it: Iter) -> Node:
    """How many points the iterator has; may be negative."""
    if it.limit is None:
        return context.integer(it.extent)
    return context.index(ix.minimum(it.limit, it.extent))


def static_count(it: Iter) -> int | None:
    """The number of points where it is known."""
    if it.limit is None:
        return it.extent
    limit = ix.minimum(it.limit, it.extent)
    return max(limit, 0) if isinstance(limit, int) else None


@dataclass(frozen=True, eq=False)
class LaneLoop:
    """An iterator cut into blocks of lanes: ``full`` whole ones, then ``rest`` points.

    ``full`` and ``rest`` are integers where the length is known, else TIR nodes.
    """

    full: int | Node
    rest: int | Node


def split_lanes(context: Context, code: Code, it: Iter, width: int) -> LaneLoop:
    static = static_count(it)
    if static is not None:
        return LaneLoop(static // width, static % width)
    count = code.let_index(tirx.Max(iter_count(context, it), context.integer(0)), context.index_type, "count")
    return LaneLoop(
        code.let_index(tirx.truncdiv(count, context.integer(width)), context.index_type, "full"),
        code.let_index(tirx.truncmod(count, context.integer(width)), context.index_type, "rest"),
    )


CHAINS = 2
"""Blocks of lanes whose statements alternate, where there are many: what one block waits for, the other fills. A
processor looks ahead over a few blocks of a logarithm only. On Zen 5 log gains 6 %, a power 19."""

LONG = 56
"""Statements of such a block: an operation is two."""


def lane_loop(
    context: Context, code: Code, numbers: Numbers, it: Iter, lanes: int, body: BlockBody, most_chains: int = CHAINS
) -> None:
    """The last iterator: whole blocks of lanes in a loop, then one block with the lanes beyond the end masked."""
    split = split_lanes(context, code, it, lanes)
    if split.full == 0 and split.rest == 0:
        return
    uniform = code.nested()
    outer = Points(context, uniform, numbers, None, None)
    inner: list[Node] = []
    if not isinstance(split.full, int) or split.full > 0:
        inner.append(_whole_blocks(context, uniform, numbers, it, lanes, split.full, body, outer, most_chains))
    if not isinstance(split.rest, int) or split.rest > 0:
        inner += _last_block(context, uniform, numbers, it, lanes, split, body, outer)
    statements = [*uniform.statements, *inner]
    if isinstance(split.full, int):
        code.append(*statements)
    elif uniform.statements:
        runs = tirx.Or(tirx.GT(split.full, context.integer(0)), tirx.GT(split.rest, context.integer(0)))
        code.append(tir.when(runs, statements))
    else:
        code.append(*statements)


def _whole_blocks(
    context: Context,
    code: Code,
    numbers: Numbers,
    it: Iter,
    lanes: int,
    count: int | Node,
    body: BlockBody,
    outer: Points,
    most_chains: int,
) -> Node:
    counter = tir.variable(code.fresh(it.var.name), context.index_type)

    def block(offset: Node) -> list[Node]:
        inner = code.nested()
        start = inner.let_index(tirx.Mul(offset, context.integer(lanes)), context.index_type, it.var.name)
        if lanes == 1:
            context.loops[it.var] = start
            body(Points(context, inner, numbers, None, None))
        else:
            body(Points(context, inner, numbers, LaneBlock(it.var, lanes, start), outer))
        return inner.statements

    statements = block(counter)
    if lanes > 1 and isinstance(count, int) and count % most_chains == 0 and len(statements) >= LONG:
        first = tirx.Mul(counter, context.integer(most_chains))
        chains = [block(tirx.Add(first, context.integer(i))) for i in range(most_chains)]
        statements = [s for step in zip(*chains, strict=True) for s in step]
        count //= most_chains
    extent = context.integer(count)
    return tir.loop(counter, extent, statements, dtype=context.index_type)


def _last_block(
    context: Context,
    code: Code,
    numbers: Numbers,
    it: Iter,
    lanes: int,
    split: LaneLoop,
    body: BlockBody,
    outer: Points,
) -> list[Node]:
    inner = code.nested()
    full = context.integer(split.full * lanes) if isinstance(split.full, int) else None
    start = full if full is not None else tirx.Mul(split.full, context.integer(lanes))
    start = inner.let_index(start, context.index_type, it.var.name)
    rest = context.integer(split.rest) if isinstance(split.rest, int) else split.rest
    body(Points(context, inner, numbers, LaneBlock(it.var, lanes, start, rest), outer))
    if isinstance(split.rest, int):
        return inner.statements
    return [tir.when(tirx.GT(rest, context.integer(0)), inner.statements)]
