"""Compiling CUDA C++ for cards that are not here, saved modules, and errors."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "triton"))
from cubins import telling
from cuda_cases import POINTWISE, PRODUCTS
from triton_cases import CASES

from fusec.codegen.cuda import nvrtc
from fusec.codegen.cuda.build import arch_of, compile_sources, module_source
from fusec.codegen.cuda.module import CudaModule
from fusec.codegen.cuda.nvrtc import compile_source
from fusec.codegen.cuda.source import ModuleSource
from fusec.errors import ArtifactError, CodegenError, TargetError
from fusec.ir.parse import parse
from fusec.passes.pipeline import lower
from fusec.passes.select_gpu import GpuSelector
from fusec.target.gpu import gpu_target

try:
    nvrtc.load_nvrtc()
except TargetError as error:
    pytest.skip(str(error), allow_module_level=True)


@cache
def shared() -> dict[str, str]:
    """Triton's cases whose kernels CUDA C++ has too."""
    kinds = {n: {r.kind for r in lower(parse(t), "cuda:sm_90").program.reports} for n, t in CASES.items()}
    return {name: text for name, text in CASES.items() if kinds[name] <= {"map", "row"}}


def written(text: str, target: str) -> ModuleSource:
    card = gpu_target(target)
    selector = GpuSelector(card, cuda=True, triton=False)
    return module_source(lower(parse(text), target, selector=selector).program.kernels, card)


def compiled(text: str, target: str) -> CudaModule:
    return compile_sources(written(text, target), gpu_target(target))


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90"])
def test_compiles_without_the_card(target: str, all_cases: bool) -> None:
    """Every text for every card: ``python -m tests.campaigns.cards``."""
    sources = {name: written(text, target).kernels for name, text in (shared() | POINTWISE | PRODUCTS).items()}
    for name, cubin in telling(sources, gpu_target(target), whole=all_cases):
        assert cubin.code.startswith(b"\x7fELF"), name
        assert 0 < cubin.registers <= 255, name
        assert cubin.spills <= 512, name  # ptxas keeps some wide rows of doubles and bools in memory for sm_80


def test_hoppers_own_instructions_are_used() -> None:
    assert [arch_of(gpu_target(f"cuda:sm_{n}")) for n in (80, 89, 90, 100)] == ["sm_80", "sm_89", "sm_90a", "sm_100a"]
    with pytest.raises(TargetError, match="gfx942"):
        arch_of(gpu_target("hip:gfx942"))


def test_a_saved_module_is_the_same() -> None:
    module = compiled(CASES["softmax"], "cuda:sm_90")
    again = CudaModule.from_bytes(module.to_bytes())
    assert again.text == module.text
    assert again.to_bytes() == module.to_bytes()
    with pytest.raises(ArtifactError):
        CudaModule.from_bytes(module.to_bytes()[:-20])


def test_a_compile_error_shows_the_generated_line() -> None:
    text = 'extern "C" __global__ void broken(float* y) {\n    y[0] = unknown;\n}\n'
    with pytest.raises(CodegenError, match=r"broken for sm_80(.|\n)*2 \| y\[0\] = unknown;"):
        compile_source(text, "sm_80", "broken")


def test_an_architecture_that_nvrtc_does_not_know() -> None:
    with pytest.raises(TargetError, match="not for sm_20"):
        compile_source("", "sm_20")


def test_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(["libnvrtc-not-here.so"]))
    nvrtc.load_nvrtc.cache_clear()
    with pytest.raises(TargetError, match="pip install nvidia-cuda-nvrtc"):
        compile_source("", "sm_80")
    monkeypatch.undo()
    nvrtc.load_nvrtc.cache_clear()
    assert nvrtc.nvrtc_version() >= (12, 0)
