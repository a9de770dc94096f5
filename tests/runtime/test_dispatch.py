"""A bug in fusec is never taken for something that can't be compiled."""

from __future__ import annotations

import warnings

import pytest
import torch

import fusec
from fusec.errors import FusecError, LoweringError, SetupError, TargetError, VerifyError
from fusec.frontend.capture import Capture
from fusec.notices import InternalErrorWarning, RunsAsWritten
from fusec.runtime.dispatch import Dispatcher
from fusec.runtime.executable import Executable


def failing(error: Exception) -> Dispatcher:
    def compile_capture(_: Capture) -> Executable:
        raise error

    return Dispatcher(torch.sin, compile_capture)


@pytest.mark.parametrize("error", [VerifyError("broken"), LoweringError("no kernel"), KeyError("x")], ids=repr)
def test_a_bug_is_warned_of_once_for_each_signature(error: Exception) -> None:
    dispatcher, x = failing(error), torch.ones(3)
    with pytest.warns(InternalErrorWarning, match=f"internal error of fusec: {type(error).__name__}.*Please report"):
        assert torch.equal(dispatcher((x,), {}), x.sin())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(dispatcher((x,), {}), x.sin())


def test_a_bug_fails_where_warnings_are_errors() -> None:
    with pytest.raises(InternalErrorWarning):
        failing(VerifyError("broken"))((torch.ones(3),), {})


def test_a_refusal_is_no_bug() -> None:
    with pytest.warns(RunsAsWritten, match="refused"):
        assert torch.equal(failing(FusecError("refused"))((torch.ones(3),), {}), torch.ones(3).sin())


@pytest.mark.parametrize("error", [TargetError("no such device"), OSError("disk full")], ids=repr)
def test_what_is_missing_is_never_covered_by_the_fallback(error: Exception) -> None:
    dispatcher = failing(error)
    for _ in range(2):
        with pytest.raises(SetupError, match=str(error)):
            dispatcher((torch.ones(3),), {})
    assert not dispatcher.eager_calls


def test_a_bug_is_the_error_itself_without_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise VerifyError("broken")

    monkeypatch.setattr("fusec.build.build", broken)
    with pytest.raises(VerifyError, match="broken"):
        fusec.jit(torch.sin, fallback="error")(torch.ones(3))
