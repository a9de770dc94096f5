"""Every elementwise op is spelled by every backend: kernels of its samples are written in each language."""

from __future__ import annotations

import pytest
from op_samples import CASES, SAMPLES

from fusec.build import kernel_source
from fusec.ir.ops import OPS
from fusec.passes.pipeline import lower
from fusec.passes.select_gpu import GpuSelector
from fusec.target.gpu import gpu_target

GPU = "cuda:sm_90"


def is_fixed_and_real(name: str, number: int) -> bool:
    """CUDA C++ takes fixed extents alone; no kernel computes complex numbers."""
    return all(t.is_static and t.dtype.kind != "complex" for t in SAMPLES[name][number].operands)


ELEMENTWISE = [(name, n) for name, n in CASES if OPS[name].kind == "elementwise" and is_fixed_and_real(name, n)]


def test_every_elementwise_op_has_such_a_sample() -> None:
    every = {name for name, op in OPS.items() if op.kind == "elementwise"}
    assert every - {name for name, _ in ELEMENTWISE} == {
        *("copy_at", "scatter")
    }  # places are data; tests of writes in place, and of orders of rows, have them


@pytest.mark.parametrize(("name", "number"), ELEMENTWISE)
def test_cpu(name: str, number: int) -> None:
    for kernel in lower(SAMPLES[name][number].graph(name), "cpu").program.kernels:
        assert kernel_source(kernel, "cpu")[1]


@pytest.mark.parametrize("language", ["triton", "cuda"])
@pytest.mark.parametrize(("name", "number"), ELEMENTWISE)
def test_gpu(name: str, number: int, language: str) -> None:
    selector = GpuSelector(gpu_target(GPU), cuda=language == "cuda", triton=language == "triton")
    for kernel in lower(SAMPLES[name][number].graph(name), GPU, selector=selector).program.kernels:
        assert kernel_source(kernel, GPU)[1]
