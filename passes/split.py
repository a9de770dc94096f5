# SPDX-License-Identifier: Apache-2.0
"""Reductions of few long rows in two steps, so that all cores share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from fusec.ir.attributes import ReduceAttributes, SliceAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.types import DType, f32, f64
from fusec.passes.families.attention.match import AttentionMatch, match_attention
from fusec.passes.groups.partition import Partition
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule

SERIAL_ELEMENTS = 1 << 19
"""Reductions of fewer elements stay whole: a second kernel costs more than the other cores would gain."""

BLOCK_ELEMENTS = 1 << 15
"""The same for one block of a GPU, which reads about 50 GB/s where a launch takes 3 µs."""

CHAIN_ELEMENTS = 1 << 16
"""The same where reductions of the same rows need each other's results: apart, each of them is two kernels."""

UNEVEN_ELEMENTS = 1 << 22
"""Fewer elements than these are not cut unevenly: the rest is a kernel more, and the operand may have to be stored."""

UNEVEN_BLOCK = 1 << 19
"""The same for a GPU, one block of which takes 40 µs for as many, and adds them up in long sums."""

PART_ELEMENTS = 1 << 13
"""No part that one task reduces has fewer elements."""

MOST_PARTS = 1 << 14
"""Parts of a row for a GPU: as many as one block puts together again. Each is then a row that a block holds."""

LANES = 64
"""Columns that one task of a reduction over outer axes takes side by side."""

NEAR_BITS = 1024
"""Neighbouring columns that one block of a GPU takes side by side, in memory."""

CHAIN_LANES = 16
"""The same at the least where a GPU's blocks are few and the rows are read more than once."""

FEWEST_COLUMNS = 32
"""Fewer columns than these are no run of memory to read: rows are put side by side until there are ``WIDE``."""

MOST_COLUMNS = 256

_MOST_LOOKED_AT = 256
"""Values that are looked at for what a reduction reads."""

_COMBINE = {name: op.reduction.combine for name, op in OPS.items() if op.kind == "reduce"}


@dataclass(frozen=True)
class _Share:
    """Parts that a reduction may be made of, the tasks that will do, and the elements below which it stays whole.

    uneven: elements from which on it is cut into parts of which the last is shorter.
    """

    tasks: int
    parts: int
    enough: int
    whole: int
    uneven: int


Shape = tuple[int, ...]
Axes = tuple[int, ...]
Sharing = Callable[[str, Shape, Axes, int], _Share]
"""From the name of a reduction's result, its operand's shape, axes and bits in memory to how it is shared."""


def split_reductions(graph: Graph, threads: int) -> Graph:
    """The graph with every large reduction that has fewer rows than there are threads made of partial ones."""
    if threads < 2:
        return graph

    def share(name: str, shape: Shape, axes: Axes, bits: int) -> _Share:
        return _Share(_tasks(shape, axes), 8 * threads, threads, SERIAL_ELEMENTS, UNEVEN_ELEMENTS)

    return _split(graph, share, doubles=True)


def split_for_blocks(graph: Graph, sms: int) -> Graph:
    """The same for a GPU of so many multiprocessors: too few blocks would each read too much."""
    chains, in_attention = chained(graph), attended(graph)

    def share(name: str, shape: Shape, axes: Axes, bits: int) -> _Share:
        if name in in_attention:
            return _Share(1, 1, 1, prod(shape) + 1, UNEVEN_BLOCK)
        retained = prod(n for a, n in enumerate(shape) if a not in axes)
        # Blocks of columns of 16 bits are half as large (`_across` in families/row/schedule/gpu.py).
        if len(shape) - 1 in axes or not retained:
            tasks, most = retained, min(prod(shape) // max(retained, 1) // PART_ELEMENTS, MOST_PARTS)
        else:
            tasks, most = -(-retained // (CHAIN_LANES if name in chains else NEAR_BITS // max(bits, 8))), 0
        half = 1 if most or bits > 16 else 2
        parts = max(-(-4 * half * sms // max(tasks, 1)), most)
        if name in chains:
            return _Share(tasks, parts, (sms + 1) // 2, tasks * CHAIN_ELEMENTS * (1 if most else 4), UNEVEN_ELEMENTS)
        return _Share(tasks, parts, (2 if most else half) * sms, tasks * BLOCK_ELEMENTS, UNEVEN_BLOCK)

    @rule(*_COMBINE)
    def side_by_side(r: Rewriter) -> Outcome:
        """reduce(x: [n, few]) ⇒ reduce(reduce(x: [n / parts, parts, few]) over its first axis)"""
        return _side_by_side(r)

    @rule(*_COMBINE)
    def at_once(r: Rewriter) -> Outcome:
        """reduce(reduce(parts)) ⇒ reduce(parts over the axes of both), where the parts are reductions themselves"""
        return _at_once(r)

    return rewrite(_split(rewrite(graph, (side_by_side,)), share), (at_once,))


def _at_once(r: Rewriter) -> Outcome:
    """What puts parts together in two steps does so in one: it is little work, and a launch less."""
    inner = r.producer(r.operands[0], r.op.name)
    if inner is None or inner.attributes.__class__ is not ReduceAttributes:
        return None
    parts, first = inner.operands[0], inner.expect(ReduceAttributes)
    made = r.producer(parts, r.op.name)
    attributes = r.op.expect(ReduceAttributes)
    if made is None or attributes.dtype != first.dtype or not parts.type.is_static:
        return None
    kept = [a for a in range(parts.type.rank) if a not in first.axes]
    axes = sorted((*first.axes, *(kept[a] for a in attributes.axes)))
    if prod(parts.type.static_shape[a] for a in axes) > PART_ELEMENTS or r.op.result.type.most < FEWEST_COLUMNS:
        return None
    return r.reduce(r.op.name, parts, axes, dtype=attributes.dtype)


def attended(graph: Graph) -> set[str]:
    """Names of the results of reductions that are part of an attention, which shares its keys out by itself."""
    partition = Partition(graph)
    found = (match_attention(partition, op) for op in graph.ops if op.name == "dot")
    ops = {op for match in found if isinstance(match, AttentionMatch) for op in match.ops}
    return {op.result.name for op in ops if op.definition.kind == "reduce"}


def _side_by_side(r: Rewriter) -> Outcome:
    """Neighbouring positions of the axis before a few columns become columns, too."""
    (x,) = r.operands
    attributes = r.op.expect(ReduceAttributes)
    axes = attributes.axes
    if not axes or not x.type.is_static or x.type.size < UNEVEN_ELEMENTS:
        return None
    shape, axis = x.type.static_shape, axes[-1]
    columns = prod(shape[axis + 1 :])
    if axis == len(shape) - 1 or prod(n for a, n in enumerate(shape) if a not in axes) >= FEWEST_COLUMNS:
        return None
    parts = max((p for p in range(1, MOST_COLUMNS // columns + 1) if shape[axis] % p == 0), default=1)
    if parts * columns < FEWEST_COLUMNS:
        return None
    apart = r.reshape(x, (*shape[:axis], shape[axis] // parts, parts, *shape[axis + 1 :]), hint="apart")
    partial = r.reduce(r.op.name, apart, axes, "partial", attributes.dtype)
    parts_axis = sum(a < axis for a in range(len(shape)) if a not in axes)
    return r.reduce(r.op.name, partial, [parts_axis], hint="of_parts")


def chained(graph: Graph) -> set[str]:
    """Names of the results of reductions over the same axes of values of one shape, one made of the other by what a
    kernel of rows can have: no product lies between them."""
    made_of: dict[Value, frozenset[Op]] = {}
    found: set[str] = set()
    for op in graph.ops:
        above = frozenset[Op]()
        if op.definition.kind in ("elementwise", "view", "reduce"):
            above = above.union(*(made_of.get(v, frozenset()) for v in op.operands))
        if op.definition.kind == "reduce":
            for other in above:
                if other.operands[0].type.shape == op.operands[0].type.shape and other.attributes == op.attributes:
                    found |= {op.result.name, other.result.name}
            above = frozenset((op,))
        for result in op.results:
            made_of[result] = above
    return found


def _split(graph: Graph, share: Sharing, *, doubles: bool = False) -> Graph:
    """``doubles``: the parts of a sum of f32 are in f64, in which a CPU's kernels have them."""

    @rule(*_COMBINE)
    def in_parts(r: Rewriter) -> Outcome:
        """reduce(x: [n]) ⇒ reduce(reduce(x: [parts, n / parts]) over its last axis)"""
        return _in_parts(r, share, doubles)

    rules: tuple[Rule, ...] = (in_parts,)
    return rewrite(graph, rules)


def _in_parts(r: Rewriter, share: Sharing, doubles: bool) -> Outcome:
    (x,) = r.operands
    attributes = r.op.expect(ReduceAttributes)
    axes = attributes.axes
    if not axes or not x.type.is_static:
        return None
    shape = x.type.static_shape
    wish = share(r.op.result.name, shape, axes, _bits_in_memory(r, x))
    tasks = wish.tasks
    if x.type.size < wish.whole or tasks >= wish.enough:
        return None
    wanted = min(wish.parts, x.type.size // tasks // PART_ELEMENTS)
    axis = next((a for a in axes if shape[a] >= wanted), max(axes, key=lambda a: shape[a]))
    n = shape[axis]
    wanted = min(wanted, n)
    most = min(n, x.type.size // tasks // PART_ELEMENTS)
    if wanted < 2:
        return None
    even = [d for d in range(2, min(most, 8 * wish.parts) + 1) if n % d == 0 and 2 * d >= wanted]
    if not even and x.type.size < wish.uneven:
        return None
    dtype = f64 if doubles and r.op.name == "reduce_sum" and x.type.dtype is f32 else attributes.dtype
    parts = min(even, key=lambda d: abs(d - wanted), default=wanted)
    whole = n // parts * parts
    result = _of_parts(r, _cut(r, x, axis, 0, whole), axis, parts, dtype)
    if whole < n:
        rest = r.reduce(r.op.name, _cut(r, x, axis, whole, n), axes, "rest", dtype)
        result = r.emit(_COMBINE[r.op.name], result, rest)
    return r.cast(result, r.op.result.type.dtype)


def _bits_in_memory(r: Rewriter, x: Value) -> int:
    """Of each of the largest values that a value is made of by maps and views."""
    leaves: dict[Value, None] = {}
    seen, ahead = {x}, [x]
    while ahead and len(seen) < _MOST_LOOKED_AT:
        value = ahead.pop()
        op = r.producer(value)
        if op is None or op.definition.kind not in ("elementwise", "view"):
            leaves[value] = None
            continue
        new = [v for v in op.operands if v not in seen]
        seen.update(new)
        ahead += new
    largest = max((v.type.most for v in leaves), default=0)
    return max((v.type.dtype.bits for v in leaves if v.type.most == largest), default=x.type.dtype.bits)


def _tasks(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """How many tasks a row kernel makes at most."""
    retained = [n for a, n in enumerate(shape) if a not in axes]
    if len(shape) - 1 in axes or not retained:
        return prod(retained)
    return prod(retained[:-1]) * -(-retained[-1] // LANES)


def _cut(r: Rewriter, x: Value, axis: int, start: int, stop: int) -> Value:
    shape = x.type.static_shape
    if stop - start == shape[axis]:
        return x
    return r.emit("slice", x, attributes=SliceAttributes.of_axes(shape, {axis: (start, stop)}), hint="part")


def _of_parts(r: Rewriter, x: Value, axis: int, parts: int, dtype: DType | None) -> Value:
    """The reduction of ``x``, the axis taken apart: the parts first, then what they give."""
    attributes = r.op.expect(ReduceAttributes)
    shape = x.type.static_shape
    apart = r.reshape(x, (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :]), hint="apart")
    inner = [a + (a >= axis) for a in attributes.axes]
    partial = r.reduce(r.op.name, apart, inner, "partial", dtype)
    parts_axis = sum(a < axis for a in range(len(shape)) if a not in attributes.axes)
    return r.reduce(r.op.name, partial, [parts_axis], hint="of_parts")
