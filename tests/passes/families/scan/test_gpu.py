"""Parts of few long rows on a GPU: one kernel whose blocks wait for those before them, or two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.families.scan.schedule.gpu import GpuScanSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.launch import Launch
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.runtime.program import Launch as Started
from fusec.runtime.program import Program
from fusec.target.gpu import gpu_target
from fusec.tile.interpret import run
from fusec.tile.nodes import Reduce, Store, statements
from fusec.tile.verify import verify

TARGET = "cuda:sm_90"


@dataclass
class With(GpuSelector):
    """Every group by one schedule, a part of a row with so many positions."""

    chunk: int = 64
    length: int = 1

    def lower(self, context: LoweringContext) -> LoweredGroup:
        parts = -(-self.length // self.chunk)
        return lower_with(context, GpuScanSchedule(1, self.chunk, Launch(1, 1), False, parts, True))


def program_of(text: str, selector: GpuSelector | None = None) -> Program:
    return lower(parse(text), TARGET, check=True, selector=selector).program


def relays(program: Program) -> bool:
    *_, last = program.kernels
    found = list(statements(last.body))
    posts = any(isinstance(s, Store) and s.posts for s in found)
    assert posts == any(isinstance(s, Reduce) and s.awaits for s in found)
    return posts


def scan(op: str, shape: tuple[int, ...], axis: int, dtype: str = "f32", reverse: str = "false") -> str:
    t = f"{dtype}{list(shape)}"
    return f"""graph @g(%x: {t}) {{
        %s = {op}(%x) {{axis={axis}, reverse={reverse}}} : {t}
        return %s
    }}"""


@pytest.mark.parametrize(
    ("text", "relayed"),
    [
        (scan("cumsum", (1, 1 << 24), 1), True),
        (scan("cumprod", (1 << 22,), 0, "bf16", "true"), True),
        (scan("cummax", (3, 1 << 20), 1, "i32"), True),
        (scan("cumsum", (4096, 8192), 1), False),  # rows enough
        (scan("cumsum", (1, 1 << 22), 1, "i64"), False),  # a number and its mark are no word of 64 bits
        (scan("cumsum", (1, 1 << 22), 1, "f64"), False),
        (scan("logcumsumexp", (1, 1 << 22), 1), False),
        (scan("cumsum", (1 << 22, 2), 0), False),  # across memory
        (scan("cumsum", (1, 1 << 30), 1), False),  # each part would read what too many before it gave
    ],
)
def test_which_rows_are_relayed(text: str, relayed: bool) -> None:
    assert relays(program_of(text)) == relayed


def ran(program: Program, x: Any) -> Any:
    """The program's result by the interpreter of tile IR, in which scratch holds what an earlier call left."""
    (given,), (result,) = program.inputs, program.outputs
    kernels = {k.name: k for k in program.kernels}
    arrays = {given: x}
    for step in program.steps:
        assert isinstance(step, Started)
        kernel = kernels[step.kernel]
        verify(kernel)
        for slot, buffer in zip(step.arguments, kernel.parameters, strict=True):
            shape = tuple(int(str(n)) for n in buffer.shape)
            arrays.setdefault(slot, np.full(shape, 7, buffer.dtype.numpy))
        run(kernel, [arrays[slot] for slot in step.arguments])
    return arrays[result]


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize(("length", "chunk"), [(1000, 64), (1024, 64), (961, 64), (1000, 4), (1021, 4), (514, 2)])
@pytest.mark.parametrize(("op", "dtype"), [("cumsum", "f32"), ("cumprod", "f32"), ("cummax", "f32"), ("cummin", "i32")])
def test_parts_that_wait(op: str, dtype: str, length: int, chunk: int, reverse: str) -> None:
    """For each, or where there are many for what squads of them give."""
    text = scan(op, (2, length), 1, dtype, reverse)
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (2, length)).astype(np.int32)
    if dtype == "f32":
        x = (1 + rng.standard_normal((2, length)) / 50).astype(np.float32)
        x[0, 5], x[1, length // 2] = (0.5, np.nan) if op == "cummax" else (0.5, np.inf)
    program = program_of(text, With(gpu_target(TARGET), chunk=chunk, length=length))
    assert relays(program)
    (wanted,) = interpret(parse(text), [x], float64=True)
    np.testing.assert_allclose(ran(program, x), wanted, rtol=1e-5)
