"""Gradients of largest elements of windows, on GPUs without sums by index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from programs import check

import fusec
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret

aten: Any = torch.ops.aten
FORWARD = {2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}
BACKWARD = {2: aten.max_pool2d_with_indices_backward, 3: aten.max_pool3d_with_indices_backward}
CASES: dict[str, tuple[tuple[int, ...], list[int], list[int], list[int], list[int], bool]] = {
    "3×3/2 with padding": ((2, 5, 12, 13), [3, 3], [2, 2], [1, 1], [1, 1], False),
    "2×2/2 with a rest": ((2, 5, 7, 9), [2, 2], [2, 2], [0, 0], [1, 1], False),
    "beyond the image": ((1, 3, 8, 10), [3, 2], [3, 3], [1, 1], [1, 1], True),
    "dilated": ((2, 3, 11, 12), [3, 2], [2, 3], [1, 0], [2, 2], False),
    "overlapping": ((2, 3, 6, 7), [3, 3], [1, 1], [1, 1], [1, 1], False),
    "gaps": ((2, 3, 9, 10), [2, 1], [4, 3], [0, 0], [1, 1], False),
    "three axes": ((1, 2, 5, 6, 7), [3, 2, 2], [2, 2, 1], [1, 0, 1], [1, 1, 1], False),
    "no batch": ((3, 9, 9), [3, 3], [2, 2], [1, 1], [1, 1], False),
}


def arguments(name: str) -> tuple[list[torch.Tensor], tuple[Any, ...]]:
    """Gradient, image with many equal elements, and indices; what follows the image."""
    shape, *window = CASES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).mul(2).round()
    y, indices = FORWARD[len(window[0])](x, *window)
    return [torch.randn(y.shape, generator=generator), x, indices], tuple(window)


def gradient(name: str) -> tuple[Graph, list[np.ndarray[Any, Any]], torch.Tensor]:
    (g, x, indices), window = arguments(name)
    backward = BACKWARD[len(window[0])]
    graph = fusec.trace(lambda g, x, i: backward(g, x, *window, i), g, x, indices, target="cuda:sm_90")
    return graph, [g.numpy(), x.numpy(), indices.numpy()], backward(g, x, *window, indices)


@pytest.mark.parametrize("name", CASES)
def test_as_the_library(name: str) -> None:
    graph, given, wanted = gradient(name)
    assert not any(op.name == "extern" for op in graph.ops)
    np.testing.assert_allclose(interpret(graph, given)[0], wanted.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["3×3/2 with padding", "dilated", "three axes"])
def test_kernels_for_a_gpu(name: str) -> None:
    graph, given, _ = gradient(name)
    check(str(graph), given, target="cuda:sm_90", atol=1e-6)


def test_a_nan_that_was_the_largest_has_the_gradient() -> None:
    x = torch.randn(1, 2, 6, 6)
    x[0, 0, 2, 3] = float("nan")
    y, indices = FORWARD[2](x, [3, 3], [2, 2], [1, 1])
    g = torch.randn_like(y)
    window: Any = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    graph = fusec.trace(lambda g, x, i: BACKWARD[2](g, x, *window, i), g, x, indices, target="cuda:sm_90")
    found = interpret(graph, [g.numpy(), x.numpy(), indices.numpy()])[0]
    np.testing.assert_allclose(found, BACKWARD[2](g, x, *window, indices).numpy(), rtol=1e-6)


def test_windows_that_overlap_much_stay_the_library_s() -> None:
    x = torch.randn(1, 2, 12, 12)
    y, indices = FORWARD[2](x, [5, 5], [1, 1], [2, 2])
    window: Any = ([5, 5], [1, 1], [2, 2], [1, 1], False)
    graph = fusec.trace(lambda g, x, i: BACKWARD[2](g, x, *window, i), y, x, indices, target="cuda:sm_90")
    assert [op.name for op in graph.ops if op.definition.kind == "extern"] == ["extern"]


def test_one_kernel_for_a_gpu_reads_each_window_s_neighbours_together() -> None:
    """With what is added to the gradient before, and the mask behind it."""
    x = torch.randn(8, 64, 56, 56, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    y, indices = FORWARD[2](x, [3, 3], [2, 2], [1, 1])
    window: Any = ([3, 3], [2, 2], [1, 1], [1, 1], False)

    def masked(g: torch.Tensor, h: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.where(x <= 0, 0.0, BACKWARD[2](g + h, x, *window, i))

    graph = fusec.trace(masked, y, y.clone(), x, indices, target="cuda:sm_90")
    (kernel,) = fusec.lower(graph, "cuda:sm_90").kernels
    assert int(kernel.schedule["results"]) > 1
