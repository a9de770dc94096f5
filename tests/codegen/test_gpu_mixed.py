"""A program whose kernels two code generators write."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("triton")
from fusec.build import kernel_source
from fusec.codegen.cuda.nvrtc import has_nvrtc
from fusec.codegen.gpu import compile_kernels, module_from_bytes
from fusec.ir.parse import parse
from fusec.passes.lower.context import LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.base import GpuSchedule
from fusec.passes.select_gpu import GpuSelector
from fusec.runtime.launch import TensorMap
from fusec.target.gpu import gpu_target
from fusec.tile.templates import HopperGemm, MmaAttention, MmaGemm

if not has_nvrtc():
    pytest.skip("no NVRTC", allow_module_level=True)

SM_90 = gpu_target("cuda:sm_90")
MLP = """graph @mlp(%x: bf16[8192, 1024], %w: bf16[4096, 1024], %b: bf16[4096]) {
  %h = linear(%x, %w, %b) : bf16[8192, 4096]
  %a = relu(%h) : bf16[8192, 4096]
  %y = softmax(%a) {axis=1} : bf16[8192, 4096]
  return %y
}"""


@cache
def program() -> tuple[object, ...]:
    return lower(parse(MLP), "cuda:sm_90", selector=GpuSelector(SM_90, cuda=True)).program.kernels


@cache
def compiled() -> object:
    return compile_kernels(program(), SM_90)


def test_each_kernel_in_its_language() -> None:
    matmul, row = program()
    assert isinstance(matmul.template, HopperGemm)
    assert row.template is None
    assert kernel_source(matmul, "cuda:sm_90")[0] == "cu"
    assert kernel_source(row, "cuda:sm_90")[0] == "triton.py"
    module = compiled()
    assert "gemm(Plan{" in module.source(matmul.name)
    assert "tl.store" in module.source(row.name)


def test_how_it_is_launched() -> None:
    matmul, _ = program()
    kernel = compiled().kernel(matmul.name, True)
    assert kernel.threads == 384
    assert kernel.parameters[:4] == (0, 1, 2, 3)
    maps = [p for p in kernel.parameters if isinstance(p, TensorMap)]
    assert [(m.argument, m.sizes, m.strides) for m in maps] == [
        (0, (1024, 8192), (2048,)),
        (1, (1024, 4096), (2048,)),
        (3, (4096, 8192), (8192,)),
    ]
    assert all(m.box[0] == 64 and m.swizzle == 3 and m.element == 9 for m in maps)


def test_saved_and_loaded() -> None:
    module = compiled()
    data = module.to_bytes()
    again = module_from_bytes(data)
    assert again.to_bytes() == data
    assert again.source(program()[0].name) == module.source(program()[0].name)


def test_unaligned_addresses_have_code_of_their_own() -> None:
    matmul, _ = program()
    module = compiled()
    unaligned = module.kernel(matmul.name, False)
    assert unaligned.threads == 256
    assert not any(isinstance(p, TensorMap) for p in unaligned.parameters)


ATTENTION = """graph @attend(%q: bf16[4, 16, 2048, 128], %k: bf16[4, 16, 2048, 128], %v: bf16[4, 16, 2048, 128]) {
  %y = sdpa(%q, %k, %v) {causal=true} : bf16[4, 16, 2048, 128]
  return %y
}"""


@pytest.mark.parametrize(("text", "header"), [(MLP, "mma_gemm.cuh"), (ATTENTION, "mma_attention.cuh")])
def test_cards_before_hopper_have_kernels_of_their_own(text: str, header: str) -> None:
    card = gpu_target("cuda:sm_80")
    kernel = lower(parse(text), "cuda:sm_80", selector=GpuSelector(card, cuda=True)).program.kernels[0]
    assert kernel.language == "cuda"
    assert isinstance(kernel.template, MmaGemm | MmaAttention)
    ending, source = kernel_source(kernel, "cuda:sm_80")
    assert ending == "cu"
    assert f'#include "{header}"' in source


@pytest.mark.parametrize("text", [MLP, ATTENTION])
def test_on_hopper_they_are_tried_after_its_own(text: str) -> None:
    class Listing(GpuSelector):
        def candidates(self, context: LoweringContext) -> list[GpuSchedule]:
            found = super().candidates(context)
            if context.op.attributes.kind in ("gemm", "attention"):  # type: ignore[attr-defined]
                listed.append([type(s).__name__ for s in found])
            return found

    listed: list[list[str]] = []
    lower(parse(text), "cuda:sm_90", selector=Listing(SM_90, cuda=True))
    assert listed[0][0].startswith("Hopper")
    assert any(name.startswith("Mma") for name in listed[0])


def test_operands_are_made_first_where_they_would_be_computed_one_by_one() -> None:
    text = """graph @prepared(%x: bf16[4096, 1024], %w: bf16[4096, 1024]) {
  %a = silu(%x) : bf16[4096, 1024]
  %h = linear(%a, %w) : bf16[4096, 4096]
  return %h
}"""
    selector = GpuSelector(gpu_target("cuda:sm_80"), cuda=True)
    made, product = lower(parse(text), "cuda:sm_80", selector=selector).program.kernels
    assert (made.kind, product.kind) == ("map", "gemm")
    assert product.language == "cuda"
