"""Functions under ``functools.lru_cache`` in NumPy functions."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import fusec

Array = np.ndarray[Any, Any]


def test_what_it_keeps_is_read_written_and_returned() -> None:
    @functools.lru_cache
    def table(n: int, *, k: int = 0) -> Array:
        return np.arange(n) + float(k)

    def f(x: Array) -> tuple[Array, Array]:
        kept = table(x.shape[-1], k=2)
        kept += 1
        return x + table(x.shape[-1], k=2), kept

    g = fusec.jit(f, fallback="error")
    x = np.ones((2, 4))
    for step in (1, 2, 3):
        found, kept = g(x)
        np.testing.assert_array_equal(found, x + np.arange(4) + 2 + step)
        assert kept is table(4, k=2)
    table.cache_clear()
    np.testing.assert_array_equal(g(x)[0], x + np.arange(4) + 3)


def test_what_is_not_plain_runs_as_written() -> None:
    @functools.lru_cache
    def scale(of: Any) -> Array:
        return np.full(3, of.k)

    class Held:
        def __init__(self) -> None:
            self.k = 2.0

    held = Held()
    g = fusec.jit(lambda x: x * scale(held), warn=False)
    x = np.ones(3)
    np.testing.assert_array_equal(g(x), [2, 2, 2])
    scale(held)[0] = 5
    np.testing.assert_array_equal(g(x), [5, 2, 2])
    assert scale.cache_info().currsize == 1
