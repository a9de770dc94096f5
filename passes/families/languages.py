# SPDX-License-Identifier: Apache-2.0
"""Kernels that either language of GPUs can write: those of maps and rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fusec.ir.graph import Graph
from fusec.ir.nodes import Value
from fusec.passes.cost.lanes import bytes_read, group_work
from fusec.passes.families.family import GpuMachine
from fusec.passes.lower.context import LoweringContext
from fusec.passes.schedule.base import GpuSchedule, by_seconds
from fusec.passes.schedule.launch import Launch
from fusec.passes.schedule.stream import Stream
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class InCuda:
    """The same kernel written in CUDA C++."""

    language: ClassVar[Language] = "cuda"
    schedule: GpuSchedule

    @property
    def launch(self) -> Launch:
        return self.schedule.launch

    @property
    def seconds(self) -> float:
        return self.schedule.seconds

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return self.schedule.describe()


def in_both(
    context: LoweringContext, machine: GpuMachine, triton: Sequence[GpuSchedule], cuda: Sequence[GpuSchedule]
) -> list[GpuSchedule]:
    """Schedules in both languages, best predicted first. For doubles, which Triton does not divide, those in CUDA C++
    come first."""
    in_cuda: list[GpuSchedule] = [InCuda(schedule) for schedule in cuda] if machine.writes_cuda(context) else []
    in_triton: list[GpuSchedule] = [*triton] if machine.triton else []
    found = sorted((*in_triton, *in_cuda), key=by_seconds)
    if any(v.type.dtype.is_float and v.type.dtype.bits == 64 for v in values_of(context)):
        found.sort(key=lambda s: not isinstance(s, InCuda))
    return machine.some(found, "kernel of maps and reductions")


def stream_of(body: Graph) -> Stream:
    """What a group of elementwise code and reductions moves and does."""
    work, written = group_work(body), float(sum(v.type.most_bytes for v in body.outputs))
    return Stream(bytes_read(body), written, work.instructions, work.specials)


def values_of(context: LoweringContext) -> Iterator[Value]:
    """What a group reads and makes."""
    yield from context.body.inputs
    for op in context.body.ops:
        yield from op.results
