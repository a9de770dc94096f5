"""What a function may return: a stand-in for an array never stays behind in it."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fusec
from fusec.errors import CaptureError, DataDependentError


class Held:
    def __init__(self, value: Any) -> None:
        self.inner = [value]


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class OwnList(list):  # type: ignore[type-arg]
    pass


def taken(value: Any) -> Any:
    return (part for part in [value])


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "deque": lambda v: collections.deque([v]),
    "list": lambda v: OwnList([v]),
    "closure": lambda v: lambda: v,
    "default": lambda v: lambda x=v: x,
    "generator": taken,
    "map": lambda v: map(abs, [v]),
    "object": Held,
    "slots": Slotted,
    "partial": lambda v: functools.partial(abs, v),
    "method": lambda v: v.sum,
    "exception": ValueError,
    "proxy": lambda v: types.MappingProxyType({"a": v}),
    "slice": lambda v: slice(v, None),
}
ARRAYS = (torch.ones(2), np.ones(2))


@pytest.mark.parametrize("x", ARRAYS, ids=["torch", "numpy"])
@pytest.mark.parametrize("name", HOLDERS)
def test_objects_that_hold_arrays_run_as_written(name: str, x: Any) -> None:
    hold = HOLDERS[name]

    def f(x):
        return hold(x * 2)

    with pytest.raises(CaptureError, match="with arrays in it"):
        fusec.jit(f, fallback="error")(x)
    assert type(fusec.jit(f)(x)) is type(f(x))


@pytest.mark.parametrize("x", ARRAYS, ids=["torch", "numpy"])
@pytest.mark.parametrize(
    "text", [str, repr, lambda v: f"{v.sum()}", lambda v: {str(v): v}], ids=["str", "repr", "format", "key"]
)
def test_texts_of_arrays_are_those_of_the_call(text: Callable[[Any], Any], x: Any) -> None:
    def f(x):
        return text(x * 2)

    with pytest.raises(DataDependentError, match="a text in the result"):
        fusec.jit(f, fallback="error")(x)
    assert str(fusec.jit(f)(x)) == str(f(x))


@pytest.mark.parametrize("x", ARRAYS, ids=["torch", "numpy"])
def test_objects_without_arrays_may_be_returned(x: Any) -> None:
    def f(x):
        return x * 2, len, f"{x.shape}", Held(3), lambda: 3

    doubled, *others, three = fusec.jit(f, fallback="error")(x)
    assert (doubled == 2).all()
    assert (others[0], others[1], others[2].inner, three()) == (len, str(x.shape), [3], 3)
