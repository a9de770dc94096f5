"""Which GPU family lowers a group, and with which schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from fusec.errors import LoweringError
from fusec.ir.attributes import ReduceAttributes
from fusec.ir.graph import FusedAttributes
from fusec.ir.index import Index, product, symbols_of
from fusec.ir.indexing import evaluate, most
from fusec.ir.nodes import Op, Value
from fusec.ir.types import fixed
from fusec.passes.contraction import Contraction, allows_tf32, contraction
from fusec.passes.families.attention.gpu import attention_size, lower_attention
from fusec.passes.families.attention.hopper import lower_hopper_attention
from fusec.passes.families.attention.library import attention_alternatives
from fusec.passes.families.attention.mma import lower_mma_attention
from fusec.passes.families.attention.schedule.gpu import AttentionSize, GpuAttentionSchedule, attention_candidates
from fusec.passes.families.attention.schedule.hopper import HopperAttentionSchedule, hopper_attention_candidates
from fusec.passes.families.attention.schedule.mma import MmaAttentionSchedule, mma_attention_candidates
from fusec.passes.families.gemm.apart import operands_first
from fusec.passes.families.gemm.gemv import ROW_OF_A_WARP, lower_gemv, reads_across
from fusec.passes.families.gemm.gpu import lower_gemm
from fusec.passes.families.gemm.hopper import columns_adjoin, lower_hopper_gemm
from fusec.passes.families.gemm.library import library_alternatives
from fusec.passes.families.gemm.mma import lower_mma_gemm
from fusec.passes.families.gemm.product import epilogue_inputs, making_of
from fusec.passes.families.gemm.schedule.gpu import GpuGemmSchedule, GpuGemvSchedule, Problem, gemm_candidates, predict
from fusec.passes.families.gemm.schedule.hopper import HopperGemmSchedule, HopperProblem, hopper_candidates
from fusec.passes.families.gemm.schedule.mma import MmaGemmSchedule, has_faster, mma_candidates
from fusec.passes.families.gemm.schedule.tiled import TiledGemmSchedule, tiled_gemm_candidates
from fusec.passes.families.gemm.tiled import lower_tiled_gemm
from fusec.passes.families.map.cpu import map_domain
from fusec.passes.families.map.gpu import lower_map, turned_axes
from fusec.passes.families.map.schedule.gpu import GpuMapSchedule, map_schedule, turned_schedule
from fusec.passes.families.row.cpu import reduced_is_innermost
from fusec.passes.families.row.gpu import lower_row
from fusec.passes.families.row.schedule.gpu import GpuRowSchedule, cluster_candidates, row_candidates
from fusec.passes.families.row.wide import lower_wide_row
from fusec.passes.lower.frame import Frame, LoweredGroup, sizes_of
from fusec.passes.lower.pieces import Alternative, Pieces
from fusec.passes.schedule.launch import Launch
from fusec.passes.select import fused_ops
from fusec.runtime.program import Choice, KernelReport
from fusec.target.gpu import GpuTarget

LAUNCH_SECONDS = 3e-6
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


@dataclass(frozen=True)
class InCuda:
    """A map's or a row's schedule for a kernel that is written in CUDA C++."""

    schedule: GpuRowSchedule | GpuMapSchedule

    @property
    def launch(self) -> Launch:
        return self.schedule.launch

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return self.schedule.describe()


_InCudaAlone = (
    HopperGemmSchedule | HopperAttentionSchedule | TiledGemmSchedule | MmaGemmSchedule | MmaAttentionSchedule | InCuda
)
GpuSchedule = GpuGemmSchedule | GpuGemvSchedule | GpuAttentionSchedule | GpuRowSchedule | GpuMapSchedule
AnySchedule = GpuSchedule | _InCudaAlone


@dataclass
class GpuSelector:
    """Chooses schedules for one GPU. ``cuda``: kernels may be written in CUDA C++, too; ``triton``: in Triton.

    usual: extents of symbols for which products and attention are scheduled; where it says nothing, the largest.
    """

    target: GpuTarget
    cuda: bool = False
    triton: bool = True
    usual: Mapping[str, int] = field(default_factory=dict)
    measured: list[Choice] = field(default_factory=list, kw_only=True)

    def alternatives(self, frame: Frame) -> list[Alternative]:
        """Every way to compute a group: its schedules, the best predicted first, and from the second place on the
        library's products. LoweringError when no family fits."""
        assert isinstance(frame.op.attributes, FusedAttributes)
        own = self._own(frame)
        if sizes_of(frame.body):
            return own  # the library's products are planned for one shape
        library = attention_alternatives if frame.op.attributes.kind == "attention" else library_alternatives
        return [*own[:1], *library(frame), *own[1:]]

    def _own(self, frame: Frame) -> list[Alternative]:
        """The alternatives of kernels of ours alone, the best predicted first."""
        assert isinstance(frame.op.attributes, FusedAttributes)
        apart = operands_first(frame) if frame.op.attributes.kind == "gemm" else []
        try:
            found = self.candidates(frame)
        except LoweringError:
            if apart:
                return apart
            raise
        schedules = {alternative_text(s): s for s in found}
        own = [Alternative(text, partial(lower_with, schedule=s)) for text, s in schedules.items()]
        one_by_one = bool(apart) and isinstance(found[0], TiledGemmSchedule | MmaGemmSchedule)
        plain = one_by_one and _is_half(frame.anchors("dot")[0])
        first = 0 if plain else 1  # matrix units multiply what is computed element by element on its way far faster
        return [*own[:first], *apart, *own[first:]]

    def candidates(self, frame: Frame) -> list[AnySchedule]:
        """Schedules for a group, best predicted first. LoweringError when no family fits."""
        assert isinstance(frame.op.attributes, FusedAttributes)
        unknown = next((v for v in _values(frame) if v.type.dtype.kind == "complex"), None)
        if unknown is not None:
            raise LoweringError(f"{unknown} is {unknown.type.dtype}: no GPU kernel computes complex numbers")
        match frame.op.attributes.kind:
            case "gemm":
                op = frame.anchors("dot")[0]
                axes, dtype = contraction(op), op.operands[0].type.dtype
                products = len(frame.anchors("dot"))
                if any(o.definition.kind == "reduce" for o in frame.body.ops):
                    return self._of_one_row(frame, axes, products)
                tiled = self._tiled(frame, axes, products)
                if not self.triton or not dtype.is_float or dtype.bits == 64:
                    mma = self._mma(frame, axes, products)
                    only: list[AnySchedule] = [*self._hopper(frame, axes, products), *mma, *tiled]
                    return self._only(only, f"matrix product of {dtype}")
                read = epilogue_inputs(frame)
                walks = len(frame.body.outputs) == 1 and all(v.type.most < op.result.type.most for v in read)
                exact = dtype.bits == 32 and not allows_tf32(op)
                n = axes.extents
                extents = (self._usual(n.batches), self._usual(n.m), self._usual(n.n), self._usual(n.k))
                across = reads_across(frame)
                left, right = (making_of(frame, side) for side in (0, 1))
                problem = Problem(*extents, dtype.bits, products, walks, exact, across, left, right)
                found = gemm_candidates(problem, self.target)
                if not (isinstance(n.m, int) and isinstance(n.n, int)):
                    found = [s for s in found if not isinstance(s, GpuGemvSchedule)]
                if not found:
                    raise LoweringError(f"{products} products side by side do not fit a block")
                hopper = self._hopper(frame, axes, products)
                seconds = predict(problem, found[0], self.target)
                few = min(axes.m, axes.n) <= FEW
                near = NEAR_SPLIT if hopper and hopper[0].pipeline.split == 2 else inf if few else NEAR
                ahead = not hopper or seconds < near * hopper[0].seconds
                here: list[AnySchedule] = [*found[:ahead], *hopper, *found[ahead:]]
                mma = self._mma(frame, axes, products)
                slower = 1.0 if few else BY_WARPS
                seconds = 0.0 if has_faster(self.target) else seconds * slower
                here = [*here, *mma] if hopper else _with_mma(here, mma, seconds)
                apart = isinstance(found[0], GpuGemvSchedule) or found[0].split > 2  # where tiles would be too few
                return [*tiled, *here] if exact and not apart else [*here, *tiled]
            case "attention":
                size = attention_size(frame.fresh(), self._usual)
                piped = self._hopper_attention(frame, size)
                others = attention_candidates(size, self.target)
                by_warps = self._mma_attention(frame, size)
                later = self.triton and has_faster(self.target)
                rest: list[AnySchedule] = [*others[:2], *by_warps, *others[2:]] if later else [*by_warps, *others]
                usable: list[AnySchedule] = [*others, *piped, *by_warps] if size.bounded else [*piped, *rest]
                if not usable:
                    raise LoweringError(f"heads of {size.depth} and {size.values} elements do not fit a block")
                return usable
            case "row":
                return self._rows(frame)
            case "map":
                return self._pointwise(frame, [_map_schedule(frame, self.target)])
            case kind:
                raise LoweringError(f"no family for {kind} groups")

    def _rows(self, frame: Frame) -> list[AnySchedule]:
        """Rows that a cluster of blocks holds are read once, where one block would read them again."""
        found = self._pointwise(frame, _row_candidates(frame, self.target))
        length, across = _row_length(frame)
        if not self._may_be_cuda(frame) or across:
            return found
        elements = max(v.type.size for o in frame.body.ops if o.definition.kind == "reduce" for v in o.operands)
        bits = sum(v.type.dtype.bits for v in frame.body.inputs if v.type.size >= elements)
        held: list[AnySchedule] = [InCuda(s) for s in cluster_candidates(length, bits, self.target)]
        again = any(v.type.size >= elements for v in frame.body.outputs)
        return [*held, *found] if again else [*found[:1], *held, *found[1:]]

    def _of_one_row(self, frame: Frame, axes: Contraction, products: int) -> list[AnySchedule]:
        """Schedules for a matrix times one vector, which each block reduces before it multiplies (a norm's)."""
        dtype = axes.op.operands[0].type.dtype
        if not self.triton or not dtype.is_float or dtype.bits == 64:
            raise LoweringError("no kernel here reduces a product's operand")
        exact = dtype.bits == 32 and not allows_tf32(axes.op)
        left, right = (making_of(frame, side) for side in (0, 1))
        extents = (axes.batches, axes.m, axes.n, axes.k)
        problem = Problem(*extents, dtype.bits, products, False, exact, reads_across(frame), left, right, True)
        found = gemm_candidates(problem, self.target)
        fitting = [s for s in found if isinstance(s, GpuGemvSchedule) and axes.k <= ROW_OF_A_WARP * s.launch.warps]
        if not fitting:
            raise LoweringError(f"no block reduces a row of {axes.k} elements and multiplies it")
        return [*fitting]

    def _pointwise(self, frame: Frame, found: Sequence[GpuRowSchedule | GpuMapSchedule]) -> list[AnySchedule]:
        """Schedules in both languages; Triton's first, but for doubles, which it does not divide."""
        in_cuda: list[AnySchedule] = [InCuda(schedule) for schedule in found] if self._may_be_cuda(frame) else []
        in_triton: list[AnySchedule] = [*found] if self.triton else []
        doubles = any(v.type.dtype.is_float and v.type.dtype.bits == 64 for v in _values(frame))
        first, second = (in_cuda, in_triton) if doubles else (in_triton, in_cuda)
        return self._only([*first, *second], "kernel of maps and reductions")

    def _usual(self, extent: Index) -> int:
        if isinstance(extent, int) or any(s.name not in self.usual for s in symbols_of(extent)):
            return most(extent)
        return evaluate(extent, self.usual)

    def _may_be_cuda(self, frame: Frame) -> bool:
        """Kernels in CUDA C++ name their sizes, and are not for symbolic ones."""
        return self.cuda and not sizes_of(frame.body)

    def _only(self, found: list[AnySchedule], what: str) -> list[AnySchedule]:
        if not found:
            raise LoweringError(f"no {what} on {self.target.name} in the languages that are here")
        return found

    def _tiled(self, frame: Frame, axes: Contraction, products: int) -> list[AnySchedule]:
        """Schedules in plain arithmetic, for what tensor cores don't multiply exactly."""
        op = frame.anchors("dot")[0]
        dtype = op.operands[0].type.dtype
        half = dtype.is_float and dtype.bits < 32
        if (
            not self._may_be_cuda(frame)
            or products > 1
            or (self.triton and (half or (dtype.bits == 32 and allows_tf32(op))))
        ):
            return []
        bits = max(dtype.bits, 32)
        return list(tiled_gemm_candidates(axes.batches, axes.m, axes.n, axes.k, bits, self.target))

    def _hopper(self, frame: Frame, axes: Contraction, products: int) -> list[HopperGemmSchedule]:
        """Schedules for the tensor cores' own pipeline, where bulk copies can fetch the operands."""
        if not self._may_be_cuda(frame):
            return []
        result = frame.anchors("dot")[0].result.type.size
        reads = sum(v.type.size >= result for v in epilogue_inputs(frame))
        bits = frame.anchors("dot")[0].operands[0].type.dtype.bits
        parks = all(v.type.dtype.is_float and v.type.dtype.bits == 16 for v in frame.body.outputs)
        extents = (axes.batches, axes.m, axes.n, axes.k)
        turned = columns_adjoin(frame.fresh())
        found = hopper_candidates(HopperProblem(*extents, products, reads, bits, parks, turned), self.target)
        return found if _can_be_lowered(frame, found) else []

    def _mma(self, frame: Frame, axes: Contraction, products: int) -> list[MmaGemmSchedule]:
        """Schedules for warps' tensor core instructions, which take operands as they lie."""
        if not self._may_be_cuda(frame):
            return []
        bits = frame.anchors("dot")[0].operands[0].type.dtype.bits
        found = mma_candidates(axes.batches, axes.m, axes.n, axes.k, self.target, products, bits)
        return found if _can_be_lowered(frame, found) else []

    def _mma_attention(self, frame: Frame, size: AttentionSize) -> list[MmaAttentionSchedule]:
        """As ``_mma``, for attention."""
        found = mma_attention_candidates(size, self.target) if self._may_be_cuda(frame) else []
        return found if _can_be_lowered(frame, found) else []

    def _hopper_attention(self, frame: Frame, size: AttentionSize) -> list[HopperAttentionSchedule]:
        """As ``_hopper``, for attention."""
        found = hopper_attention_candidates(size, self.target) if self._may_be_cuda(frame) else []
        return found if _can_be_lowered(frame, found) else []

    def lower(self, frame: Frame) -> LoweredGroup | Pieces:
        """The group by the best predicted schedule."""
        return self._own(frame)[0].lower(frame)

    def report(self, lowered: LoweredGroup, op: Op) -> KernelReport:
        """What explain says of the kernel."""
        assert isinstance(op.attributes, FusedAttributes)
        kernel = lowered.kernel
        half = any(v.type.dtype.is_float and v.type.dtype.bits == 16 for v in op.attributes.body.inputs)
        has_dot = any(o.name == "dot" for o in op.attributes.body.ops)
        rate = self.target.half_flops if half and has_dot else self.target.single_flops
        compute, memory = kernel.flops / rate, kernel.bytes / self.target.bandwidth
        limit = max(compute, memory, LAUNCH_SECONDS)
        bound = "launch" if limit == LAUNCH_SECONDS else "compute" if compute >= memory else "memory"
        language: tuple[tuple[str, int | str], ...] = (("language", "cuda"),) if kernel.language == "cuda" else ()
        return KernelReport(
            kernel.name,
            kernel.kind,
            fused_ops(op),
            (*lowered.describe(), *language),
            kernel.flops,
            kernel.bytes,
            limit / 0.85,
            limit,
            bound,
        )


def _with_mma(others: list[AnySchedule], mma: list[MmaGemmSchedule], seconds: float) -> list[AnySchedule]:
    """Both, first those that are predicted to be faster; ``seconds`` are of the best others."""
    if mma and mma[0].seconds < seconds:
        return [*mma[:2], *others[:2], *mma[2:], *others[2:]]
    return [*others[:2], *mma[:2], *others[2:], *mma[2:]]


def _can_be_lowered(frame: Frame, found: Sequence[AnySchedule]) -> bool:
    """Whether the group fits a family, told by its first schedule: what is refused does not depend on sizes."""
    try:
        for schedule in found[:1]:
            lower_with(frame.fresh(), schedule)
    except LoweringError:
        return False
    return True


def _is_half(dot: Op) -> bool:
    dtype = dot.operands[0].type.dtype
    return dtype.is_float and dtype.bits == 16


def alternative_text(schedule: AnySchedule) -> str:
    """The language of the kernel, and the schedule's sizes."""
    language = "cuda" if isinstance(schedule, _InCudaAlone) else "triton"
    return " ".join((language, *(f"{name}={size}" for name, size in schedule.describe())))


def _values(frame: Frame) -> Iterator[Value]:
    yield from frame.body.inputs
    for op in frame.body.ops:
        yield from op.results


def _map_schedule(frame: Frame, target: GpuTarget) -> GpuMapSchedule:
    axes = turned_axes(frame)
    if axes is None:
        size = max(v.type.most for v in frame.body.outputs)
        bits = max(v.type.dtype.bits for v in (*frame.body.inputs, *frame.body.outputs) if 4 * v.type.most >= size)
        return map_schedule(size, bits, target)
    shape = fixed(map_domain(frame))
    return turned_schedule(shape[axes[0]], shape[axes[1]], max(v.type.dtype.bits for v in frame.body.outputs))


def _row_length(frame: Frame) -> tuple[int, bool]:
    """Elements of a row, and whether neighbours in memory are of neighbouring rows."""
    op = next(o for o in frame.body.ops if o.definition.kind == "reduce")
    assert isinstance(op.attributes, ReduceAttributes)
    shape, axes = op.operands[0].type.shape, op.attributes.axes
    kept = tuple(a for a in range(len(shape)) if a not in axes)
    return most(product(shape[a] for a in axes)), not reduced_is_innermost(frame, op, shape, kept)


def _row_candidates(frame: Frame, target: GpuTarget) -> list[GpuRowSchedule]:
    anchors = [o for o in frame.body.ops if o.definition.kind == "reduce"]
    op = anchors[0]
    length, across = _row_length(frame)
    rows = most(op.operands[0].type.count) // max(length, 1)
    largest = max(frame.body.inputs, key=lambda v: v.type.most, default=op.operands[0])
    bits = max(8, largest.type.dtype.bits)
    again = any(v.type.most > rows for v in frame.body.outputs)
    return row_candidates(rows, length, target, bits=bits, across=across, steps=len(anchors), again=again)


def lower_with(frame: Frame, schedule: AnySchedule) -> LoweredGroup:
    """The group's kernel with a given schedule."""
    lowered = _lower_with(frame, schedule)
    launch = schedule.launch
    kernel = replace(lowered.kernel, warps=launch.warps, stages=launch.stages, registers=launch.registers)
    kernel = replace(kernel, language="cuda" if isinstance(schedule, _InCudaAlone) else "triton")
    if isinstance(schedule, InCuda) and isinstance(schedule.schedule, GpuRowSchedule):
        kernel = replace(kernel, cluster=schedule.schedule.cluster)
    if isinstance(schedule, HopperGemmSchedule | HopperAttentionSchedule):
        kernel = replace(kernel, pipeline=schedule.pipeline)
    followers = tuple(replace(f, kernel=replace(f.kernel, language="triton")) for f in lowered.followers)
    return replace(lowered, kernel=kernel, followers=followers)


def _lower_with(frame: Frame, schedule: AnySchedule) -> LoweredGroup:
    match schedule:
        case HopperGemmSchedule():
            return lower_hopper_gemm(frame, schedule)
        case TiledGemmSchedule():
            return lower_tiled_gemm(frame, schedule)
        case MmaGemmSchedule():
            return lower_mma_gemm(frame, schedule)
        case MmaAttentionSchedule():
            return lower_mma_attention(frame, schedule)
        case InCuda():
            return _lower_with(frame, schedule.schedule)
        case HopperAttentionSchedule():
            return lower_hopper_attention(frame, schedule)
        case GpuGemmSchedule():
            return lower_gemm(frame, schedule)
        case GpuGemvSchedule():
            return lower_gemv(frame, schedule)
        case GpuAttentionSchedule():
            return lower_attention(frame, schedule)
        case GpuRowSchedule():
            return lower_row(frame, schedule) if schedule.whole else lower_wide_row(frame, schedule)
        case GpuMapSchedule():
            return lower_map(frame, schedule)
