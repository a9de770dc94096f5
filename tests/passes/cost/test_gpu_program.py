"""Programs on a GPU: their kernels' seconds, what follows what, and the host."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from fusec.ir.parse import parse
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.pieces import Pieces
from fusec.passes.pipeline import lower
from fusec.passes.select_gpu import GpuSelector
from fusec.report import explain_program, predicted_seconds
from fusec.runtime.program import Program
from fusec.target.gpu import gpu_target

TARGET = gpu_target("cuda:h200")
RATES = TARGET.rates

LINEAR = """graph @f(%x: bf16[{m}, 4096], %w: bf16[4096, 4096], %b: bf16[4096]) {{
  %h = linear(%x, %w, %b) : bf16[{m}, 4096]
  %y = relu(%h) : bf16[{m}, 4096]
  return %y
}}"""

CHAIN = """graph @f(%x: bf16[{m}, 256], %w: bf16[256, 256]) {{
  %a = matmul(%x, %w) : bf16[{m}, 256]
  %b = matmul(%a, %w) : bf16[{m}, 256]
  %c = matmul(%b, %w) : bf16[{m}, 256]
  return %c
}}"""


def program_of(text: str, selector: GpuSelector | None = None) -> Program:
    return lower(parse(text), TARGET.name, selector=selector or GpuSelector(TARGET, cuda=True)).program


@dataclass
class Noting(GpuSelector):
    """Notes the seconds of what it chooses."""

    seconds: float = 0.0

    def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
        self.seconds = self.candidates(context)[0].seconds
        return super().lower(context)


@pytest.mark.parametrize("m", [1, 16, 128, 8192])
def test_the_seconds_that_chose_are_those_that_are_printed(m: int) -> None:
    selector = Noting(TARGET, cuda=True)
    program = program_of(LINEAR.format(m=m), selector)
    (report,) = program.reports
    assert report.predicted == selector.seconds > RATES.launch
    assert report.limit < report.predicted
    assert predicted_seconds(program) == pytest.approx(selector.seconds)
    assert " a call\n" in explain_program(program)


def test_a_launch_behind_another_kernel_takes_less() -> None:
    program = program_of(CHAIN.format(m=65536))
    kernels = sum(report.predicted for report in program.reports)
    assert len(program.reports) == 3
    assert predicted_seconds(program) == pytest.approx(kernels - 2 * (RATES.launch - RATES.follow))


def test_the_device_waits_for_the_host() -> None:
    slow = replace(TARGET, rates=replace(RATES, call=1e-3, host_launch=1e-4))
    program = program_of(CHAIN.format(m=32), GpuSelector(slow, cuda=True))
    assert predicted_seconds(program) == pytest.approx(1e-3 + 3 * 1e-4)


@dataclass
class ByLibrary(GpuSelector):
    """Takes the library's product where there is one."""

    def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
        found = self.alternatives(context)
        return next((a for a in found if a.text.startswith("library")), found[0]).lower(context)


def test_a_library_product_takes_about_as_long_as_ours() -> None:
    ours, library = (program_of(LINEAR.format(m=8192), s(TARGET, cuda=True)) for s in (GpuSelector, ByLibrary))
    assert {r.kind for r in library.reports} == {"map"}
    assert 1.0 < predicted_seconds(library) / predicted_seconds(ours) < 1.8


def test_a_slower_memory_takes_longer() -> None:
    half = replace(TARGET, rates=replace(RATES, read=RATES.read / 2, copy=RATES.copy / 2))
    fast, slow = (program_of(LINEAR.format(m=1), GpuSelector(t)) for t in (TARGET, half))
    assert 1.5 < predicted_seconds(slow) / predicted_seconds(fast) < 2.0


@pytest.mark.parametrize("reads", [0, 2])
def test_no_kernel_is_predicted_faster_than_memory(reads: int) -> None:
    """A matmul of short rows with residuals takes the time of its results, not of its products."""
    sums = "".join(f"  %y{k + 1} = add(%y{k}, %r{k}) : bf16[200704, 256]\n" for k in range(reads))
    inputs = "".join(f", %r{k}: bf16[200704, 256]" for k in range(reads))
    text = f"""graph @g(%x: bf16[200704, 64], %w: bf16[256, 64]{inputs}) {{
  %y0 = linear(%x, %w) : bf16[200704, 256]
{sums}  return %y{reads}
}}"""
    program = lower(parse(text), "cuda:sm_90").program
    (report,) = program.reports
    moved = 2 * 200704 * (64 + 256 * (1 + reads))
    assert report.predicted > report.limit
    assert report.predicted > moved / gpu_target("cuda:sm_90").rates.read
