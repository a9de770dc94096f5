# SPDX-License-Identifier: Apache-2.0
"""Matmuls by the library: a group's dots as calls, with the bias and activation that the library's kernels can add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, inf

import numpy as np

from fusec.ir.attributes import CastAttributes, ConstantAttributes, DotAttributes, ExternAttributes
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.library_calls import Matrix
from fusec.ir.liveness import live_ops
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.types import contiguous_strides, f32, fixed
from fusec.passes.contraction import allows_tf32, contraction
from fusec.passes.cost.gpu_program import LIBRARY_SHARE_F32
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.pieces import Alternative, Pieces
from fusec.runtime.calls import MATMUL
from fusec.runtime.matmuls import Matmul, matmul_to_text
from fusec.target.gpu import GpuTarget
from fusec.tile.views import joined, same_layout, strided_view

_REASON = "the library's kernel was chosen"


@dataclass(frozen=True)
class Found:
    """A part of a group as a call: ``call`` gives ``value``; ``after`` makes of it what the group has, in the sum's
    dtype."""

    call: Op
    value: Value
    after: tuple[Op, ...]
    covered: frozenset[Op]


@dataclass(frozen=True)
class FoundMatmul(Found):
    """A matmul as a call."""

    matmul: Matmul


_COPIED = 8
_SHARE, _AROUND = 0.85, 8e-6
"""Of a GPU's rate, and seconds around it, within which the library multiplies what is bound by that rate. It is sooner
by up to a fifth (H200, TFLOP/s: 768×3072 results of K 8192 712, 300×4096 of 4096 428, 8192×1152 of 4304 662). A kernel
of ours that needs longer than this has no good schedule for the shape: 72 tiles of 128×256 for 132 SMs took 76 µs,
the library 54."""
_AROUND_F32, _BIASED_F32 = 12e-6, 15e-6
"""The same of f32, whose rate is ``LIBRARY_SHARE_F32`` of multiply-adds' (H200, 512×1024×1024: 33 µs), and what its
kernels that add a bias may take more (128×1024×1024: 15 µs, and 33 with bias and relu)."""


def library_alternatives(context: LoweringContext, target: GpuTarget) -> list[Alternative]:
    """Ways that call the library for each matmul of operands in memory, of 16 bits or of f32 that is not to be TF32;
    none where that does not fit.

    The library rounds each matmul (with its bias) of 16 bits to 16 bits, as the code as written does, so such groups
    with wider results are left alone. A time is predicted where the group has one matmul.
    """
    body = context.body
    dots = context.anchors("dot")
    sixteen = all(v.type.dtype.is_half for dot in dots for v in dot.operands)
    exact = all(v.type.dtype is f32 and not allows_tf32(dot) for dot in dots for v in dot.operands)
    if not dots or not (exact or (sixteen and all(_is_rounded(context, v) for v in body.outputs))):
        return []
    found: list[Alternative] = []
    plain = [_matmul(context, dot, None) for dot in dots]
    biased = [_matmul(context, dot, _bias_of(context, dot)) for dot in dots]
    if all(p is not None for p in plain):
        calls = [p for p in plain if p is not None]
        found.append(_alternative("library matmul", calls, _seconds(context, calls, target)))
    if all(p is not None for p in biased) and any(p is not None and p.matmul.bias is not None for p in biased):
        calls = [p for p in biased if p is not None]
        found.append(_alternative("library matmul with bias", calls, _seconds(context, calls, target)))
    if len(dots) == 1 and biased[0] is not None:
        activation = _activation(body, biased[0])
        if activation is not None and biased[0].matmul.bias is not None:
            whole = _with_activation(body, biased[0], activation)
            seconds = _seconds(context, [whole], target)
            found.append(_alternative(f"library matmul with bias and {activation}", [whole], seconds))
    return found


def _is_rounded(context: LoweringContext, value: Value) -> bool:
    """Whether a value has no more digits than 16 bits hold."""
    producer = context.producers.get(value)
    if value.type.dtype.bits > 16 and producer is not None and producer.name == "cast":
        value = producer.operands[0]
        return value.type.dtype.is_half
    return value.type.dtype.bits <= 16


def _alternative(text: str, matmuls: Sequence[Found], seconds: float) -> Alternative:
    return Alternative(text, lambda context: pieces_of(context, matmuls), seconds)


def _is_aligned(matmul: Matmul) -> bool:
    """Whether the library can copy eight elements at a time: a K of 4097 took it 1.06 ms, a kernel of ours 0.87."""
    steps = [s for m in (matmul.lhs, matmul.rhs) for s in (*m.strides, m.offset) if s != 1]
    return all(s % _COPIED == 0 for s in (*steps, matmul.shape[-1]))


def _seconds(context: LoweringContext, matmuls: Sequence[FoundMatmul], target: GpuTarget) -> float:
    """Within which the library computes a matmul, and a map the rest; infinity for several matmuls, and where the
    library copies few elements at a time."""
    if len(matmuls) != 1 or not _is_aligned(matmuls[0].matmul):
        return inf
    rates = target.rates
    (dot,) = context.anchors("dot")
    single = dot.operands[0].type.dtype is f32
    rate, around = (LIBRARY_SHARE_F32 * rates.simt, _AROUND_F32) if single else (_SHARE * rates.tensor, _AROUND)
    read = sum(v.type.most_bytes for v in dict.fromkeys(matmuls[0].call.operands))
    moved = rates.moved(read, matmuls[0].value.type.most_bytes)
    around += _BIASED_F32 if single and matmuls[0].matmul.bias is not None else 0.0
    seconds = around + hypot(2.0 * dot.result.type.size * contraction(dot).k / rate, moved)
    for rest in pieces_of(context, matmuls).ops[1:]:
        sides = (sum(v.type.most_bytes for v in side) for side in (rest.operands, rest.results))
        seconds += rates.follow + rates.moved(*sides)
    return seconds


def pieces_of(context: LoweringContext, matmuls: Sequence[Found]) -> Pieces:
    """The calls, and one map for what is left."""
    body = context.body
    covered = frozenset[Op]().union(*(p.covered for p in matmuls))
    after = [op for p in matmuls for op in p.after]
    made = {p.value for p in matmuls}
    rest = [*after, *(op for op in body.ops if op not in covered)]
    wanted = [v for v in body.outputs if v not in made]
    if not wanted:
        return Pieces(tuple(p.call for p in matmuls))
    live = live_ops(rest, wanted)
    inputs = dict.fromkeys(v for op in live for v in op.operands if v in made or v in body.inputs)
    inner = Graph("rest", tuple(inputs), tuple(wanted), live)
    fused = Op(OPS["fused"], inner.inputs, FusedAttributes("map", inner), inner.outputs, context.op.location)
    return Pieces((*(p.call for p in matmuls), fused))


# One matmul


@dataclass(frozen=True)
class _Bias:
    """A bias on a matmul's last axis: the vector, and the value that is matmul plus bias, rounded."""

    vector: Value
    value: Value
    covered: frozenset[Op]


def _matmul(context: LoweringContext, dot: Op, bias: _Bias | None) -> FoundMatmul | None:
    attributes = dot.expect(DotAttributes)
    operands: list[Value] = []
    lhs = matrix_of(context, dot.operands[0], attributes.lhs_batch, attributes.lhs_contract, False, operands)
    rhs = matrix_of(context, dot.operands[1], attributes.rhs_batch, attributes.rhs_contract, True, operands)
    if lhs is None or rhs is None:
        return None
    added = None
    if bias is not None:
        added = _vector(context, bias.vector, operands)
        if added is None:
            bias = None
    covered = frozenset({dot}) | (bias.covered if bias is not None else frozenset())
    value, after = in_dtype_of_operands(dot, bias.value if bias is not None else dot.result)
    shape = value.type.static_shape
    if not same_layout(shape, context.strides.get(value, contiguous_strides(shape)), contiguous_strides(shape)):
        return None
    matmul = Matmul(lhs, rhs, added, "none", shape)
    called = ExternAttributes(MATMUL, matmul_to_text(matmul), (value.type,), _REASON)
    call = Op(OPS["extern"], tuple(operands), called, (value,), dot.location)
    return FoundMatmul(call, value, after, covered, matmul)


def in_dtype_of_operands(dot: Op, result: Value) -> tuple[Value, tuple[Op, ...]]:
    """What the library's call gives, and the cast of that to the result where this is of another dtype."""
    dtype = dot.operands[0].type.dtype
    if result.type.dtype == dtype:
        return result, ()
    value = Value(replace(result.type, dtype=dtype), f"{result.name}_rounded")
    return value, (Op(OPS["cast"], (value,), CastAttributes(result.type.dtype), (result,), dot.location),)


def matrix_of(
    context: LoweringContext,
    value: Value,
    batch: Sequence[int],
    inner: Sequence[int],
    transposed: bool,
    operands: list[Value],
) -> Matrix | None:
    """An operand as (batch,) rows by columns in memory; its inner axes are the columns or, ``transposed``, the
    rows."""
    view = strided_view(value, context.producers, context.strides)
    if view is None or view.base not in context.body.inputs:
        return None
    free = [a for a in range(value.type.rank) if a not in batch and a not in inner]
    shape, steps, offset = value.type.static_shape, fixed(view.strides), fixed([view.offset])[0]
    groups = (batch, inner, free) if transposed else (batch, free, inner)
    axes = [joined([(shape[a], steps[a]) for a in group]) for group in groups]
    if any(axis is None for axis in axes):
        return None
    shown = [axis for axis, group in zip(axes, groups) if axis is not None and (group or group is not batch)]
    if view.base not in operands:
        operands.append(view.base)
    sizes, strides = zip(*shown)
    return Matrix(operands.index(view.base), sizes, strides, offset)


def _vector(context: LoweringContext, value: Value, operands: list[Value]) -> Matrix | None:
    view = strided_view(value, context.producers, context.strides)
    if view is None or view.base not in context.body.inputs or value.type.rank != 1:
        return None
    if view.base not in operands:
        operands.append(view.base)
    (offset,) = fixed([view.offset])
    return Matrix(operands.index(view.base), value.type.static_shape, fixed(view.strides), offset)


def _bias_of(context: LoweringContext, dot: Op) -> _Bias | None:
    """matmul + vector, then the only thing that reads it rounds it to the operands' dtype."""
    uses = context.body.uses()
    attributes = dot.expect(DotAttributes)
    free = dot.operands[1].type.rank - len(attributes.rhs_contract) - len(attributes.rhs_batch)
    readers = uses[dot.result]
    if attributes.lhs_batch or free != 1 or len(readers) != 1 or dot.result in context.body.outputs:
        return None
    (add,) = readers
    if add.name != "add" or add.operands[0] is add.operands[1]:
        return None
    other = add.operands[1] if add.operands[0] is dot.result else add.operands[0]
    covered = {add}
    producer = context.producers.get(other)
    if producer is not None and producer.name == "cast":
        other = producer.operands[0]
    dtype_in = dot.operands[0].type.dtype
    if other.type.rank != 1 or other.type.shape[0] != dot.result.type.shape[-1] or other.type.dtype != dtype_in:
        return None
    value = add.result
    if value.type.dtype != dtype_in:
        readers = uses[value]
        if len(readers) != 1 or readers[0].name != "cast" or value in context.body.outputs:
            return None
        covered.add(readers[0])
        value = readers[0].result
    return _Bias(other, value, frozenset(covered)) if value.type.dtype == dtype_in else None


# Activations


def _with_activation(body: Graph, found: FoundMatmul, activation: str) -> FoundMatmul:
    attributes, matmul = found.call.expect(ExternAttributes), replace(found.matmul, activation=activation)
    (result,) = body.outputs
    attributes = replace(attributes, arguments=matmul_to_text(matmul))
    call = replace(found.call, attributes=attributes, results=(result,))
    return FoundMatmul(call, result, (), frozenset(body.ops), matmul)


def _activation(body: Graph, found: Found) -> str | None:
    """What the group does to matmul plus bias, told by its values: ``gelu`` (by tanh), ``relu`` or neither."""
    if len(body.outputs) != 1 or found.after or body.outputs[0].type != found.value.type:
        return None
    points = np.concatenate([np.linspace(-12.0, 12.0, 481), [-0.0, 1e-3, -1e-3, 60.0, -60.0]])
    values = _evaluate([op for op in body.ops if op not in found.covered], {found.value: points})
    result = values.get(body.outputs[0])
    if result is None or result.shape != points.shape:
        return None
    tanh = np.tanh(np.sqrt(2 / np.pi) * (points + 0.044715 * points**3))
    for name, wanted in (("gelu", 0.5 * points * (1 + tanh)), ("relu", np.maximum(points, 0))):
        if np.allclose(result, wanted, rtol=1e-6, atol=1e-9):
            return name
    return None


def _evaluate(ops: Sequence[Op], known: Mapping[Value, np.ndarray]) -> dict[Value, np.ndarray]:
    """The values of elementwise ops of known ones in float64, whatever their shapes; others are left out."""
    values = dict(known)
    for op in ops:
        if op.name == "constant":
            values[op.result] = np.asarray(op.expect(ConstantAttributes).value)
        elif op.name == "cast" and op.operands[0] in values and op.result.type.dtype.is_float:
            values[op.result] = values[op.operands[0]]
        elif op.definition.is_scalar and op.name != "cast" and all(v in values for v in op.operands):
            given = [np.broadcast_to(values[v], np.shape(known[next(iter(known))])) for v in op.operands]
            given = [v.astype(np.float64) if v.dtype.kind == "f" else v for v in given]
            values[op.result] = np.asarray(op.definition.reference(given, op.attributes)[0])
    return values
