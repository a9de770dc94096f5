# SPDX-License-Identifier: Apache-2.0
"""Matmuls of 8 bits by the library: a group's dot with its scales as a call, and a map for the rest."""

from __future__ import annotations

from fusec.ir.attributes import CastAttributes, DotAttributes, ExternAttributes
from fusec.ir.library_calls import Matrix
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.types import bf16, contiguous_strides, f8e5m2, f16, f32, fixed, i8
from fusec.passes.contraction import contraction
from fusec.passes.cost.gpu_program import eight_bit_share
from fusec.passes.cost.lanes import bytes_read
from fusec.passes.families.gemm.library import Found, matrix_of, pieces_of
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.pieces import Alternative
from fusec.runtime.calls import EIGHT_BIT_MATMUL
from fusec.runtime.eight_bit_matmuls import EightBitMatmul, eight_bit_matmul_to_text
from fusec.target.gpu import GpuTarget
from fusec.target.gpu_rates import EIGHT_BITS
from fusec.tile.views import same_layout, strided_view

_REASON = "the library's kernel was chosen"
_FEWEST_ROWS = 17
"""What ``torch._int_mm`` wants."""
_MULTIPLE, _ADDRESSED = 16, 16
"""Of K and of columns, in elements; of rows' addresses in bytes."""
_AROUND = 8e-6
"""Seconds around a call, as :mod:`fusec.passes.families.gemm.library` has it for 16 bits."""


def library_in_eight_bits(context: LoweringContext, target: GpuTarget) -> list[Alternative]:
    """The call, with its time: ``torch._scaled_mm`` or ``torch._int_mm``; none where the group is no single matmul of
    8 bits that these take."""
    dots = context.anchors("dot")
    integers = all(v.type.dtype is i8 for dot in dots for v in dot.operands)
    if len(dots) != 1 or not isinstance(target.arch, int) or target.arch < (80 if integers else 89):
        return []
    found = _found(context, dots[0])
    if found is None:
        return []
    seconds = _seconds(context, dots[0], found, target)
    return [Alternative("library matmul of 8 bits", lambda c: pieces_of(c, [found]), seconds)]


def _found(context: LoweringContext, dot: Op) -> Found | None:
    kinds = [v.type.dtype for v in dot.operands]
    floats = all(d.kind == "float8" for d in kinds)
    if not (floats or kinds == [i8, i8]) or kinds == [f8e5m2, f8e5m2]:
        return None
    attributes, operands = dot.expect(DotAttributes), list[Value]()
    lhs = matrix_of(context, dot.operands[0], attributes.lhs_batch, attributes.lhs_contract, False, operands)
    rhs = matrix_of(context, dot.operands[1], attributes.rhs_batch, attributes.rhs_contract, True, operands)
    if lhs is None or rhs is None or not _is_taken(lhs, rhs):
        return None
    scales = _Scales(context, dot.result, operands) if floats else None
    value = dot.result if scales is None else scales.value
    dtype = value.type.dtype
    if dtype not in (bf16, f16, f32) and floats:
        return None
    shape = value.type.static_shape
    if not same_layout(shape, context.strides.get(value, contiguous_strides(shape)), contiguous_strides(shape)):
        return None
    rows, columns = (None, None) if scales is None else (scales.rows, scales.columns)
    matmul = EightBitMatmul(lhs, rhs, rows, columns, dtype.name, shape, attributes.fast)
    called = ExternAttributes(EIGHT_BIT_MATMUL, eight_bit_matmul_to_text(matmul), (value.type,), _REASON)
    call = Op(OPS["extern"], tuple(operands), called, (value,), dot.location)
    covered = frozenset({dot}) if scales is None else frozenset({dot, *scales.covered})
    return Found(call, value, (), covered)


def _is_taken(lhs: Matrix, rhs: Matrix) -> bool:
    """Whether the library takes the operands as they lie."""
    (m, k), (_, n) = lhs.sizes[-2:], rhs.sizes[-2:]
    if len(lhs.sizes) != 2 or len(rhs.sizes) != 2 or k % _MULTIPLE or n % _MULTIPLE or m < _FEWEST_ROWS:
        return False
    steps = (lhs.strides[0], rhs.strides[1], lhs.offset, rhs.offset)
    along = lhs.strides[1] == 1 and rhs.strides[0] == 1
    return along and lhs.strides[0] >= k and rhs.strides[1] >= k and all(s % _ADDRESSED == 0 for s in steps)


class _Scales:
    """What a sum is multiplied by, and rounded to bf16, before anything else is done with it: ``value`` comes of it."""

    def __init__(self, context: LoweringContext, total: Value, operands: list[Value]) -> None:
        self.context, self.operands, self.value = context, operands, total
        self.rows: Matrix | None = None
        self.columns: Matrix | None = None
        self.covered: list[Op] = []
        steps = self._steps(total)
        (m, n) = total.type.static_shape[-2:] if total.type.rank == 2 else (0, 0)
        whole = [(op, s) for op, s in steps if s.sizes == (1, 1)]
        by_row = dict[str, tuple[Op, Matrix]]()
        for op, s in steps:
            if s.sizes in ((m, 1), (1, n)) and s.sizes != (1, 1):
                by_row.setdefault("rows" if s.sizes == (m, 1) else "columns", (op, s))
        rounding = self._rounding(steps[-1][0].result) if steps else None
        if len(by_row) == 2 and len(steps) == 2 and rounding is not None:
            self.rows, self.columns = by_row["rows"][1], by_row["columns"][1]
            self._take([op for op, _ in steps], rounding)
        elif whole and len(whole) <= 2 and len(whole) == len(steps):
            self.rows, self.columns = whole[0][1], whole[1][1] if len(whole) == 2 else None
            self._take([op for op, _ in steps], rounding)
        elif not steps:
            self._take([], self._rounding(total))

    def _take(self, ops: list[Op], rounding: Op | None) -> None:
        taken = [*ops, *([rounding] if rounding is not None else [])]
        if taken:
            self.covered, self.value = taken, taken[-1].result

    def _reader(self, value: Value) -> Op | None:
        """The only op that reads a value."""
        readers = self.context.body.uses()[value]
        return readers[0] if len(readers) == 1 and value not in self.context.body.outputs else None

    def _rounding(self, value: Value) -> Op | None:
        op = self._reader(value)
        is_rounding = op is not None and isinstance(op.attributes, CastAttributes) and op.attributes.dtype is bf16
        return op if is_rounding and value.type.dtype is f32 else None

    def _steps(self, value: Value) -> list[tuple[Op, Matrix]]:
        """Multiplications by scales, one after another."""
        found: list[tuple[Op, Matrix]] = []
        while (op := self._reader(value)) is not None and op.name == "mul" and value.type.dtype is f32:
            other = op.operands[1] if op.operands[0] is value else op.operands[0]
            scale = self._scale(other, op.result.type.rank) if other is not value else None
            if scale is None:
                break
            found.append((op, scale))
            value = op.result
        return found

    def _scale(self, value: Value, rank: int) -> Matrix | None:
        """A scale in memory, as a matrix that broadcasts against the result."""
        view = strided_view(value, self.context.producers, self.context.strides)
        if view is None or view.base not in self.context.body.inputs or value.type.dtype is not f32 or rank != 2:
            return None
        if not value.type.is_static or value.type.rank > 2:
            return None
        sizes = (*(1 for _ in range(2 - value.type.rank)), *value.type.static_shape)
        (offset,) = fixed([view.offset])
        strides = (*(1 for _ in range(2 - value.type.rank)), *fixed(view.strides))
        if 1 not in sizes or any(n != 1 and s != 1 for n, s in zip(sizes, strides, strict=True)):
            return None
        if view.base not in self.operands:
            self.operands.append(view.base)
        return Matrix(self.operands.index(view.base), sizes, tuple(1 for _ in sizes), offset)


def _seconds(context: LoweringContext, dot: Op, found: Found, target: GpuTarget) -> float:
    """Within which the library multiplies, and a map of ours does the rest."""
    rates, size = target.rates, found.value.type.most_bytes
    flops = 2.0 * dot.result.type.size * contraction(dot).k
    moved = rates.moved(sum(v.type.most_bytes for v in dot.operands), size)
    share = eight_bit_share(dot.operands[0].type.dtype is i8, dot.expect(DotAttributes).fast)
    seconds = _AROUND + max(flops / (2 * share * EIGHT_BITS * rates.tensor), moved)
    if list(context.body.outputs) == [found.value]:
        return seconds
    beside = bytes_read(context.body) - sum(v.type.most_bytes for v in dot.operands)
    written = sum(v.type.most_bytes for v in context.body.outputs)
    return seconds + rates.follow + rates.moved(max(beside, 0) + size, written)
