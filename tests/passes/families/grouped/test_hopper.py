"""Sums of outer products of groups by Hopper's pipeline: when they are, and what the kernel computes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.families.grouped.schedule.outer import HopperOuterSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target
from fusec.tile.interpret import run
from fusec.tile.kernel import Kernel
from fusec.tile.templates import HopperGemm, Pipeline
from fusec.tile.verify import verify

TARGET = "cuda:sm_90"


def outer(
    m: int, groups: int, p: int, q: int, kind: str = "bf16", ends: str = "i32", epilogue: str = "silu(%g)"
) -> str:
    t = f"{kind}[{groups}, {p}, {q}]"
    return f"""graph @outer(%x: {kind}[{m}, {p}], %y: {kind}[{m}, {q}], %ends: {ends}[{groups}]) {{
        %g = grouped_outer(%x, %y, %ends) : {t}
        %z = silu(%g) : {t}
        return %z
    }}"""


def kernel_of(text: str, *, cuda: bool = True) -> Kernel:
    selector = GpuSelector(gpu_target(TARGET), cuda=cuda, calls=False)
    (kernel,) = lower(parse(text), TARGET, check=True, selector=selector).program.kernels
    return kernel


def is_pipelined(kernel: Kernel) -> bool:
    if kernel.language == "triton":
        return False
    assert isinstance(kernel.template, HopperGemm)
    assert kernel.template.nest.rows is not None
    return True


@pytest.mark.parametrize("ends", ["i32", "i64"])
def test_large_sums(ends: str) -> None:
    assert is_pipelined(kernel_of(outer(16384, 32, 4096, 2048, ends=ends)))
    assert not is_pipelined(kernel_of(outer(16384, 32, 4096, 2048, ends=ends), cuda=False))


@pytest.mark.parametrize(
    "text",
    [
        outer(4096, 8, 1024, 1024, "f32"),  # rows along K are fetched of 16 bits alone
        outer(4096, 8, 1020, 1024),  # rows that are no multiple of 16 bytes
        outer(4096, 8, 1024, 1020),
        outer(4096, 8, 64, 64),  # too little of a tile
    ],
)
def test_what_is_left_to_triton(text: str) -> None:
    assert not is_pipelined(kernel_of(text))


class With(GpuSelector):
    """A small tile."""

    def lower(self, context: LoweringContext) -> LoweredGroup:
        return lower_with(context, HopperOuterSchedule(128, 64, 64, 3, Pipeline(1, 1, 4, False)))


@pytest.mark.parametrize("ends", [[0, 70, 70, 150], [64, 128, 128, 130], [150, 150, 150, 150], [0, 0, 0, 0]])
def test_what_the_kernel_computes(ends: list[int]) -> None:
    """Groups that are empty, whole steps, all rows, or none."""
    text = outer(150, 4, 136, 72)
    (kernel,) = lower(parse(text), TARGET, check=True, selector=With(gpu_target(TARGET))).program.kernels
    verify(kernel)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((150, n)).astype(ml_dtypes.bfloat16) for n in (136, 72))
    given: list[Any] = [x, y, np.asarray(ends, np.int32)]
    result = np.zeros((4, 136, 72), ml_dtypes.bfloat16)
    run(kernel, [*given, result])
    (wanted,) = interpret(parse(text), given, float64=True)
    np.testing.assert_allclose(result.astype(np.float64), wanted, rtol=0.02, atol=0.02)
