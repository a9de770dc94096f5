"""Integer attributes that a function counts in: each call sees what the last one left, in one program for a range."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import fusec
from fusec.frontend.state_errors import StateChangedError

torch = pytest.importorskip("torch")


class Cache(torch.nn.Module):
    """Attention of one token to those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(12, 8))
        self.register_buffer("values", torch.zeros(12, 8))
        self.place = 0

    def forward(self, x: Any) -> Any:
        q, k, v = self.project(x).chunk(3, -1)
        self.keys[self.place], self.values[self.place] = k[0], v[0]
        self.place += 1
        return torch.softmax(q @ self.keys[: self.place].t(), -1) @ self.values[: self.place]


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(9, 8)
        self.layers = torch.nn.ModuleList(Cache() for _ in range(5))

    def forward(self, words: Any) -> Any:
        x = self.words(words)
        for layer in self.layers:
            x = x + layer(x)
        return x


def places(module: Any) -> list[int]:
    return [m.place for m in module.modules() if isinstance(m, Cache)]


def pair(made: Any) -> tuple[Any, Any, Any]:
    """A compiled one that is never run as written, its object, and another of the same contents."""
    theirs = copy.deepcopy(made)
    return fusec.jit(made, fallback="error"), made, theirs


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def test_a_cache_is_compiled_for_a_range_of_places() -> None:
    compiled, ours, theirs = pair(Cache())
    for step in range(10):
        if step == 6:  # begun again from outside
            ours.place = theirs.place = 3
        x = torch.randn(1, 8)
        torch.testing.assert_close(compiled(x), theirs(x))
        assert ours.place == theirs.place
        assert torch.equal(ours.keys != 0, theirs.keys != 0)
    assert len(compiled._fusec.dispatcher.plans) == 3  # for 0, for 1, and for the rest
    assert "kernel" in fusec.explain(compiled, torch.randn(1, 8))
    assert ours.place == theirs.place


def test_counters_that_are_always_equal_are_one_integer() -> None:
    compiled, ours, theirs = pair(Layers())
    for word in range(6):
        x = torch.tensor([word])
        torch.testing.assert_close(compiled(x), theirs(x))
        assert places(ours) == places(theirs) == [word + 1] * 5
    assert len(compiled._fusec.dispatcher.plans) == 3


def count_alike(word: int, compiled: Any, ours: Any, theirs: Any) -> None:
    """Both count as far as they get; there is no word 99."""
    for function in (compiled, theirs):
        try:
            function(torch.tensor([word]))
        except IndexError:
            assert word == 99
    assert places(ours) == places(theirs)


def test_a_call_that_raises_counts_where_it_does_as_written() -> None:
    compiled, ours, theirs = pair(Layers())
    for word in (0, 1, 2, 3, 99, 4):
        count_alike(word, compiled, ours, theirs)


class CountsFirst(Layers):
    def forward(self, words: Any) -> Any:
        self.layers[0].place += 1
        return self.words(words) * self.layers[0].place


def test_counting_before_a_call_that_may_raise_runs_as_written() -> None:
    ours, theirs = CountsFirst(), CountsFirst()
    compiled = fusec.jit(ours)
    for word in (0, 1, 99, 3):
        count_alike(word, compiled, ours, theirs)
    with pytest.raises(StateChangedError, match="before a library call that may raise"):
        fusec.jit(ours, fallback="error")(torch.tensor([0]))


class Steps:
    def __init__(self) -> None:
        self.n = 0
        self.seed = 1
        self.where: Any = 0

    def by_two(self, x: Any) -> Any:
        self.n += 2
        return x[self.n :] * 3

    def around(self, x: Any) -> Any:
        self.n = (self.n + 1) % 7
        return x[self.n :] * 2

    def at_random(self, x: Any) -> Any:
        self.seed = self.seed * 75 % 65537
        return x + self.seed

    def to_none(self, x: Any) -> Any:
        self.where = 3 if self.where is None else self.where + 1
        return x * 2


MAKES = pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])


@MAKES
@pytest.mark.parametrize("name", ["by_two", "around", "at_random"])
def test_attributes_of_any_object(name: str, make: Any) -> None:
    ours, theirs = Steps(), Steps()
    compiled = fusec.jit(getattr(ours, name))
    for _ in range(12):
        np.testing.assert_array_equal(compiled(make(40)), getattr(theirs, name)(make(40)))
        assert vars(theirs).items() <= vars(ours).items()


def test_what_can_not_be_a_range_runs_as_written_after_some_values() -> None:
    compiled = fusec.jit(Steps().at_random)
    for _ in range(12):
        compiled(torch.ones(3))
    assert len(compiled.dispatcher.plans) <= 6
    assert sum(compiled.dispatcher.eager_calls.values()) >= 6


def test_an_attribute_that_is_no_integer_any_more() -> None:
    ours, theirs = Steps(), Steps()
    compiled = fusec.jit(ours.to_none)
    for step in range(6):
        if step == 3:
            ours.where = theirs.where = None
        np.testing.assert_array_equal(compiled(np.ones(3)), theirs.to_none(np.ones(3)))
        assert ours.where == theirs.where


def test_one_that_is_gone_is_not_kept() -> None:
    made = Steps()
    compiled = fusec.jit(lambda x, steps: steps.by_two(x))
    for _ in range(4):
        compiled(torch.ones(30), made)
    other = Steps()
    assert len(compiled(torch.ones(30), other)) == 28
    assert (made.n, other.n) == (8, 2)
