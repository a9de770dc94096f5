# SPDX-License-Identifier: Apache-2.0
"""Places the boxes of a directed graph in layers, top to bottom (after Sugiyama, Tagawa and Toda, 1981)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_GAP, _LAYER_GAP = 24.0, 46.0
_SWEEPS = 6
_BEND_WIDTH = 8.0


@dataclass(frozen=True)
class Layout:
    """Where things are. at: left and top of each box. bends: the points of each edge, its ends included.

    rows, bend_rows: the layer of each box, and of each of an edge's points.
    """

    at: tuple[tuple[float, float], ...]
    bends: tuple[tuple[tuple[float, float], ...], ...]
    rows: tuple[int, ...]
    bend_rows: tuple[tuple[int, ...], ...]
    width: float
    height: float


@dataclass
class _Layers:
    """Boxes, then bends of edges that pass by a layer: what each layer holds in order, and who is joined to whom."""

    sizes: list[tuple[float, float]]
    rows: list[list[int]]
    above: dict[int, list[int]] = field(default_factory=dict)
    below: dict[int, list[int]] = field(default_factory=dict)

    def join(self, upper: int, lower: int) -> None:
        self.below.setdefault(upper, []).append(lower)
        self.above.setdefault(lower, []).append(upper)


def lay_out(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Places boxes of these widths and heights; each edge goes from a box to a later one of the list."""
    if any(a >= b for a, b in edges):
        raise ValueError("an edge must go to a later box")
    ranks = _ranks(len(sizes), edges)
    layers = _Layers(list(sizes), [[] for _ in range(max(ranks, default=-1) + 1)])
    for box, rank in enumerate(ranks):
        layers.rows[rank].append(box)
    paths = [_path(layers, ranks, a, b) for a, b in edges]
    _order(layers)
    lefts = _across(layers)
    tops, bottoms, height = _down(layers)
    bends = tuple(tuple(_points(path, layers, lefts, tops, bottoms)) for path in paths)
    width = max((lefts[n] + layers.sizes[n][0] for n in range(len(sizes))), default=0.0)
    passed = [[row for row in range(ranks[a] + 1, ranks[b]) for _ in range(2)] for a, b in edges]
    bend_rows = tuple((ranks[a], *between, ranks[b]) for (a, b), between in zip(edges, passed, strict=True))
    return Layout(tuple((lefts[n], tops[n]) for n in range(len(sizes))), bends, tuple(ranks), bend_rows, width, height)


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each box: below all it reads; what reads nothing lies right above its first reader."""
    ranks = [0] * count
    incoming: dict[int, list[int]] = {}
    outgoing: dict[int, list[int]] = {}
    for a, b in edges:
        incoming.setdefault(b, []).append(a)
        outgoing.setdefault(a, []).append(b)
    for box in range(count):
        ranks[box] = max((ranks[a] + 1 for a in incoming.get(box, ())), default=0)
    for box in range(count):
        if box not in incoming and box in outgoing:
            ranks[box] = min(ranks[b] for b in outgoing[box]) - 1
    return ranks


def _path(layers: _Layers, ranks: list[int], start: int, end: int) -> list[int]:
    """The edge's ends and, in each layer between them, a new bend."""
    path = [start]
    for rank in range(ranks[start] + 1, ranks[end]):
        layers.sizes.append((_BEND_WIDTH, 0.0))
        path.append(len(layers.sizes) - 1)
        layers.rows[rank].append(path[-1])
    path.append(end)
    for upper, lower in pairwise(path):
        layers.join(upper, lower)
    return path


def _order(layers: _Layers) -> None:
    """Sorts each layer by the mean place of its neighbours in the one above, then below, and so on."""
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        near = layers.above if down else layers.below
        positions: dict[int, float] = {}
        for row in layers.rows if down else layers.rows[::-1]:
            wanted = {n: _mean([positions[m] for m in near.get(n, ()) if m in positions], k) for k, n in enumerate(row)}
            row.sort(key=wanted.__getitem__)
            positions |= {n: float(k) for k, n in enumerate(row)}


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _across(layers: _Layers) -> dict[int, float]:
    """The left of each box: as near as order and gaps allow to the middle of its neighbours."""
    lefts: dict[int, float] = {}
    for row in layers.rows:
        _pack(row, {}, layers, lefts)
    for sweep in range(_SWEEPS):
        near = layers.above if sweep % 2 == 0 else layers.below
        for row in layers.rows if sweep % 2 == 0 else layers.rows[::-1]:
            wanted = {
                n: _mean([lefts[m] + layers.sizes[m][0] / 2 for m in near[n]], 0) - layers.sizes[n][0] / 2
                for n in row
                if n in near
            }
            _pack(row, wanted, layers, lefts)
    start = min(lefts.values(), default=0.0)
    return {n: left - start for n, left in lefts.items()}


def _pack(row: list[int], wanted: Mapping[int, float], layers: _Layers, lefts: dict[int, float]) -> None:
    """Places a row from the left, and where that pushed boxes right of what they want, back by the mean excess."""
    edge, excess = float("-inf"), []
    for n in row:
        aim = wanted.get(n, lefts.get(n, 0.0))
        lefts[n] = max(aim, edge)
        excess.append(lefts[n] - aim)
        edge = lefts[n] + layers.sizes[n][0] + _GAP
    shift = _mean(excess, 0.0)
    for n in row:
        lefts[n] -= shift


def _down(layers: _Layers) -> tuple[dict[int, float], dict[int, float], float]:
    """The top of each box, the bottom of each layer's bends, and the height of all."""
    tops: dict[int, float] = {}
    bottoms: dict[int, float] = {}
    top = 0.0
    for row in layers.rows:
        high = max(layers.sizes[n][1] for n in row)
        for n in row:
            tops[n] = top
            bottoms[n] = top + (layers.sizes[n][1] or high)
        top += high + _LAYER_GAP
    return tops, bottoms, max(top - _LAYER_GAP, 0.0)


def _points(
    path: list[int], layers: _Layers, lefts: dict[int, float], tops: dict[int, float], bottoms: dict[int, float]
) -> list[tuple[float, float]]:
    points = []
    for number, n in enumerate(path):
        middle = lefts[n] + layers.sizes[n][0] / 2
        if number > 0:
            points.append((middle, tops[n]))
        if number < len(path) - 1:
            points.append((middle, bottoms[n]))
    return points
