# SPDX-License-Identifier: Apache-2.0
"""Views of views become one view; views, casts and copies that change nothing go away."""

from __future__ import annotations

from dataclasses import replace

from fusec.errors import TypeRuleError
from fusec.ir.attributes import (
    CastAttributes,
    ConcatAttributes,
    ExternAttributes,
    PadAttributes,
    PermuteAttributes,
    ReduceAttributes,
    ShapeAttributes,
    SliceAttributes,
    WindowsAttributes,
)
from fusec.ir.index import add, mul
from fusec.ir.monoid import MONOIDS
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.ops.shapes import broadcast_shapes
from fusec.ir.types import Dim, DType, bf16, f16
from fusec.passes.rewrite import Outcome, Reject, Rewriter, Rule, rule

_BROADCASTING = tuple(
    name for name, op in OPS.items() if op.kind == "elementwise" and op.arity[0] > 1 and name != "pow"
)
"""All but pow, whose meaning NumPy changes a little where the exponent is a single number."""


@rule("permute", "reshape", "broadcast", "slice")
def drop_identity_view(r: Rewriter) -> Outcome:
    """permute(x, [0, 1, ...]) ⇒ x;  reshape, broadcast to its own shape, and the whole slice likewise"""
    (x,) = r.operands
    match r.op.attributes:
        case PermuteAttributes(permutation=permutation):
            same = permutation == tuple(range(x.type.rank))
        case ShapeAttributes(shape=shape):
            same = shape == x.type.shape
        case SliceAttributes(starts=starts, stops=stops, steps=steps):
            same = not any(starts) and stops == x.type.shape and all(step == 1 for step in steps)
        case _:
            same = False
    return x if same else None


def _inner(r: Rewriter, name: str) -> Op | None:
    return r.producer(r.operands[0], name)


@rule("permute")
def permute_of_permute(r: Rewriter) -> Outcome:
    """permute(permute(x, p), q) ⇒ permute(x, p∘q)"""
    inner = _inner(r, "permute")
    if inner is None:
        return None
    first = inner.expect(PermuteAttributes).permutation
    return r.permute(inner.operands[0], [first[k] for k in r.op.expect(PermuteAttributes).permutation])


@rule("reshape")
def reshape_of_reshape(r: Rewriter) -> Outcome:
    """reshape(reshape(x, s), t) ⇒ reshape(x, t)"""
    inner = _inner(r, "reshape")
    return None if inner is None else r.reshape(inner.operands[0], r.op.result.type.shape)


@rule("broadcast")
def broadcast_of_broadcast(r: Rewriter) -> Outcome:
    """broadcast(broadcast(x, s), t) ⇒ broadcast(x, t)"""
    inner = _inner(r, "broadcast")
    return None if inner is None else r.broadcast(inner.operands[0], r.op.result.type.shape)


@rule("slice")
def slice_of_slice(r: Rewriter) -> Outcome:
    """slice(slice(x, a), b) ⇒ slice(x, a∘b)"""
    inner = _inner(r, "slice")
    if inner is None:
        return None
    triples: list[tuple[Dim, Dim, int]] = []
    a, b = inner.expect(SliceAttributes), r.op.expect(SliceAttributes)
    for axis, count in enumerate(r.op.result.type.shape):
        step = a.steps[axis] * b.steps[axis]
        start = add(a.starts[axis], mul(b.starts[axis], a.steps[axis]))
        if not isinstance(count, int):
            if step != 1:
                return Reject(f"{r.op.result} steps {step} along axis {axis} of extent {count}")
            triples.append((start, add(start, count), 1))
        elif count == 0:
            triples.append((0, 0, 1))
        else:
            triples.append((start, add(start, (count - 1) * step + (1 if step > 0 else -1)), step))
    starts, stops, steps = zip(*triples)
    return r.emit("slice", inner.operands[0], attributes=SliceAttributes(starts, stops, steps))


@rule("slice")
def slice_of_windows(r: Rewriter) -> Outcome:
    """slice(windows(x)) ⇒ windows(slice(x)), where only the windows' numbers or other axes are sliced, forwards"""
    inner = _inner(r, "windows")
    if inner is None or not r.operands[0].type.is_static:
        return None
    windows, source = inner.expect(WindowsAttributes), inner.operands[0]
    cut = r.op.expect(SliceAttributes)
    counts = r.op.result.type.static_shape
    whole = (cut.starts[-1], cut.stops[-1], cut.steps[-1]) == (0, windows.size, 1)
    if not whole or cut.steps[windows.axis] < 0 or counts[windows.axis] == 0:
        return None
    starts, stops, steps = list(cut.starts[:-1]), list(cut.stops[:-1]), list(cut.steps[:-1])
    step = steps[windows.axis] * windows.step
    first = mul(starts[windows.axis], windows.step)
    starts[windows.axis] = first
    stops[windows.axis] = add(first, (counts[windows.axis] - 1) * step + windows.size)
    steps[windows.axis] = 1
    part = r.emit("slice", source, attributes=SliceAttributes(tuple(starts), tuple(stops), tuple(steps)))
    return r.emit("windows", part, attributes=WindowsAttributes(windows.axis, windows.size, step))


@rule(*_BROADCASTING)
def broadcast_is_implicit(r: Rewriter) -> Outcome:
    """add(x, broadcast(y)) ⇒ add(x, y), and so for a reshape of y that adds axes of extent 1 at the left"""
    operands = list(r.operands)
    for k, value in enumerate(operands):
        narrower = _narrower(r, value)
        if narrower is None:
            continue
        shapes = [narrower.type.shape if n == k else v.type.shape for n, v in enumerate(operands)]
        try:
            if broadcast_shapes(*shapes) == r.op.result.type.shape:
                operands[k] = narrower
        except TypeRuleError:  # symbolic extents that only the broadcast says are equal
            continue
    return None if operands == list(r.operands) else r.emit(r.op.name, *operands, attributes=r.op.attributes)


def _narrower(r: Rewriter, value: Value) -> Value | None:
    """What ``value`` repeats or puts extents of 1 before."""
    made = r.producer(value, "broadcast", "reshape")
    if made is None:
        return None
    (source,) = made.operands
    added = value.type.rank - source.type.rank
    if made.name == "reshape" and value.type.shape != (*[1] * added, *source.type.shape):
        return None
    return source


@rule("cast")
def cast_of_cast(r: Rewriter) -> Outcome:
    """cast(x, own dtype) ⇒ x;  cast(cast(x, a), b) ⇒ cast(x, b), where the first is exact and no rounding"""
    (x,) = r.operands
    wanted = r.op.result.type.dtype
    if wanted == x.type.dtype:
        return None if _rounds(r, r.op) else x
    inner = _inner(r, "cast")
    if inner is None or not is_exact_cast(inner.operands[0].type.dtype, x.type.dtype) or _rounds(r, inner):
        return None
    source = inner.operands[0]
    if wanted == source.type.dtype:
        return source
    attributes = r.op.expect(CastAttributes)
    return r.emit(
        "cast", source, attributes=replace(attributes, implied=attributes.implied and source.type.dtype.is_float)
    )


def _rounds(r: Rewriter, cast: Op) -> bool:
    """Whether a cast to its operand's own half type is there for the digits that a kernel keeps of such a value."""
    (x,) = cast.operands
    made = r.producer(x)
    if cast.result.type.dtype != x.type.dtype or x.type.dtype not in (f16, bf16) or made is None:
        return False
    if isinstance(made.attributes, CastAttributes):
        return made.attributes.implied
    return made.definition.kind not in ("create", "extern")


_FLOAT_DIGITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_FLOAT_EXPONENTS = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11}


def is_exact_cast(source: DType, target: DType) -> bool:
    """True when every value of ``source`` is a value of ``target``; complex types are not looked into."""
    if source == target:
        return True
    match source.kind, target.kind:
        case "bool", "int" | "uint" | "float":
            return True
        case ("int", "int") | ("uint", "uint" | "int"):
            return target.bits > source.bits
        case "int" | "uint", "float":
            return source.bits - (source.kind == "int") <= _FLOAT_DIGITS[target.name]
        case "float", "float":
            digits = _FLOAT_DIGITS[source.name] <= _FLOAT_DIGITS[target.name]
            return digits and _FLOAT_EXPONENTS[source.name] <= _FLOAT_EXPONENTS[target.name]
    return False


@rule("copy")
def drop_copy(r: Rewriter) -> Outcome:
    """copy(x) ⇒ x: what needs memory of its own is given it by ``own_outputs``, which does not see into calls"""
    (x,) = r.operands
    value = x
    while (made := r.producer(value)) is not None and made.definition.kind == "view":
        value = made.operands[0]
    shows = made is not None and isinstance(made.attributes, ExternAttributes) and made.attributes.shows
    return None if shows else x


@rule(*(f"reduce_{name}" for name in MONOIDS))
def reduce_nothing(r: Rewriter) -> Outcome:
    """reduce_sum(x, no axes) ⇒ x"""
    return None if r.op.expect(ReduceAttributes).axes else r.operands[0]


@rule("concat", "pad")
def move_nothing(r: Rewriter) -> Outcome:
    """concat(x) ⇒ x;  pad(x) by nothing ⇒ x"""
    if isinstance(r.op.attributes, PadAttributes):
        return None if any((*r.op.attributes.low, *r.op.attributes.high)) else r.operands[0]
    return r.operands[0] if len(r.operands) == 1 else None


@rule("concat")
def concat_without_empty(r: Rewriter) -> Outcome:
    """concat(x, y: [0, n]) ⇒ concat(x)"""
    attributes = r.op.expect(ConcatAttributes)
    filled = [v for v in r.operands if v.type.shape[attributes.axis] != 0]
    if not filled or len(filled) == len(r.operands):
        return None
    return r.emit("concat", *filled, attributes=attributes)


VIEW_RULES: tuple[Rule, ...] = (
    drop_identity_view,
    permute_of_permute,
    reshape_of_reshape,
    broadcast_of_broadcast,
    slice_of_slice,
    slice_of_windows,
    broadcast_is_implicit,
    cast_of_cast,
    drop_copy,
    reduce_nothing,
    move_nothing,
    concat_without_empty,
)
