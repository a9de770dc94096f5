"""Attributes that are not there when a function is captured, and that it goes on without: they count once set."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fusec


class Plain:
    pass


class Slotted:
    __slots__ = ("scale",)


class Default:
    scale = 7


class Answering:
    def __getattr__(self, name: str) -> int:
        if name == "scale":
            return 9
        raise AttributeError(name)


class Trying:
    def __init__(self) -> None:
        self.inner = Plain()

    def read(self) -> Any:
        return self.inner.scale


class OwnDict(dict):  # type: ignore[type-arg]
    pass


def sample() -> None: ...


HOLDERS: dict[str, Callable[[], Any]] = {
    "object": Plain,
    "slots": Slotted,
    "class with a default": Default,
    "class that answers": Answering,
    "dict": OwnDict,
    "namespace": types.SimpleNamespace,
    "class": lambda: type("Made", (), {}),
    "function": lambda: types.FunctionType(sample.__code__, {}),
    "python module": lambda: types.ModuleType("made"),
    "module": nn.Module,
    "library's module": lambda: nn.Linear(3, 3),
    "parameter": lambda: nn.Parameter(torch.ones(3)),
    "tensor": lambda: torch.ones(3),
}


def tried(holder):
    try:
        return holder.scale
    except AttributeError:
        return 1


def tried_below(holder):
    def read():
        return holder.scale

    try:
        return read()
    except:  # noqa: E722
        return 1


WAYS: dict[str, Callable[[Any], Any]] = {
    "getattr": lambda holder: getattr(holder, "scale", 1),
    "hasattr": lambda holder: 2 if hasattr(holder, "scale") else 1,
    "vars": lambda holder: vars(holder).get("scale", 1) if hasattr(holder, "__dict__") else 1,
    "in vars": lambda holder: 2 if hasattr(holder, "__dict__") and "scale" in vars(holder) else 1,
    "any of": lambda holder: sum(getattr(holder, name, 0) for name in ("scale", "shift")),
    "made name": lambda holder: sum(getattr(holder, f"{name}", 0) for name in ["sca" + "le", "shift"]),
    "tried": tried,
    "tried below": tried_below,
}


def values(jitted, function, holder, x):
    """Whether the results are right, call after call, while the attribute comes, changes and goes."""
    for scale in (None, 3, 4, None, 4):
        if scale is not None:
            holder.scale = scale
        elif "scale" in getattr(holder, "__dict__", {}) or (isinstance(holder, Slotted) and hasattr(holder, "scale")):
            del holder.scale
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield bool((jitted(x) == function(x)).all())


@pytest.mark.sweep
@pytest.mark.parametrize("x", [torch.arange(3.0), np.arange(3.0)], ids=["torch", "numpy"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_set_later_counts(name, way, x):
    holder, read = HOLDERS[name](), WAYS[way]

    def function(x):
        return x * read(holder)

    assert all(values(fusec.jit(function), function, holder, x))


def test_a_modules_own_parameter_and_what_is_set_on_its_class():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            scaled = x * (2 if getattr(self.weight, "frozen", False) else 3)
            return scaled + self.shift if hasattr(self, "shift") else scaled

    module = Own()
    jitted, x = fusec.jit(module), torch.arange(3.0)
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: setattr(module.weight, "frozen", True),
        lambda: setattr(module.weight, "frozen", False),
        lambda: module.register_buffer("shift", torch.ones(3)),
        lambda: delattr(module, "shift"),
        lambda: setattr(Own, "shift", 4),
    ]
    with torch.no_grad():
        for change in changes:
            change()
            assert torch.equal(jitted(x), module(x))


def test_what_stays_missing_leaves_one_plan():
    holder = Plain()

    def function(x):
        return x * getattr(holder, "scale", 1)

    jitted, x = fusec.jit(function, fallback="error"), torch.arange(3.0)
    for _ in range(3):
        holder.other = 3
        assert torch.equal(jitted(x), x)
    assert len(jitted.dispatcher.plans) == 1


class Unset:
    scale = None


class Processor:
    """As an attention processor of a library's module: its class says that there is no backend."""

    backend = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        scale = getattr(Unset, "scale", 1)
        return x * 2 if scale is None and getattr(self, "backend", None) is None else x * 3


def test_an_attribute_that_is_none_in_the_class_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = Processor()
    jitted: Any = fusec.jit(lambda x: processor(x), fallback="error")
    x = torch.ones(3)
    for _ in range(2):
        assert torch.equal(jitted(x), x * 2)
    assert len(jitted.dispatcher.plans) == 1
    monkeypatch.setattr(Processor, "backend", 1)
    assert torch.equal(jitted(x), x * 3)
    monkeypatch.undo()
    assert torch.equal(jitted(x), x * 2)
    processor.backend = 1  # type: ignore[assignment]
    assert torch.equal(jitted(x), x * 3)
