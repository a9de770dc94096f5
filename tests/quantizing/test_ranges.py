from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fusec.quantizing.ranges import Seen, chosen_range


def _seen(*batches: torch.Tensor) -> Seen:
    seen = Seen()
    for batch in batches:
        seen.widen(batch)
    for batch in batches:
        seen.count(batch)
    return seen


def _draws(outlier: float = 0.0) -> torch.Tensor:
    x = torch.randn(20000, generator=torch.Generator().manual_seed(0))
    return torch.cat([x, torch.tensor([outlier])])


def test_the_ends_and_counts_of_all_batches() -> None:
    seen = _seen(torch.tensor([-1.0, 2.0]), torch.tensor([5.0]), torch.tensor([]))
    assert (seen.low, seen.high, seen.counts.sum()) == (-1.0, 5.0, 3.0)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_is_told(value: float) -> None:
    seen = _seen(torch.tensor([-1.0, value]), torch.tensor([2.0]))
    assert seen.any
    assert not seen.is_finite
    assert not Seen().is_finite


def test_minmax_is_all_that_was_seen_and_zero() -> None:
    assert chosen_range(_seen(torch.tensor([-1.0, 2.0])), "minmax") == (-1.0, 2.0)
    assert chosen_range(_seen(torch.tensor([1.0, 2.0])), "minmax") == (0.0, 2.0)
    assert chosen_range(Seen(), "minmax") == (0.0, 0.0)


@pytest.mark.parametrize(("method", "below"), [("percentile", 10.0), ("entropy", 50.0), ("mse", 60.0)])
def test_an_outlier_is_left_out(method: Any, below: float) -> None:
    low, high = chosen_range(_seen(_draws(60.0)), method)
    assert 3.0 < high < below
    assert low < 0


def test_zeros_do_not_narrow_the_range() -> None:
    x = torch.relu(_draws() - 1)
    assert chosen_range(_seen(x), "entropy")[1] > 0.5 * float(x.max())


@pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
def test_zero_is_told_exactly(method: Any) -> None:
    low, high = chosen_range(_seen(_draws().abs() + 1), method)
    assert low == 0.0
    assert high > 3.0


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse"])
def test_one_value_alone(method: Any) -> None:
    assert chosen_range(_seen(torch.full((9,), 3.0)), method) == (0.0, 3.0)


def test_mse_has_the_least_error() -> None:
    x = torch.cat([_draws(), _draws() * 20])
    seen = _seen(x)

    def error(low: float, high: float) -> float:
        step = (high - low) / 255
        values = x.numpy()
        return float(np.square((np.clip(np.round((values - low) / step), 0, 255) * step + low) - values).mean())

    assert error(*chosen_range(seen, "mse")) <= 1.02 * error(*chosen_range(seen, "minmax"))
