# SPDX-License-Identifier: Apache-2.0
"""Integer arguments that change from call to call, such as the position in a cache: one program for a range of them.

A call's structure has its integers by value. Where calls differ in some of these alone, they are made symbols: the
capture gets an input for each, which has no elements to read and whose extent is the integer, and so everything
that is known of symbolic extents holds for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusec.errors import DimensionError
from fusec.frontend.capture import Capture, IntegerSource, Library
from fusec.frontend.readings import Number, Readings, over_range, requested
from fusec.frontend.structures import CallSpec, Integer, Node, Static, Structure
from fusec.frontend.symbolic_int import SymbolicInt
from fusec.ir.index import Index, Symbol, symbol
from fusec.ir.nodes import Port, Value
from fusec.ir.types import TensorType, u8
from fusec.runtime.dynamic import LEAST, CaptureAt
from fusec.runtime.reaching import highest_in_turn

MOST_INTEGERS = 4
"""Integers of a call that are opened together; every one doubles the captures. Those that are always equal are one."""

MOST_OPENINGS = 4
"""Programs for ranges that are made, or tried, for calls alike in all but their integers."""


def integers_in(spec: CallSpec) -> list[int]:
    """The plain integers among a call's static values, in order."""
    return [part.value for part in _statics(spec) if type(part.value) is int]


def with_integers(spec: CallSpec, parts: Sequence[Structure]) -> CallSpec:
    """The structure with these in the places of its integers."""
    left = iter(parts)

    def numbered(part: Structure) -> Structure:
        if isinstance(part, Node):
            return replace(part, parts=tuple(map(numbered, part.parts)))
        return next(left) if isinstance(part, Static) and type(part.value) is int else part

    args = tuple(map(numbered, spec.args))
    return CallSpec(args, tuple((name, numbered(part)) for name, part in spec.kwargs))


def _statics(spec: CallSpec) -> Iterator[Static]:
    waiting = [*(part for _, part in reversed(spec.kwargs)), *reversed(spec.args)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Static):
            yield part
        waiting += reversed(getattr(part, "parts", ()))


@dataclass(frozen=True)
class OpenIntegers:
    """A call's structure of which some integers (their positions among :func:`integers_in`) are symbols."""

    spec: CallSpec
    symbols: Mapping[int, Symbol]

    @property
    def distinct(self) -> list[Symbol]:
        return list(dict.fromkeys(self.symbols.values()))

    @property
    def structure(self) -> CallSpec:
        """What calls are tested against."""
        return self.filled(lambda s: Integer(s.name, s.lo or 0, s.hi if isinstance(s.hi, int) else 0))

    def at(self, extents: Mapping[str, object]) -> CallSpec:
        """The structure with numbers, or what stands for them, in the places of the symbols."""
        return self.filled(lambda s: Static(extents[s.name]))

    def filled(self, make: Callable[[Symbol], Structure]) -> CallSpec:
        """The structure with what ``make`` makes in the places of the symbols."""
        values = integers_in(self.spec)
        parts = [make(self.symbols[k]) if k in self.symbols else Static(n) for k, n in enumerate(values)]
        return with_integers(self.spec, parts)

    def up_to(self, highest: Mapping[str, int]) -> OpenIntegers:
        """The same with these upper ends."""
        narrowed = {s: symbol(s.name, LEAST, highest[s.name]) for s in self.distinct}
        return replace(self, symbols={k: narrowed[s] for k, s in self.symbols.items()})

    def given(self, capture: Capture, extents: Mapping[str, int]) -> Capture:
        """The capture with an input more for each symbol."""
        values = [Value(TensorType(u8, (extents[s.name],)), s.name) for s in self.distinct]
        ports = [Port(role="integer", path=s.name) for s in self.distinct]
        graph = capture.graph
        inputs, input_ports = (*graph.inputs, *values), (*graph.input_ports, *ports)
        sources = (*capture.sources, *(IntegerSource(s.name) for s in self.distinct))
        return replace(capture, graph=replace(graph, inputs=inputs, input_ports=input_ports), sources=sources)


class IntegersSeen:
    """The integers that calls alike in all else have had, and which of them no program could be made for."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, list[tuple[int, ...]]] = {}
        self._closed: set[tuple[Hashable, tuple[int, ...]]] = set()
        self._openings: Counter[Hashable] = Counter()

    def opening(self, kind: Hashable, spec: CallSpec) -> OpenIntegers | None:
        """The integers that have changed, as symbols that reach as far as they have been; None where none is opened."""
        values = tuple(integers_in(spec))
        if not values:
            return None
        key = (kind, with_integers(spec, [Static(None)] * len(values)))
        if self._openings[key] >= MOST_OPENINGS:
            return None
        seen = self._seen.setdefault(key, [])
        seen[:] = [*(known for known in seen if known != values), values]
        changed = tuple(k for k, column in enumerate(zip(*seen, strict=True)) if len(set(column)) > 1)
        if not changed or min(values[k] for k in changed) < LEAST:
            return None
        columns = {k: tuple(known[k] for known in seen) for k in changed}
        if len(set(columns.values())) > MOST_INTEGERS:
            return None
        if (key, changed) in self._closed:
            return None
        self._openings[key] += 1
        names = {column: f"n{number}" for number, column in enumerate(dict.fromkeys(columns.values()))}
        symbols = {k: symbol(names[column], LEAST, max(column)) for k, column in columns.items()}
        return OpenIntegers(spec, symbols)

    def close(self, kind: Hashable, opened: OpenIntegers) -> None:
        """No program serves these integers: calls are compiled for each."""
        values = integers_in(opened.spec)
        key = (kind, with_integers(opened.spec, [Static(None)] * len(values)))
        self._closed.add((key, tuple(sorted(opened.symbols))))


def highest(opened: OpenIntegers, capture_at: CaptureAt) -> dict[str, int]:
    """How far each integer can go. DimensionError where one can't go further than it has been."""
    found = {s.name: s.hi if isinstance(s.hi, int) else LEAST for s in opened.distinct}
    for name, top in highest_in_turn(found, capture_at):
        if top == found[name]:
            raise DimensionError(f"an integer goes no further than {top}")
        found[name] = top
    return found


class SampledIntegers:
    """Captures of a function at some integers, each with the numbers that it was given on the way."""

    def __init__(self, opened: OpenIntegers, capture: Callable[[CallSpec], Capture]) -> None:
        self.opened = opened
        self._capture = capture
        self._noted: list[tuple[Mapping[str, int], Sequence[Number]]] = []

    def narrowed(self) -> SampledIntegers:
        """For a range as wide as can be, with no samples yet. DimensionError where it is that of the integers seen."""
        return SampledIntegers(self.opened.up_to(highest(self.opened, self.capture_at)), self._capture)

    def capture_at(self, extents: Mapping[str, int]) -> Capture:
        readings = Readings()
        with requested(readings):
            made = self._capture(self.opened.at(extents))
        self._noted.append((extents, readings.noted))
        return self.opened.given(made, extents)

    def check(self, library: Library, extents: Mapping[str, int], ranges: Mapping[str, tuple[int, int]]) -> None:
        """DimensionError unless the function, as it runs for these integers, does the same for all of the ranges."""
        make: Callable[[Index, int], Any] = SymbolicInt
        if library == "torch":
            from fusec.frontend.torch_symbolic_int import TorchInt  # torch is imported only where its tensors come

            make = TorchInt
        ends = {name: symbol(name, low, high) for name, (low, high) in ranges.items()}
        readings = Readings(over_range(self._noted, [ends[s.name] for s in self.opened.distinct]), make)
        with requested(readings):
            self._capture(self.opened.at({name: make(ends[name], n) for name, n in extents.items()}))
        if readings.refused:
            raise readings.refused[0]
