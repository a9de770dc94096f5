"""What a library does to trace an operation is not watched; what it calls of the user's is."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import torch
from unseen import Notes

import fusec
from fusec.frontend.torch_trace import Trace

ROWS = 2


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """For each operation that is traced, whether a profile hook was set meanwhile. What is in a list is put back."""
    found = Notes()
    dispatch = Trace._dispatch

    def noted(self: Trace, func: Any, args: Any, kwargs: Any) -> Any:
        found.add(sys.getprofile() is not None)
        return dispatch(self, func, args, kwargs)

    monkeypatch.setattr(Trace, "_dispatch", noted)
    return found


def taken(hooks: Notes) -> list[bool]:
    return hooks.take()


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * ROWS


def two_calls(x: torch.Tensor) -> torch.Tensor:
    return scaled(torch.sin(x))


@torch.library.custom_op("fusec_tests::rows", mutates_args=())
def rows(x: torch.Tensor) -> torch.Tensor:
    return x.expand(ROWS, -1).clone()


@rows.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(ROWS, x.shape[0])


def test_operations_are_traced_unwatched(hooks: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    f, x = fusec.jit(two_calls), torch.randn(3)
    torch.testing.assert_close(f(x), torch.sin(x) * 2)
    assert taken(hooks) == [False, False]
    monkeypatch.setitem(globals(), "ROWS", 3)  # read by code that ran after an operation
    torch.testing.assert_close(f(x), torch.sin(x) * 3)


def test_what_users_operations_read_is_guarded(hooks: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    f, x = fusec.jit(lambda x: rows(x) * 2), torch.randn(3)
    assert f(x).shape == (2, 3)
    assert taken(hooks) == [True, False]
    monkeypatch.setitem(globals(), "ROWS", 4)
    assert f(x).shape == (4, 3)


def test_a_profiler_that_is_set_sees_all(hooks: Notes) -> None:
    def mine(frame: FrameType, event: str, arg: object) -> None:
        pass

    sys.setprofile(mine)
    try:
        fusec.jit(two_calls)(torch.randn(3))
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
    assert taken(hooks) == [True, True]


def test_the_hook_is_back_after_an_error() -> None:
    def handles(x: torch.Tensor) -> torch.Tensor:
        try:
            x = x @ x
        except RuntimeError:
            x = x + 1
        return scaled(x)

    f, x = fusec.jit(handles), torch.randn(3, 4)
    torch.testing.assert_close(f(x), handles(x))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "ROWS", 5)
        torch.testing.assert_close(f(x), (x + 1) * 5)
