# SPDX-License-Identifier: Apache-2.0
"""Kernels that a compiler does not take in their best schedule: the next one is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from fusec import config, tracing
from fusec.errors import CodegenError
from fusec.runtime.executable import Module
from fusec.runtime.program import Declined, Lowered, Program
from fusec.target.gpu import is_gpu

log = config.logger("compile")
_MOST_TRIES = 12


def compile_with_others(
    lower: Callable[[Mapping[str, int]], Lowered], compile_program: Callable[[Program], Module]
) -> tuple[Lowered, Module]:
    """A lowered graph and its machine code.

    ``lower`` gets how many schedules of each kernel were refused; a kernel that does not compile is lowered by its next
    one, and the program says so. CodegenError where that does not help.
    """
    refused: dict[str, int] = {}
    notes: list[Declined] = []
    while True:
        lowered = lower(refused)
        program = lowered.program
        try:
            with tracing.span("build kernels", "compile", kernels=len(program.kernels)):
                module = compile_program(program)
        except CodegenError as error:
            report = next((r for r in program.reports if r.kernel == error.kernel), None)
            if report is None or len(notes) == _MOST_TRIES or not is_gpu(program.target):
                raise
            tiles = ", ".join(f"{name} {size}" for name, size in report.schedule)
            log.warning("%s: %s (%s)", error.kernel, error, tiles)
            notes.append(Declined(f"{error.kernel} with {tiles}", str(error).splitlines()[0], error.location))
            refused[error.kernel] = refused.get(error.kernel, 0) + 1
            continue
        if notes:
            lowered = replace(lowered, program=replace(program, declined=(*program.declined, *notes)))
        return lowered, module
