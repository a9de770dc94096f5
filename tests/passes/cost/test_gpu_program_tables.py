"""Predicted times on an H200 beside the measured ones of the tables, without a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from golden.cases import of_gpus, shapes_of_gpus, without_lines

import fusec
from benchmarks.workloads import gpu as work
from fusec.passes.lower.context import LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.base import GpuSchedule
from fusec.passes.select_gpu import GpuSelector
from fusec.report import predicted_seconds
from fusec.target.gpu import gpu_target

H200 = gpu_target("cuda:h200")
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
WITHIN = 1.3

OUTSIDE: dict[str, str] = {}
"""Rows whose prediction is farther away, by table and work, and why."""


@dataclass
class MmaSync(GpuSelector):
    """Takes schedules for warps' instructions alone."""

    def candidates(self, context: LoweringContext) -> list[GpuSchedule]:
        return [s for s in super().candidates(context) if "Mma" in type(s).__name__]


BOTH = GpuSelector(H200, cuda=True)
IN_CUDA = GpuSelector(H200, cuda=True, triton=False)
MMA_SYNC = MmaSync(H200, cuda=True, calls=False)


@dataclass(frozen=True)
class Row:
    """A line of a table: what it measured in seconds, the graph's text, and who chooses its kernels."""

    name: str
    measured: float
    text: Callable[[], str]
    selector: GpuSelector


def figures(table: str) -> dict[str, tuple[str, float]]:
    """The unit and fusec's figure of each work."""
    text = (RESULTS / table).read_text().splitlines()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text if "|" in line]
    heads = next(cells for cells in lines if "fusec" in cells)
    unit, fusec_s = heads.index("unit"), heads.index("fusec")
    rows = [cells for cells in lines if len(cells) == len(heads) and cells is not heads and "---" not in cells[0]]
    return {cells[0]: (cells[unit], float(cells[fusec_s])) for cells in rows}


def seconds(unit: str, figure: float, amount: float) -> float:
    """``amount``: operations or bytes."""
    return {"TFLOP/s": amount / figure / 1e12, "GB/s": amount / figure / 1e9, "µs a call": figure / 1e6}[unit]


def of_gpu_table() -> Iterator[Row]:
    measured, amounts = figures("gpu.md"), {w.name: w.amount for w, _ in shapes_of_gpus()}
    for case in of_gpus():
        name = case.name.removeprefix("gpu: ")
        if name in measured:
            yield Row(f"gpu: {name}", seconds(*measured[name], amounts[name]), case.text, BOTH)


def of_cuda_table() -> Iterator[Row]:
    measured = figures("cuda.md")
    for name, (function, shapes, amount, selector) in cuda_works().items():
        if name not in measured:
            continue
        unit, figure = measured[name]

        def text(function: Any = function, shapes: Any = shapes) -> str:
            args = [torch.empty(*shape, dtype=dtype) for shape, dtype in shapes]
            with torch.no_grad():
                return without_lines(str(fusec.trace(function, *args)))

        yield Row(f"cuda: {name}", seconds(unit, figure, amount), text, selector)


def cuda_works() -> dict[str, tuple[Any, list[tuple[tuple[int, ...], torch.dtype]], float, GpuSelector]]:
    """Function, shapes of the arguments, operations or bytes, and who chooses."""
    half, single = torch.bfloat16, torch.float32
    found: dict[str, Any] = {}
    for b, h, n, d in ((4, 16, 4096, 128), (1, 16, 16384, 128), (4, 32, 4096, 64), (1, 32, 16384, 64)):
        for kind, function, part in (("full", work.attention, 1.0), ("causal", work.causal_attention, 0.5)):
            heads = [((b, h, n, d), half)] * 3
            amount = 4.0 * b * h * n * n * d * part
            found[f"attention D{d} {kind} B{b} H{h} N{n}"] = function, heads, amount, BOTH
            by_mma_sync = f"attention by mma.sync, heads of {d}, {kind}"
            if n == 4096 and (d, kind) != (64, "full"):
                found[by_mma_sync] = function, heads, amount, MMA_SYNC
    for name, n, function in (
        ("4096³", 4096, torch.matmul),
        ("4096³, x @ w.T", 4096, lambda x, w: x @ w.T),
        ("2048³", 2048, torch.matmul),
    ):
        found[f"float32 matmul {name}"] = function, [((n, n), single)] * 2, 2.0 * n**3, IN_CUDA
    linear: Any = torch.nn.functional.linear
    for name, k in (("4096³", 4096), ("4096×4096×4097", 4097)):
        operands = [((4096, k), half)] * 2
        found[f"bf16 matmul by mma.sync, {name}"] = linear, operands, 2.0 * 4096 * 4096 * k, MMA_SYNC
    shape = ((16384, 8192), half)
    row = ((8192,), half)
    size = 16384.0 * 8192
    found["softmax bf16 16384×8192"] = work.softmax, [shape], 4 * size, IN_CUDA
    found["layernorm+gelu"] = work.layernorm_gelu, [shape, row, row], 4 * size, IN_CUDA
    found["add+rmsnorm"] = work.add_rmsnorm, [shape, shape, row], 8 * size, IN_CUDA
    found["silu(x)·y"] = work.silu_mul, [shape, shape], 6 * size, IN_CUDA
    return found


ROWS = {row.name: row for row in (*of_gpu_table(), *of_cuda_table())}


@pytest.mark.parametrize("name", ROWS)
def test_predictions_are_near_what_was_measured(name: str) -> None:
    row = ROWS[name]
    program = lower(fusec.parse(row.text()), "cuda:h200", selector=row.selector).program
    ratio = predicted_seconds(program) / row.measured
    near = abs(math.log(ratio)) <= math.log(WITHIN)
    assert near == (name not in OUTSIDE), f"{name}: {ratio:.2f} of the measured {row.measured * 1e6:.1f} µs"


def test_what_is_listed_is_measured() -> None:
    assert set(OUTSIDE) <= set(ROWS)
    assert len(ROWS) > 40
