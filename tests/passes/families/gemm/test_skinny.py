"""Which matmuls make their large operand in registers, and what their template computes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "codegen" / "cuda"))
from skinny_cases import arrays_of, graph_of, groups, kernel_of, nibbles

import fusec
from fusec.ir.interpret import interpret
from fusec.passes.pipeline import lower
from fusec.passes.select_gpu import GpuSelector
from fusec.target.gpu import gpu_target
from fusec.tile.interpret import run
from fusec.tile.templates import SkinnyGemm

H200 = gpu_target("cuda:h200")


def kernels(function: Any, *args: Any, cuda: bool = True) -> list[Any]:
    graph = fusec.trace(function, *args, target="cuda:h200")
    return list(lower(graph, "cuda:h200", selector=GpuSelector(H200, cuda=cuda)).program.kernels)


def is_skinny(*kernels: Any) -> bool:
    return len(kernels) == 1 and isinstance(kernels[0].template, SkinnyGemm)


def half(*shape: int) -> Any:
    return torch.empty(*shape, dtype=torch.bfloat16)


def packed(*shape: int) -> Any:
    return torch.empty(*shape, dtype=torch.uint8)


@pytest.mark.parametrize("rows", [1, 16, 64])
def test_packed_weights(rows: int) -> None:
    args = half(rows, 4096), packed(14336, 2048), half(14336, 32)
    assert is_skinny(*kernels(groups, *args))
    assert not is_skinny(*kernels(groups, *args, cuda=False))


def test_weights_of_16_bits() -> None:
    """As they lie in memory, where rows are few: tiles would share K, and a kernel more would add them up."""
    assert is_skinny(*kernels(torch.nn.functional.linear, half(8, 2048), half(2048, 2048)))
    assert not is_skinny(*kernels(torch.nn.functional.linear, half(64, 2048), half(2048, 2048)))
    assert not is_skinny(*kernels(torch.nn.functional.linear, half(8, 2048).float(), half(2048, 2048).float()))


def linear_of(weights: Any) -> Any:
    return lambda x, *args: torch.nn.functional.linear(x, weights(*args))


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (linear_of(lambda w: torch.relu(w)), (half(16, 4096), half(4096, 4096))),  # no fewer bytes
        (linear_of(lambda w: nibbles(w).half()), (half(16, 4094).half(), packed(4096, 2047))),  # odd
        (linear_of(lambda w: nibbles(w).float()), (half(16, 4096).float(), packed(4096, 2048))),  # no half floats
        (linear_of(lambda w: nibbles(w).to(torch.bfloat16).t()), (half(16, 4096), packed(4096, 2048))),  # along rows
        (
            lambda x, w: torch.nn.functional.conv2d(x, w),
            (half(8, 64, 32, 32), half(64, 64, 3, 3)),
        ),
        (linear_of(lambda w: w.to(torch.bfloat16)), (half(16, 4096), half(4096, 4096).to(torch.float8_e4m3fn))),
        (
            lambda x, w: (x.float() @ w.float().t()).to(torch.bfloat16),
            (half(16, 2048).to(torch.float8_e4m3fn), half(1024, 2048).to(torch.float8_e4m3fn)),
        ),
    ],
    ids=[
        *("no fewer bytes", "an odd depth", "float32", "packed along the result", "windows"),
        *("floats of 8 bits", "both of 8 bits"),
    ],
)
def test_left_to_others(function: Any, args: tuple[Any, ...]) -> None:
    assert not is_skinny(*kernels(function, *args))


@pytest.mark.parametrize("name", ["groups", "zero_points", "table", "gate_and_up", "on_the_left", "batches"])
def test_the_template_in_statements(name: str) -> None:
    graph, arrays = graph_of(name), arrays_of(name)
    kernel = kernel_of(name)
    named = {v.name: a for v, a in zip(graph.inputs, arrays, strict=True)}
    count = len(kernel.parameters) - kernel.outputs
    outputs = [np.zeros(b.shape, b.dtype.numpy) for b in kernel.parameters[count:]]
    run(kernel, [*(named[b.name] for b in kernel.parameters[:count]), *outputs])
    for found, expected in zip(outputs, interpret(graph, arrays), strict=True):
        a, b = found.astype(np.float64), np.asarray(expected).astype(np.float64)
        assert np.abs(a - b).max() <= 2**-7 * np.abs(b).max()
