"""Which extents of a jitted function's arguments have changed from call to call, and are made symbolic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fusec.frontend.capture import Capture
from fusec.ir.index import Symbol, symbol
from fusec.ir.types import Dim, contiguous_strides
from fusec.runtime.arrays import Layout

Shapes = tuple[tuple[Dim, ...], ...]
"""The shape of each array of a call; a symbolic extent may be any in its symbol's range."""

CaptureAt = Callable[[Mapping[str, int]], Capture]
Conditions = Callable[[Mapping[str, int], Mapping[str, tuple[int, int]]], None]
Symbolic = Callable[[CaptureAt, Sequence[Symbol], Conditions | None], Capture]
"""From a capture at given extents to one whose graph serves the symbols' ranges. Raises what capture raises.

The conditions raise DimensionError where what the function does at some extents is not what it does in the ranges.
"""

LEAST = 2
"""Where an extent is 1 arrays broadcast, so it is compiled for by itself."""

ROOM = 4
"""How many times the largest extent seen the range of a symbol reaches, where the function allows that."""


def open_shapes(seen: Sequence[Sequence[Layout]], room: int = ROOM) -> Shapes | None:
    """The shapes that serve all these calls, the extents that differ made symbolic, equal ones with one symbol.

    None where strides, or an extent of 1 or 0, stand against it.
    """
    symbols: dict[tuple[int, ...], Symbol] = {}
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
            top = max(values) if room == 1 else 1 << (room * max(values) - 1).bit_length()
            shape.append(symbols.setdefault(values, symbol(f"s{len(symbols)}", LEAST, top)))
        shapes.append(tuple(shape))
    return tuple(shapes) if symbols else None


def symbols_in(shapes: Shapes) -> list[Symbol]:
    """Each symbol once, in order of appearance."""
    return list(dict.fromkeys(n for shape in shapes for n in shape if isinstance(n, Symbol)))


def is_open(shape: Sequence[Dim]) -> bool:
    """Whether an extent is symbolic."""
    return any(isinstance(n, Symbol) for n in shape)


def shape_tests(shapes: Shapes, variables: Sequence[str]) -> list[str]:
    """Tests, in generated code, that the shapes of variables fit: numbers, ranges, and equal extents."""
    first: dict[Symbol, str] = {}
    tests: list[str] = []
    for shape, variable in zip(shapes, variables, strict=True):
        for axis, extent in enumerate(shape if is_open(shape) else ()):
            place = f"{variable}.shape[{axis}]"
            if not isinstance(extent, Symbol):
                tests.append(f"{place} == {extent}")
            elif extent in first:
                tests.append(f"{place} == {first[extent]}")
            else:
                first[extent] = place
                tests.append(f"{extent.lo} <= {place} <= {extent.hi}")
    return tests
