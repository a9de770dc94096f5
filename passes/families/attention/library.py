# SPDX-License-Identifier: Apache-2.0
"""Plain attention by the library: where a score is the dot times a constant, full or causal."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from fusec.errors import LoweringError
from fusec.ir.attributes import ExternAttributes
from fusec.ir.index import Index, Symbol, add, sub, symbol
from fusec.ir.indexing import substitute
from fusec.ir.library_calls import Matrix
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.types import contiguous_strides
from fusec.passes.contraction import contraction
from fusec.passes.families.attention.cpu import elements_of
from fusec.passes.families.attention.elements import Elements
from fusec.passes.families.attention.gpu import attention_size
from fusec.passes.families.attention.schedule.size import AttentionSize, overlapped, waves
from fusec.passes.lower.context import LoweringContext, address_step
from fusec.passes.lower.mask import LOWEST_SCORE, truth
from fusec.passes.lower.pieces import Alternative, Pieces
from fusec.runtime.attentions import BACKENDS, Attention, attention_to_text
from fusec.runtime.calls import ATTENTION
from fusec.target.gpu import GpuTarget
from fusec.tile.scalar import Apply, Const, Load, ScalarExpr, offset_of
from fusec.tile.views import joined, same_layout

_NAMES = {"cudnn": "library attention (cuDNN)", "flash": "library attention (FlashAttention)"}


_SHARE, _BETWEEN, _AROUND = 0.9, 2.0, 9e-6
"""Of what Hopper's warpgroups do in fusec's own kernels, blocks of keys that could be done between two blocks of
queries, and seconds around it, within which cuDNN attends on Hopper (decision 54)."""
_BLOCK = 128
_COPIED = 8


def attention_alternatives(context: LoweringContext, target: GpuTarget) -> list[Alternative]:
    """The library's kernels for a group that is attention and nothing else, on 16-bit operands; else none."""
    context = context.fresh()
    try:
        found = _match(context)
    except LoweringError:
        return []
    if found is None:
        return []
    attention, operands, result = found
    made = []
    for backend in BACKENDS:
        text = attention_to_text(attention, backend)
        attributes = ExternAttributes(ATTENTION, text, (result.type,), "the library's kernel was chosen")
        call = Op(OPS["extern"], operands, attributes, (result,), context.op.location)
        seconds = _seconds(attention, attention_size(context), target) if backend == "cudnn" else inf
        made.append(Alternative(_NAMES[backend], lambda context, call=call: Pieces((call,)), seconds))  # type: ignore[misc]
    return made


def _seconds(attention: Attention, size: AttentionSize, target: GpuTarget) -> float:
    """Within which cuDNN computes it; infinity where that is not known, or cuDNN may have no kernel."""
    operands = (attention.query, attention.key, attention.value)
    steps = [s for m in operands for s in (*m.strides[:3], m.offset)]
    plain = all(m.strides[3] == 1 for m in operands) and all(s % _COPIED == 0 for s in steps)
    even = size.depth == size.values <= _BLOCK and size.depth % _COPIED == 0
    if target.backend != "cuda" or target.arch != 90 or size.whole or size.rows < 64 or not (plain and even):
        return inf
    columns = 64 * ceil(size.depth / 64)
    point = overlapped(size.matmuls(columns, columns, target.rates.tensor), size.softmax(target)) / _SHARE
    points = waves(size, _BLOCK, _BETWEEN, _BLOCK, target)
    return _AROUND + max(points * target.sms * point, size.traffic(target, size.heads * ceil(size.rows / _BLOCK)))


def _match(context: LoweringContext) -> tuple[Attention, tuple[Value, ...], Value] | None:
    match, e = elements_of(context)
    if match.sink is not None:
        return None
    shape = match.value_dot.result.type.static_shape
    result = _only_result(context, match.value_dot)
    rank = len(shape)
    if result is None or (e.query_axis, e.value_axis) != (rank - 2, rank - 1):
        return None
    score = _score(e.score, e)
    if score is None:
        return None
    scale, conditions = score
    keys, depth = contraction(match.value_dot).k, contraction(match.score_dot).k
    causal = _is_causal(conditions, e.point[e.query_axis], e.key_symbol, shape[rank - 2], keys)
    if conditions and not causal:
        return None
    query, key = e.point[e.query_axis], e.key_symbol
    reads = [
        _read(context, e.query, [*e.point[: rank - 2], query, e.depth], [*shape[: rank - 1], depth]),
        _read(context, e.key, [*e.point[: rank - 2], key, e.depth], [*shape[: rank - 2], keys, depth]),
        _read(context, e.value, [*e.point[: rank - 2], key, e.point[-1]], [*shape[: rank - 2], keys, shape[-1]]),
    ]
    plain = [r for r in reads if r is not None]
    if len(plain) != 3:
        return None
    operands = tuple(dict.fromkeys(r.value for r in plain))
    for split in dict.fromkeys((min(1, rank - 2), *range(rank - 1))):  # batch and heads where they can stay apart
        merged = [_four(r, operands, split, rank - 2) for r in plain]
        found = [m for m in merged if m is not None]
        if len(found) == 3:
            return Attention(found[0], found[1], found[2], scale, causal, shape), operands, result
    return None


def _only_result(context: LoweringContext, value_dot: Op) -> Value | None:
    """The group's one output, where it is the second dot itself, rounded or not, row-major."""
    if len(context.body.outputs) != 1:
        return None
    (result,) = context.body.outputs
    value = result
    while value is not value_dot.result:
        op = context.producers.get(value)
        if op is None or op.name not in ("cast", "copy"):
            return None
        value = op.operands[0]
    shape = result.type.static_shape
    laid = same_layout(shape, context.strides[result], contiguous_strides(shape))
    return result if laid and result.type.dtype.is_half else None


def _score(score: ScalarExpr, e: Elements) -> tuple[float, list[tuple[ScalarExpr, bool]]] | None:
    """The score as a factor of the raw one, and what must hold for it not to be masked; None for anything else."""
    match score:
        case Load(buffer, _) if buffer is e.raw_score:
            return 1.0, []
        case Apply("cast" | "copy", (inner,), dtype) if dtype.is_float:
            return _score(inner, e)
        case Apply("mul", (inner, Const(value, _)), _) | Apply("mul", (Const(value, _), inner), _):
            return _scaled(inner, e, value, divides=False)
        case Apply("div", (inner, Const(value, _)), _):
            return _scaled(inner, e, value, divides=True)
        case Apply("select", (condition, inner, Const() as fill), _) if _masks(fill):
            return _masked(inner, e, condition, wanted=True)
        case Apply("select", (condition, Const() as fill, inner), _) if _masks(fill):
            return _masked(inner, e, condition, wanted=False)
    return None


def _scaled(
    inner: ScalarExpr, e: Elements, value: object, *, divides: bool
) -> tuple[float, list[tuple[ScalarExpr, bool]]] | None:
    found = _score(inner, e)
    if found is None or not isinstance(value, int | float) or not 1e-6 < value < 1e6:
        return None
    return (found[0] / value if divides else found[0] * value), found[1]


def _masked(
    inner: ScalarExpr, e: Elements, condition: ScalarExpr, *, wanted: bool
) -> tuple[float, list[tuple[ScalarExpr, bool]]] | None:
    found = _score(inner, e)
    return None if found is None else (found[0], [*found[1], (condition, wanted)])


def _masks(fill: Const) -> bool:
    return isinstance(fill.value, int | float) and fill.value <= LOWEST_SCORE


def _is_causal(conditions: list[tuple[ScalarExpr, bool]], query: Symbol, key: Symbol, queries: int, keys: int) -> bool:
    """Whether the conditions leave query i the keys up to i and no other: shown for all distances at once."""
    back, ahead = symbol("back", 0, queries), symbol("ahead", 1, max(keys, 1))
    before: dict[Symbol, Index] = {key: sub(query, back)}
    after: dict[Symbol, Index] = {key: add(query, ahead)}
    holds = all(truth(condition, before) is wanted for condition, wanted in conditions)
    return holds and any(truth(condition, after) is (not wanted) for condition, wanted in conditions)


@dataclass(frozen=True)
class _Read:
    """An operand as strides along its axes over the memory of ``value``."""

    value: Value
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def _read(context: LoweringContext, element: ScalarExpr, symbols: list[Symbol], sizes: list[int]) -> _Read | None:
    while isinstance(element, Apply) and element.op in ("cast", "copy") and len(element.args) == 1:
        element = element.args[0]
    if not isinstance(element, Load) or not element.dtype.is_float or element.dtype.bits != 16:
        return None
    steps = [address_step(element, s) for s in symbols]
    flat = offset_of(element.buffer, element.index)
    if flat is None:
        return None
    offset = substitute(flat, dict.fromkeys(symbols, 0))
    if not isinstance(offset, int) or any(s is None for s in steps):
        return None
    return _Read(context.input_of(element.buffer), tuple(sizes), tuple(s or 0 for s in steps), offset)


def _four(read: _Read, operands: tuple[Value, ...], split: int, batches: int) -> Matrix | None:
    """The operand with its outer axes joined to two: the first ``split`` of them, and the rest."""
    axes = list(zip(read.sizes, read.strides, strict=True))
    outer = [joined(axes[:split], 0), joined(axes[split:batches], 0)]
    if outer[0] is None or outer[1] is None:
        return None
    sizes, strides = zip(*[outer[0], outer[1], *axes[batches:]])
    return Matrix(operands.index(read.value), sizes, strides, read.offset)
