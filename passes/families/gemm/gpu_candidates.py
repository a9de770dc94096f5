"""Schedules of a group of products on a GPU, in all languages, best predicted first; and which lowering takes each."""

from __future__ import annotations

from math import inf

from fusec.errors import LoweringError
from fusec.passes.contraction import Contraction, allows_tf32, contraction
from fusec.passes.families.family import GpuMachine, can_be_lowered, foreign
from fusec.passes.families.gemm.gemv import ROW_OF_A_WARP, lower_gemv, reads_across
from fusec.passes.families.gemm.gpu import lower_gemm
from fusec.passes.families.gemm.hopper import columns_adjoin, lower_hopper_gemm
from fusec.passes.families.gemm.mma import lower_mma_gemm
from fusec.passes.families.gemm.product import epilogue_inputs, making_of
from fusec.passes.families.gemm.schedule.gpu import (
    GpuGemmSchedule,
    GpuGemvSchedule,
    Problem,
    gemm_candidates,
    predict,
)
from fusec.passes.families.gemm.schedule.hopper import HopperGemmSchedule, HopperProblem, hopper_candidates
from fusec.passes.families.gemm.schedule.mma import MmaGemmSchedule, has_faster, mma_candidates
from fusec.passes.families.gemm.schedule.tiled import TiledGemmSchedule, tiled_gemm_candidates
from fusec.passes.families.gemm.tiled import lower_tiled_gemm
from fusec.passes.lower.frame import Frame, LoweredGroup
from fusec.passes.schedule.base import GpuSchedule

FEW = 128
"""Rows or columns that don't fill a tile of Hopper's own pipeline."""
NEAR = 0.94
"""A product of Triton's that is predicted to take less than this of Hopper's own pipeline is taken before it: the
pipeline keeps more of its speed where the card is at its limit of power."""
NEAR_SPLIT = 0.9
"""The same of few tiles whose K two blocks share: measured 2 % faster where 8 % slower was predicted."""

BY_WARPS = 1.25
"""Triton's predictions were fitted to Hopper's instructions; with those of warps alone large products take longer.
Compiled for sm_80 and run on an H200, 4096³ in bf16: 394 TFLOP/s at best, where ``mma_gemm.cuh`` has 503."""


def gpu_candidates(frame: Frame, machine: GpuMachine) -> list[GpuSchedule]:
    """Schedules for a group, best predicted first. LoweringError where there is none."""
    op = frame.anchors("dot")[0]
    axes, dtype = contraction(op), op.operands[0].type.dtype
    products = len(frame.anchors("dot"))
    if any(o.definition.kind == "reduce" for o in frame.body.ops):
        return _of_one_row(frame, machine, axes, products)
    tiled = _tiled(frame, machine, axes, products)
    hopper = _hopper(frame, machine, axes, products)
    mma = _mma(frame, machine, axes, products)
    if not machine.triton or not dtype.is_float or dtype.bits == 64:
        return machine.some([*hopper, *mma, *tiled], f"matrix product of {dtype}")
    problem = _problem(frame, machine, axes, products)
    found = gemm_candidates(problem, machine.target)
    if not (isinstance(axes.extents.m, int) and isinstance(axes.extents.n, int)):
        found = [s for s in found if not isinstance(s, GpuGemvSchedule)]
    if not found:
        raise LoweringError(f"{products} products side by side do not fit a block")
    seconds = predict(problem, found[0], machine.target)
    few = min(axes.m, axes.n) <= FEW
    near = NEAR_SPLIT if hopper and hopper[0].pipeline.split == 2 else inf if few else NEAR
    ahead = not hopper or seconds < near * hopper[0].seconds
    here: list[GpuSchedule] = [*found[:ahead], *hopper, *found[ahead:]]
    slower = 1.0 if few else BY_WARPS
    seconds = 0.0 if has_faster(machine.target) else seconds * slower
    here = [*here, *mma] if hopper else _with_mma(here, mma, seconds)
    apart = isinstance(found[0], GpuGemvSchedule) or found[0].split > 2  # where tiles would be too few
    return [*tiled, *here] if problem.exact and not apart else [*here, *tiled]


def _problem(frame: Frame, machine: GpuMachine, axes: Contraction, products: int) -> Problem:
    """What Triton's schedules are chosen by."""
    n, dtype = axes.extents, axes.op.operands[0].type.dtype
    read = epilogue_inputs(frame)
    walks = len(frame.body.outputs) == 1 and all(v.type.most < axes.op.result.type.most for v in read)
    exact = dtype.bits == 32 and not allows_tf32(axes.op)
    extents = (machine.extent(n.batches), machine.extent(n.m), machine.extent(n.n), machine.extent(n.k))
    left, right = (making_of(frame, side) for side in (0, 1))
    return Problem(*extents, dtype.bits, products, walks, exact, reads_across(frame), left, right)


def _with_mma(others: list[GpuSchedule], mma: list[MmaGemmSchedule], seconds: float) -> list[GpuSchedule]:
    """Both, first those that are predicted to be faster; ``seconds`` are of the best others."""
    if mma and mma[0].seconds < seconds:
        return [*mma[:2], *others[:2], *mma[2:], *others[2:]]
    return [*others[:2], *mma[:2], *others[2:], *mma[2:]]


def _of_one_row(frame: Frame, machine: GpuMachine, axes: Contraction, products: int) -> list[GpuSchedule]:
    """Schedules for a matrix times one vector, which each block reduces before it multiplies (a norm's)."""
    dtype = axes.op.operands[0].type.dtype
    if not machine.triton or not dtype.is_float or dtype.bits == 64:
        raise LoweringError("no kernel here reduces a product's operand")
    exact = dtype.bits == 32 and not allows_tf32(axes.op)
    left, right = (making_of(frame, side) for side in (0, 1))
    extents = (axes.batches, axes.m, axes.n, axes.k)
    problem = Problem(*extents, dtype.bits, products, False, exact, reads_across(frame), left, right, True)
    found = gemm_candidates(problem, machine.target)
    fitting = [s for s in found if isinstance(s, GpuGemvSchedule) and axes.k <= ROW_OF_A_WARP * s.launch.warps]
    if not fitting:
        raise LoweringError(f"no block reduces a row of {axes.k} elements and multiplies it")
    return [*fitting]


def _tiled(frame: Frame, machine: GpuMachine, axes: Contraction, products: int) -> list[TiledGemmSchedule]:
    """Schedules in plain arithmetic, for what tensor cores don't multiply exactly."""
    dtype = axes.op.operands[0].type.dtype
    half = dtype.is_float and dtype.bits < 32
    by_tensor_cores = machine.triton and (half or (dtype.bits == 32 and allows_tf32(axes.op)))
    if not machine.writes_cuda(frame) or products > 1 or by_tensor_cores:
        return []
    bits = max(dtype.bits, 32)
    return tiled_gemm_candidates(axes.batches, axes.m, axes.n, axes.k, bits, machine.target)


def _hopper(frame: Frame, machine: GpuMachine, axes: Contraction, products: int) -> list[HopperGemmSchedule]:
    """Schedules for the tensor cores' own pipeline, where bulk copies can fetch the operands."""
    if not machine.writes_cuda(frame):
        return []
    result = axes.op.result.type.size
    reads = sum(v.type.size >= result for v in epilogue_inputs(frame))
    bits = axes.op.operands[0].type.dtype.bits
    parks = all(v.type.dtype.is_float and v.type.dtype.bits == 16 for v in frame.body.outputs)
    extents = (axes.batches, axes.m, axes.n, axes.k)
    turned = columns_adjoin(frame.fresh())
    found = hopper_candidates(HopperProblem(*extents, products, reads, bits, parks, turned), machine.target)
    return found if can_be_lowered(frame, found, lower_on_gpu) else []


def _mma(frame: Frame, machine: GpuMachine, axes: Contraction, products: int) -> list[MmaGemmSchedule]:
    """Schedules for warps' tensor core instructions, which take operands as they lie."""
    if not machine.writes_cuda(frame):
        return []
    bits = axes.op.operands[0].type.dtype.bits
    found = mma_candidates(axes.batches, axes.m, axes.n, axes.k, machine.target, products, bits)
    return found if can_be_lowered(frame, found, lower_on_gpu) else []


def lower_on_gpu(frame: Frame, schedule: GpuSchedule) -> LoweredGroup:
    """The group's kernel with a given schedule."""
    match schedule:
        case HopperGemmSchedule():
            return lower_hopper_gemm(frame, schedule)
        case TiledGemmSchedule():
            return lower_tiled_gemm(frame, schedule)
        case MmaGemmSchedule():
            return lower_mma_gemm(frame, schedule)
        case GpuGemmSchedule():
            return lower_gemm(frame, schedule)
        case GpuGemvSchedule():
            return lower_gemv(frame, schedule)
        case _:
            raise foreign("gemm", schedule)


def is_one_by_one(frame: Frame, best: GpuSchedule) -> bool:
    """Whether a schedule computes halves element by element on their way in: matrix units multiply far faster what is
    computed before."""
    dtype = frame.anchors("dot")[0].operands[0].type.dtype
    return isinstance(best, TiledGemmSchedule | MmaGemmSchedule) and dtype.is_float and dtype.bits == 16
