"""Which bytes a loop nest fetches from beyond a cache: reuse distances, counted in whole blocks.

A nest is a tree of touches (a statement's bytes of one buffer), sequences and repetitions. What one repetition left
behind is still there in the next if all that the nest touches in one repetition fits the cache, and of what is larger
than the cache that share which the cache is of it; between two statements the same holds for what is touched from the
one to the other. What streams takes no room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fusec.ir.index import Symbol
from fusec.tile.scalar import Buffer


@dataclass(frozen=True)
class Touch:
    """A statement's bytes of a buffer, another part of it for each value of the symbols it depends on."""

    buffer: Buffer
    bytes: float
    depends: frozenset[Symbol]
    streams: bool = False


@dataclass(frozen=True)
class Repeat:
    """``times`` repetitions of a sequence, the symbol having another value in each."""

    symbol: Symbol
    times: float
    body: Nest


Nest = Sequence["Touch | Repeat"]


@dataclass(frozen=True)
class Flow:
    """Of one buffer in a nest. footprint: bytes touched. first: fetched at first touches; again: fetched again."""

    footprint: float
    first: float
    again: float
    depends: frozenset[Symbol]
    streams: bool = False

    @property
    def fetched(self) -> float:
        return self.first + self.again


Flows = Mapping[Buffer, Flow]


def flows(nest: Nest, capacity: float, *, hinted: bool = False) -> dict[Buffer, Flow]:
    """What each buffer's part in a nest fetches into a cache of so many bytes, which is empty of it before.

    ``hinted``: the cache is the one that what streams is kept out of.
    """
    parts = [_part(node, capacity, hinted) for node in nest]
    found: dict[Buffer, Flow] = {}
    last: dict[Buffer, int] = {}
    for place, part in enumerate(parts):
        for buffer, flow in part.items():
            before = found.get(buffer)
            if before is None:
                found[buffer] = flow
            else:
                again = before.again + flow.again + _lost(parts[last[buffer] : place + 1], capacity) * flow.first
                found[buffer] = replace(
                    before,
                    footprint=max(before.footprint, flow.footprint),
                    again=again,
                    depends=before.depends | flow.depends,
                )
            last[buffer] = place
    return found


def _part(node: Touch | Repeat, capacity: float, hinted: bool) -> dict[Buffer, Flow]:
    if isinstance(node, Touch):
        return {node.buffer: Flow(node.bytes, node.bytes, 0.0, node.depends, node.streams and hinted)}
    inside = flows(node.body, capacity, hinted=hinted)
    lost = _lost([inside], capacity)
    return {buffer: _repeated(buffer, flow, node, lost) for buffer, flow in inside.items()}


def _repeated(buffer: Buffer, flow: Flow, node: Repeat, lost: float) -> Flow:
    again = node.times * flow.again
    if node.symbol not in flow.depends:
        return replace(flow, again=again + max(node.times - 1, 0) * (1.0 if flow.streams else lost) * flow.first)
    footprint = min(node.times * flow.footprint, max(buffer.most * buffer.dtype.itemsize, flow.footprint))
    first = min(node.times * flow.first, footprint)
    return replace(flow, footprint=footprint, first=first, again=again + lost * (node.times * flow.first - first))


def _lost(parts: Sequence[Flows], capacity: float) -> float:
    """The share of what some nests touch that the cache has not kept when it is touched again."""
    largest: dict[Buffer, float] = {}
    for part in parts:
        for buffer, flow in part.items():
            if not flow.streams:
                largest[buffer] = max(largest.get(buffer, 0.0), flow.footprint)
    whole = sum(largest.values())
    return max(0.0, 1 - capacity / whole) if whole else 0.0
