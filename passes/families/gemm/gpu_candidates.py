# SPDX-License-Identifier: Apache-2.0
"""Schedules of a group of matmuls on a GPU, in all languages, best predicted first; and which lowering takes each."""

from __future__ import annotations

from dataclasses import replace

from fusec.errors import LoweringError
from fusec.ir.attributes import DotAttributes
from fusec.ir.nodes import Value
from fusec.ir.types import contiguous_strides, f16, f32
from fusec.passes.contraction import Contraction, allows_tf32
from fusec.passes.convolution import convolution_of
from fusec.passes.families.family import GpuMachine, accepted, foreign
from fusec.passes.families.gemm.gemv import ROW_OF_A_WARP, lower_gemv, reads_across
from fusec.passes.families.gemm.gpu import lower_gemm
from fusec.passes.families.gemm.grouped_windows import lower_grouped_windows, window_schedules
from fusec.passes.families.gemm.hopper import check_hopper_gemm, columns_adjoin, lower_hopper_gemm, scaled_elements
from fusec.passes.families.gemm.matmul import Matmuls, axes_of, copy_width, epilogue_inputs, making_of
from fusec.passes.families.gemm.mma import check_mma_gemm, lower_mma_gemm
from fusec.passes.families.gemm.schedule.gpu import Computed, GpuGemmSchedule, GpuGemvSchedule, Problem, gemm_candidates
from fusec.passes.families.gemm.schedule.hopper import HopperGemmSchedule, HopperProblem, hopper_candidates
from fusec.passes.families.gemm.schedule.mma import MmaGemmSchedule, mma_candidates
from fusec.passes.families.gemm.schedule.skinny import SkinnyGemmSchedule
from fusec.passes.families.gemm.schedule.tiled import TiledGemmSchedule, tiled_gemm_candidates
from fusec.passes.families.gemm.schedule.windows import WindowSchedule
from fusec.passes.families.gemm.skinny import lower_skinny_gemm, skinny_gemms
from fusec.passes.families.gemm.tiled import lower_tiled_gemm
from fusec.passes.families.gemm.windows import fetched_depth
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.schedule.base import GpuSchedule, by_seconds


def gpu_candidates(context: LoweringContext, machine: GpuMachine) -> list[GpuSchedule]:
    """Schedules for a group, best predicted first. LoweringError where there is none.

    Windows that TMA does not fetch are left to the library, where it is at hand, but those of groups of channels.

    On GPUs with faster instructions those of a warp are never the first (decision 15).
    """
    op = context.anchors("dot")[0]
    axes, dtype = axes_of(context), op.operands[0].type.dtype
    dots = len(context.anchors("dot"))
    if any(o.definition.kind == "reduce" for o in context.body.ops):
        return _of_one_row(context, machine, axes, dots)
    windows = convolution_of(op, context.producers)
    if machine.calls and windows is not None and windows.groups == 1:
        return machine.some([*_hopper(context, machine, axes, dots)], "convolution")
    direct = window_schedules(context, machine)
    if direct and windows is not None and windows.depth == 1:
        return [*direct]
    tiled = _tiled(context, machine, axes, dots)
    hopper = _hopper(context, machine, axes, dots)
    if hopper and op.expect(DotAttributes).scaled:
        return sorted((*hopper, *tiled), key=by_seconds)
    in_cuda: list[GpuSchedule] = [*direct, *hopper, *_mma(context, machine, axes, dots)]
    in_cuda += skinny_gemms(context, machine)
    if not machine.triton or not dtype.is_float or dtype.bits == 64:
        return machine.some(sorted((*in_cuda, *tiled), key=by_seconds), f"matmul of {dtype}")
    problem = _problem(context, machine, axes, dots)
    found = gemm_candidates(problem, machine.target)
    if not (isinstance(axes.extents.m, int) and isinstance(axes.extents.n, int)):
        found = [s for s in found if not isinstance(s, GpuGemvSchedule)]
    if not found:
        raise LoweringError(f"{dots} matmuls side by side do not fit a block")
    here: list[GpuSchedule] = sorted((*in_cuda, *found), key=by_seconds)
    if machine.target.has_faster_matmuls and isinstance(here[0], MmaGemmSchedule):
        first = next(s for s in here if not isinstance(s, MmaGemmSchedule))
        here.insert(0, here.pop(here.index(first)))
    apart = isinstance(found[0], GpuGemvSchedule) or found[0].split > 2  # where tiles would be too few
    return [*tiled, *here] if problem.exact and not apart else [*here, *tiled]


def _problem(context: LoweringContext, machine: GpuMachine, axes: Contraction, dots: int) -> Problem:
    """What Triton's schedules are chosen by."""
    n, dtype = axes.extents, axes.op.operands[0].type.dtype
    read = epilogue_inputs(context)
    persistent = len(context.body.outputs) == 1 and all(v.type.most < axes.op.result.type.most for v in read)
    exact = dtype.bits == 32 and not allows_tf32(axes.op)
    extents = (machine.extent(n.batches), machine.extent(n.m), machine.extent(n.n), machine.extent(n.k))
    left, right = (making_of(context, side) for side in (0, 1))
    across, copy = reads_across(context), copy_width(context)
    reads = sum(v.type.most >= axes.op.result.type.most for v in read)
    problem = Problem(*extents, dtype.bits, dots, persistent, exact, across, left, right, copy=copy)
    return replace(problem, reads=reads, vectors=len(read) - reads)


def _of_one_row(context: LoweringContext, machine: GpuMachine, axes: Contraction, dots: int) -> list[GpuSchedule]:
    """Schedules for a matrix times one vector, which each block reduces before it multiplies (a norm's)."""
    dtype = axes.op.operands[0].type.dtype
    if not machine.triton or not dtype.is_float or dtype.bits == 64:
        raise LoweringError("no kernel here reduces a matmul's operand")
    exact = dtype.bits == 32 and not allows_tf32(axes.op)
    left, right = (making_of(context, side) for side in (0, 1))
    extents = (axes.batches, axes.m, axes.n, axes.k)
    problem = Problem(*extents, dtype.bits, dots, False, exact, reads_across(context), left, right, True)
    found = gemm_candidates(problem, machine.target)
    fitting = [s for s in found if isinstance(s, GpuGemvSchedule) and axes.k <= ROW_OF_A_WARP * s.launch.warps]
    if not fitting:
        raise LoweringError(f"no block reduces a row of {axes.k} elements and multiplies it")
    return [*fitting]


def _tiled(context: LoweringContext, machine: GpuMachine, axes: Contraction, dots: int) -> list[TiledGemmSchedule]:
    """Schedules in SIMT arithmetic, for what tensor cores don't multiply exactly."""
    dtype = axes.op.operands[0].type.dtype
    half = dtype.is_half
    by_tensor_cores = machine.triton and (half or (dtype.bits == 32 and allows_tf32(axes.op)))
    n = axes.extents
    fits = isinstance(n.n, int) and isinstance(n.k, int)
    if not machine.writes_cuda(context, sized=fits) or dots > 1 or by_tensor_cores or dtype.kind == "float8":
        return []
    extents, bits = (machine.extent(n.batches), machine.extent(n.m), axes.n, axes.k), max(dtype.bits, 32)
    return tiled_gemm_candidates(*extents, bits, machine.target, _computed(context))


def _computed(context: LoweringContext) -> Computed:
    return tuple(making_of(context, side) for side in (0, 1))


def _hopper(context: LoweringContext, machine: GpuMachine, axes: Contraction, dots: int) -> list[HopperGemmSchedule]:
    """Schedules for the tensor cores' own pipeline, where TMA can fetch the operands."""
    if not machine.writes_cuda(context, sized=True):
        return []
    result = axes.op.result.type.most
    beside = [v for v in epilogue_inputs(context) if v.type.most >= result]
    fetched = len(context.body.outputs) == 1 and any(_lies_as_rows(context, v, axes) for v in beside)
    bits = axes.op.operands[0].type.dtype.bits
    results = sum(v.type.dtype.is_half for v in context.body.outputs)
    defers = results == len(context.body.outputs)
    n = axes.extents
    extents = (machine.extent(n.batches), machine.extent(n.m), axes.n, axes.k)
    transposed = columns_adjoin(context)
    windows = convolution_of(axes.op, context.producers)
    if windows is not None:
        extents = (*extents[:3], fetched_depth(context, windows))
    read, written = machine.moved(context)
    facts = transposed, windows is not None, read, written
    problem = HopperProblem(*extents, dots, len(beside), bits, defers, *facts, results=results, fetched=int(fetched))
    problem = replace(problem, integers=axes.op.operands[0].type.dtype.is_integer, promotes=_promotes(axes))
    if axes.op.expect(DotAttributes).scaled and scaled_elements(Matmuls(context)) is not None:
        problem = replace(problem, bits=8, promotes=1, scaled=True, transposed=False)
    found = hopper_candidates(problem, machine.target)
    return found if accepted(context, found, check_hopper_gemm) else []


_STEP = 128
"""Bytes of a row that a step along K brings."""
_DEEP, _HALVES = 4096, 16
"""K of f16 from which tensor cores' own sums lose digits of f32; steps of it after which they are promoted."""


def _promotes(axes: Contraction) -> int:
    """Steps along K after which sums are added to others in f32 (decision 44)."""
    operands = {v.type.dtype for v in axes.op.operands}
    if all(d.kind == "float8" for d in operands):
        return int(axes.k > _STEP and not axes.op.expect(DotAttributes).fast)
    return _HALVES if operands == {f16} and axes.op.result.type.dtype is f32 and axes.k > _DEEP else 0


def _lies_as_rows(context: LoweringContext, value: Value, axes: Contraction) -> bool:
    """Whether a tensor of 16 bits has the matmul's columns side by side, as TMA fetches it for an epilogue."""
    if not value.type.dtype.is_float or value.type.dtype.bits != 16:
        return False
    strides = context.strides.get(value, contiguous_strides(value.type.shape))
    return any(n == axes.n and step == 1 for n, step in zip(value.type.shape, strides, strict=True))


def _mma(context: LoweringContext, machine: GpuMachine, axes: Contraction, dots: int) -> list[MmaGemmSchedule]:
    """Schedules for warps' tensor core instructions, which take operands as they lie."""
    if not machine.writes_cuda(context):
        return []
    bits = axes.op.operands[0].type.dtype.bits
    work = dots, bits, _computed(context), copy_width(context)
    found = mma_candidates(axes.batches, axes.m, axes.n, axes.k, machine.target, *work)
    return found if accepted(context, found, check_mma_gemm) else []


def lower_on_gpu(context: LoweringContext, schedule: GpuSchedule) -> LoweredGroup:
    """The group's kernel with a given schedule."""
    match schedule:
        case HopperGemmSchedule():
            return lower_hopper_gemm(context, schedule)
        case TiledGemmSchedule():
            return lower_tiled_gemm(context, schedule)
        case MmaGemmSchedule():
            return lower_mma_gemm(context, schedule)
        case SkinnyGemmSchedule():
            return lower_skinny_gemm(context, schedule)
        case WindowSchedule():
            return lower_grouped_windows(context, schedule)
        case GpuGemmSchedule():
            return lower_gemm(context, schedule)
        case GpuGemvSchedule():
            return lower_gemv(context, schedule)
        case _:
            raise foreign("gemm", schedule)
