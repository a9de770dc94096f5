"""Statistics of rows whose squares leave the range of f32, and of rows of equal numbers, as eager has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from oracle import assert_close_to_oracle
from torch import Tensor

import fusec

Statistic = Callable[[Tensor], Tensor]

SPREADS: dict[str, Statistic] = {
    "std": lambda x: x.std(1),
    "std of columns": lambda x: x.std(0),
    "std of all": lambda x: x.std(),
    "std uncorrected": lambda x: torch.std(x, 1, correction=0, keepdim=True),
    "std_mean": lambda x: torch.cat(torch.std_mean(x, 1)),
    "var_mean": lambda x: torch.cat(torch.var_mean(x * 1e-5, 1)),
    "standardised": lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
    "norm": lambda x: x.norm(dim=1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "hypot": lambda x: torch.hypot(x, x.flip(0)),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(0)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(x[None]),
}


def rows(scale: float, length: int = 13) -> Tensor:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(5, length, generator=g, dtype=torch.float64)
    x[0] = 0
    x[0, 0] = 1
    x[1] = torch.arange(length) / length
    return (x * scale).float()


@pytest.mark.parametrize("name", list(SPREADS))
def test_squares_out_of_range(name: str) -> None:
    statistic = SPREADS[name]
    fast = fusec.jit(statistic)
    for scale in (1e30, 1e20, 1.0, 1e-20, 1e-30):
        x = rows(scale)
        assert_close_to_oracle(fast(x), statistic(x.double()), statistic(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_std_of_half_types(dtype: torch.dtype) -> None:
    for scale in (1e30, 1e-30) if dtype is torch.bfloat16 else (1e4, 1e-3):
        x = rows(scale).to(dtype)
        assert_close_to_oracle(fusec.jit(lambda x: x.std(1))(x), x.double().std(1), x.std(1))


@pytest.mark.parametrize("length", [64, 100, 768, 4096])
def test_sums_of_squares_out_of_range(length: int) -> None:
    """The mean of the squares is in range, their sum is not."""
    for norm in (
        lambda x: F.layer_norm(x, x.shape[1:]),
        lambda x: F.group_norm(x[:, :, None], 1)[..., 0],
    ):
        fast = fusec.jit(norm)
        for x in rows(1e18, length), rows(1.0, length):
            assert_close_to_oracle(fast(x), norm(x.double()), norm(x))


DOUBLES: dict[str, Statistic] = {
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1, keepdim=True),
    "var of columns": lambda x: x.T.var(0),
    "var of all": lambda x: x[2:].var(),
    "var_mean": lambda x: torch.cat(torch.var_mean(x, 1)),
    "std_mean": lambda x: torch.cat(torch.std_mean(x, 1, correction=0, keepdim=True)),
    "standardised": lambda x: (x[:2] - torch.std_mean(x[:2], 1)[1][:, None]) / (x[:2].std(1, keepdim=True) + 1),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("length", [8, 100, 5000])
@pytest.mark.parametrize("name", list(DOUBLES))
def test_doubles_whose_sum_is_out_of_range(name: str, length: int) -> None:
    """PyTorch's running mean is finite."""
    x = torch.linspace(-1, 1, length, dtype=torch.float64).repeat(4, 1)
    x[0], x[1] = -1e308, 1e308 + x[1] * 1e300
    x[2], x[3] = (x[2] + 2) * 1e153, x[3] + 10
    right = DOUBLES[name](x)
    torch.testing.assert_close(fusec.jit(DOUBLES[name])(x), right, rtol=1e-11, atol=0)


def test_outliers_in_doubles() -> None:
    """A row's first element that is far from all others."""
    x = torch.rand(3, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 0], x[2, 0] = 1e16, 1e9
    for found, right in zip(fusec.jit(lambda x: torch.var_mean(x, 1))(x), torch.var_mean(x, 1), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-13, atol=0)


NORMS: dict[str, Statistic] = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "group_norm": lambda x: F.group_norm(x[:, :, None], 1)[..., 0],
    "less the mean": lambda x: x - x.mean(1, keepdim=True),
    "less the sum over n": lambda x: x - x.sum(1, keepdim=True) / x.shape[1],
    "std": lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5),
    "var": lambda x: (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5),
    "squares": lambda x: ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1),
    "var_mean": lambda x: torch.var_mean(x, 1)[0],
    "columns": lambda x: (x.T - x.T.mean(0)).T,
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("length", [3, 7, 8, 33, 100, 768, 1000, 5000])
@pytest.mark.parametrize("name", list(NORMS))
def test_rows_of_equal_numbers(name: str, length: int) -> None:
    numbers = torch.tensor([0.1, 1000.1, -3.3333, 1e10, 7e-5])
    x = numbers[:, None].expand(5, length).contiguous()
    assert not fusec.jit(NORMS[name])(x).any()


NAN, INF = float("nan"), float("inf")
BOUNDS = [
    (NAN, None),
    (None, NAN),
    (NAN, 1.0),
    (0.0, NAN),
    (-INF, 1.0),
    (0.0, INF),
    (INF, None),
    (None, -INF),
    (INF, NAN),
]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_bounds_that_are_no_finite_numbers(bounds: tuple[float | None, float | None], dtype: torch.dtype) -> None:
    low, high = bounds
    x = torch.tensor([1.0, 2, NAN, -1, INF, -INF], dtype=dtype)

    def f(x: Tensor) -> Tensor:
        return x.clamp(low, high)

    torch.testing.assert_close(fusec.jit(f)(x), f(x), equal_nan=True, rtol=0, atol=0)
