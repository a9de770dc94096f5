"""The graphs of the golden set: the benchmarks' workloads, kernels of tests, and random graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from random_graphs import random_graph  # found in tests/, where helpers of tests are
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

import fusec
from benchmarks.harness import QUICK
from benchmarks.machine import Machine
from benchmarks.report import Row
from benchmarks.session import Case, Session
from benchmarks.workloads import (
    attention,
    bert,
    elementwise,
    gpt2,
    gpu,
    linear,
    low_precision,
    memory,
    minilm,
    rowwise,
    scores,
    windows,
)

from .functions import functions

CPUS = ("cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:sapphirerapids")
GPUS = ("cuda:sm_80", "cuda:sm_90", "hip:gfx942")
TARGETS = (*CPUS, *GPUS)
"""AVX2, AVX-512 and AMX; Ampere, Hopper and AMD's CDNA 3."""

RANDOM_GRAPHS = 40

_WORKLOADS = (linear, attention, scores, low_precision, memory, elementwise, rowwise, windows, minilm, bert, gpt2)
_NOWHERE = Machine("", "", "", 0, 0, "", 0, "", "", {}, 0.0, "", 0.0)


@dataclass(frozen=True)
class Golden:
    """One graph, as text without the user's lines, and the targets that it is compiled for."""

    name: str
    text: Callable[[], str]
    targets: tuple[str, ...] = TARGETS


def cases() -> Iterator[Golden]:
    """All of them. Their names differ."""
    yield from of_functions()
    yield from random_graphs()
    yield from of_gpus()
    yield from _of_cpus()


def _traced(function: Any, args: tuple[Any, ...], target: str | None = None) -> str:
    """The graph as it is captured for a target's kind of device; the device itself is left out."""
    with torch.no_grad():
        return without_lines(str(fusec.trace(function, *args, target=target))).replace("@cuda:0", "")


def without_lines(text: str) -> str:
    """IR text without the comments that name lines of source, which move."""
    return re.sub(r"[ \t]*// [^\n]*:\d+$", "", text, flags=re.MULTILINE)


def of_functions() -> Iterator[Golden]:
    for name, (function, args) in functions().items():
        yield Golden(f"function: {name}", lambda function=function, args=args: _traced(function, args))


def random_graphs() -> Iterator[Golden]:
    for seed in range(RANDOM_GRAPHS):
        yield Golden(f"random graph {seed}", lambda seed=seed: without_lines(str(random_graph(seed)[0])))


def of_gpus() -> Iterator[Golden]:
    """What the GPU's table measures; the tensors are never made."""
    for work, fakes in shapes_of_gpus():

        def text(f: Any = work.function, fakes: tuple[Any, ...] = fakes) -> str:
            return _traced(f, _on_cpu(fakes), GPUS[0])

        yield Golden(f"gpu: {work.name}", text, GPUS)


def shapes_of_gpus() -> list[tuple[gpu.Work, tuple[Any, ...]]]:
    """The rows of the GPU's table, each with arguments that have shapes alone."""
    with FakeTensorMode(), _OnCpu():
        return [(work, work.arguments()) for work in gpu.works()]


class _OnCpu(TorchFunctionMode):
    """Makes on the CPU what the code makes on a GPU, which need not be here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        moved = {"device": "cpu"} if (kwargs or {}).get("device") == "cuda" else {}
        return func(*args, **{**(kwargs or {}), **moved})


def _on_cpu(fakes: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) if isinstance(x, torch.Tensor) else x for x in fakes
    )


@dataclass
class _Gathering(Session):
    """Keeps the cases of a workload in place of measuring them."""

    gathered: list[Case] = field(default_factory=list)

    def time(self, case: Case) -> Row:
        self.gathered.append(case)
        return Row(case.work, "", {}, [])


def _of_cpus() -> Iterator[Golden]:
    """What the CPU's tables measure."""
    for workload in _WORKLOADS:
        session = _Gathering(_NOWHERE, QUICK, True, lambda line: None)
        for _ in workload.rows(session):  # a row may be of no case
            for case in session.gathered:
                yield Golden(f"cpu: {case.work}", lambda case=case: _traced(case.function, case.args), CPUS)
            session.gathered.clear()
        if session.failures:
            raise RuntimeError("\n".join(session.failures))
