"""How far a program for ranges of extents goes, and results for which each call makes objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusec


class Layer:
    own: Any = None
    length = 0

    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys


class Cache:
    def __init__(self) -> None:
        self.layers: list[Layer] = []


def plans(function: Any) -> int:
    return len(function.dispatcher.plans)


class Positions(torch.nn.Module):
    """Adds a row of a table to each token, as encoders do: the table's length is the last extent there is."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(most, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.table[: x.shape[1]])


@pytest.mark.parametrize("most", [64, 77])
def test_a_range_goes_as_far_as_the_functions_own_tables(most: int) -> None:
    module = Positions(most)
    jitted = fusec.jit(module, dynamic=True, fallback="error")
    with torch.no_grad():
        for rows in (8, 20, 13, 2, 40, most - 1):
            x = torch.randn(2, rows, 8)
            torch.testing.assert_close(jitted(x), module(x))
        assert len(jitted._fusec.dispatcher.plans) == 2
        x = torch.randn(2, most, 8)
        torch.testing.assert_close(jitted(x), module(x))  # all of the table: no slice
        with pytest.raises(RuntimeError, match=str(most)):
            jitted(torch.randn(2, most + 1, 8))


def test_results_may_be_objects_that_each_call_makes() -> None:
    @fusec.jit(dynamic=True, fallback="error")
    def function(x: torch.Tensor) -> Any:
        cache = Cache()
        cache.layers.append(Layer(x * 2))
        cache.layers[0].own = cache
        return {"found": torch.tanh(x), "cache": cache}

    caches = []
    for rows in (5, 9, 2, 17):
        x = torch.randn(rows, 8)
        found = function(x)
        caches.append(found["cache"])
        assert type(caches[-1]) is Cache
        assert caches[-1].layers[0].own is caches[-1]
        torch.testing.assert_close(caches[-1].layers[0].keys, x * 2)
    assert plans(function) == 2
    assert len(set(map(id, caches))) == 4


def test_an_object_that_depends_on_the_extent_is_made_for_each() -> None:
    def function(x: torch.Tensor) -> Any:
        layer = Layer(x * 2)
        layer.length = x.shape[0]
        return layer

    jitted = fusec.jit(dynamic=True, fallback="error")(function)
    for rows in (5, 9, 2):
        assert jitted(torch.randn(rows, 8)).length == rows
    assert plans(jitted) == 3
