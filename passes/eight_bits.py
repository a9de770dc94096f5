# SPDX-License-Identifier: Apache-2.0
"""Matmuls of numbers of 8 bits, which code writes as matmuls of what they are cast to (decision 44).

Products of such numbers are exact in f32, and so are the casts to f16. What differs is how they are added up. Tensor
cores add products of 8-bit floats to some 13 digits; a kernel keeps them by adding each few steps' sums up in f32. That
is enough where the result is rounded to bf16 or 8 bits anyway. Where f32 goes on, the operands are f16, whose products
are added up in f32. Bytes are added up in 32 bits, without any error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from fusec.ir.attributes import CastAttributes, ConstantAttributes, DotAttributes
from fusec.ir.graph import Graph
from fusec.ir.index import Index, bounds, product
from fusec.ir.nodes import Op, Value
from fusec.ir.ops.contract import free_axes
from fusec.ir.types import DType, bf16, f8e4m3, f8e5m2, f16, f32, i8, i32
from fusec.passes.block_scales import can_scale_sums
from fusec.passes.cse import cse
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule
from fusec.runtime.program import Declined
from fusec.target.gpu import GpuTarget

FEW_ROWS = 64
"""Rows or columns up to which a matmul waits for memory: it is left as it is."""
_FEWEST = 8
"""The same below which it is no matter for tensor cores."""
_DEEPEST = 2**31 // 128**2 - 1
"""Products of bytes that 32 bits hold the sum of."""
_WIDE = (f32, bf16, f16)
_VIEWS = ("permute", "reshape", "slice", "broadcast")
_LARGEST = {f8e4m3: 448.0, f8e5m2: 57344.0}
"""Beyond which a rounding to 8 bits jumps: to NaN, or to infinity."""
_LIMITS = 12
"""Ops, one behind another, that are looked through for a value's bounds."""


Log = Callable[[Declined], None]
RULE = "matmul of 8 bits"


def multiply_in_8_bits(
    graph: Graph, target: GpuTarget, *, rounds: bool = False, log: Log = lambda declined: None
) -> Graph:
    """Afterwards matmuls of bytes, and of 8-bit floats where that is exact enough, have operands of 8 bits, on GPUs
    that multiply them; other matmuls of numbers of 8 bits in f32 have operands of f16.

    rounds: operands of matmuls may be rounded (``precision=``), so that sums of f32 need not be exact either. log: is
    told of products of 8-bit floats that are multiplied as f16.
    """
    arch = target.arch if isinstance(target.arch, int) else 0
    changed = rewrite(graph, (_product_of_bytes(arch, rounded_soon(graph), rounds, log),))
    return graph if changed is graph else cse(changed)


def _product_of_bytes(arch: int, rounded: frozenset[Value], rounds: bool, log: Log) -> Rule:
    @rule("dot")
    def product_of_bytes(r: Rewriter) -> Outcome:
        """dot(cast(a: 8 bits), cast(b: 8 bits)) ⇒ dot(a, b), or dot(cast(a, f16), cast(b, f16))"""
        attributes, result = r.op.expect(DotAttributes), r.op.result
        if all(v.type.dtype.kind == "float8" for v in r.operands):
            return _of_few_rows(r, arch)
        found = [widening_of(r.producer, v) for v in r.operands]
        paths = [f for f in found if f is not None]
        if len(paths) != 2 and arch == 90 and (rounds or result in rounded):
            return _of_scaled(r)
        if len(paths) != 2 or attributes.lhs_batch or result.type.dtype not in _WIDE:
            return None
        kinds = {path[-1].operands[0].type.dtype for path in paths}
        rows, columns, depth = _extents(r.op)
        if min(rows, columns) <= _FEWEST or not depth:
            return None
        large = min(rows, columns) > FEW_ROWS and _is_fixed(r.op)

        def multiplied(dtype: DType | None, sums: DType) -> Value:
            operands = [again(r, path, dtype) for path in paths]
            return r.emit("dot", *operands, attributes=replace(attributes, dtype=sums, tf32=False))

        if kinds == {i8}:
            is_static = all(v.type.is_static for v in r.operands)
            if arch == 90 and large and is_static and depth <= _DEEPEST:
                total = multiplied(None, i32)
                wide = r.cast(total, f32, hint="sum")
                return wide if result.type.dtype is f32 else _implied(r, wide, result.type.dtype)
        elif any(d.kind != "float8" for d in kinds):
            return None
        elif arch >= 89 and large and (rounds or result.type.dtype is bf16 or result in rounded):
            return multiplied(None, result.type.dtype)
        if any(v.type.dtype is not f32 for v in r.operands):
            return None
        if arch >= 89 and large:
            log(Declined(RULE, f"{result} goes on in {result.type.dtype}, with all its digits", r.op.location))
        return multiplied(f16, result.type.dtype)

    return product_of_bytes


def _of_few_rows(r: Rewriter, arch: int) -> Outcome:
    """dot(a: f8, b: f8) ⇒ dot(cast(a, f16), cast(b, f16)), where no kernel multiplies such operands"""
    rows, columns, depth = _extents(r.op)
    if arch >= 89 and min(rows, columns) > FEW_ROWS and _is_fixed(r.op) and depth:
        return None
    made = replace(r.op.expect(DotAttributes), dtype=r.op.result.type.dtype, fast=False)
    return r.emit("dot", *(r.emit("cast", v, attributes=CastAttributes(f16)) for v in r.operands), attributes=made)


def _of_scaled(r: Rewriter) -> Outcome:
    """dot(mul(cast(a: f8), s), mul(cast(b: f8), t)) ⇒ the same {scaled}, where s and t are scales of blocks"""
    attributes, result = r.op.expect(DotAttributes), r.op.result
    rows, columns, depth = _extents(r.op)
    if attributes.scaled or result.type.dtype is not f32 or min(rows, columns) <= FEW_ROWS or not depth:
        return None
    if not all(v.type.is_static for v in r.operands) or not can_scale_sums(r.producer, r.op):
        return None
    return r.emit("dot", *r.operands, attributes=replace(attributes, scaled=True))


def _is_fixed(dot: Op) -> bool:
    """Whether no extent is symbolic but those of the left operand's rows."""
    left, right = (v.type for v in dot.operands)
    contracted = dot.expect(DotAttributes).lhs_contract
    return right.is_static and all(isinstance(left.shape[a], int) for a in contracted)


def _implied(r: Rewriter, value: Value, dtype: DType) -> Value:
    return r.emit("cast", value, attributes=CastAttributes(dtype, True), hint=dtype.name)


def _extents(dot: Op) -> tuple[int, int, int]:
    """Rows, columns and depth."""
    attributes = dot.expect(DotAttributes)
    left, right = (v.type for v in dot.operands)
    rows = [left.shape[a] for a in free_axes(left.rank, (), attributes.lhs_contract)]
    columns = [right.shape[a] for a in free_axes(right.rank, (), attributes.rhs_contract)]
    depth = [left.shape[a] for a in attributes.lhs_contract]
    return _most(product(rows)), _most(product(columns)), _most(product(depth))


def _most(extent: Index) -> int:
    """The largest that it can be; 2**31 where nothing bounds it."""
    found = bounds(extent)[1]
    return 2**31 if found is None else found


def widening_of(producer: Callable[[Value], Op | None], value: Value) -> list[Op] | None:
    """The views that lead to an operand, the last one first, and behind them the cast that widens 8 bits."""
    path: list[Op] = []
    made = producer(value)
    while made is not None and made.name in _VIEWS:
        path.append(made)
        made = producer(made.operands[0])
    while made is not None and made.name == "cast" and made.result.type.dtype in _WIDE:
        inner = producer(made.operands[0])
        if made.operands[0].type.dtype.bits == 8 and made.operands[0].type.dtype.kind in ("float8", "int"):
            return [*path, made]
        made = inner if made.operands[0].type.dtype in _WIDE else None
    return None


def again(r: Rewriter, path: list[Op], dtype: DType | None) -> Value:
    """The operand in 8 bits, or cast to a dtype before the views."""
    *views, widening = path
    found = widening.operands[0]
    if dtype is not None:
        found = r.emit("cast", found, attributes=CastAttributes(dtype), hint=dtype.name)
    for view in reversed(views):
        found = r.emit(view.name, found, attributes=view.attributes)
    return found


def rounded_soon(graph: Graph) -> frozenset[Value]:
    """Values of which all that is made is rounded to bf16, or to 8 bits in their range, and nothing jumps before."""
    uses, outputs, producers = graph.uses(), frozenset(graph.outputs), graph.producers()
    found: set[Value] = set()

    def rounds(op: Op, value: Value) -> bool:
        if isinstance(op.attributes, CastAttributes):
            dtype = op.attributes.dtype
            if dtype in _LARGEST:
                low, high = _bounds(op.operands[0], producers)
                return -_LARGEST[dtype] <= low and high <= _LARGEST[dtype]
            return dtype is bf16 or (dtype is f32 and op.result in found)
        if op.definition.kind not in ("view", "elementwise"):
            return False
        if op.definition.jumps:
            return op.result not in outputs and all(_limits(reader, op, value) for reader in uses[op.result])
        return op.result.type.dtype is f32 and op.result in found

    for op in reversed(graph.ops):
        for value in op.results:
            if value not in outputs and all(rounds(reader, value) for reader in uses[value]):
                found.add(value)
    return frozenset(found)


def _bounds(value: Value, producers: Mapping[Value, Op], most: int = _LIMITS) -> tuple[float, float]:
    """What clamps say of a value."""
    op, unknown = producers.get(value), (-inf, inf)
    if op is None or not most:
        return unknown
    if isinstance(op.attributes, ConstantAttributes):
        number = op.attributes.value
        return unknown if isinstance(number, complex) or number != number else (float(number), float(number))
    if op.name in ("cast", "copy") or op.definition.kind == "view":
        return _bounds(op.operands[0], producers, most - 1)
    keeps = _kept(op, producers)
    if keeps is None:
        return unknown
    a, b = (_bounds(v, producers, most - 1) for v in op.operands[-2:])
    return keeps(a[0], b[0]), keeps(a[1], b[1])


def _kept(op: Op, producers: Mapping[Value, Op]) -> Callable[[float, float], float] | None:
    """``min`` or ``max`` where an op keeps the lesser or the greater of its last two operands."""
    if op.name in ("minimum", "fmin", "maximum", "fmax"):
        return min if op.name in ("minimum", "fmin") else max
    comparison = producers.get(op.operands[0]) if op.name == "select" else None
    if comparison is None or not _limits(op, comparison, op.operands[2]):
        return None
    return min if (comparison.name in ("lt", "le")) is (comparison.operands[0] is op.operands[1]) else max


def _limits(op: Op, comparison: Op, value: Value) -> bool:
    """Whether an op is select(value < limit, limit, value) or the like, which does not jump."""
    if (
        op.name != "select"
        or comparison.name not in ("lt", "le", "gt", "ge")
        or op.operands[0] is not comparison.result
    ):
        return False
    limit = next((v for v in comparison.operands if v is not value), None)
    return limit is not None and {value, limit} == set(op.operands[1:])
