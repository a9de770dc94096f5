"""A function that runs as written says so once, at the user's line, with the reason."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import fusec
from fusec.errors import CaptureError, VerifyError
from fusec.notices import FusecWarning, InternalErrorWarning
from fusec.runtime.telling import MOST_REASONS


def branching(x: Any) -> Any:
    return x * 2 if float(x.sum()) > 0 else x


def told(call: Any, times: int = 3) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            call()
    return [w for w in caught if issubclass(w.category, FusecWarning)]


def test_once_at_the_users_line_with_the_reason() -> None:
    jitted = fusec.jit(branching)
    (one,) = told(lambda: jitted(torch.ones(3)))
    assert one.category is fusec.RunsAsWritten
    assert one.filename == __file__
    with open(__file__) as source:
        assert "jitted(torch.ones(3))" in source.read().splitlines()[one.lineno - 1]
    assert str(one.message).startswith("branching runs as written: ")
    assert f"test_telling.py:{branching.__code__.co_firstlineno + 1}: the value of a tensor is" in str(one.message)
    assert not told(lambda: jitted(torch.ones(4))), "another signature, the same reason"


def test_a_module_names_the_line_of_its_call() -> None:
    class Inner(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return branching(x)

    inner = fusec.jit(Inner())
    outer = torch.nn.Sequential(torch.nn.Identity())
    outer[0].forward = lambda x: inner(x)  # type: ignore[method-assign]
    (one,) = told(lambda: outer(torch.ones(3)))
    assert one.filename == __file__


def test_a_gradient_without_a_backward_is_told_once_a_function() -> None:
    layer = torch.nn.Linear(4, 4)
    layer.register_full_backward_hook(lambda *given: None)
    model = fusec.jit(layer)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        for rows in (2, 3):
            model(torch.ones(rows, 4)).sum().backward()
            optimizer.step()

    (one,) = told(step)
    assert "a gradient is needed" in str(one.message)


def test_methods_of_many_instances_tell_once() -> None:
    class Layer:
        @fusec.jit
        def call(self, x: Any) -> Any:
            return branching(x)

    assert len(told(lambda: Layer().call(np.ones(3)))) == 1


def test_no_more_than_some_reasons_of_one_function() -> None:
    telling = fusec.jit(branching).dispatcher.telling
    assert len(told(lambda: [telling.runs_as_written("f", f"reason {k}") for k in range(50)])) == MOST_REASONS


def test_nothing_is_told_of_what_runs_compiled_or_raises_by_itself() -> None:
    def raising(x: Any) -> Any:
        raise KeyError("the function's own")

    assert not told(lambda: fusec.jit(lambda x: x * 2)(torch.ones(3)))
    jitted = fusec.jit(raising)

    def call() -> None:
        with pytest.raises(KeyError, match="own"):
            jitted(torch.ones(3))

    assert not told(call)
    assert dict(jitted.dispatcher.eager_calls) == {"it raises KeyError as written": 3}
    wrong = fusec.jit(lambda x: x)

    def misuse() -> None:
        with pytest.raises(TypeError, match="takes 1 positional argument"):
            wrong(torch.ones(3), 2)

    assert not told(misuse)


def test_a_first_call_that_settles_state_is_not_told() -> None:
    seen: list[int] = []

    def function(x: Any) -> Any:
        if not seen:
            seen.append(1)
        return x * 2

    jitted = fusec.jit(function)
    assert not told(lambda: jitted(torch.ones(3)))
    assert jitted.dispatcher.plans[-1].executable is not None


def test_silenced_by_the_option_and_by_filters() -> None:
    assert not told(lambda: fusec.jit(branching, warn=False)(torch.ones(3)))

    class Layer:
        @fusec.jit(warn=False)
        def call(self, x: Any) -> Any:
            return branching(x)

    assert not told(lambda: Layer().call(torch.ones(3)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=fusec.RunsAsWritten)
        fusec.jit(branching)(torch.ones(3))
    assert not caught


def test_an_error_where_the_filters_say_so() -> None:
    jitted = fusec.jit(branching)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fusec.RunsAsWritten)
        for _ in range(2):
            with pytest.raises(fusec.RunsAsWritten, match="branching runs as written"):
                jitted(torch.ones(3))


def test_torch_compile_tells_of_whole_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise CaptureError("refused")

    monkeypatch.setattr("fusec.build.build", refuse)
    with torch.no_grad():
        fast = torch.compile(lambda x: x * 3, backend="fusec")
        (one,) = told(lambda: fast(torch.ones(3)))
        assert (one.category, one.filename) == (fusec.RunsAsWritten, __file__)
        assert "refused" in str(one.message)
        quiet = torch.compile(lambda x: x * 4, backend="fusec", options={"warn": False})
        assert not told(lambda: quiet(torch.ones(3)))


def test_torch_compile_tells_of_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise VerifyError("broken")

    monkeypatch.setattr("fusec.build.build", broken)
    with torch.no_grad():
        fast = torch.compile(lambda x: x * 5, backend="fusec", options={"warn": False})
        (one,) = told(lambda: fast(torch.ones(3)))
    assert one.category is InternalErrorWarning
    assert "Please report" in str(one.message)


def test_torch_compile_tells_of_bugs_in_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object) -> None:
        raise KeyError("broken")

    monkeypatch.setattr("fusec.frontend.torch_fx.Result.finish", broken)
    with torch.no_grad():
        fast = torch.compile(lambda x: x * 6, backend="fusec")
        found = told(lambda: fast(torch.ones(3)))
    assert found
    assert {w.category for w in found} == {InternalErrorWarning}
    assert all("KeyError" in str(w.message) and w.filename == __file__ for w in found)


def test_a_bug_of_ours_in_a_capture_is_told_and_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise AssertionError("a pass of the capture is broken")

    monkeypatch.setattr("fusec.frontend.torch.refuse_late_errors", broken)
    jitted = fusec.jit(lambda x: x * 2, warn=False)
    (one,) = told(lambda: jitted(torch.ones(3)))
    assert one.category is InternalErrorWarning
    assert one.filename == __file__
    assert "internal error of fusec" in str(one.message)
    assert "Please report" in str(one.message)
    assert "AssertionError: a pass of the capture is broken" in str(one.message)
    ((reason, count),) = jitted.dispatcher.eager_calls.items()
    assert reason.startswith("internal error of fusec: AssertionError")
    assert count == 3
    monkeypatch.setenv("FUSEC_VERIFY", "1")
    with pytest.raises(AssertionError, match="is broken"):
        fusec.jit(lambda x: x * 2)(torch.ones(3))


def test_threads_tell_once() -> None:
    jitted = fusec.jit(branching)

    def together() -> None:
        workers = [threading.Thread(target=lambda: jitted(torch.ones(3))) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    assert 1 <= len(told(together, 1)) <= 4
    assert not told(together, 1)


def test_complex_numbers_are_told_as_not_compiled() -> None:
    """They are no bug of fusec's. Of PyTorch's the library computes them between kernels."""
    x: Any = np.ones(3, np.complex64)
    fast = fusec.jit(lambda x: x * x + 1)
    found = told(lambda: fast(x))
    assert [w.category for w in found] == [fusec.RunsAsWritten]
    assert "does not compute with c64" in str(found[0].message)
