"""``fusec.jit`` without ``dynamic=``: PyTorch functions on a CPU have one program for ranges from the second extent."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import fusec

torch = pytest.importorskip("torch")

W = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


def random(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def dense(x: Any) -> Any:
    return torch.tanh(x @ W) / x.shape[0]


def plans(function: Any) -> int:
    return len(function.dispatcher.plans)


def check(function: Any, *arrays: Any) -> None:
    torch.testing.assert_close(function(*arrays), function.dispatcher.function(*arrays), rtol=2e-5, atol=1e-6)


def test_the_second_extent_makes_a_program_for_all() -> None:
    function = fusec.jit(fallback="error")(dense)
    for rows in (5, 9, 2, 17, 30):
        check(function, random(rows, 8))
    assert plans(function) == 2


def test_each_has_its_own_where_that_is_asked() -> None:
    function = fusec.jit(fallback="error", dynamic=False)(dense)
    for rows in (5, 9, 2):
        check(function, random(rows, 8))
    assert plans(function) == 3


def test_numpy_functions_are_compiled_one_by_one() -> None:
    """No symbolic sizes follow them, and captures at some extents prove nothing of others."""

    def odd_one(x: Any) -> Any:
        return np.exp(x) if x.shape[0] != 7 else np.tanh(x)

    function = fusec.jit(fallback="error")(odd_one)
    for rows in (5, 9, 7):
        np.testing.assert_allclose(function(np.ones(rows)), odd_one(np.ones(rows)), rtol=1e-6)
    assert plans(function) == 3


def odd_extent(x: Any) -> Any:
    return x.exp() if x.shape[0] != 23 else x.tanh()


def longer_rows(x: Any) -> Any:
    return x.exp() if x.shape[0] > 6 else x.tanh()


def an_even_number(x: Any) -> Any:
    return x.exp() if x.shape[0] % 2 else x.tanh()


def by_a_table(x: Any) -> Any:
    return x * {5: 2.0, 9: 3.0, 23: 4.0}.get(int(x.shape[0]), 1.0)


def as_many_steps(x: Any) -> Any:
    y = x[0]
    for row in x:
        y = torch.tanh(y + row)
    return y


def asks_numpy(x: Any) -> Any:
    return x * float(np.sqrt(x.shape[0]))


@pytest.mark.parametrize(
    "asks", [odd_extent, longer_rows, an_even_number, by_a_table, as_many_steps, asks_numpy], ids=lambda f: f.__name__
)
def test_what_asks_for_an_extent_is_right_at_each(asks: Any) -> None:
    function = fusec.jit(asks)
    for rows in (5, 9, 4, 23, 12, 7):
        check(function, random(rows, 3))


def test_a_range_that_cannot_be_costs_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question shows before the function is captured at other extents."""
    captured = []
    make = fusec.runtime.planner.Planner._capture
    monkeypatch.setattr(
        fusec.runtime.planner.Planner, "_capture", lambda self, *args: captured.append(0) or make(self, *args)
    )
    function = fusec.jit(fallback="error")(longer_rows)
    for rows in (5, 9):
        check(function, random(rows, 3))
    assert len(captured) == 2


def test_what_the_following_run_leaves_in_caches_is_put_back() -> None:
    """It makes tensors without data, which eager calls must not meet."""

    @functools.lru_cache
    def table() -> Any:
        return torch.arange(3)

    function = fusec.jit(lambda x: x.exp() * table(), fallback="error")
    for rows in (5, 9, 4):
        x = random(rows, 3)
        torch.testing.assert_close(function(x), x.exp() * torch.arange(3))
    assert plans(function) == 2
    assert type(table()) is torch.Tensor


def test_frequent_extents_get_programs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.runtime.frequent.OFTEN", 3)
    monkeypatch.setattr("fusec.runtime.frequent.MOST", 2)
    function = fusec.jit(fallback="error")(dense)
    for rows in (5, 9, 4):
        check(function, random(rows, 8))
    assert plans(function) == 2
    for rows in (9, 9, 9, 4, 9, 4, 4):
        check(function, random(rows, 8))
    assert plans(function) == 4
    for rows in (3, 3, 3, 3, 9, 4, 5, 12):
        check(function, random(rows, 8))
    assert plans(function) == 4


def test_a_frequent_extent_that_no_program_serves_alone_stays_with_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.runtime.frequent.OFTEN", 3)
    function = fusec.jit(dense)
    for rows in (5, 9):
        check(function, random(rows, 8))

    def refuse(*args: Any) -> Any:
        raise fusec.CaptureError("not today")

    monkeypatch.setattr(function.dispatcher, "_capture", refuse)
    for _ in range(8):
        check(function, random(9, 8))
    assert plans(function) == 2
    assert not function.dispatcher.eager_calls


def test_calls_that_need_gradients_have_their_own() -> None:
    layer = torch.nn.Linear(8, 4)
    function = fusec.jit(layer)
    for rows in (5, 9, 3):
        x = random(rows, 8)
        function(x).sum().backward()
        torch.testing.assert_close(layer.bias.grad, torch.full((4,), float(rows)))
        layer.zero_grad()
    with torch.no_grad():
        for rows in (5, 9, 3):
            torch.testing.assert_close(function(random(rows, 8)), layer(random(rows, 8)))


def test_frequent_extents_of_a_function_with_no_plan_left_stay_with_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.runtime.dispatch.RECOMPILE_LIMIT", 2)
    function = fusec.jit(dense)
    for rows in (5, 9, *[7] * 20):
        check(function, random(rows, 8))
    assert plans(function) == 2
    assert not function.dispatcher.eager_calls


def test_state_that_a_function_updates_is_updated_once_a_call() -> None:
    mean, count = torch.ones(8), torch.zeros((), dtype=torch.int64)

    @fusec.jit
    def running(x: Any) -> Any:
        mean.mul_(0.5).add_(x.mean(0))
        mean.div_(2.0).sub_(1)
        count.add_(1)
        return x - mean

    expected = mean.clone()
    for calls, rows in enumerate((5, 9, 2, 17, 9), 1):
        x = random(rows, 8)
        expected = (expected * 0.5 + x.mean(0)) / 2 - 1
        torch.testing.assert_close(running(x), x - expected)
        assert count == calls
    torch.testing.assert_close(mean, expected)


def test_batch_norm_in_training_counts_each_batch_once() -> None:
    norm = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).requires_grad_(False)
    compiled = fusec.jit(norm)
    for rows in (5, 9, 3, 9):
        compiled(random(rows, 8))
    assert norm[1].num_batches_tracked == 4


def test_a_lookup_that_nothing_reads_raises_at_further_extents() -> None:
    @fusec.jit
    def looks(x: Any, i: Any) -> Any:
        x[i]
        torch.nn.functional.embedding(i, x[:, None])
        return x + 1

    for rows in (3, 5, 6, 3):
        looks(random(rows), torch.tensor([1, 2]))
        with pytest.raises(IndexError):
            looks(random(rows), torch.tensor([1, rows]))


def test_a_function_whose_operations_depend_on_an_extent_is_not_sampled_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fusec.frontend import torch as frontend

    captured: list[Any] = []
    capture = frontend.capture

    def counted(*args: Any, **options: Any) -> Any:
        captured.append(1)
        return capture(*args, **options)

    monkeypatch.setattr(frontend, "capture", counted)
    rows_of = fusec.jit(lambda x: sum(row * 2 for row in x))
    check(rows_of, random(3, 4))
    captured.clear()
    check(rows_of, random(5, 4))
    assert len(captured) <= 9  # four for each of two ranges, and that of the call
