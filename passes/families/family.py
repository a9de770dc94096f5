# SPDX-License-Identifier: Apache-2.0
"""What a family of kernels is to those who choose among kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from fusec.errors import LoweringError
from fusec.ir.attributes import FusedKind
from fusec.ir.index import Index, symbols_of
from fusec.ir.indexing import evaluate, most
from fusec.ir.nodes import Value
from fusec.passes.cost.lanes import bytes_read
from fusec.passes.groups.grow import Log
from fusec.passes.groups.partition import Partition
from fusec.passes.lower.context import LoweredGroup, LoweringContext, sizes_of
from fusec.passes.lower.pieces import Alternative
from fusec.passes.schedule.base import CpuSchedule, GpuSchedule
from fusec.target.cpu import CpuTarget
from fusec.target.gpu import GpuTarget

Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class CpuMachine:
    """A CPU, and how many of its threads a kernel has."""

    target: CpuTarget
    threads: int


@dataclass(frozen=True)
class GpuMachine:
    """A GPU, and the languages in which kernels may be written here.

    usual: extents of symbols for which matmuls and attention are scheduled; where it says nothing, the largest.
    calls: PyTorch's library is at hand.
    """

    target: GpuTarget
    cuda: bool
    triton: bool
    usual: Mapping[str, int]
    calls: bool = True

    def extent(self, extent: Index) -> int:
        """The extent to schedule for."""
        if isinstance(extent, int) or any(s.name not in self.usual for s in symbols_of(extent)):
            return most(extent)
        return evaluate(extent, self.usual)

    def moved(self, context: LoweringContext) -> tuple[float, float]:
        """Bytes that a group reads and writes, everything once, at the extents to schedule for."""
        body = context.body
        read, written = bytes_read(body), sum(v.type.most_bytes for v in body.outputs)
        if not sizes_of(body):
            return read, written
        return read * self._share(body.inputs), written * self._share(body.outputs)

    def _share(self, values: Sequence[Value]) -> float:
        """The part of the values' bytes that there are at the extents to schedule for."""
        usual = sum(v.type.dtype.itemsize * prod(map(self.extent, v.type.shape)) for v in values)
        return usual / max(sum(v.type.most_bytes for v in values), 1)

    def writes_cuda(self, context: LoweringContext, *, sized: bool = False) -> bool:
        """Whether a group may be written in CUDA C++: such kernels name their sizes, and are not for symbolic ones, but
        those of templates that take them (``sized``).

        Maps and reductions alone go there where data say; numbers of 8 bits where there is a matmul, on GPUs that have
        instructions for them.
        """
        plain = all(op.name != "dot" for op in context.body.ops)
        values = (*context.body.inputs, *(v for op in context.body.ops for v in op.results))
        arch = self.target.arch
        has_float8 = isinstance(arch, int) and arch >= 89 and not plain
        if not has_float8 and any(v.type.dtype.kind == "float8" for v in values):
            return False
        fits = sized or not sizes_of(context.body)
        return self.cuda and fits and (plain or not context.moves_results)

    def some(self, found: list[GpuSchedule], what: str) -> list[GpuSchedule]:
        """What was found. LoweringError for nothing."""
        if not found:
            raise LoweringError(f"no {what} on {self.target.name} in the languages that are here")
        return found


@dataclass(frozen=True)
class CpuMember:
    """A family on CPUs.

    schedules: the types of its schedules, by the names under which measured choices are kept. candidates: schedules for
    a group, best predicted first; LoweringError where there is none. lower: a group's kernel with one of them.
    """

    schedules: Mapping[str, type[CpuSchedule]]
    candidates: Callable[[LoweringContext, CpuMachine], Sequence[CpuSchedule]]
    lower: Callable[[LoweringContext, CpuSchedule], LoweredGroup]


def _none(context: LoweringContext) -> list[Alternative]:
    return []


def _no_call(context: LoweringContext, target: GpuTarget) -> list[Alternative]:
    return []


@dataclass(frozen=True)
class GpuMember:
    """A family on GPUs: ``candidates`` and ``lower`` as on CPUs.

    pieces: ways of several kernels of ours. library: ways that call the library, for a group of fixed extents; those
    whose seconds are known are chosen where they are the fewest.
    """

    candidates: Callable[[LoweringContext, GpuMachine], list[GpuSchedule]]
    lower: Callable[[LoweringContext, GpuSchedule], LoweredGroup]
    pieces: Callable[[LoweringContext], list[Alternative]] = _none
    library: Callable[[LoweringContext, GpuTarget], list[Alternative]] = _no_call


@dataclass(frozen=True)
class Family:
    """Kernels that are grouped, scheduled and lowered alike, on each kind of device.

    match: puts the ops that the family's kernels can have into groups; those that have an owner stay where they are.
    It is told whom to tell of what it declines, and whether the target is *blocked*: one that reads a matmul's operands
    by asynchronous copies, once for each block of the result.
    """

    kind: FusedKind
    match: Callable[[Partition, Log, bool], None]
    cpu: CpuMember
    gpu: GpuMember


def foreign(kind: FusedKind, schedule: CpuSchedule | GpuSchedule) -> LoweringError:
    """A schedule that is of another family."""
    return LoweringError(f"a {kind} kernel by {schedule}")


def accepted(
    context: LoweringContext, found: Sequence[Chosen], check: Callable[[LoweringContext, Chosen], object]
) -> bool:
    """Whether a group fits a template, told by the first schedule: what is refused does not depend on sizes."""
    try:
        for schedule in found[:1]:
            check(context, schedule)
    except LoweringError:
        return False
    return True
