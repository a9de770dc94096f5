# SPDX-License-Identifier: Apache-2.0
"""Integers in which a function counts from call to call: attributes of objects, such as the position in a cache.

A call gives them to the function like arguments, and adds to them afterwards what the captured run added.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from fusec.errors import DimensionError
from fusec.frontend.held import State
from fusec.frontend.raw import attributes_of
from fusec.frontend.symbolic_int import SymbolicInt
from fusec.ir.nodes import Op
from fusec.ir.raising import is_effect, is_lookup


@dataclass(frozen=True)
class IntegerAttribute:
    """The attribute ``name`` in an object's own ``__dict__``. The object is not kept alive."""

    owner: weakref.ref[Any]
    name: str

    @property
    def value(self) -> Any:
        """What it is now; None where it is gone."""
        owner = self.owner()
        return None if owner is None else (attributes_of(owner) or {}).get(self.name)

    def set(self, value: object) -> None:
        owner = self.owner()
        own = None if owner is None else attributes_of(owner)
        if own is not None:
            own[self.name] = value


class Counting:
    """A captured run in which the counters start as these integers. While it is entered they are no state that the run
    may not change, and afterwards they are as they were."""

    def __init__(self, counters: Sequence[IntegerAttribute], given: Sequence[Any]) -> None:
        self._given = list(zip(counters, given, strict=True))
        self._names = {(id(counter.owner()), counter.name) for counter in counters}
        self._before: list[Any] = []
        self._made: int | None = None
        self._token: Token[Counting | None] | None = None

    def __enter__(self) -> Counting:
        self._before = [counter.value for counter, _ in self._given]
        for counter, given in self._given:
            counter.set(given)
        self._token = COUNTING.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._token is not None
        COUNTING.reset(self._token)
        for (counter, _), before in zip(self._given, self._before, strict=True):
            counter.set(before)

    def is_counter(self, owner: object, name: object) -> bool:
        return (id(owner), name) in self._names

    def before_call(self, made: int) -> None:
        """The function is about to call the library, having made so many ops."""
        if self._made is None and any(counter.value is not given for counter, given in self._given):
            self._made = made

    def may_raise_late(self, ops: Sequence[Op]) -> bool:
        """Whether a call may raise after the first counter has changed: as written it would stay changed then."""
        return self._made is not None and any(is_effect(op) or is_lookup(op) for op in ops[self._made :])

    def steps(self) -> tuple[int, ...]:
        """What the run has added to each. DimensionError where that differs from integer to integer of a range."""
        return tuple(_step(counter.value, given) for counter, given in self._given)


COUNTING: ContextVar[Counting | None] = ContextVar("COUNTING", default=None)
"""The run of the capture that is going on in this thread, where its function counts."""


def is_counter(owner: object, name: object) -> bool:
    """Whether an attribute is a counter of the capture that is going on."""
    counting = COUNTING.get()
    return counting is not None and counting.is_counter(owner, name)


def counters_in(owner: object, names: Iterable[str], before: State) -> tuple[IntegerAttribute, ...]:
    """The attributes of an object that have changed as counters, if they are plain integers as they were before."""
    own = attributes_of(owner)
    names = tuple(names)
    then = dict(before.attributes)
    if type(own) is not dict or list(own) != list(then) or not own.keys() >= set(names):
        return ()
    if not all(type(own[name]) is int and type(then[name]) is int for name in names):
        return ()
    try:
        reference = weakref.ref(owner)
    except TypeError:
        return ()
    return tuple(IntegerAttribute(reference, name) for name in names)


def _step(now: Any, given: Any) -> int:
    step = now - given if isinstance(now, int) else None
    if issubclass(type(step), SymbolicInt):
        step = step.expression  # type: ignore[union-attr]
    if type(step) is not int:
        raise DimensionError("what the function adds to an integer attribute depends on the integer")
    return step
