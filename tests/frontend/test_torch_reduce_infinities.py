"""var_mean and std_mean of rows with infinities: where the mean is infinite, and where it is NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fusec
from fusec.ir.interpret import interpret

INF = float("inf")


def rows(dtype: torch.dtype) -> torch.Tensor:
    """An infinity at the beginning of a row, inside, at its end; twice; beside NaN; none; and huge numbers."""
    x = torch.randn(10, 19, generator=torch.Generator().manual_seed(0))
    x[0, 0] = x[1, 7] = x[2, 18] = x[3, 2] = INF
    x[3, 18] = x[4, 18] = -INF
    x[5, 3], x[5, 18] = float("nan"), INF
    x[7, 4] = x[7, 18] = x[8, 17] = x[8, 18] = INF
    x = x.to(dtype)
    x[6, 3:5] = torch.finfo(dtype).max / 4
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("function", [torch.var_mean, torch.std_mean])
def test_what_follows_an_infinity_makes_the_mean_nan(function: Any, dtype: torch.dtype) -> None:
    def f(x: Any, y: Any) -> Any:
        rows = function(x, -1), function(x, -1, correction=0, keepdim=True)
        return (*rows[0], *rows[1], *function(x.mT, 0), *function(y), *function(y, (0, 2)))

    x = rows(dtype)
    y = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    for place in ((0, 0, 0), (1, 2, 3), (1, 0, 3)):
        z = y.clone()
        z[place] = INF
        for found, wanted in zip(fusec.jit(f)(x, z), f(x, z), strict=True):
            assert torch.equal(found.isnan(), wanted.isnan())
            assert torch.equal(found.isinf(), wanted.isinf())


def test_one_element() -> None:
    def f(x: Any) -> Any:
        return torch.var_mean(x, -1, correction=0)

    x = torch.tensor([[2.0], [INF]])
    for found, wanted in zip(fusec.jit(f)(x), f(x), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("axes", [(1,), (0, 2), (2,)], ids=str)
def test_on_a_gpu_a_mean_that_is_not_finite_is_nan(axes: tuple[int, ...]) -> None:
    """Threads put their parts together in an order of their own: no pass over all elements asks which come last."""
    x = torch.randn(3, 5, 1, generator=torch.Generator().manual_seed(0))
    x[0, 4], x[1, 2], x[2, 0] = INF, -INF, float("nan")
    graph = fusec.trace(lambda x: torch.var_mean(x, axes), x, target="cuda:sm_90")
    assert not any(op.name == "isfinite" and op.operands[0].type.count == x.numel() for op in graph.ops)
    with np.errstate(all="ignore"):
        mean = interpret(graph, [x.numpy()])[1]
    wanted = x.mean(axes)
    finite = wanted.isfinite().numpy() if axes != (2,) else np.full(wanted.shape, True)
    np.testing.assert_array_equal(np.isnan(mean), ~finite | np.isnan(wanted.numpy()))
    np.testing.assert_allclose(mean[finite], wanted.numpy()[finite], rtol=1e-5)
