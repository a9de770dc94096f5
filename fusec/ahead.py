# SPDX-License-Identifier: Apache-2.0
"""Ahead of the calls: what to compile for ranges of named dimensions.

The ranges are cut into pieces, each of which one graph serves: an extent at which the function does something else
(often 1) is a piece of its own, and so is one whose kernels are better made for it alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from fusec.errors import DimensionError, OptionError
from fusec.frontend.capture import SAMPLING, Capture, ReferenceSource
from fusec.frontend.generalise import (
    MOST_SYMBOLS,
    Bindings,
    Sample,
    check_alike,
    generalise,
    sample_extents,
    with_symbols,
)
from fusec.frontend.plain import same_array
from fusec.ir.graph import Graph
from fusec.ir.index import Index, Symbol, product, symbol
from fusec.ir.indexing import most
from fusec.runtime.dynamic import SizeClass
from fusec.runtime.structure import Result, result_of
from fusec.specs import TensorSpec, checked_range, example

Ranges = Mapping[str, tuple[int, int]]
CaptureAt = Callable[[Bindings], Capture]
Conditions = Callable[[Bindings, Ranges], None]

SIZES = (64, 1024)
"""Products of extents up to which a GPU has kernels scheduled for them. A bf16 linear layer with gelu, 768 to 3072, for
16 times 512 tokens at most, on an H200: 2 times 64 of them take 13.4 µs in kernels for the most, 4.2 in their own."""

AT_CALLS = (64, 256, 1024, 4096)
"""Rows of matmuls up to which a GPU has kernels scheduled for them, where these are made when calls want them."""

_CONTRACTIONS = frozenset({"dot", "linear", "matmul", "einsum", "sdpa"})

FEW = 3
"""A range of fewer extents above 1 is compiled for each of them."""


@dataclass(frozen=True)
class Piece:
    """Ranges that one graph serves, and a capture of it at some extents in them.

    upto: how large the product of the named dimensions may be, where larger ones have a piece of their own.
    """

    ranges: Ranges
    graph: Graph
    capture: Capture
    upto: int | None = None

    @property
    def usual(self) -> dict[str, int]:
        """The extents for which kernels are scheduled: the largest, those of the longest dimensions halved to fit."""
        return usual_extents(self.ranges, self.upto)


def usual_extents(ranges: Ranges, upto: int | None) -> dict[str, int]:
    """Extents in the ranges, as large as they can be with a product of ``upto`` (which the least extents have)."""
    found = {name: high for name, (_, high) in ranges.items()}
    while upto is not None and prod(found.values()) > upto:
        longest = max(found, key=lambda name: found[name] / ranges[name][0])
        found[longest] = max(found[longest] // 2, ranges[longest][0])
    return found


def in_sizes(piece: Piece) -> list[Piece]:
    """The piece for small extents, for middling ones, and for all: matmuls of few rows are scheduled otherwise."""
    least, largest = (prod(ends[k] for ends in piece.ranges.values()) for k in (0, 1))
    if not any(op.name in _CONTRACTIONS for op in piece.graph.ops):
        return [piece]
    return [*(replace(piece, upto=n) for n in SIZES if least < n < largest), piece]


def size_classes(graph: Graph, symbols: Sequence[Symbol]) -> list[SizeClass]:
    """The sizes for which calls get kernels of their own, on a GPU where there are matmuls: by the rows of these."""
    ranges = {s.name: (s.lo or 1, most(s)) for s in symbols}
    largest, rows = (SizeClass(None, {}),), _rows(graph, symbols)
    if not rows or all(v.type.device == "cpu" for v in graph.inputs):
        return [*largest]
    least, top = (prod(ends[k] for ends in ranges.values()) for k in (0, 1))
    ends = sorted({max(n // rows, 1) for n in AT_CALLS})
    return [*(SizeClass(n, usual_extents(ranges, n)) for n in ends if least < n < top), *largest]


def _rows(graph: Graph, symbols: Sequence[Symbol]) -> int:
    """How many rows most matmuls have for each one of the product of the symbols; 0 where none has symbolic rows.

    Of products of batches, attention among them, only what is symbolic counts: blocks of rows are those of one batch.
    """
    size = prod(map(most, symbols))
    found: list[int] = []
    for op in graph.ops:
        if op.name in _CONTRACTIONS and not op.results[0].type.is_static:
            shape = op.results[0].type.shape[:-1]
            batched = op.operands[1].type.rank > 2
            rows = product(n for n in shape if not (batched and isinstance(n, int)))
            found.append(-(-most(rows) // size))
    return sorted(found)[len(found) // 2] if found else 0


def ranges_of(specs: Sequence[TensorSpec], given: Mapping[str, object] | None) -> dict[str, tuple[int, int]]:
    """The range of each named dimension; none at all, or every name has one. OptionError where they don't fit."""
    names = sorted(frozenset[str]().union(*(spec.names for spec in specs)))
    found: dict[str, tuple[int, int]] = {}
    for name, low, high in (entry for spec in specs for entry in spec.ranges):
        if found.setdefault(name, (low, high)) != (low, high):
            raise OptionError(f"{name} has two ranges, {found[name][0]}..{found[name][1]} and {low}..{high}")
    for name, ends in (given or {}).items():
        if name not in names:
            raise OptionError(f"dims= gives a range of {name!r}, and no spec has a dimension of this name")
        found[name] = checked_range(name, ends)
    missing = [name for name in names if name not in found]
    if found and missing:
        raise OptionError(f"{', '.join(missing)} has no range; give it one in dims=, as {next(iter(found))} has")
    return {name: found[name] for name in names if name in found}


def pieces(capture_at: CaptureAt, ranges: Ranges, conditions: Conditions | None = None) -> list[Piece]:
    """Captures the function at some extents, and cuts the ranges. DimensionError where no one graph serves them.

    ``conditions(extents, ranges)`` raises DimensionError where the function, as it runs at the extents, asks something
    that is not so in the ranges.
    """
    if len(ranges) > MOST_SYMBOLS:
        raise DimensionError(f"{len(ranges)} named dimensions; at most {MOST_SYMBOLS} can have ranges")
    return list(_pieces(capture_at, {}, ranges, conditions or _no_conditions))


def _no_conditions(extents: Bindings, ranges: Ranges) -> None:
    """Nothing is known but the samples."""


def for_range(capture_at: CaptureAt, symbols: Sequence[Symbol], conditions: Conditions | None = None) -> Capture:
    """A capture whose graph serves the symbols' ranges, which start at 2 or later. DimensionError if none does."""
    if len(symbols) > MOST_SYMBOLS:
        raise DimensionError(f"{len(symbols)} extents differ; at most {MOST_SYMBOLS} can be symbolic")
    samples = _Samples(capture_at, {}, symbols, conditions or _no_conditions)
    samples.check({s.name: (s.lo or 1, most(s)) for s in symbols})
    return replace(samples.first, graph=samples.graph())


def _pieces(capture_at: CaptureAt, known: Bindings, ranges: Ranges, conditions: Conditions) -> Iterator[Piece]:
    """The pieces where the dimensions ``known`` have these extents."""
    short = next((name for name, (low, high) in ranges.items() if high - max(low, 2) + 1 < FEW), None)
    if short is not None:
        rest = {name: ends for name, ends in ranges.items() if name != short}
        for extent in range(ranges[short][0], ranges[short][1] + 1):
            yield from _pieces(capture_at, {**known, short: extent}, rest, conditions)
        return
    exact = {name: (n, n) for name, n in known.items()}
    if not ranges:
        capture = capture_at(known)
        yield Piece(exact, capture.graph, capture)
        return
    symbols = [symbol(name, low, high) for name, (low, high) in ranges.items()]
    try:
        samples = _Samples(capture_at, known, symbols, conditions)
        graph = samples.graph()
    except DimensionError:
        name = _odd_last(capture_at, known, ranges, conditions)
        if name is None:
            raise
        yield from _pieces(capture_at, known, _without_last(ranges, name), conditions)
        rest = {other: ends for other, ends in ranges.items() if other != name}
        yield from _pieces(capture_at, {**known, name: ranges[name][1]}, rest, conditions)
        return
    samples.check({name: (max(low, 2), high) for name, (low, high) in ranges.items()})
    odd = [s for s in symbols if s.lo == 1 and not samples.fits_one(s)]
    left = dict(ranges)
    for s in odd:
        del left[s.name]
        yield from _pieces(capture_at, {**known, s.name: 1}, left, conditions)
        left[s.name] = (2, ranges[s.name][1])
    for cut in itertools.product(*(_cuts(s, s in odd) for s in symbols)):
        narrowed: dict[Symbol, Index] = {
            s: low if low == high else symbol(s.name, low, high) for s, (low, high) in zip(symbols, cut, strict=True)
        }
        here = {s.name: ends for s, ends in zip(symbols, cut, strict=True)}
        yield Piece({**exact, **here}, with_symbols(graph, narrowed), samples.first)


def _odd_last(capture_at: CaptureAt, known: Bindings, ranges: Ranges, conditions: Conditions) -> str | None:
    """The dimension without whose last extent one graph serves the ranges: at the length of a table of positions, say,
    all of the table is read, and no part of it is taken."""
    for name in ranges:
        symbols = [symbol(n, low, high) for n, (low, high) in _without_last(ranges, name).items()]
        try:
            _Samples(capture_at, known, symbols, conditions).graph()
        except DimensionError:
            continue
        return name
    return None


def _without_last(ranges: Ranges, name: str) -> dict[str, tuple[int, int]]:
    low, high = ranges[name]
    return {**ranges, name: (low, high - 1)}


def _cuts(s: Symbol, without_one: bool) -> list[tuple[int, int]]:
    """The parts of a symbol's range that get kernels of their own."""
    assert s.lo is not None
    assert isinstance(s.hi, int)
    if s.lo > 1:
        return [(s.lo, s.hi)]
    return [(2, s.hi)] if without_one else [(1, 1), (2, s.hi)]


class _Samples:
    def __init__(
        self, capture_at: CaptureAt, known: Bindings, symbols: Sequence[Symbol], conditions: Conditions
    ) -> None:
        self.conditions = conditions
        self.symbols = symbols
        self.capture_at = capture_at
        self.known = known
        grid, checks = sample_extents(symbols)
        self.grid = grid
        self.first = self._capture(grid[0])
        self.result, self.constants = _result(self.first)
        self.samples = [Sample(grid[0], self.first.graph)]
        self.samples += [self.sample(extents) for extents in (*grid[1:], *checks)]

    def sample(self, extents: Bindings) -> Sample:
        capture = self._capture(extents)
        result, constants = _result(capture)
        names = ", ".join(f"{name} = {n}" for name, n in extents.items())
        if result != self.result:
            raise DimensionError(f"what the function returns, besides arrays, depends on the extents (with {names})")
        if len(constants) != len(self.constants) or not all(map(_is_same, constants, self.constants)):
            raise DimensionError(f"an array that the function makes of numbers depends on the extents (with {names})")
        made = Sample(extents, capture.graph)
        check_alike(self.samples[0], made, self.symbols)  # before further ones are captured
        return made

    def _capture(self, extents: Bindings) -> Capture:
        token = SAMPLING.set(True)
        try:
            return self.capture_at({**self.known, **extents})
        finally:
            SAMPLING.reset(token)

    def graph(self) -> Graph:
        return generalise(self.samples, self.symbols)

    def check(self, ranges: Ranges) -> None:
        """DimensionError where the function, as it ran for the samples, runs otherwise somewhere in the ranges."""
        exact = {name: (n, n) for name, n in self.known.items()}
        self.conditions({**self.known, **self.grid[0]}, {**exact, **ranges})

    def fits_one(self, s: Symbol) -> bool:
        """Whether the graph is right where ``s`` is 1, too."""
        try:
            self.check({o.name: (1, 1) if o is s else (max(o.lo or 1, 2), most(o)) for o in self.symbols})
            one = self.sample({**self.grid[0], s.name: 1})
            generalise([*self.samples, one], self.symbols)
        except DimensionError:
            return False
        return True


def _result(capture: Capture) -> tuple[Result, list[Any]]:
    """What the function returns, with its arrays by number; the arrays that no call's arguments make.

    These are its own numbers made into arrays, and what it finds outside, such as parameters.
    """
    outputs = capture.graph.outputs
    examples = [
        example(TensorSpec(v.type.static_shape, v.type.dtype, None, v.type.device), {}, capture.library)
        for v in outputs
    ]
    result, constants = result_of(capture.rebuild, examples, capture.library)
    found = [source.fetch() for source in capture.sources if isinstance(source, ReferenceSource)]
    return result, [*constants.values(), *found]


def _is_same(one: Any, other: Any) -> bool:
    return one is other or same_array(one, other)
