"""What a call leaves in the containers and objects among its arguments is left in the caller's own."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from fusec.errors import UnsupportedOpError
from fusec.runtime.dispatch import COUNTING, GROWING

from .test_results import picture


class Layer:
    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.steps = 0


class Cache:
    def __init__(self, layers: int = 2) -> None:
        self.layers = [Layer() for _ in range(layers)]

    def update(self, x: torch.Tensor, number: int) -> torch.Tensor:
        layer = self.layers[number]
        layer.keys = x if layer.keys is None else torch.cat([layer.keys, x])
        return layer.keys


class Slotted:
    __slots__ = ("other", "value")

    def __init__(self) -> None:
        self.value: Any = None


class Table(OrderedDict):  # type: ignore[type-arg]
    pass


def attend(x: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
    for number in range(len(cache.layers)):
        x = x + cache.update(torch.tanh(x), number).sum(0)
    return x, cache


def test_one_program_serves_a_cache_that_grows() -> None:
    fast = fusec.jit(attend)
    for _ in range(2):
        ours, theirs = Cache(), Cache()
        for _ in range(9):
            x = torch.randn(1, 4)
            found, given = fast(x, ours)
            expected, _ = attend(x, theirs)
            assert given is ours
            torch.testing.assert_close(found, expected)
            for one, other in zip(ours.layers, theirs.layers, strict=True):
                torch.testing.assert_close(one.keys, other.keys)
    assert fast.dispatcher.eager_calls == {GROWING: 1}
    assert len(fast.dispatcher.plans) == 4  # without keys, with two, with any number of them, with one


def counted(x: torch.Tensor, cache: Cache) -> torch.Tensor:
    """A cache that counts its positions in Python, and starts to forget at the eighth."""
    for number, layer in enumerate(cache.layers):
        keys = cache.update(torch.tanh(x), number)
        layer.steps += len(x)
        x = x + keys.sum(0) / max(layer.steps, 8)
    return x


def test_a_cache_that_counts_is_compiled_for_none_of_its_numbers() -> None:
    """A program for each would be called once a text."""
    fast = fusec.jit(counted, warn=False)
    for _ in range(3):
        ours, theirs = Cache(), Cache()
        for _ in range(12):
            x = torch.randn(2, 4)
            torch.testing.assert_close(fast(x, ours), counted(x, theirs))
            assert [layer.steps for layer in ours.layers] == [layer.steps for layer in theirs.layers]
    assert fast.dispatcher.eager_calls[COUNTING] > 24
    assert len(fast.dispatcher.plans) < 5


def test_calls_that_count_are_not_looked_into_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind what is compiled, which is as quick as before."""
    fast = fusec.jit(counted, warn=False)
    for _ in range(3):
        ours = Cache()
        for _ in range(12):
            fast(torch.randn(2, 4), ours)
    looked, read = 0, fast.dispatcher.read

    def counting_read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal looked
        looked += 1
        return read(args, kwargs)

    monkeypatch.setattr(fast.dispatcher, "read", counting_read)
    compiled = sum(plan.is_compiled for plan in fast.dispatcher.plans)
    written = sum(fast.dispatcher.eager_calls.values())
    for _ in range(3):
        ours, theirs = Cache(), Cache()
        for _ in range(12):
            x = torch.randn(2, 4)
            torch.testing.assert_close(fast(x, ours), counted(x, theirs))
    assert looked <= 2
    assert sum(fast.dispatcher.eager_calls.values()) - written <= 3 * 12
    assert sum(plan.is_compiled for plan in fast.dispatcher.plans) == compiled


def appends(x: torch.Tensor, held: list[Any]) -> torch.Tensor:
    held.append(x * 2)
    held[0] = x
    return x + 1


def fills(x: torch.Tensor, held: dict[str, Any]) -> torch.Tensor:
    held["new"] = [x * 3, {"inner": x * 4}]
    held.pop("old", None)
    held["count"] = held.get("count", 0) + 1
    return x + 1


def sets_slots(x: torch.Tensor, held: Slotted) -> torch.Tensor:
    held.value, held.other = x * 2, "text"
    return x + 1


def deletes(x: torch.Tensor, held: Layer) -> torch.Tensor:
    del held.keys
    held.made = Layer()  # type: ignore[attr-defined]
    held.made.keys = x * 2  # type: ignore[attr-defined]
    return x + 1


def exchanges(x: torch.Tensor, held: list[Any]) -> torch.Tensor:
    held[0], held[1] = held[1], held[0]
    return held[0] + x


def keeps_a_part(x: torch.Tensor, held: list[Any]) -> torch.Tensor:
    held[0] = held[0][1:]
    held[0].add_(1)
    return held[0] + x[1:]


def gives_itself(x: torch.Tensor, held: list[Any]) -> tuple[torch.Tensor, Any]:
    held.append(x + 1)
    return x, (held, {"again": held})


def filled() -> Layer:
    layer = Layer()
    layer.keys = torch.ones(3)
    return layer


CHANGES: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "list": (appends, lambda: [5]),
    "dict": (fills, lambda: {"old": torch.ones(2)}),
    "ordered": (fills, lambda: Table(old=torch.ones(2), count=3)),
    "slots": (sets_slots, Slotted),
    "attributes": (deletes, filled),
    "exchange": (exchanges, lambda: [torch.ones(3), torch.zeros(3)]),
    "part": (keeps_a_part, lambda: [torch.arange(3.0)]),
    "itself": (gives_itself, lambda: [1]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_call_changes_is_changed(name: str) -> None:
    function, make = CHANGES[name]
    fast = fusec.jit(function)
    for _ in range(3):
        x, ours, theirs = torch.randn(3), make(), make()
        found, expected = fast(x, ours), function(x, theirs)
        assert picture((found, ours)) == picture((expected, theirs))
    assert not fast.dispatcher.eager_calls.keys() - {GROWING}


def test_an_argument_that_is_put_into_another_is_itself() -> None:
    fast = fusec.jit(appends)
    for _ in range(2):
        x, held = torch.randn(3), [0]
        fast(x, held)
        assert held[0] is x


SEEN: list[Any] = []


def test_what_is_reached_from_elsewhere_too_runs_as_written() -> None:
    def f(x: torch.Tensor, held: list[Any]) -> torch.Tensor:
        held.append(1)
        return x + len(SEEN)

    fast = fusec.jit(f)
    for count in range(1, 4):
        torch.testing.assert_close(fast(torch.zeros(2), SEEN), torch.full((2,), float(count)))
    assert SEEN == [1, 1, 1]


def test_a_call_that_raises_leaves_what_eager_leaves() -> None:
    def f(x: torch.Tensor, i: torch.Tensor, held: list[Any]) -> torch.Tensor:
        held.append(x * 2)
        return x[i] * 2

    fast, x = fusec.jit(f), torch.arange(3.0)
    held: list[Any] = []
    fast(x, torch.tensor([1]), held)
    held.clear()
    with pytest.raises(IndexError):
        fast(x, torch.tensor([7]), held)
    assert len(held) == 1


def test_a_capture_that_fails_leaves_no_stand_in_behind() -> None:
    def f(x: torch.Tensor, cache: Cache) -> torch.Tensor:
        cache.update(x, 0)
        return x + 1 if x.sum() > 0 else x - 1

    fast, ours, theirs = fusec.jit(f, warn=False), Cache(), Cache()
    for _ in range(4):
        x = torch.randn(1, 4)
        torch.testing.assert_close(fast(x, ours), f(x, theirs))
        assert picture(ours) == picture(theirs)


def test_calls_that_need_a_gradient_change_their_arguments() -> None:
    fast = fusec.jit(attend, warn=False)
    for _ in range(3):
        ours, theirs = Cache(), Cache()
        x = torch.randn(1, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        fast(x, ours)[0].sum().backward()
        attend(y, theirs)[0].sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        torch.testing.assert_close(ours.layers[0].keys, theirs.layers[0].keys)


def test_a_copy_of_a_cache_goes_its_own_way() -> None:
    fast, first = fusec.jit(attend), Cache()
    fast(torch.ones(1, 4), first)
    second = copy.deepcopy(first)
    fast(torch.ones(1, 4), second)
    assert first.layers[0].keys is not None
    assert second.layers[0].keys is not None
    assert (len(first.layers[0].keys), len(second.layers[0].keys)) == (1, 2)


def test_what_is_compiled_ahead_may_not_change_its_arguments() -> None:
    with pytest.raises(UnsupportedOpError, match="among its arguments"):
        fusec.compile(appends, torch.ones(3), [0], fallback="error")


def test_a_function_that_fills_a_cache_is_explained() -> None:
    cache = Cache()
    assert "would be compiled" in fusec.explain(fusec.jit(attend), torch.ones(1, 4), cache)
    assert cache.layers[0].keys is None


def masked(x: torch.Tensor, held: list[Any], mask: torch.Tensor) -> torch.Tensor:
    held[0] = torch.cat([held[0], x])
    return (held[0] * mask[:, None]).sum(0) + (1 if mask.shape[0] == held[0].shape[0] else 2)


def test_a_mask_for_one_key_more_grows_with_the_keys() -> None:
    fast, ours, theirs = fusec.jit(masked), [torch.ones(2, 4)], [torch.ones(2, 4)]
    for length in range(3, 9):
        x, mask = torch.randn(1, 4), torch.randn(length)
        torch.testing.assert_close(fast(x, ours, mask), masked(x, theirs, mask))
    assert len(fast.dispatcher.plans) == 2
    assert not fast.dispatcher.closed
