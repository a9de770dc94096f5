"""What a function may return: a stand-in for an array never stays behind in it."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_outputs import BaseModelOutput

import fusec
from fusec.errors import CaptureError, DataDependentError
from fusec.frontend import raw


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

    if name in ("object", "slots") and isinstance(x, torch.Tensor):
        fusec.jit(f, fallback="error")(x)
    else:
        with pytest.raises(CaptureError, match="with arrays in it"):
            fusec.jit(f, fallback="error")(x)
    assert type(fusec.jit(f)(x)) is type(f(x))


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Data:
    value: Any
    note: str = "n"

    def __post_init__(self) -> None:
        self.more = [self.note]


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenData:
    value: Any


class Strict(Held):
    """Whose ``__init__`` and attributes do more than to hold."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.__dict__["hidden"] = value

    def __setattr__(self, name: str, value: Any) -> None:
        assert name == "inner"
        super().__setattr__(name, value)

    @property
    def hidden(self) -> Any:
        raise AssertionError("read")


class Table(collections.OrderedDict):  # type: ignore[type-arg]
    def update(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("updated")

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)


def in_table(value: Any) -> Table:
    table = Table()
    table["a"] = value
    table["b"] = [value]
    return table


def in_a_circle(value: Any) -> Held:
    one, other = Held(value), Held(None)
    one.inner.append(other)
    other.inner.append(one)
    return one


class Layers(transformers.DynamicCache):
    pass


def in_a_cache(value: Any) -> Layers:
    cache = Layers()
    cache.update(value[None, None, None], value[None, None, None], 0)
    return cache


MADE: dict[str, Callable[[Any], Any]] = {
    "object": Held,
    "slots": Slotted,
    "named tuple": lambda v: Pair(v, [v, 1]),
    "dataclass": Data,
    "frozen": FrozenData,
    "strict": Strict,
    "table": in_table,
    "circle": in_a_circle,
    "model output": lambda v: BaseModelOutput(last_hidden_state=v, hidden_states=(v, v + 1)),
    "cache": in_a_cache,
    "default dict": lambda v: collections.defaultdict(list, a=v),
    "nested": lambda v: {"a": [Held(Data(v))], "b": Pair(Held(1), Held(v))},
}


def picture(value: Any, seen: dict[int, int] | None = None) -> Any:
    """A value as nested tuples: types, keys, attributes, numbers, and which parts are one object."""
    seen = {} if seen is None else seen
    if isinstance(value, torch.Tensor):
        return ("tensor", seen.setdefault(id(value), len(seen)), value.tolist())
    if raw.is_a(value, tuple):
        return (type(value), *(picture(part, seen) for part in value))
    if not raw.is_a(value, list, dict) and not raw.is_object(value):
        return value
    if id(value) in seen:
        return ("again", seen[id(value)])
    seen[id(value)] = len(seen)
    keys = raw.keys_of(value) if raw.is_a(value, dict) else []
    parts = raw.values_of(value) if raw.is_a(value, dict, list) else []
    own = raw.items_of(raw.attributes_of(value) or {}) + [(s.__name__, v) for s, v in raw.slots_of(value).items()]
    return type(value), keys, [picture(p, seen) for p in parts], [(n, picture(p, seen)) for n, p in own]


@pytest.mark.parametrize("name", MADE)
def test_objects_made_by_a_call_are_made_by_each(name: str) -> None:
    make = MADE[name]

    def f(x: torch.Tensor) -> Any:
        return make(x * 2)

    x, compiled = torch.arange(3.0), fusec.jit(f, fallback="error")
    first, second = compiled(x), compiled(x + 1)
    assert picture(first) == picture(f(x))
    assert picture(second) == picture(f(x + 1))
    assert first is not second


SHARED = Held(1)


def test_objects_without_arrays_are_new_unless_they_were_there_before() -> None:
    inner = Held(2)

    def f(x: torch.Tensor) -> Any:
        both = [0]
        return x * 2, Held(3), SHARED, {"a": inner}, both, Pair(both, Held(inner))

    compiled = fusec.jit(f, fallback="error")
    one, other = compiled(torch.ones(2)), compiled(torch.ones(2))
    assert one[1] is not other[1]
    assert one[1].inner == [3]
    for result in (one, other):
        assert result[2] is SHARED
        assert result[3]["a"] is inner
        assert result[4] is result[5].first
        assert result[5].second.inner[0] is inner
    one[1].inner.append(4)
    assert compiled(torch.ones(2))[1].inner == [3]


def test_a_model_output_among_the_arguments_is_one_input_for_each_tensor() -> None:
    def f(given: BaseModelOutput) -> torch.Tensor:
        return given.last_hidden_state * 2 + given["last_hidden_state"] + given[0]

    compiled = fusec.jit(f, fallback="error")
    for _ in range(2):
        given = BaseModelOutput(last_hidden_state=torch.rand(3))
        torch.testing.assert_close(compiled(given), f(given))
    assert len(compiled.dispatcher.plans) == 1  # type: ignore[attr-defined]
    assert len(compiled.dispatcher.plans[0].capture.graph.inputs) == 1  # type: ignore[attr-defined]
    changed = BaseModelOutput(last_hidden_state=torch.rand(3))
    changed.__dict__["last_hidden_state"] = torch.rand(3)
    torch.testing.assert_close(compiled(changed), f(changed))


@pytest.mark.parametrize("x", ARRAYS, ids=["torch", "numpy"])
@pytest.mark.parametrize(
    "text",
    [str, repr, lambda v: f"{v.sum()}", lambda v: {str(v): v}, lambda v: str(v)[:10]],
    ids=["str", "repr", "format", "key", "start"],
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
