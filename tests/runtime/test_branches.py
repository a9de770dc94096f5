"""Functions that branch on values: a program for each way, which tests that a call goes it."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import fusec
from fusec.errors import DataDependentError
from fusec.notices import InternalErrorWarning
from fusec.runtime.branches import Branches

torch = pytest.importorskip("torch")
detect_fake_mode = pytest.importorskip("torch._guards").detect_fake_mode

W = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
HIGH, LOW = torch.full((4, 8), 0.5), torch.full((4, 8), -0.5)


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


def two_ways(x: Any) -> Any:
    y = torch.tanh(x) * 2
    if y.sum() > 0:
        return torch.softmax(y @ W, -1)
    return torch.relu(y @ W) + 1


def branches_of(function: Any) -> Branches:
    (plan,) = function.dispatcher.plans
    assert plan.branches is not None
    return plan.branches


def check(function: Any, *arguments: Any) -> None:
    torch.testing.assert_close(function(*arguments), function.dispatcher.function(*arguments), equal_nan=True)


def test_each_way_has_a_program() -> None:
    function = fusec.jit(two_ways)
    for x in (HIGH, HIGH, HIGH, LOW, LOW, LOW, HIGH):
        check(function, x)
    branches = branches_of(function)
    assert set(branches.ways) == {(True,), (False,)}
    assert sum(function.dispatcher.eager_calls.values()) == 2  # the first call of each way
    for along in branches.ways.values():
        assert along.executable.program.kernels


def test_a_way_is_tested_at_each_call() -> None:
    """Values at which the branch turns, and NaN."""
    function = fusec.jit(lambda x: x.exp() if (x > 1).all() else x.tanh())
    for value in (2.0, 2.0, 1.0, 1.0, 1.0000001, float("nan"), float("inf"), -1.0):
        check(function, torch.full((3,), value))
    assert not branches_of(function).reason


def test_a_loop_that_values_end() -> None:
    def halved(x: Any) -> Any:
        steps = 0
        while bool((x.abs() > 1).any()):
            x = x / 2
            steps += 1
        return x * steps

    function = fusec.jit(halved)
    for value in (3.0, 3.0, 3.5, 9.0, 9.0, 3.0, 0.5):
        check(function, torch.full((5,), value))
    assert {len(way) for way in branches_of(function).ways} == {3, 5}


@pytest.mark.parametrize(
    "asks",
    [
        lambda x: x * 2 if (x > 0).any().item() else x / 2,
        lambda x: x * 2 if not (x > 0).all() else x / 2,
        lambda x: [x, x * 2, x * 3][bool((x > 0).any()) + bool((x > 1).all())],
        lambda x: torch.where(x > 0, x, 0) if torch.isfinite(x).all() and x.max() > 0 else x.nan_to_num(),
    ],
    ids=["item", "not", "a number", "and"],
)
def test_spellings(asks: Any) -> None:
    function = fusec.jit(asks)
    for x in (HIGH, HIGH, LOW, LOW, HIGH, LOW.clone().fill_(float("inf"))):
        check(function, x)
    assert branches_of(function).ways


def test_a_way_that_fails_on_other_values_is_no_error() -> None:
    """Its program asks for an element that is not there where a call goes the other way."""

    def picks(x: Any, i: Any) -> Any:
        return x[i] * 2 if (i < 4).all() else x.sum(0)

    function = fusec.jit(picks)
    near, far = torch.tensor([1, 3]), torch.tensor([1, 7])
    for i in (near, near, far, far, near, far):
        check(function, HIGH, i)
    assert len(branches_of(function).ways) == 2


def test_what_the_function_reads_besides_may_change() -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined]
        factor = 2.0

        def forward(self, x: Any) -> Any:
            return x * self.factor if x.sum() > 0 else x

    model = Scaled()
    function = fusec.jit(model)
    for factor in (2.0, 2.0, 3.0, 3.0, 3.0):
        model.factor = factor
        torch.testing.assert_close(function(HIGH), HIGH * factor)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (lambda x: x.mul_(2) if x.sum() > 0 else x, "changes its arguments"),
        (lambda x: x * torch.rand(8) if x.sum() > 0 else x, "draws random numbers"),
        (lambda x: x * float(x.sum()) if x.sum() > 0 else x, "the value of a tensor is needed"),
    ],
    ids=["writes", "draws", "a number"],
)
def test_what_must_not_run_in_vain_runs_as_written(refused: Any, why: str) -> None:
    function = fusec.jit(warn=False)(refused)
    for _ in range(4):
        x, y = HIGH.clone(), HIGH.clone()
        torch.manual_seed(0)
        found = function(x)
        torch.manual_seed(0)
        torch.testing.assert_close(found, refused(y))
        torch.testing.assert_close(x, y)
    branches = branches_of(function)
    assert why in branches.reason
    assert not branches.ways


def test_a_way_that_a_mistake_of_ours_ends_runs_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise AssertionError("broken")

    monkeypatch.setenv("FUSEC_VERIFY", "0")
    function = fusec.jit(two_ways)
    check(function, HIGH)
    function.dispatcher.compile = broken
    with pytest.warns(InternalErrorWarning, match="AssertionError: broken"):
        check(function, HIGH)
    check(function, HIGH)
    assert "internal error of fusec" in branches_of(function).reason


def test_an_error_of_the_user_s_that_the_capture_alone_meets() -> None:
    """Code may raise where it is given other tensors than it expects; the call as written decides."""

    def picky(x: Any) -> Any:
        if x.sum() > 0:
            if detect_fake_mode([x]) is not None:
                raise ValueError("no fakes here")
            return x * 2
        return x

    function = fusec.jit(warn=False)(picky)
    for _ in range(3):
        check(function, HIGH)
    assert "ValueError: no fakes here" in branches_of(function).reason


def test_threads_find_their_ways() -> None:
    function = fusec.jit(warn=False)(two_ways)

    def calls(k: int) -> None:
        with torch.no_grad():
            for _ in range(6):
                check(function, (HIGH, LOW)[k % 2])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calls, range(4)))


def test_calls_that_need_gradients_run_as_written() -> None:
    function = fusec.jit(warn=False)(two_ways)
    with torch.enable_grad():
        for _ in range(3):
            x = HIGH.clone().requires_grad_()
            y = HIGH.clone().requires_grad_()
            function(x).sum().backward()
            two_ways(y).sum().backward()
            torch.testing.assert_close(x.grad, y.grad)


def test_calls_that_take_turns_run_as_written() -> None:
    """A program that runs in vain takes what the right one saves."""
    function = fusec.jit(warn=False)(two_ways)
    for k in range(40):
        check(function, (HIGH, LOW)[k % 2])
    assert "take turns" in branches_of(function).reason


def test_long_loops_are_not_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.runtime.branches.MOST_OUTCOMES", 3)

    def halved(x: Any) -> Any:
        while (x > 1).any():
            x = x / 2
        return x

    function = fusec.jit(warn=False)(halved)
    for _ in range(3):
        check(function, torch.full((3,), 9.0))
    assert "too often" in branches_of(function).reason


def test_ever_new_extents_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.runtime.planner.MOST_SIGNATURES", 3)
    function = fusec.jit(warn=False, dynamic=False)(lambda x: x * 2 if x.sum() > 0 else x)
    for rows in range(2, 12):
        check(function, torch.ones(rows))
    assert sum(plan.branches is not None for plan in function.dispatcher.plans) == 3


def test_arguments_are_not_kept() -> None:
    function = fusec.jit(two_ways)
    x = HIGH.clone()
    gone = weakref.ref(x)
    for _ in range(3):
        function(x)
    del x
    gc.collect()
    assert gone() is None


def test_where_it_must_be_compiled_it_is_an_error() -> None:
    with pytest.raises(DataDependentError, match="value of a tensor"):
        fusec.jit(fallback="error")(two_ways)(HIGH)


def test_explain_tells_of_the_ways() -> None:
    function = fusec.jit(two_ways)
    assert "would have a program for each way that it branches: " in fusec.explain(function, LOW)
    assert "would be refused" in fusec.explain(fusec.jit(two_ways, fallback="error"), LOW)
    function(HIGH)
    assert "such calls run as written: none of its ways has a program yet" in fusec.explain(function, LOW)
    for x in (HIGH, LOW, LOW):
        function(x)
    text = fusec.explain(function, LOW)
    assert text.splitlines()[0] == (
        "two_ways branches on values; such calls run by 2 programs, one for each way that its branches on values went"
    )
    assert "relu" in text
    assert "are not told" not in text
    assert "errors of a function that branches on values are not told" in fusec.explain(function, LOW, errors=True)


def test_explain_tells_of_all_ways_where_no_call_is_asked_for() -> None:
    function = fusec.jit(two_ways)
    for x in (HIGH, HIGH, LOW, LOW):
        function(x)
    text = fusec.explain(function)
    assert text.startswith("two_ways: compiled for 1 signature, 2 calls ran as written")
    assert "relu" in text
    assert "tanh" in text


def test_explain_does_not_call_compiled_what_runs_as_written() -> None:
    function = fusec.jit(warn=False)(lambda x: x.mul_(2) if x.sum() > 0 else x)
    for _ in range(3):
        function(HIGH.clone())
    assert "not compiled, 3 calls ran as written" in fusec.explain(function)
