"""Kernels that either language of GPUs can write: those of maps and rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusec.ir.nodes import Value
from fusec.passes.families.family import GpuMachine
from fusec.passes.lower.frame import Frame
from fusec.passes.schedule.base import GpuSchedule
from fusec.passes.schedule.launch import Launch
from fusec.tile.nodes import Language


@dataclass(frozen=True)
class InCuda:
    """The same kernel written in CUDA C++."""

    schedule: GpuSchedule

    @property
    def launch(self) -> Launch:
        return self.schedule.launch

    @property
    def language(self) -> Language:
        return "cuda"

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return self.schedule.describe()


def in_both(frame: Frame, machine: GpuMachine, found: Sequence[GpuSchedule]) -> list[GpuSchedule]:
    """Schedules in both languages; Triton's first, but for doubles, which it does not divide."""
    in_cuda: list[GpuSchedule] = [InCuda(schedule) for schedule in found] if machine.writes_cuda(frame) else []
    in_triton: list[GpuSchedule] = [*found] if machine.triton else []
    doubles = any(v.type.dtype.is_float and v.type.dtype.bits == 64 for v in values_of(frame))
    first, second = (in_cuda, in_triton) if doubles else (in_triton, in_cuda)
    return machine.some([*first, *second], "kernel of maps and reductions")


def values_of(frame: Frame) -> Iterator[Value]:
    """What a group reads and makes."""
    yield from frame.body.inputs
    for op in frame.body.ops:
        yield from op.results
