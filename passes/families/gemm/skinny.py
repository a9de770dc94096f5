# SPDX-License-Identifier: Apache-2.0
"""A matmul of few vectors whose large operand goes from memory into a warp's registers: weights of 16 bits as they are,
or of few bits, out of which it is computed there."""

from __future__ import annotations

from fusec.errors import LoweringError
from fusec.ir.index import Symbol
from fusec.ir.lane_patterns import lane_pattern
from fusec.ir.nodes import Op
from fusec.passes.convolution import convolution_of
from fusec.passes.families.family import GpuMachine, accepted
from fusec.passes.families.gemm.matmul import Matmuls, making_of
from fusec.passes.families.gemm.schedule.skinny import SkinnyGemmSchedule, SkinnyProblem, skinny_candidates
from fusec.passes.families.gemm.tiles import TiledMatmuls, TileSizes
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.tile.scalar import Apply, Load, ScalarExpr, loads, offset_of, walk
from fusec.tile.templates import SkinnyGemm, TemplateOperand, WarpShares

_OF_INTEGERS = 1.7
"""Instructions that cut a small integer out of memory and make it a float, by pairs."""
_OF_TABLE = 4.7
"""More where its value is found in a table."""
_TABLE = 1024
"""Elements of a table."""
_NEIGHBOURS = 8
"""Along K, that a lane reads at least."""


def skinny_gemms(context: LoweringContext, machine: GpuMachine) -> list[SkinnyGemmSchedule]:
    """Schedules for a matmul whose larger operand lies in memory, or is computed out of fewer bytes."""
    if not machine.writes_cuda(context):
        return []
    matmuls = Matmuls(context)
    axes, side = matmuls.axes, large_side(matmuls)
    making = making_of(context, side)
    dtype = matmuls.ops[0].operands[side].type.dtype
    if not dtype.is_half or (making is not None and making.bytes >= dtype.itemsize):
        return []
    elements = [matmuls.element(op, side) for op in matmuls.ops]
    windows = any(convolution_of(op, context.producers) is not None for op in matmuls.ops)
    if windows or not all(_runs_along(e, matmuls.k) for e in elements):
        return []
    lines, vectors = (axes.m, axes.n) if side == 0 else (axes.n, axes.m)
    read = dtype.itemsize if making is None else making.bytes
    instructions = 0.0 if making is None else max(map(_instructions, elements))
    problem = SkinnyProblem(axes.batches, vectors, lines, axes.k, len(matmuls.ops), read, instructions)
    found = skinny_candidates(problem, machine.target)
    return found if accepted(context, found, check_skinny_gemm) else []


def _runs_along(element: ScalarExpr, k: Symbol) -> bool:
    """Whether neighbours along K are neighbours in memory, or share what is read; but for small arrays that are read at
    loaded positions."""
    for load in loads(element):
        flat = offset_of(load.buffer, load.index)
        pattern = None if flat is None else lane_pattern(flat, k, _NEIGHBOURS)
        if load.gathers:
            if load.buffer.most > _TABLE:
                return False
        elif pattern is None or pattern.span == 0:
            return False
    return True


def _instructions(element: ScalarExpr) -> float:
    """Of a lane for an element: of two floats of 16 bits at once, and of small integers; others one by one."""
    total = _OF_INTEGERS
    for e in walk(element):
        if isinstance(e, Load) and e.gathers:
            total += _OF_TABLE
        if isinstance(e, Apply) and e.dtype.is_float and e.op not in ("cast", "copy"):
            total += 0.5 if e.dtype.is_half else 1.5
    return total


def large_side(matmuls: Matmuls) -> int:
    """Which operand has the lines: the left (0) or the right (1)."""
    return 0 if matmuls.axes.n < matmuls.axes.m else 1


def check_skinny_gemm(context: LoweringContext, schedule: SkinnyGemmSchedule) -> None:
    """LoweringError for matmuls that :func:`lower_skinny_gemm` refuses, of any sizes."""
    _template(*_matmuls(context.fresh(), schedule.shares), schedule.shares)


def lower_skinny_gemm(context: LoweringContext, schedule: SkinnyGemmSchedule) -> LoweredGroup:
    """The matmul's grid in plain order; the emitter walks it.

    LoweringError for operands that are not of 16 bits or read floats of 8, which nothing here takes apart, and for a
    depth that is no multiple of what a lane reads.
    """
    matmuls, side = _matmuls(context, schedule.shares)
    return matmuls.finish_template(_template(matmuls, side, schedule.shares), schedule.describe())


def _matmuls(context: LoweringContext, s: WarpShares) -> tuple[TiledMatmuls, int]:
    side = large_side(Matmuls(context.fresh()))
    m, n = (s.block_lines, s.vectors) if side == 0 else (s.vectors, s.block_lines)
    return TiledMatmuls(context, TileSizes(m, n, 4 * s.lane)), side


def _template(matmuls: TiledMatmuls, side: int, s: WarpShares) -> SkinnyGemm:
    dtype = matmuls.multiplied_type()
    if dtype.bits != 16:
        raise LoweringError(f"lines of {dtype} are not made in registers")
    if matmuls.axes.k % s.lane:
        raise LoweringError(f"a depth of {matmuls.axes.k} in pieces of {s.lane}")
    if side == 0 and len(matmuls.ops) > 1:
        raise LoweringError("several matmuls of the same lines")

    def operand(op: Op, side: int) -> TemplateOperand:
        if any(load.dtype.kind == "float8" for load in loads(matmuls.element(op, side))):
            raise LoweringError("floats of 8 bits in fragments")
        return matmuls.loaded_or_computed(op, side, dtype)

    return SkinnyGemm(matmuls.nest(operand), side, s)
