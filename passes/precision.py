# SPDX-License-Identifier: Apache-2.0
"""Where half-precision values are rounded, and which sums are longer than their terms.

A kernel computes elementwise chains of f16 and bf16 values in f32 and rounds at a store or a ``cast``
(:class:`fusec.tile.scalar.Apply`), which only adds accuracy. Two things need to be said in the graph: sums
and products accumulate in f32, and an op with jumps (a comparison, ``floor``, a cast to integers) sees the
rounded value that the code as written shows it, made of values that are rounded at each step. A ``cast`` to the
operand's own dtype is such a rounding. The user's own casts stay, each of them a rounding.

On a CPU a mean of f32 is a sum in f64 that is divided there: what is subtracted from equal numbers is then equal to
them, as it is where PyTorch's norms take their mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fusec.ir.attributes import CastAttributes, DotAttributes, ReduceAttributes
from fusec.ir.builder import unused_name
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.types import bf16, f16, f32, f64
from fusec.passes.fold import known
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule

_HALF = (f16, bf16)

_JUMPS = tuple(name for name, op in OPS.items() if op.jumps)


def precision(graph: Graph, *, tf32: bool = False, doubles: bool = False) -> Graph:
    """Afterwards sums of halves accumulate in f32, and ops with jumps see rounded halves.

    ``tf32``: products of f32 may round their operands to TF32. ``doubles``: f64 is cheap beside memory, and means and
    products of f32 are made in it.
    """
    rules = (*PRECISION_RULES, *((allow_tf32,) if tf32 else ()), *((mean_in_f64, product_in_f64) if doubles else ()))
    return rewrite(_with_rounded_steps(graph), rules)


def _with_rounded_steps(graph: Graph) -> Graph:
    """Each step on the way to an op with jumps reads rounded halves: a scale's digits decide where integers lie."""
    producers = graph.producers()
    last: set[Value] = set()  # the last step is rounded in front of the op with jumps
    deciding: set[Value] = set()
    for op in reversed(graph.ops):
        halves = [v for v in op.operands if v.type.dtype in _HALF]
        if any(result in deciding for result in op.results):
            deciding.update(halves if _takes_roundings(op) else ())
        elif any(result in last for result in op.results):
            (deciding if _is_step(op) else last).update(halves if _takes_roundings(op) else ())
        elif op.name in _JUMPS and not _is_plain_cast(op):
            last.update(v for v in halves if is_unrounded(producers.get, v))
    reading = deciding | last
    ops: list[Op] = []
    rounded: dict[Value, Value] = {}
    taken = {value.name for op in graph.ops for value in op.results} | {value.name for value in graph.inputs}
    for op in graph.ops:
        if rounded and (op.name in _JUMPS or any(result in reading for result in op.results)):
            op = replace(op, operands=tuple(rounded.get(v, v) for v in op.operands))
        ops.append(op)
        for result in op.results:
            if result in deciding and _is_step(op):
                rounded[result] = value = Value(result.type, unused_name(f"{result.name}_rounded", taken))
                attributes = CastAttributes(result.type.dtype)
                ops.append(Op(OPS["cast"], (result,), attributes, (value,), op.location))
    return graph.with_ops(ops) if rounded else graph


def _takes_roundings(op: Op) -> bool:
    """Whether what an op reads decides what it makes."""
    return op.name != "cast" and op.definition.kind not in ("create", "extern", "dot")


def _is_step(op: Op) -> bool:
    """Whether the code as written rounds what a kernel may hold with the digits of f32."""
    if op.name == "cast":
        return is_implied_cast(op)
    return not op.definition.exact and op.definition.kind in ("elementwise", "dot", "composite")


@rule("reduce_sum", "reduce_prod")
def accumulate_in_f32(r: Rewriter) -> Outcome:
    """reduce_sum(x: half) ⇒ cast(reduce_sum(cast(x, f32)), half)"""
    (x,) = r.operands
    attributes = r.op.expect(ReduceAttributes)
    if x.type.dtype not in _HALF or attributes.dtype is not None:
        return None
    total = r.emit(r.op.name, r.cast(x, f32, hint="wide"), attributes=attributes, hint="total")
    return r.cast(total, x.type.dtype)


@rule("div")
def mean_in_f64(r: Rewriter) -> Outcome:
    """div(reduce_sum(x: f32), n) ⇒ cast(div(reduce_sum(x) {dtype=f64}, n), f32), n a constant or an extent"""
    total, count = r.operands
    if total.type.dtype is not f32 or (known(r, count) is None and r.producer(count, "extent") is None):
        return None
    shape = total.type.shape
    with_axes = r.producer(total, "reshape")
    made = r.producer(with_axes.operands[0] if with_axes is not None else total, "reduce_sum")
    if made is None or r.op.result.type.shape != shape:
        return None
    x = made.operands[0]
    if x.type.dtype is not f32:
        return None
    wide = r.reshape(r.reduce("reduce_sum", x, made.expect(ReduceAttributes).axes, hint="total", dtype=f64), shape)
    return r.cast(r.emit("div", wide, r.cast(count, f64, hint="count"), hint="wide"), f32)


@rule("reduce_prod")
def product_in_f64(r: Rewriter) -> Outcome:
    """reduce_prod(x: f32) ⇒ cast(reduce_prod(x) {dtype=f64}, f32): each of its factors would be a rounding"""
    (x,) = r.operands
    attributes = r.op.expect(ReduceAttributes)
    if x.type.dtype is not f32 or attributes.dtype is not None:
        return None
    return r.cast(r.reduce("reduce_prod", x, attributes.axes, hint="product", dtype=f64), f32)


@rule("dot")
def allow_tf32(r: Rewriter) -> Outcome:
    """dot(a: f32, b: f32) ⇒ dot(a, b) {tf32=true}"""
    attributes = r.op.expect(DotAttributes)
    if attributes.tf32 or any(v.type.dtype is not f32 for v in r.operands):
        return None
    return r.emit("dot", *r.operands, attributes=replace(attributes, tf32=True))


@rule(*_JUMPS)
def round_before_jump(r: Rewriter) -> Outcome:
    """lt(a + b, c) ⇒ lt(cast(a + b, half), c), where a + b is of a half type"""
    if not any(is_unrounded(r.producer, v) for v in r.operands) or _is_plain_cast(r.op):
        return None
    rounded = [_rounded(r, v) if is_unrounded(r.producer, v) else v for v in r.operands]
    return r.emit(r.op.name, *rounded, attributes=r.op.attributes)


def is_implied_cast(op: Op) -> bool:
    """True for a rounding that ends a library's call: like any step of a half-precision chain, it may be left out."""
    return isinstance(op.attributes, CastAttributes) and op.attributes.implied


def _is_plain_cast(op: Op) -> bool:
    """A cast to a float type has no jumps, but one to a half type is itself a rounding."""
    return isinstance(op.attributes, CastAttributes) and op.attributes.dtype.is_float


def _rounded(r: Rewriter, value: Value) -> Value:
    return r.emit("cast", value, attributes=CastAttributes(value.type.dtype), hint="rounded")


def is_unrounded(producer: Callable[[Value], Op | None], value: Value) -> bool:
    """True for a half value that a fused kernel may hold with the digits of f32.

    producer: the op that makes a value, None for one that comes from memory.
    """
    seen: set[Value] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        made = producer(current)
        if current in seen or current.type.dtype not in _HALF or made is None:
            continue
        seen.add(current)
        if is_implied_cast(made):
            return True
        if made.name == "cast" or made.definition.kind in ("create", "extern"):
            continue
        if not made.definition.exact and made.definition.kind in ("elementwise", "dot", "composite"):
            return True
        waiting += made.operands
    return False


PRECISION_RULES: tuple[Rule, ...] = (accumulate_in_f32, round_before_jump)
