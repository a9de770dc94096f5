"""Products on a GPU in the tile IR's interpreter: every way to cut one up gives the same results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from programs import Run, check

from fusec.ir.parse import parse
from fusec.passes.families.gemm.schedule.gpu import GpuGemmSchedule, GpuGemvSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.launch import Launch
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target
from fusec.tile.kernel import Kernel
from fusec.tile.print import print_kernel
from fusec.tile.templates import HopperGemm

TARGET = gpu_target("cuda:sm_90")
PLAIN = GpuGemmSchedule(16, 32, 16, 2, 1, 0, Launch(4, 2))


@dataclass
class With(GpuSelector):
    """Lowers every product with one schedule."""

    schedule: GpuGemmSchedule | GpuGemvSchedule = PLAIN

    def lower(self, context: LoweringContext) -> LoweredGroup:
        if context.op.attributes.kind == "gemm":  # type: ignore[attr-defined]
            return lower_with(context, self.schedule)
        return super().lower(context)


def run(text: str, schedule: GpuGemmSchedule | GpuGemvSchedule, **options: Any) -> Run:
    return check(text, target=TARGET.name, selector=With(TARGET, schedule=schedule), **{"slack": 4, **options})


def gemm(m: int = 16, n: int = 32, k: int = 16, **more: Any) -> GpuGemmSchedule:
    return GpuGemmSchedule(m, n, k, 2, more.pop("split", 1), more.pop("persistent", 0), Launch(4, 2), **more)


def linear(m: int, k: int, n: int, kind: str = "f32") -> str:
    return f"""graph @linear(%x: {kind}[{m}, {k}], %w: {kind}[{n}, {k}], %b: {kind}[{n}], %r: {kind}[{m}, {n}]) {{
  %h = linear(%x, %w, %b) : {kind}[{m}, {n}]
  %g = silu(%h) : {kind}[{m}, {n}]
  %y = add(%g, %r) : {kind}[{m}, {n}]
  return %y
}}"""


SWIGLU = """graph @g(%x: bf16[19, 70], %w: bf16[40, 70], %v: bf16[40, 70]) {
  %a = linear(%x, %w) : bf16[19, 40]
  %b = linear(%x, %v) : bf16[19, 40]
  %c = silu(%a) : bf16[19, 40]
  %d = mul(%c, %b) : bf16[19, 40]
  return %d
}"""


def batched(rows: int, columns: int) -> str:
    """A product of which the kernel gives two results."""
    return f"""graph @b(%x: f32[3, {rows}, 50], %w: f32[3, 50, {columns}], %s: f32[3, 1, {columns}]) {{
      %h = matmul(%x, %w) : f32[3, {rows}, {columns}]
      %y = mul(%h, %s) : f32[3, {rows}, {columns}]
      return %y, %h
    }}"""


def experts(rows: int, columns: int) -> str:
    """Columns of two axes, which are not one in memory."""
    weights = f"bf16[3, 50, {columns}]"
    return f"""graph @e(%x: bf16[{rows}, 50], %w: {weights}, %v: {weights}, %p: bf16[{rows}, 3]) {{
      %a = einsum(%x, %w) {{equation="td,edf->tef"}} : bf16[{rows}, 3, {columns}]
      %b = einsum(%x, %v) {{equation="td,edf->tef"}} : bf16[{rows}, 3, {columns}]
      %c = silu(%a) : bf16[{rows}, 3, {columns}]
      %d = mul(%c, %b) : bf16[{rows}, 3, {columns}]
      %q = reshape(%p) : bf16[{rows}, 3, 1]
      %h = mul(%d, %q) : bf16[{rows}, 3, {columns}]
      return %h
    }}"""


def both_outer(rows: int, columns: int) -> str:
    """Rows and columns of two axes each, which are not one in memory."""
    return f"""graph @o(%x: f32[2, 3, 20, {rows}], %w: f32[2, 4, 20, {columns}], %s: f32[4, {columns}]) {{
      %y = dot(%x, %w) {{contract=[2]x[2], batch=[0]x[0]}} : f32[2, 3, {rows}, 4, {columns}]
      %z = mul(%y, %s) : f32[2, 3, {rows}, 4, {columns}]
      return %z
    }}"""


STRIDED = """graph @s(%x: f32[19, 50] strides=[120, 2], %w: f32[50, 45] strides=[1, 61]) {
  %y = matmul(%x, %w) : f32[19, 45]
  return %y
}"""

EVERY = [
    gemm(),
    gemm(transposed=True),
    gemm(split=3),
    gemm(split=2, transposed=True),
    gemm(slices=2),
    gemm(n=64, slices=4, persistent=1),
    gemm(persistent=1),
    GpuGemvSchedule(2, 16, 1, 1, Launch(4, 1)),
    GpuGemvSchedule(4, 16, 2, 3, Launch(4, 1)),
]


PROGRAMS = {
    "linear": (linear(19, 50, 45), linear(19, 50, 45)),
    "whole tiles": (linear(32, 64, 64), linear(8, 32, 16)),
    "swiglu": (SWIGLU, SWIGLU),
    "batched": (batched(19, 45), batched(5, 21)),
    "strided": (STRIDED, STRIDED),
    "experts": (experts(19, 100), experts(3, 11)),
    "both outer": (both_outer(100, 110), both_outer(9, 11)),
}
"""Each for a matmul, and for a matvec, of which the interpreter takes each line by itself."""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("schedule", EVERY, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_same_results_however_it_is_cut(program: str, schedule: GpuGemmSchedule | GpuGemvSchedule) -> None:
    matmul, matvec = PROGRAMS[program]
    text = matvec if isinstance(schedule, GpuGemvSchedule) else matmul
    made = run(text, schedule)
    assert made.kernels == (["gemm", "gemm"] if schedule.split > 1 else ["gemm"])


@pytest.mark.parametrize(("m", "n", "k"), [(1, 77, 100), (3, 40, 33), (77, 1, 100), (1, 1, 200), (2, 2, 1)])
@pytest.mark.parametrize("split", [1, 4])
def test_a_matrix_times_a_few_vectors(m: int, n: int, k: int, split: int) -> None:
    run(linear(m, k, n), GpuGemvSchedule(4, 16, 1, split, Launch(4, 1)))
    run(linear(m, k, n, "f16"), GpuGemvSchedule(1, 32, 2, split, Launch(4, 1)))


def test_parts_longer_than_k_add_nothing() -> None:
    run(linear(19, 17, 45), gemm(split=8))
    run(linear(1, 17, 45), GpuGemvSchedule(4, 16, 2, 8, Launch(4, 1)))


def test_parts_are_workspace_of_each_call() -> None:
    made = run(linear(19, 50, 45), gemm(split=2))
    (slot,) = (s for s in made.lowered.program.slots if s.name.startswith("partials"))
    assert slot.kind == "workspace"
    assert slot.type.static_shape == (1, 2, 1, 19, 45)


@pytest.mark.parametrize("kind", ["f32", "i32"])
def test_a_depth_that_is_no_multiple_of_the_tile(kind: str) -> None:
    text = f"""graph @g(%x: {kind}[19, 37], %w: {kind}[37, 21]) {{
      %y = dot(%x, %w) {{contract=[1]x[0]}} : {kind}[19, 21]
      return %y
    }}"""
    made = check(text, target=TARGET.name, selector=GpuSelector(TARGET, cuda=True, triton=False), slack=4)
    assert made.kernels == ["gemm"]


def test_another_dot_s_epilogue_stays_with_it() -> None:
    """Of two branches that are added, the one that is stored goes to memory in half precision, not as sums in f32."""
    text = """graph @g(%x: bf16[256, 64], %y: bf16[256, 64], %v: bf16[128, 64], %w: bf16[128, 64], %s: f32[128]) {
  %p = dot(%x, %v) {contract=[1]x[1], dtype=f32} : f32[256, 128]
  %a = cast(%p) {implied=true} : bf16[256, 128]
  %q = dot(%y, %w) {contract=[1]x[1], dtype=f32} : f32[256, 128]
  %b = cast(%q) {implied=true} : bf16[256, 128]
  %c = cast(%b) : f32[256, 128]
  %d = mul(%c, %s) : f32[256, 128]
  %e = cast(%d) : bf16[256, 128]
  %f = add(%a, %e) : bf16[256, 128]
  %h = relu(%f) : bf16[256, 128]
  return %h
}"""
    run = check(text, target="cuda:sm_90")
    assert run.kernels == ["gemm", "gemm"]
    stored = [s.type for s in run.lowered.program.slots if s.kind == "workspace"]
    assert [str(t.dtype) for t in stored] == ["bf16"], stored


def kernel_of(text: str) -> Kernel:
    """The first kernel of a graph where both languages are at hand."""
    return lower(parse(text), TARGET.name, selector=GpuSelector(TARGET, cuda=True)).program.kernels[0]


def test_free_axes_that_are_not_one_in_memory_are_tiled_apart() -> None:
    """Experts' weights ``[e, d, f]`` come by TMA, expert after expert; few columns each would leave tiles empty."""
    text = experts(4096, 100).replace("50", "2048")
    for columns, batches in ((1024, 3), (24, 1)):
        kernel = kernel_of(text.replace("100", str(columns)))
        assert f"b:{batches}" in print_kernel(kernel)
        assert (kernel.language == "cuda") is (batches > 1)


def test_two_contracted_axes_are_one_k() -> None:
    """Not a convolution with one window, whose places are fetched one by one: 8 times the work for 8 channels."""
    kernel = kernel_of("""graph @g(%h: bf16[4096, 8, 512], %w: bf16[8, 512, 2048]) {
  %y = einsum(%h, %w) {equation="tef,efd->td"} : bf16[4096, 2048]
  return %y
}""")
    assert isinstance(kernel.template, HopperGemm)
    assert kernel.template.nest.depth.whole.extent == 8 * 512
    assert kernel.template.nest.left.windows is None
