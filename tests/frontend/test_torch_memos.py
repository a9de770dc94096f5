"""Tensors out of a ``functools.lru_cache``: fetched from where they are kept, and guarded."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import fusec

STEP = 2


@functools.lru_cache(maxsize=10)
def places(n: int) -> torch.Tensor:
    return torch.arange(n) * STEP % 9


@functools.cache
def places_unbounded(n: int) -> torch.Tensor:
    return torch.arange(n) * STEP % 9


@functools.lru_cache
def places_in_a_tuple(n: int) -> tuple[torch.Tensor, int]:
    return torch.arange(n) * STEP % 9, n


class Biased(torch.nn.Module):
    def __init__(self, find: Any) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(9, 4))
        self.find = find

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.find(x.shape[0])
        index = found[0] if isinstance(found, tuple) else found
        return x + self.table[index.view(-1)]


@pytest.mark.parametrize("find", [places, places_unbounded, places_in_a_tuple], ids=lambda find: find.__name__)
@pytest.mark.parametrize("graded", [False, True])
def test_a_cached_tensor_is_read_where_it_is(find: Any, graded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    find.cache_clear()
    module, x = Biased(find), torch.randn(3, 4)
    module(x)  # fills the cache
    jitted = fusec.jit(module, fallback="error")
    with torch.set_grad_enabled(graded):
        torch.testing.assert_close(jitted(x), module(x))
        known = find(3)
        (known[0] if isinstance(known, tuple) else known).add_(1)
        torch.testing.assert_close(jitted(x), module(x))
        assert len(jitted._fusec.dispatcher.plans) == 1
        monkeypatch.setitem(globals(), "STEP", 3)
        torch.testing.assert_close(jitted(x), module(x))  # as kept
        find.cache_clear()
        wanted = module(x)
        torch.testing.assert_close(jitted(x), wanted)
        torch.testing.assert_close(jitted(torch.cat([x, x])), module(torch.cat([x, x])))


def test_what_is_no_longer_cached_is_not_read() -> None:
    places.cache_clear()
    module, x = Biased(places), torch.randn(3, 4)
    module(x)
    jitted = fusec.jit(module)
    with torch.no_grad():
        torch.testing.assert_close(jitted(x), module(x))
        for n in range(4, 16):
            places(n)  # evicts it
        places(3).zero_()
        torch.testing.assert_close(jitted(x), module(x))
