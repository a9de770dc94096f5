"""Calls that can't be captured: what is tried, how often, and what they cost afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from fusec.runtime import refusals
from fusec.runtime.dispatch import Dispatcher


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes each capture."""
    made: list[str] = []
    capture = Dispatcher._capture

    def noting(self: Dispatcher, *args: Any, **kwargs: Any) -> Any:
        made.append(self.name)
        return capture(self, *args, **kwargs)

    monkeypatch.setattr(Dispatcher, "_capture", noting)
    return made


class Store:
    """A cache that grows, as a model's does."""

    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []


def branches(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return x * 2 if x.sum().item() > 0 else x


def grows(x: torch.Tensor, store: Store) -> torch.Tensor:
    store.rows = [torch.cat([*store.rows, x])]
    return branches(store.rows[0])


def growing() -> Any:
    store = Store()
    return [(torch.ones(n + 2), store) for n in range(30)]


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "extents": (branches, lambda: [(torch.ones(n + 2),) for n in range(30)]),
    "integers": (branches, lambda: [(torch.ones(3), n) for n in range(30)]),
    "objects": (branches, lambda: [(torch.ones(3), Store()) for _ in range(30)]),
    "a cache": (grows, growing),
    "a new cache each": (grows, lambda: [(torch.ones(n + 2), Store()) for n in range(30)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_fails_is_tried_twice_whatever_the_signature(name: str, captures: list[str]) -> None:
    function, make = CALLS[name]
    compiled: Any = fusec.jit(function)
    for given, own in zip(make(), make(), strict=True):
        torch.testing.assert_close(compiled(*given), function(*own))
    assert len(captures) <= refusals.TRIES
    assert sum(compiled.dispatcher.eager_calls.values()) == 30
    assert len(compiled.dispatcher.plans) <= refusals.TRIES


def test_a_slow_capture_that_fails_is_tried_once(captures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "SECONDS", 0.0)
    compiled = fusec.jit(branches)
    for n in range(2, 12):
        compiled(torch.ones(n))
    assert len(captures) == 1


def test_other_calls_of_the_function_are_captured(captures: list[str]) -> None:
    def either(x: torch.Tensor, checks: bool) -> torch.Tensor:
        return branches(x) if checks else x.sin() * 2

    compiled: Any = fusec.jit(either)
    for n in range(2, 2 + 2 * refusals.BETWEEN):
        compiled(torch.ones(n), True)
    assert len(captures) == refusals.TRIES
    x = torch.ones(3)
    for _ in range(refusals.BETWEEN):
        torch.testing.assert_close(compiled(x, False), either(x, False))
    assert any(plan.executable is not None for plan in compiled.dispatcher.plans)
    before = sum(compiled.dispatcher.eager_calls.values())
    compiled(x, False)
    compiled(x, False)
    assert sum(compiled.dispatcher.eager_calls.values()) == before


def test_a_mistake_is_no_reason_to_try_no_more() -> None:
    def sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y).sin()

    compiled: Any = fusec.jit(sums)
    for n in range(2, 8):
        with pytest.raises(RuntimeError):
            compiled(torch.ones(n), torch.ones(n + 1))
    compiled(torch.ones(4), torch.ones(4))
    assert any(plan.executable is not None for plan in compiled.dispatcher.plans)


def test_a_function_that_changes_state_at_its_first_call_alone_is_captured(captures: list[str]) -> None:
    table: dict[str, int] = {}

    def settles(x: torch.Tensor) -> torch.Tensor:
        if "n" not in table:
            table["n"] = 2
        return x * table["n"]

    compiled: Any = fusec.jit(settles)
    for n in range(2, 6):
        compiled(torch.ones(n))
    assert sum(compiled.dispatcher.eager_calls.values()) == 1


def test_arguments_of_a_class_are_told_by_what_is_in_them(captures: list[str]) -> None:
    """A new object at each call is no new program; what is in it counts."""

    class Weights:
        def __init__(self, scale: float) -> None:
            self.scale = scale
            self.parts = {"w": [torch.rand(3)]}

    def applies(x: torch.Tensor, weights: Weights) -> torch.Tensor:
        return (x * weights.parts["w"][0] + weights.scale).sin()

    compiled: Any = fusec.jit(applies, fallback="error")
    for scale in (1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 2.0):
        given = Weights(scale)
        torch.testing.assert_close(compiled(torch.ones(3), given), applies(torch.ones(3), given))
    assert len(captures) == 3  # the first by itself, then one for each scale


ARRAYS = [torch.ones(3, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64)]
ARRAYS += [x[None] for x in ARRAYS]


def test_what_fails_at_one_line_for_two_dtypes_is_not_tried_for_others(
    captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "SECONDS", 0.0)
    compiled: Any = fusec.jit(branches)
    for x in ARRAYS * 3:
        torch.testing.assert_close(compiled(x), branches(x))
    assert len(captures) == refusals.ALIKE
    assert sum(compiled.dispatcher.eager_calls.values()) == 3 * len(ARRAYS)


def test_what_fails_at_one_line_is_tried_where_other_code_may_run(
    captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "SECONDS", 0.0)

    def either(x: torch.Tensor, way: str) -> torch.Tensor:
        return branches(x) if way != "straight" else x.sin() * 2

    compiled: Any = fusec.jit(either)
    for x in ARRAYS:
        for way in ("one", "two"):
            compiled(x, way)
    assert len(captures) == 2 * refusals.ALIKE
    compiled(ARRAYS[0], "straight")
    assert any(plan.executable is not None for plan in compiled.dispatcher.plans)


def test_what_fails_at_two_lines_is_tried_for_others(captures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "SECONDS", 0.0)

    def depends(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32:
            return x if float(x.sum()) > 0 else -x
        if x.dtype == torch.float64:
            return x if float(x.max()) > 0 else -x
        return x * 2

    compiled: Any = fusec.jit(depends)
    for x in ARRAYS:
        torch.testing.assert_close(compiled(x), depends(x))
    assert any(plan.executable is not None for plan in compiled.dispatcher.plans)


def test_what_is_no_line_of_the_code_is_tried_for_other_dtypes(
    captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "SECONDS", 0.0)

    def shown(x: torch.Tensor) -> torch.Tensor:
        return x.to_sparse().to_dense() if x.dtype == torch.float64 else x * 2

    compiled: Any = fusec.jit(shown)
    for x in (ARRAYS[1], ARRAYS[1][None], ARRAYS[0]):
        torch.testing.assert_close(compiled(x), shown(x))
    assert any(plan.executable is not None for plan in compiled.dispatcher.plans)


def test_calls_whose_reason_has_been_told_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    as_written = Dispatcher._as_written

    def noting(self: Dispatcher, reason: str, *args: Any, **kwargs: Any) -> Any:
        told.append(reason)
        return as_written(self, reason, *args, **kwargs)

    monkeypatch.setattr(Dispatcher, "_as_written", noting)
    jitted, x = fusec.jit(branches), torch.ones(3)
    with pytest.warns(fusec.RunsAsWritten):
        jitted(x)
    for _ in range(4):
        torch.testing.assert_close(jitted(x), x * 2)
    assert len(told) == 1
    assert [*jitted.dispatcher.eager_calls.values()] == [5]
    with pytest.raises(TypeError):
        jitted(torch.ones(3, dtype=torch.complex64))  # complex numbers have no order


class Branching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return x * 2 if x.sum().item() > 0 else x


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Notes each run of a function for ranges of extents, which takes longer than a capture."""
    from fusec.frontend import torch_sizes

    made: list[Any] = []
    check = torch_sizes.check_conditions

    def noting(function: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(function)
        return check(function, *args, **kwargs)

    monkeypatch.setattr(torch_sizes, "check_conditions", noting)
    return made


@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
def test_what_fails_is_not_tried_for_ranges_of_extents(
    captures: list[str], ranges: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "SECONDS", 1e9)
    jitted = fusec.jit(Branching())
    with torch.no_grad():
        for n in range(4, 12):
            jitted(torch.ones(n, 8))
    assert not ranges
    assert len(captures) <= refusals.TRIES


@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
def test_what_failed_once_is_compiled_for_ranges_where_a_capture_has_succeeded(ranges: list[Any]) -> None:
    scale: list[float] = []

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * (float(x.sum()) if not scale else scale[0])

    jitted = fusec.jit(scaled)
    jitted(torch.ones(4))
    scale.append(2.0)
    for n in range(5, 9):
        torch.testing.assert_close(jitted(torch.ones(n)), torch.full((n,), 2.0))
    assert ranges
