"""A kernel that does not compile in its best schedule is compiled in the next one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest

from fusec.build import Options, run_passes
from fusec.errors import CodegenError
from fusec.ir.parse import parse
from fusec.modules import NoKernels
from fusec.report import explain_program
from fusec.retrying import compile_with_others
from fusec.runtime.executable import Module
from fusec.runtime.program import Lowered, Program

TEXT = """graph @g(%x: bf16[512, 256], %w: bf16[384, 256], %b: bf16[384]) {
  %h = linear(%x, %w, %b) : bf16[512, 384]
  %y = gelu(%h) {approximate=tanh} : bf16[512, 384]
  return %y
}"""


def lower(text: str = TEXT, target: str = "cuda:sm_90") -> partial[Lowered]:
    return partial(run_passes, parse(text), target, Options(), "torch")


def tiles(program: Program) -> tuple[tuple[str, int | str], ...]:
    (report,) = program.reports
    return report.schedule


class Compiler:
    """Refuses the first so many programs for one kernel's sake."""

    def __init__(self, refuses: int, name: str = "gemm_y") -> None:
        self.refuses, self.name = refuses, name
        self.seen: list[Program] = []

    def __call__(self, program: Program) -> Module:
        self.seen.append(program)
        if len(self.seen) <= self.refuses:
            raise CodegenError(f"{self.name} needs 250880 bytes of shared memory", kernel=self.name)
        return NoKernels()


@pytest.mark.parametrize("refuses", [1, 2])
def test_the_next_schedule(refuses: int) -> None:
    compiler = Compiler(refuses)
    lowered, _ = compile_with_others(lower(), compiler)
    found = [tiles(program) for program in compiler.seen]
    assert len(set(found)) == refuses + 1
    assert tiles(lowered.program) == found[-1]
    told = " ".join(explain_program(lowered.program).split())
    assert told.count("needs 250880 bytes of shared memory") == refuses


def test_no_way_left_takes_the_group_apart() -> None:
    only = lower()({})
    count = len({tiles(lower()({"gemm_y": n}).program) for n in range(3)})
    assert count == 3
    left = lower()({"gemm_y": 10_000}).program
    assert "no way to compute gemm_y compiles" in " ".join(explain_program(left).split())
    assert only.program.kernels


@pytest.mark.parametrize("compiler", [Compiler(1, ""), Compiler(1, "another"), Compiler(99)])
def test_what_no_schedule_mends_is_an_error(compiler: Compiler) -> None:
    with pytest.raises(CodegenError, match="shared memory"):
        compile_with_others(lower(), compiler)


def test_a_cpu_has_no_other() -> None:
    name = lower(TEXT.replace("bf16", "f32"), "cpu")({}).program.reports[0].kernel

    def refused(given: Mapping[str, int]) -> Lowered:
        assert not given
        return lower(TEXT.replace("bf16", "f32"), "cpu")(given)

    with pytest.raises(CodegenError):
        compile_with_others(refused, Compiler(1, name))
