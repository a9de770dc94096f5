"""Jitted functions and modules under ``torch.inference_mode()``, on tensors made inside and outside of it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from jitted import plans, same

import fusec


@contextmanager
def inference(on: int) -> Iterator[None]:
    with torch.inference_mode(bool(on)), torch.no_grad():
        yield


class Cached(torch.nn.Module):
    """Writes into buffers, and returns views of a buffer, a parameter and an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(4, 8))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("seen", torch.ones(4, 4).tril())

    def forward(self, x: Any, places: Any) -> Any:
        cache, calls, seen = self.get_buffer("cache"), self.get_buffer("calls"), self.get_buffer("seen")
        cache.index_copy_(0, places, self.linear(x))
        cache[2] = x[0] * 2
        calls += 1
        mask = seen[None, None, places]
        return cache.sum(0) + calls + mask.sum(), x.t(), x, self.linear.weight[None], seen[1:], cache


class Reading(torch.nn.Module):
    """Changes nothing; its result is larger than what PyTorch's allocator is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 300)

    def forward(self, x: Any, places: Any) -> Any:
        wide = self.linear(x)[:, None] * self.linear.weight.sum(1)[:, None]
        return wide, wide.bfloat16(), wide[0, places], self.linear.weight.t(), x[None]


class Changing(torch.nn.Module):
    """Writes into an argument, through views of it as well."""

    def forward(self, x: Any, places: Any) -> Any:
        x.mul_(2)
        x[0, 1:3] = 5.0
        view = x[:, 2:]
        view.add_(places)
        return view * 2, x + 1, x


class Entering(torch.nn.Module):
    """Enters and leaves the mode itself; its results are of both kinds, and one of them comes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: Any, places: Any) -> Any:
        with torch.inference_mode():
            inside = self.linear(x)
            row = inside[0, places]
            views = self.linear.weight.t(), x[None]
        with torch.inference_mode(False), torch.no_grad():
            outside = x * 3
        return inside + 1, row, inside[:, 1:], outside, inside, *views, inside


def _result(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except RuntimeError as error:
        return error


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("made", "given", "called"), list(itertools.product((0, 1), repeat=3)))
@pytest.mark.parametrize("kind", [Cached, Reading, Changing, Entering])
def test_tensors_made_inside_and_outside(kind: Any, made: int, given: int, called: int) -> None:
    with inference(made):
        module = kind()
        expected = copy.deepcopy(module)
    jitted = fusec.jit(module)
    for _ in range(3):
        with inference(given):
            x, places = torch.randn(1, 8), torch.tensor([1])
            other = x.clone()
        before = {name: _version(b) for name, b in module.named_buffers()}
        with inference(called):
            found, wanted = _result(jitted, x, places), _result(expected, other, places)
        same(x, other)
        for (name, buffer), like in zip(module.named_buffers(), expected.buffers(), strict=True):
            same(buffer, like)
            counted = name != "seen" and kind is Cached and not isinstance(wanted, Exception)
            assert buffer.is_inference() or not counted or _version(buffer) > before[name]
        if isinstance(wanted, Exception):
            assert str(found) == str(wanted)
            assert "Inplace update to inference tensor outside InferenceMode" in str(found)
            continue
        for one, another in zip(found, wanted, strict=True):
            same(one, another)
        assert [[one is another for one in found] for another in found] == [
            [one is another for one in wanted] for another in wanted
        ]
        addresses = [t.data_ptr() for t in (x, *module.parameters(), *module.buffers())]
        others = [t.data_ptr() for t in (other, *expected.parameters(), *expected.buffers())]
        assert [t.data_ptr() in addresses for t in found] == [t.data_ptr() in others for t in wanted]
        assert [plan.reason for plan in plans(jitted)] == [""]


def test_one_module_in_all_modes() -> None:
    """Each kind of call has a plan of its own, and none is taken for another."""
    module = Reading()
    jitted = fusec.jit(module)
    for _ in range(2):
        for given, called in itertools.product((0, 1), repeat=2):
            with inference(given):
                x, places = torch.randn(2, 8), torch.tensor([1, 0])
            with inference(called):
                for found, wanted in zip(jitted(x, places), module(x, places), strict=True):
                    same(found, wanted)
    assert [plan.reason for plan in plans(jitted)] == [""] * 4


def test_ranges_of_extents() -> None:
    """Views of tensors from outside are no reason to give a range up; what the function asks of extents is."""
    weight = torch.randn(4)

    def function(x: Any) -> Any:
        row = weight[None]
        return x * row - 1 if x.shape[0] == 37 else x * row + 1

    jitted = fusec.jit(function, dynamic=True)
    with torch.inference_mode():
        for n in (3, 5, 9, 37, 64, 11):
            x = torch.randn(n, 4)
            same(jitted(x), function(x))
    assert not any(plan.reason for plan in plans(jitted))
