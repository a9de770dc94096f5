"""What a run leaves in the caches of ``functools.lru_cache``."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import fusec
from fusec.frontend.memos import HeldMemo, file_of_memo, is_memo


def _memo(**options: Any) -> Any:
    @functools.lru_cache(**options)
    def made(*args: Any, **kwargs: Any) -> object:
        return [args, kwargs]

    return made


@pytest.mark.parametrize("options", [{}, {"maxsize": None}, {"maxsize": 4, "typed": True}], ids=str)
def test_the_calls_that_were_added_are_told_and_forgotten(options: dict[str, Any]) -> None:
    made = _memo(**options)
    before = made(1, a=2)
    held = HeldMemo(made)
    assert held.added() == {}
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((3,), {}), (("s", 4.0), {"b": (1, 2), "c": None}), ((), {})]
    for args, kwargs in calls:
        made(*args, **kwargs)
    added = held.added()
    assert [(call.args, dict(call.kwargs)) for call in map(held.call, added)] == calls
    assert list(added.values()) == [[args, kwargs] for args, kwargs in calls]
    held.forget(added)
    assert made.cache_info().currsize == 1
    assert made(1, a=2) is before


def test_an_empty_cache_is_cleared() -> None:
    made = _memo()
    held = HeldMemo(made)
    made(1)
    assert held.kept == [[(1,), {}]]
    held.forget(held.added())
    assert made.cache_info().misses == 0


def test_what_is_a_cache_and_whose() -> None:
    assert is_memo(_memo())
    assert not is_memo(len)
    assert file_of_memo(_memo()) == __file__


@pytest.mark.parametrize("fallback", ["eager", "error"])
def test_an_array_that_a_capture_is_the_first_to_ask_for_is_kept(fallback: Any) -> None:
    @functools.lru_cache
    def table(n: int) -> torch.Tensor:
        return torch.arange(float(n))

    f = fusec.jit(lambda x: x + table(x.shape[-1]), fallback=fallback)
    x = torch.ones(2, 4)
    assert torch.equal(f(x), x + torch.arange(4.0))
    table(4).add_(1)
    assert torch.equal(f(x), x + 1 + torch.arange(4.0))
    table.cache_clear()
    assert torch.equal(f(x), x + torch.arange(4.0))
    assert table.cache_info().currsize == 1
