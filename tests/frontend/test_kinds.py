"""``type`` of what stands for an array: that of the array, by whatever way the function asks."""

from __future__ import annotations

import builtins
import functools
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from unseen import Notes

import fusec
from fusec.frontend import kinds

kind_of = type
"""Another name for it, as a module may have."""

MAKERS = {
    "tensor": lambda: torch.arange(3.0),
    "parameter": lambda: nn.Parameter(torch.arange(3.0)),
    "buffer": lambda: nn.Buffer(torch.arange(3.0)),
    "array": lambda: np.arange(3.0),
}
ARRAYS = (torch.Tensor, np.ndarray)


def matched(x: Any) -> int:
    match x:
        case nn.Parameter():
            return 5
        case torch.Tensor() | np.ndarray():
            return 2
        case _:
            return 3


@functools.singledispatch
def dispatched(x: Any) -> int:
    return 7


@dispatched.register
def _(x: torch.Tensor) -> int:
    return 2 if type(x) is torch.Tensor else 3


@dispatched.register
def _(x: np.ndarray) -> int:  # type: ignore[type-arg]
    return 2 if type(x) is np.ndarray else 3


class Slotted:
    __slots__ = ()

    def ask(self, x: Any) -> int:
        return 2 if type(x) in ARRAYS else 3


class Table(dict):  # type: ignore[type-arg]
    pass


SLOTTED = Slotted()
TABLE = Table(ask=lambda x: 2 if type(x) in ARRAYS else 3)

WAYS: dict[str, Callable[[Any], Any]] = {
    "is": lambda x: 2 if type(x) is torch.Tensor or type(x) is np.ndarray else 3,
    "equal": lambda x: 2 if type(x) == torch.Tensor or type(x) == np.ndarray else 3,  # noqa: E721
    "in": lambda x: 2 if type(x) in (*ARRAYS, nn.Parameter) else 3,
    "parameter": lambda x: 2 if type(x) is nn.Parameter else 3,
    "isinstance": lambda x: 2 if isinstance(x, nn.Parameter) else 3,
    "isinstance of a buffer": lambda x: 2 if isinstance(x, nn.Buffer) else 3,
    "issubclass": lambda x: 2 if issubclass(type(x), nn.Parameter) else 3,
    "__class__": lambda x: 2 if x.__class__ in ARRAYS else 3,
    "name": lambda x: len(type(x).__name__) + len(x.__class__.__qualname__),
    "module": lambda x: len(type(x).__module__),
    "text": lambda x: len(str(type(x))),
    "key": lambda x: {torch.Tensor: 2, nn.Parameter: 4, np.ndarray: 5}.get(type(x), 9),
    "map": lambda x: sum(kind in ARRAYS for kind in map(type, [x, x + 1])),
    "result": lambda x: 2 if type(x + 1) in ARRAYS else 3,
    "element": lambda x: 2 if type(x[0]) in (torch.Tensor, np.float64) else 3,
    "sum": lambda x: len(type(x.sum()).__name__),
    "another name": lambda x: 2 if kind_of(x) in ARRAYS else 3,
    "default": lambda x, kind=type: 2 if kind(x) in ARRAYS else 3,
    "builtins": lambda x: 2 if builtins.type(x) in ARRAYS else 3,
    "comprehension": lambda x: sum([2 if type(y) in ARRAYS else 3 for y in [x, x]]),
    "mro": lambda x: len(type(x).__mro__),
    "of another": lambda x: 2 if type(x) is type(torch.zeros(1)) else 3,
    "of types": lambda x: 2 if type(type(x)) is type(torch.Tensor) else 3,
    "is a type": lambda x: 2 if isinstance(type(x), type) and issubclass(type(type(x)), type) else 3,
    "union": lambda x: 2 if isinstance(int, type | None) else 3,
    "made class": lambda x: type("Made", (), {"value": 3}).value,
    "match": matched,
    "singledispatch": dispatched,
    "slots": SLOTTED.ask,
    "table": lambda x: TABLE["ask"](x),
    "parameter made": lambda x: 2 if torch.is_tensor(x) and type(nn.Parameter(x * 2)) is nn.Parameter else 3,
}


@pytest.mark.parametrize("argument", MAKERS)
@pytest.mark.parametrize("way", WAYS)
def test_what_an_array_is_is_what_it_stands_for(way, argument):
    ask = WAYS[way]

    def function(x):
        return x * ask(x)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = function(MAKERS[argument]())
        found = fusec.jit(function)(MAKERS[argument]())
    assert (expected == found).all()


@pytest.mark.parametrize("way", ["is", "__class__", "name", "map", "another name", "slots", "singledispatch", "table"])
@pytest.mark.parametrize("argument", ["tensor", "array"])
def test_code_that_asks_is_captured(way, argument):
    ask = WAYS[way]
    x = MAKERS[argument]()
    function = fusec.jit(lambda x: x * ask(x), fallback="error")
    assert (function(x) == x * ask(x)).all()


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        found = [type(t).__name__ for t in (x, self.weight, self.scale, self.weight * 1, self)]
        return x * (2 if found == ["Tensor", "Parameter", "Tensor", "Tensor", "Asking"] else 3)


def test_modules_that_ask_are_captured():
    with torch.no_grad():
        assert (fusec.jit(Asking(), fallback="error")(torch.ones(3)) == 2).all()


def test_classes_made_of_type_are_pythons_own():
    def function(x):
        class Meta(type):
            @property
            def length(cls):
                return len(cls.__mro__)

        class Made(metaclass=Meta):
            value = 2

        return x * Made.value * Made.length * len(type(Made).__name__) * len(Meta.__mro__)

    x = torch.arange(3.0)
    assert (fusec.jit(function, fallback="error")(x) == function(x)).all()


def test_globals_are_as_they_were():
    before = dict(globals())
    fusec.jit(WAYS["another name"])(torch.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="invalid literal"):
            fusec.jit(lambda x: (type(x), kind_of(x), x * int("none")))(torch.ones(3))
    assert kind_of is type
    assert {key for key in globals() if key not in before} <= {"__warningregistry__"}
    assert not kinds._stand_ins


def until(notes):
    for _ in range(2000):
        if notes.number():
            return
        time.sleep(0.01)
    raise TimeoutError("no note was taken")


def test_threads_that_capture_the_same_code_do_not_disturb_one_another():
    inside, go_on = Notes(), Notes()  # events would be state that the function changes
    found = {}

    def waits(x):
        inside.add(x)
        until(go_on)
        return x * (2 if type(x) is torch.Tensor and kind_of(x) is torch.Tensor else 3)

    def call():
        found["waiting"] = fusec.jit(waits, fallback="error")(torch.ones(3))

    thread = threading.Thread(target=call)
    thread.start()
    until(inside)
    quick = fusec.jit(lambda x: x * (2 if type(x) is torch.Tensor and kind_of(x) is torch.Tensor else 3))
    assert (quick(torch.ones(3)) == 2).all()
    with pytest.raises(ValueError, match="invalid literal"):
        fusec.jit(lambda x: (type(x), kind_of(x), x * int("none")))(torch.ones(3))
    assert type(threading) is type(builtins)
    assert isinstance(int, type)
    go_on.add(None)
    thread.join()
    assert (found["waiting"] == 2).all()
    assert kind_of is type
    assert "type" not in globals()
    assert (quick(torch.ones(3)) == 2).all()
    assert len(quick.dispatcher.plans) == 1
