"""Operands of products that are computed on their way in, in the tile IR's interpreter."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from programs import Run, check

from fusec.ir.parse import parse
from fusec.passes.families.gemm.apart import TEXT
from fusec.passes.families.gemm.schedule.gpu import GpuGemmSchedule, GpuGemvSchedule
from fusec.passes.families.gemm.schedule.tiled import TiledGemmSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.pieces import Pieces
from fusec.passes.pipeline import lower
from fusec.passes.schedule.base import GpuSchedule
from fusec.passes.schedule.launch import Launch
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target

TARGET = gpu_target("cuda:sm_90")
LAUNCH = Launch(4, 2)
EVERY = [
    GpuGemmSchedule(16, 32, 16, 2, 1, 0, LAUNCH),
    GpuGemmSchedule(16, 32, 16, 2, 1, 0, LAUNCH, 1, True),
    GpuGemmSchedule(16, 32, 16, 2, 3, 0, LAUNCH),
    GpuGemmSchedule(16, 32, 16, 2, 1, 1, LAUNCH, 2),
    GpuGemvSchedule(2, 16, 2, 1, Launch(4, 1)),
    GpuGemvSchedule(4, 16, 1, 3, Launch(4, 1)),
]

INT8 = """graph @dequantised(%x: bf16[3, 50], %w: i8[45, 50], %s: bf16[45, 1]) {
  %a = cast(%w) : bf16[45, 50]
  %b = mul(%a, %s) : bf16[45, 50]
  %y = linear(%x, %b) : bf16[3, 45]
  return %y
}"""

GROUPED = """graph @grouped(%x: f16[3, 48], %w: i8[45, 48], %s: f16[45, 3]) {
  %a = cast(%w) : f16[45, 48]
  %g = reshape(%a) : f16[45, 3, 16]
  %t = reshape(%s) : f16[45, 3, 1]
  %b = mul(%g, %t) : f16[45, 3, 16]
  %c = reshape(%b) : f16[45, 48]
  %y = linear(%x, %c) : f16[3, 45]
  return %y
}"""

GATED = """graph @gated(%x: f32[19, 50], %g: f32[19, 50], %w: f32[50, 45]) {
  %a = silu(%x) : f32[19, 50]
  %b = mul(%a, %g) : f32[19, 50]
  %y = matmul(%b, %w) : f32[19, 45]
  return %y
}"""

NOT_ZERO_AT_ZERO = """graph @both(%x: f32[5, 37], %w: f32[37, 9]) {
  %q = mul(%x, %x) : f32[5, 37]
  %p = sub(%q, f32(100.0)) : f32[5, 37]
  %a = div(f32(100.0), %p) : f32[5, 37]
  %e = exp(%w) : f32[37, 9]
  %y = matmul(%a, %e) : f32[5, 9]
  return %y
}"""

USED_TWICE = """graph @twice(%x: f32[19, 45], %w: f32[45, 45]) {
  %a = tanh(%x) : f32[19, 45]
  %h = matmul(%a, %w) : f32[19, 45]
  %y = add(%h, %a) : f32[19, 45]
  return %y
}"""

BATCHED = """graph @batched(%x: f32[3, 19, 50], %s: f32[3, 1, 50], %w: f32[3, 50, 45]) {
  %a = mul(%x, %s) : f32[3, 19, 50]
  %y = matmul(%a, %w) : f32[3, 19, 45]
  return %y
}"""

SWIGLU = """graph @swiglu(%x: f32[3, 50], %w: i8[40, 50], %v: i8[40, 50]) {
  %n = neg(%x) : f32[3, 50]
  %p = cast(%w) : f32[40, 50]
  %q = cast(%v) : f32[40, 50]
  %a = linear(%n, %p) : f32[3, 40]
  %b = linear(%n, %q) : f32[3, 40]
  %c = silu(%a) : f32[3, 40]
  %y = mul(%c, %b) : f32[3, 40]
  return %y
}"""

GRAPHS = {
    "int8": INT8,
    "int8 by groups": GROUPED,
    "gated": GATED,
    "not zero at zero": NOT_ZERO_AT_ZERO,
    "used twice": USED_TWICE,
    "batched": BATCHED,
    "side by side": SWIGLU,
}


@dataclass
class With(GpuSelector):
    schedule: GpuGemmSchedule | GpuGemvSchedule | None = None

    def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
        return super().lower(context) if self.schedule is None else lower_with(context, self.schedule)


@dataclass
class Apart(GpuSelector):
    """Computes the operands of products first."""

    def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
        apart = [a for a in self.alternatives(context) if a.text == TEXT]
        return apart[0].lower(context) if apart else super().lower(context)


def run(text: str, selector: GpuSelector) -> Run:
    return check(text, target=TARGET.name, selector=selector, slack=4)


FEW_ROWS = ("int8", "int8 by groups", "side by side")
"""Graphs of so few rows that each can be a vector of its own."""


@pytest.mark.parametrize(
    ("name", "schedule"),
    [(n, s) for n in GRAPHS for s in EVERY if n in FEW_ROWS or isinstance(s, GpuGemmSchedule)],
)
def test_one_kernel_computes_operands(name: str, schedule: GpuGemmSchedule | GpuGemvSchedule) -> None:
    kinds = run(GRAPHS[name], With(TARGET, schedule=schedule)).kernels
    assert kinds == ["gemm"] * (2 if schedule.split > 1 else 1)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_operands_first(name: str) -> None:
    kinds = run(GRAPHS[name], Apart(TARGET)).kernels
    assert kinds[-1] == "gemm"
    assert set(kinds[:-1]) == {"map"}


@dataclass
class Plain(GpuSelector):
    """Has plain arithmetic alone for products whose operands are computed."""

    def candidates(self, context: LoweringContext) -> list[GpuSchedule]:
        found = super().candidates(context)
        return [s for s in found if isinstance(s, TiledGemmSchedule)] if any(context.anchors("dot")) else found


def test_operands_are_made_first_where_each_tile_would_make_them_again() -> None:
    """A launch is worth more than what few tiles make again."""
    half, selector = GATED.replace("f32", "f16"), Plain(TARGET, cuda=True, triton=False, calls=False)
    large = half.replace("19,", "4096,").replace("50", "1024").replace("45]", "4096]")
    assert run(GATED, selector).kernels == ["gemm"]
    assert run(half, selector).kernels == ["gemm"]
    assert [k.kind for k in lower(parse(large), TARGET.name, selector=selector).program.kernels] == ["map", "gemm"]


NORM = """graph @norm(%x: bf16[1, 50], %g: bf16[50], %w: bf16[45, 50]) {
  %a = layer_norm(%x, %g, %g) {axes=[1], eps=1e-5} : bf16[1, 50]
  %y = linear(%a, %w) : bf16[1, 45]
  return %y
}"""

SOFTMAX = """graph @weighted(%x: f32[50], %w: f32[45, 50]) {
  %p = softmax(%x) {axis=0} : f32[50]
  %y = linear(%p, %w) : f32[45]
  return %y
}"""

TRANSPOSED = """graph @transposed(%w: f32[45, 50], %x: f32[50, 1]) {
  %s = reduce_sum(%x) {axes=[0]} : f32[1]
  %a = div(%x, %s) : f32[50, 1]
  %y = matmul(%w, %a) : f32[45, 1]
  return %y
}"""


@pytest.mark.parametrize("text", [NORM, SOFTMAX, TRANSPOSED], ids=["norm", "softmax", "sum"])
@pytest.mark.parametrize("schedule", [s for s in EVERY if isinstance(s, GpuGemvSchedule)])
def test_one_row_is_reduced_before_it_is_multiplied(text: str, schedule: GpuGemvSchedule) -> None:
    kinds = run(text, With(TARGET, schedule=schedule)).kernels
    assert kinds == ["gemm"] * (2 if schedule.split > 1 else 1)


def test_one_row_is_reduced_first_where_no_block_can() -> None:
    assert run(NORM, Apart(TARGET)).kernels == ["row", "gemm"]
    plain = lower(parse(SOFTMAX), TARGET.name, selector=GpuSelector(TARGET, cuda=True, triton=False)).program
    assert [k.kind for k in plain.kernels] == ["row", "gemm"]
