# SPDX-License-Identifier: Apache-2.0
"""Which extents of a jitted function's arguments have changed from call to call, and are made symbolic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fusec.frontend.capture import Capture
from fusec.ir.graph import Graph
from fusec.ir.index import Symbol, add, symbol
from fusec.ir.types import Dim, contiguous_strides
from fusec.runtime.arrays import Layout
from fusec.runtime.code import spell, spell_tuple, variable_of

Shapes = tuple[tuple[Dim, ...], ...]
"""The shape of each array of a call; a symbolic extent may be any in its symbol's range."""

CaptureAt = Callable[[Mapping[str, int]], Capture]
Conditions = Callable[[Mapping[str, int], Mapping[str, tuple[int, int]]], None]
Symbolic = Callable[[CaptureAt, Sequence[Symbol], Conditions | None], Capture]
"""From a capture at given extents to one whose graph serves the symbols' ranges. Raises what capture raises.

The conditions raise DimensionError where what the function does at some extents is not what it does in the ranges.
"""


Extents = Literal["fixed", "followed", "sampled"]
"""Which extents that calls differ in become symbolic: none; those through which PyTorch's symbolic sizes can follow all
of the function; those for which captures at some extents agree."""


@dataclass(frozen=True)
class SizeClass:
    """Calls the product of whose symbols is ``upto`` at most, and more than that of the class before; None: all others.
    usual: the extents that kernels are scheduled for."""

    upto: int | None
    usual: Mapping[str, int]


def one_class(graph: Graph, symbols: Sequence[Symbol]) -> Sequence[SizeClass]:
    """Kernels are scheduled for the largest extents."""
    return (SizeClass(None, {}),)


@dataclass(frozen=True)
class Generality:
    """What a function's programs are made symbolic in, and how.

    extents: of arrays, where calls differ in them. integers: plain ones among the arguments. classes: of sizes that get
    kernels of their own, the smallest first.
    """

    make: Symbolic
    extents: Extents
    integers: bool
    classes: Callable[[Graph, Sequence[Symbol]], Sequence[SizeClass]] = one_class


LEAST = 2
"""Where an extent is 1 arrays broadcast, so it is compiled for by itself."""

ROOM = 4
"""How many times the largest extent seen the range of a symbol reaches, where the function allows that."""


ATTEMPTS = 6
"""Calls of one kind, told apart by extents, after which further ones are compiled for their extents alone."""


@dataclass(frozen=True)
class Opening:
    """Shapes that one program is to serve. ``steps``: strides of the arrays, by number, that are not row-major."""

    shapes: Shapes
    steps: Mapping[int, tuple[Dim, ...]] = field(default_factory=dict)

    @property
    def symbols(self) -> list[Symbol]:
        return symbols_in(self.shapes)

    def __str__(self) -> str:
        """Which extents are symbolic, whatever their ranges."""
        return f"{self.shapes} {dict(self.steps)}"


Openings = Callable[[Sequence[Sequence[Layout]]], Iterator[Opening]]
"""From the layouts of all calls of one kind, this one last, to what may be tried, the best first."""


def reach(extent: int, room: int = ROOM) -> int:
    """How far a range goes in which this is the largest extent seen."""
    return extent if room == 1 else 1 << (room * extent - 1).bit_length()


def openings(seen: Sequence[Sequence[Layout]]) -> Iterator[Opening]:
    """What the extents that changed from call to call suggest."""
    last, seen = seen[-1], _without_ones(seen)
    if last in seen and 2 <= len(seen) <= ATTEMPTS:
        for room in (ROOM, 1):
            shapes = open_shapes(seen, room)
            if shapes is not None:
                yield Opening(shapes)


def _without_ones(seen: Sequence[Sequence[Layout]]) -> Sequence[Sequence[Layout]]:
    """The calls but those of extents below :data:`LEAST` that others have larger."""
    shapes = [tuple(n for layout in row for n in layout.type.static_shape) for row in seen]
    varying = [k for k, values in enumerate(zip(*shapes, strict=True)) if len(set(values)) > 1]
    return [row for row, shape in zip(seen, shapes, strict=True) if all(shape[k] >= LEAST for k in varying)]


def open_shapes(seen: Sequence[Sequence[Layout]], room: int = ROOM) -> Shapes | None:
    """The shapes that serve all these calls, the extents that differ made symbolic: equal ones with one symbol, and
    those that differ by a number from such are it and the number.

    None where strides, or an extent of 1 or 0, stand against it.
    """
    symbols: dict[tuple[int, ...], Symbol] = {}
    changed = {
        values
        for rows in zip(*seen, strict=True)
        for values in zip(*(layout.type.static_shape for layout in rows), strict=True)
        if len(set(values)) > 1
    }
    base = {values: min(other for other in changed if _apart(values, other) is not None) for values in changed}
    shapes: list[tuple[Dim, ...]] = []
    for rows in zip(*seen, strict=True):
        extents = list(zip(*(layout.type.static_shape for layout in rows), strict=True))
        varies = any(len(set(values)) > 1 for values in extents)
        strides = {layout.strides for layout in rows}
        plain = all(layout.strides == contiguous_strides(layout.type.static_shape) for layout in rows)
        if (varies and not plain) or (not varies and len(strides) > 1):
            return None
        shape: list[Dim] = []
        for values in extents:
            if len(set(values)) == 1:
                shape.append(values[0])
                continue
            if min(values) < LEAST:
                return None
            least = base[values]
            made = symbols.setdefault(least, symbol(f"s{len(symbols)}", LEAST, reach(max(least), room)))
            shape.append(add(made, values[0] - least[0]))
        shapes.append(tuple(shape))
    return tuple(shapes) if symbols else None


def _apart(values: Sequence[int], other: Sequence[int]) -> int | None:
    """By what number extents differ from others in all calls; None where it is not one number."""
    found = {n - m for n, m in zip(values, other, strict=True)}
    return found.pop() if len(found) == 1 else None


def symbols_in(shapes: Shapes) -> list[Symbol]:
    """Each symbol once, in order of appearance; every one is an extent by itself somewhere."""
    return list(dict.fromkeys(n for shape in shapes for n in shape if isinstance(n, Symbol)))


def is_open(shape: Sequence[Dim]) -> bool:
    """Whether an extent is symbolic."""
    return any(not isinstance(n, int) for n in shape)


def opening_tests(opening: Opening, variables: Sequence[str]) -> list[str]:
    """Tests in generated code that arrays fit: ranges, after which each symbol has its variable, numbers, strides."""
    given = list(zip(opening.shapes, variables, strict=True))
    extents = [
        (extent, f"{variable}.shape[{axis}]")
        for shape, variable in given
        if is_open(shape)
        for axis, extent in enumerate(shape)
    ]
    first: dict[Symbol, str] = {}
    for extent, text in extents:
        if isinstance(extent, Symbol):
            first.setdefault(extent, text)
    tests = [f"{s.lo} <= ({variable_of(s)} := {text}) <= {s.hi}" for s, text in first.items()]
    tests += [f"{text} == {spell(extent)}" for extent, text in extents if text not in first.values()]
    for number, strides in opening.steps.items():
        if is_open(opening.shapes[number]):
            tests.append(f"{variables[number]}.stride() == {spell_tuple(strides)}")
    return tests
