"""Kernels of both languages in one program: which language is chosen, modules of two parts, what is asked for."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")
from fusec import config
from fusec.codegen.cuda.module import CudaModule
from fusec.codegen.cuda.nvrtc import has_nvrtc
from fusec.codegen.gpu import GpuModule, compile_kernels, module_from_bytes
from fusec.codegen.triton.module import TritonModule
from fusec.errors import ArtifactError, CodegenError
from fusec.ir.parse import parse
from fusec.passes.pipeline import lower
from fusec.passes.select_gpu import GpuSelector
from fusec.runtime.program import Program
from fusec.target.gpu import gpu_target

if not has_nvrtc():
    pytest.skip("NVRTC is not here", allow_module_level=True)

TARGET = gpu_target("cuda:sm_90")
PRODUCT_AND_SOFTMAX = """graph @g(%x: f32[2048, 512], %w: f32[512, 1024]) {
  %h = matmul(%x, %w) : f32[2048, 1024]
  %y = softmax(%h) {axis=1} : f32[2048, 1024]
  return %y
}"""


def lowered(text: str, *, cuda: bool = True, triton: bool = True) -> Program:
    return lower(parse(text), "cuda:sm_90", selector=GpuSelector(TARGET, cuda=cuda, triton=triton)).program


def test_a_module_of_two_languages() -> None:
    program = lowered(PRODUCT_AND_SOFTMAX)
    assert [k.language for k in program.kernels] == ["cuda", "triton"]
    assert [("language", "cuda") in r.schedule for r in program.reports] == [True, False]
    module = compile_kernels(program.kernels, TARGET)
    assert isinstance(module, GpuModule)
    product, softmax = (k.name for k in program.kernels)
    assert "struct Plan" in module.source(product)
    assert "tl." in module.source(softmax)
    again = module_from_bytes(module.to_bytes())
    assert isinstance(again, GpuModule)
    for name in (product, softmax):
        kernel = again.kernel(name, True)
        assert kernel is not None
        assert kernel.code == module.kernel(name, True).code  # type: ignore[union-attr]
    with pytest.raises(ArtifactError):
        module_from_bytes(module.to_bytes()[:-20])


def test_one_language_alone() -> None:
    alone = compile_kernels(lowered(PRODUCT_AND_SOFTMAX, triton=False).kernels, TARGET)
    assert isinstance(alone, CudaModule)
    alone = compile_kernels(lowered(PRODUCT_AND_SOFTMAX, cuda=False).kernels, TARGET)
    assert isinstance(alone, TritonModule)


@pytest.mark.parametrize("dtype", ["f64", "i32"])
def test_products_that_tensor_cores_do_not_have(dtype: str) -> None:
    text = PRODUCT_AND_SOFTMAX.split("  %y")[0].replace("f32", dtype) + "  return %h\n}"
    (kernel,) = lowered(text).kernels
    assert kernel.language == "cuda"
    assert not lowered(text, cuda=False).kernels


def test_doubles_are_divided_in_cuda() -> None:
    text = "graph @g(%x: f64[64, 100]) {\n  %y = softmax(%x) {axis=1} : f64[64, 100]\n  return %y\n}"
    assert [k.language for k in lowered(text).kernels] == ["cuda"]


def test_the_language_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_GPU_LANGUAGE", "cuda")
    assert config.gpu_language() == "cuda"
    monkeypatch.setenv("FUSEC_GPU_LANGUAGE", "fortran")
    with pytest.raises(ValueError, match="triton or cuda"):
        config.gpu_language()


def test_a_kernel_that_does_not_compile_is_told_with_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.build import compile_module
    from fusec.codegen.cuda import spelling

    text = """graph @g(%x: f32[64, 100]) {
  %y = sqrt(%x) : f32[64, 100]  // model.py:12
  return %y
}"""
    program = lowered(text, triton=False)
    monkeypatch.setitem(spelling.FLOATS, "sqrt", "square_root({0})")
    with pytest.raises(CodegenError, match=r"(?s)model\.py:12: NVRTC can't compile map_y .*\| .*square_root"):
        compile_module(program)
