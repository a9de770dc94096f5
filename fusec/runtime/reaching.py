# SPDX-License-Identifier: Apache-2.0
"""How far a range of extents or integers can go, found by captures.

Past the end of an array, such as a table of positions, a function raises, or does something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fusec.ir.graph import Graph
from fusec.ir.index import Index, Symbol, symbol
from fusec.ir.indexing import substitute
from fusec.runtime.arrays import Layout
from fusec.runtime.dynamic import CaptureAt, Opening, reach

TRIALS = 12
"""Captures that are spent on how far a range goes."""


def within_reach(opening: Opening, seen: Sequence[Sequence[Layout]], capture_at: CaptureAt) -> Opening | None:
    """The opening with its ranges as far as the function does the same; None where that is no further than seen."""
    ends = ends_seen(opening, seen)
    most = {name: most for name, (_, most) in ends.items()}
    least = {name: max(least, 2) for name, (least, _) in ends.items()}
    if any(least[name] < n for name, n in most.items()) and not _has_ops_of(capture_at(most).graph, capture_at, least):
        return None  # no range holds both
    found = dict(highest_in_turn(most, capture_at))
    if found == most:
        return None

    def narrowed(s: Symbol) -> Index:
        hi = min(found[s.name], s.hi) if isinstance(s.hi, int) else found[s.name]
        return symbol(s.name, s.lo or 0, hi)

    changed = {s: narrowed(s) for s in opening.symbols}
    shapes = tuple(tuple(substitute(n, changed) for n in shape) for shape in opening.shapes)
    steps = {k: tuple(substitute(n, changed) for n in row) for k, row in opening.steps.items()}
    return replace(opening, shapes=shapes, steps=steps)


def ends_seen(opening: Opening, seen: Sequence[Sequence[Layout]]) -> dict[str, tuple[int, int]]:
    """The least and the largest value that each symbol has had."""
    return {
        extent.name: _ends(row[number].type.static_shape[axis] for row in seen)
        for number, shape in enumerate(opening.shapes)
        for axis, extent in enumerate(shape)
        if isinstance(extent, Symbol)
    }


def _ends(values: Iterable[int]) -> tuple[int, int]:
    found = sorted(values)
    return found[0], found[-1]


def highest_in_turn(seen: Mapping[str, int], capture_at: CaptureAt) -> Iterator[tuple[str, int]]:
    """How far each goes, from what it has been, when those before it go as far as they can.

    Tried first are the extents of the function's arrays, and a little less.
    """
    top = dict(seen)
    first = capture_at(top).graph
    extents = {n for v in first.inputs for n in v.type.static_shape}
    for name, known in seen.items():

        def fits(n: int, name: str = name, known: int = known) -> bool:
            return _is_alike(first, capture_at, {**top, name: n}, n - known)

        near = {n - back for n in extents for back in range(3)} | {reach(known)}
        top[name] = _furthest(known, sorted(n for n in near if n > known), fits)
        yield name, top[name]


def _furthest(known: int, likely: Sequence[int], fits: Callable[[int], bool]) -> int:
    """The largest number that fits, as far as some trials show: one of the likely ones, or below. ``known`` fits."""
    beyond: int | None = None
    for _ in range(TRIALS):
        open_to_trial = [n for n in likely if known < n and (beyond is None or n < beyond)]
        if not open_to_trial and (beyond is None or beyond - known <= 1):
            break
        n = open_to_trial[len(open_to_trial) // 2] if open_to_trial else (known + (beyond or 0)) // 2
        if fits(n):
            known = n
        else:
            beyond = n
    return known


def _has_ops_of(first: Graph, capture_at: CaptureAt, extents: Mapping[str, int]) -> Graph | None:
    """The function's graph there, where it is of the same ops."""
    try:
        graph = capture_at(extents).graph
    except Exception:  # whatever the function, or its library, raises there
        return None
    return graph if [op.name for op in graph.ops] == [op.name for op in first.ops] else None


def _is_alike(first: Graph, capture_at: CaptureAt, extents: Mapping[str, int], moved: int) -> bool:
    """Whether the function does the same ops there, where an integer is ``moved`` more, and extents move with it."""
    graph = _has_ops_of(first, capture_at, extents)
    if graph is None:
        return False
    types = [[r.type for op in g.ops for r in op.results] for g in (first, graph)]
    return all(
        a.rank == b.rank and all((m - n) % moved == 0 for n, m in zip(a.static_shape, b.static_shape, strict=True))
        for a, b in zip(*types, strict=True)
    )
