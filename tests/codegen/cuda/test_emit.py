"""What generated CUDA C++ looks like: names, vectors, registers, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "triton"))
from cuda_cases import POINTWISE, PRODUCTS, chain, softmax
from triton_cases import linear

from fusec.codegen.cuda.emit import emit_kernel
from fusec.codegen.cuda.source import KernelSource
from fusec.errors import LoweringError
from fusec.ir.parse import parse
from fusec.passes.families.gemm.schedule.tiled import TiledGemmSchedule
from fusec.passes.lower.context import LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.base import GpuSchedule
from fusec.passes.select_gpu import GpuSelector
from fusec.target.gpu import gpu_target
from fusec.tile.kernel import Kernel
from fusec.tile.templates import SimtGemm
from fusec.tile.verify import verify

CARD = gpu_target("cuda:sm_90")


def in_cuda(text: str) -> tuple[Kernel, ...]:
    return lower(
        parse(text), "cuda:sm_90", selector=GpuSelector(CARD, cuda=True, triton=False, calls=False)
    ).program.kernels


def emitted(text: str) -> KernelSource:
    (kernel,) = in_cuda(text)
    return emit_kernel(kernel, CARD)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_plain_arithmetic_keep_the_contract(name: str) -> None:
    kernels = in_cuda(PRODUCTS[name])
    assert any(isinstance(kernel.template, SimtGemm) for kernel in kernels)
    for kernel in kernels:
        verify(kernel)


def test_a_map_moves_sixteen_bytes_at_a_time() -> None:
    for dtype, vector in (("f32", 4), ("bf16", 8), ("f64", 2)):
        source = emitted(chain(dtype, "4096"))
        assert f"constexpr int VECTOR = {vector};" in source.text
        assert "load<VECTOR>(x + (" in source.text
        assert source.aligned
        assert source.unaligned is not None
        assert "VECTOR" not in source.unaligned.text


def test_neighbours_along_the_memory_lie_on_lanes() -> None:
    source = emitted(POINTWISE["sum_columns"])
    assert "threads along rows" in source.text
    assert "reduce_strided" in source.text


def test_a_row_is_read_once() -> None:
    text = emitted(softmax("f32", 9, 4096)).text
    assert text.count("load<VECTOR>(x") == 1
    assert text.count("exp(") == 1


def test_loads_come_before_the_first_reduction() -> None:
    text = emitted(POINTWISE["norm_bf16"]).text
    first = text.index("reduce_lanes")
    assert text.index("load<VECTOR>(x") < first
    assert text.index("load<VECTOR>(r") < first


def test_names_are_the_users() -> None:
    text = emitted(
        "graph @f(%double: f32[64], %x_y: f32[64]) {\n  %out = add(%double, %x_y) : f32[64]\n  return %out\n}"
    ).text
    assert "const float* __restrict__ double_1, const float* __restrict__ x_y, float* __restrict__ out" in text


def test_a_product_has_its_sizes_by_name() -> None:
    text = emitted(PRODUCTS["product_f32_transposed"]).text
    for name in ("kTileM = ", "kThreadN = ", "kM = 100, kN = 132, kK = 72", "kRightAlongK = true", "kLeftStride = 72"):
        assert name in text
    assert "load<kCount>(b + column)" in text


class InPlainArithmetic(GpuSelector):
    def candidates(self, context: LoweringContext) -> list[GpuSchedule]:
        return [s for s in super().candidates(context) if isinstance(s, TiledGemmSchedule)]


def test_computed_operands_are_members() -> None:
    selector = InPlainArithmetic(CARD, cuda=True, triton=False)
    (kernel,) = lower(parse(linear(130, 200, 100, "bf16")), "cuda:sm_90", selector=selector).program.kernels
    text = emit_kernel(kernel, CARD).text
    assert "kLeftComputed = true, kRightComputed = true" in text
    assert "return float(x[k + row * 200]);" in text


def test_a_product_without_places_for_its_sums_is_refused() -> None:
    with pytest.raises(LoweringError, match="a matmul in a kernel of maps"):
        emit_kernel(lower(parse(PRODUCTS["product_f32"]), "cuda:sm_90").program.kernels[0], CARD)
