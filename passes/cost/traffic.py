# SPDX-License-Identifier: Apache-2.0
"""Which bytes a loop nest fetches from beyond a cache: reuse distances, counted in whole blocks.

A nest is a tree of touches (a statement's bytes of one buffer), sequences and repetitions. What one repetition left
behind is still there in the next if all that the nest touches in one repetition fits the cache, and of what is larger
than the cache that share which the cache is of it; between two statements the same holds for what is touched from the
one to the other. Statements that touch a buffer at other positions have nothing of each other's, unless some
repetitions later. What is non-temporal takes no room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusec.ir.index import Expr, Index, Symbol, add, bounds, symbols_of
from fusec.ir.indexing import coefficient, substitute
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Buffer, Subscript, offset_of


@dataclass(frozen=True)
class Touch:
    """A statement's bytes of a buffer, another part of it for each value of the symbols it depends on.

    index, domain: the elements, one for each point.
    """

    buffer: Buffer
    bytes: float
    depends: frozenset[Symbol]
    non_temporal: bool = False
    index: tuple[Subscript, ...] = ()
    domain: tuple[Iter, ...] = ()

    def start(self) -> tuple[Index, int]:
        """The byte that it starts with, by symbols around, and how many it has side by side."""
        flat, item = offset_of(self.buffer, self.index), self.buffer.dtype.itemsize
        if flat is None:
            return 0, item
        along = max((it.extent for it in self.domain if coefficient(flat, it.var) == 1), default=1)
        return substitute(flat, {it.var: 0 for it in self.domain}) * item, along * item


@dataclass(frozen=True)
class Repeat:
    """``times`` repetitions of a sequence, the symbol having another value in each: from ``start`` on by ``step``."""

    symbol: Symbol
    times: float
    body: Nest
    start: Index = 0
    step: int = 1


Nest = Sequence["Touch | Repeat"]


@dataclass(frozen=True)
class Flow:
    """Of one buffer, or of a part of it, in a nest. footprint: bytes touched. first: fetched at first touches; again:
    fetched again, after so many ``between`` have been touched, on the average. steps: bytes by which the next value of
    a symbol moves what is touched.
    """

    footprint: float
    first: float
    again: float
    depends: frozenset[Symbol]
    non_temporal: bool = False
    steps: Mapping[Symbol, int] = field(default_factory=dict)
    between: float = 0.0

    @property
    def fetched(self) -> float:
        return self.first + self.again

    def more(self, again: float, between: float) -> Flow:
        """With so many bytes more that are fetched again."""
        total = self.again + again
        if not total:
            return self
        return replace(self, again=total, between=(self.again * self.between + again * between) / total)


@dataclass(frozen=True)
class Loss:
    """share: of what some nests touch, what the cache has not kept when it is touched again. whole: all their bytes."""

    share: float
    whole: float


Region = tuple[Buffer, int]
"""A part of a buffer, by the byte that it starts with where all symbols have their first values."""

Flows = Mapping[Region, Flow]


@dataclass(frozen=True)
class Start:
    """Where a touch starts, as in :class:`Region`, and its flow's ``steps``."""

    at: int
    steps: Mapping[Symbol, int]


Starts = Mapping[int, Start]
"""By the identity of a touch in a nest; of buffers that are touched at one position alone there are none."""

_ONLY = Start(0, {})


def flows(nest: Nest, capacity: float, *, hinted: bool = False) -> dict[Buffer, Flow]:
    """What each buffer's part in a nest fetches into a cache of so many bytes, which is empty of it before.

    ``hinted``: the cache is the one that non-temporal stores pass by.
    """
    found: dict[Buffer, Flow] = {}
    for (buffer, _), flow in _Tracing(starts(nest), capacity, hinted).sequence(nest).items():
        found[buffer] = _joined(buffer, found[buffer], flow) if buffer in found else flow
    return found


def starts(nest: Nest) -> Starts:
    """Where the touches of a nest start. Those that are nearer to each other than what one has side by side overlap:
    they have one position."""
    by_buffer: dict[Buffer, list[tuple[Touch, tuple[Repeat, ...]]]] = {}
    for touch, around in _touches(nest, ()):
        by_buffer.setdefault(touch.buffer, []).append((touch, around))
    found: dict[int, Start] = {}
    for touches in by_buffer.values():
        if len({touch.index for touch, _ in touches}) > 1:
            found.update(_apart(touches))
    return found


def _apart(touches: Sequence[tuple[Touch, tuple[Repeat, ...]]]) -> Starts:
    """Of one buffer."""
    found: dict[int, Start] = {}
    runs: dict[int, int] = {}
    for touch, around in touches:
        at, run = touch.start()
        start = found[id(touch)] = _start(at, around)
        runs[start.at] = max(runs.get(start.at, 1), run)
    first = _first_of_overlapping(runs)
    return {key: replace(start, at=first[start.at]) for key, start in found.items()}


def _touches(nest: Nest, around: tuple[Repeat, ...]) -> Iterator[tuple[Touch, tuple[Repeat, ...]]]:
    """Each touch with the repetitions around it, the innermost first."""
    for node in nest:
        if isinstance(node, Touch):
            yield node, around
        else:
            yield from _touches(node.body, (node, *around))


def _start(at: Index, around: Iterable[Repeat]) -> Start:
    steps: dict[Symbol, int] = {}
    for node in around:
        if node.symbol in symbols_of(at):
            start = substitute(at, {node.symbol: node.start})
            if node.times > 1:
                next_one = substitute(at, {node.symbol: add(node.start, node.step)})
                steps[node.symbol] = _least(next_one) - _least(start)
            at = start
    return Start(_least(at), steps)


def _least(at: Index) -> int:
    return bounds(at)[0] or 0 if isinstance(at, Expr) else at


def _first_of_overlapping(runs: Mapping[int, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    first = end = min(runs)
    for at in sorted(runs):
        if at >= end:
            first, end = at, at + runs[at]
        found[at] = first
    return found


def _joined(buffer: Buffer, one: Flow, other: Flow) -> Flow:
    """Of two parts of a buffer, of which there is no more than its size."""
    whole = max(buffer.most * buffer.dtype.itemsize, one.footprint, other.footprint)
    footprint = min(one.footprint + other.footprint, whole)
    first = min(one.first + other.first, footprint)
    joined = replace(one, footprint=footprint, first=first, depends=one.depends | other.depends)
    return replace(joined.more(other.again, other.between), non_temporal=one.non_temporal and other.non_temporal)


@dataclass(frozen=True)
class _Tracing:
    starts: Starts
    capacity: float
    hinted: bool

    def sequence(self, nest: Nest) -> dict[Region, Flow]:
        parts = [self._part(node) for node in nest]
        found: dict[Region, Flow] = {}
        last: dict[Region, int] = {}
        for number, part in enumerate(parts):
            for region, flow in part.items():
                if region in found:
                    lost = _lost(parts[last[region] : number + 1], self.capacity)
                    found[region] = _touched_again(found[region], flow, lost)
                else:
                    found[region] = flow
                last[region] = number
        return found

    def _part(self, node: Touch | Repeat) -> dict[Region, Flow]:
        if isinstance(node, Touch):
            start = self.starts.get(id(node), _ONLY)
            non_temporal = node.non_temporal and self.hinted
            flow = Flow(node.bytes, node.bytes, 0.0, node.depends, non_temporal, start.steps)
            return {(node.buffer, start.at): flow}
        inside = self.sequence(node.body)
        lost = _lost([inside], self.capacity)
        return _moved({region: _repeated(region[0], flow, node, lost) for region, flow in inside.items()}, node, lost)


def _touched_again(before: Flow, flow: Flow, lost: Loss) -> Flow:
    """Of two statements, of which the second finds what the first left but for the share that is lost."""
    footprint, first = max(before.footprint, flow.footprint), max(before.first, flow.first)
    joined = replace(before, footprint=footprint, first=first, depends=before.depends | flow.depends)
    return joined.more(flow.again, flow.between).more(lost.share * min(before.first, flow.first), lost.whole)


def _moved(found: Mapping[Region, Flow], node: Repeat, lost: Loss) -> dict[Region, Flow]:
    """A repetition's parts, those as one that touch what others do some repetitions later."""
    flows_of: dict[Region, Flow] = {}
    for region in sorted(found, key=lambda r: r[1]):
        flow = found[region]
        earlier = next((other for other in flows_of if _follows(region, flow, other, flows_of[other], node)), None)
        if earlier is None:
            flows_of[region] = flow
        else:
            flows_of[earlier] = _touched_again(flows_of[earlier], flow, lost)
    return flows_of


def _follows(region: Region, flow: Flow, other: Region, before: Flow, node: Repeat) -> bool:
    step, between = flow.steps.get(node.symbol, 0), region[1] - other[1]
    if region[0] is not other[0] or not step or before.steps.get(node.symbol) != step:
        return False
    return between % step == 0 and between < abs(step) * node.times


def _repeated(buffer: Buffer, flow: Flow, node: Repeat, lost: Loss) -> Flow:
    repeated = replace(flow, again=node.times * flow.again)
    if node.symbol not in flow.depends:
        share = 1.0 if flow.non_temporal else lost.share
        return repeated.more(max(node.times - 1, 0) * share * flow.first, lost.whole)
    footprint = min(node.times * flow.footprint, max(buffer.most * buffer.dtype.itemsize, flow.footprint))
    first = min(node.times * flow.first, footprint)
    found = replace(repeated, footprint=footprint, first=first)
    return found.more(lost.share * (node.times * flow.first - first), lost.whole)


def _lost(parts: Sequence[Flows], capacity: float) -> Loss:
    largest: dict[Region, float] = {}
    for part in parts:
        for region, flow in part.items():
            if not flow.non_temporal:
                largest[region] = max(largest.get(region, 0.0), flow.footprint)
    whole = sum(largest.values())
    return Loss(max(0.0, 1 - capacity / whole) if whole else 0.0, whole)
