# SPDX-License-Identifier: Apache-2.0
"""How long a kernel takes, counted on its tile IR, and what bounds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from math import hypot, prod

from fusec.ir.index import Index, Symbol, symbols_of
from fusec.passes.cost.traffic import Nest, Repeat, flows
from fusec.passes.cost.work import UNROLLED, Counter, Work
from fusec.passes.schedule.roofline import LAUNCH_SECONDS
from fusec.target.cpu import CpuTarget
from fusec.target.rates import Rates
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Dot, Grid, Iter, Loop, Map, Reduce, Scan, SoftmaxExp, Store, multiplies_halves, statements
from fusec.tile.scalar import Buffer

SAMPLES = 8
"""Points of a grid that are looked at, where points differ."""

WITHIN = tuple((2 * position + 1) / (2 * SAMPLES) for position in (0, 4, 2, 6, 1, 5, 3, 7))
"""Where in its part of the grid each of them lies. Not at the same position in all: the grid's inner axes repeat."""

CHUNKS = 16
"""Parts of a grid that each thread takes, one after the other."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of a kernel, and of its parts were each alone: ``parts`` by name.

    multiply, elementwise: of the thread that works longest. L2: its reads from there. L3 or memory: of all threads.
    start: of the parallel region.
    """

    seconds: float
    parts: Mapping[str, float]

    @property
    def bound(self) -> str:
        """The part that would take longest."""
        return max(self.parts, key=lambda name: self.parts[name])

    def later(self, seconds: float) -> Estimate:
        """Of a kernel that takes so much longer to start."""
        parts = {**self.parts, "start": self.parts.get("start", 0.0) + seconds}
        return Estimate(self.seconds + seconds, parts)


def estimate(
    kernel: Kernel, target: CpuTarget, rates: Rates, threads: int, distances: Mapping[Buffer, float] | None = None
) -> Estimate:
    """``distances``: bytes that pass between the last use of a parameter's memory and this one, where it is known."""
    found = [
        _grid(kernel, grid, target, rates, threads, distances or {}) for grid in kernel.body if isinstance(grid, Grid)
    ]
    return together(found)


def together(estimates: Sequence[Estimate]) -> Estimate:
    """Of kernels that run one after the other."""
    names = dict.fromkeys(name for e in estimates for name in e.parts)
    parts = {name: sum(e.parts.get(name, 0.0) for e in estimates) for name in names}
    return Estimate(sum(e.seconds for e in estimates), parts)


def _grid(
    kernel: Kernel, grid: Grid, target: CpuTarget, rates: Rates, threads: int, distances: Mapping[Buffer, float]
) -> Estimate:
    points = prod(it.extent for it in grid.iters)
    if points == 0:
        return Estimate(0.0, {})
    threads = min(threads, points)
    counter = Counter(target, rates, multiplies_halves(kernel.body))
    works = [counter.block(grid.body, dict(values)) for values in _samples(grid)]
    share = _longest_share(works, points, threads)
    multiply = sum(n * w.multiply for n, w in zip(share, works, strict=True))
    vectors = sum(n * w.vectors for n, w in zip(share, works, strict=True))
    nest = _nest(grid, works[len(works) // 2].touched)
    from_l2 = sum(f.fetched for f in flows(nest, target.l1, hinted=True).values()) / rates.l2 / threads
    beyond = _beyond(kernel, nest, target, rates, threads, distances)
    busy = multiply + vectors
    near = busy + from_l2 if _waits(grid) else hypot(busy, from_l2)
    in_turn = waited_for(grid, target)
    waited = sum(beyond[level] for level in in_turn)
    seconds = hypot(near + waited, sum(beyond.values()) - waited)
    start = rates.region if points > 1 else LAUNCH_SECONDS
    parts = {"multiply": multiply, "elementwise": vectors, "L2": from_l2, **beyond, "start": start}
    return Estimate(seconds + start, {n: s for n, s in parts.items() if s > 0})


def _waits(grid: Grid) -> bool:
    """Whether what comes from L2 is waited for: by matmuls of f32, whose multiplications take a load each, and on
    tiles, of which eight registers hold no more than two steps. Low-precision matmuls on vectors do several operations
    with each load, and elementwise code has enough else to do.
    """
    return any(isinstance(s, Dot) and (s.registers.tiles or s.a.dtype.bits >= 32) for s in statements(grid.body))


def waited_for(grid: Grid, target: CpuTarget) -> tuple[str, ...]:
    """The levels beyond L2 that are waited for: a part of the work begins with fetching what it needs, a block that is
    multiplied, a row that is reduced. Short rows and what passes element by element compute meanwhile.

    Matmuls that fetch ahead hide both, and so do rows that fetch to L2: MiniLM's on Emerald Rapids took 0.56 to 0.90
    of the sum, but for one. Rows that fetch to L1 hide memory, which takes longer than they; lines from L3 take turns
    with theirs (layer norms in MiniLM and BERT on Zen 5: 0.85 to 1.05 of the sum, 0.6 were they to overlap).
    """
    found = list(statements(grid.body))
    dots = [s for s in found if isinstance(s, Dot)]
    if dots:
        return () if any(s.registers.prefetch_bytes for s in dots) else ("L3", "memory")
    short = UNROLLED * target.lanes(32)
    if not any(isinstance(s, Reduce) and s.domain[-1].extent > short for s in found):
        return ()
    if any(isinstance(s, Map | Store) and s.prefetch for s in found):
        return () if target.fetches_to_l2 else ("L3",)
    return ("L3", "memory")


def _longest_share(works: Sequence[Work], points: int, threads: int) -> list[float]:
    """How many points of each kind the thread does that is done last; threads take parts of the grid in turn."""
    size = -(-points // (CHUNKS * threads))
    loads = [(0.0, t) for t in range(threads)]
    shares = [[0.0] * len(works) for _ in range(threads)]
    for start in range(0, points, size):
        kind = (start + min(size, points - start) // 2) * len(works) // points
        seconds, t = loads[0]
        shares[t][kind] += min(size, points - start)
        heapreplace(loads, (seconds + works[kind].seconds * min(size, points - start), t))
    return shares[max(loads)[1]]


def _beyond(
    kernel: Kernel,
    nest: Nest,
    target: CpuTarget,
    rates: Rates,
    threads: int,
    distances: Mapping[Buffer, float],
) -> dict[str, float]:
    """Seconds for what L2 does not hold, by where it comes from."""
    found = flows(nest, target.l2)
    written = set(kernel.parameters[len(kernel.parameters) - kernel.outputs :])
    whole = sum(f.footprint for b, f in found.items() if b.space == "parameter")
    reads: dict[float, float] = {}
    writes: dict[float, float] = {}
    past = {s.target for s in statements(kernel.body) if isinstance(s, Store) and s.non_temporal}
    streamed = sum(flow.footprint for buffer, flow in found.items() if buffer in past)
    for buffer, flow in found.items():
        if buffer.space != "parameter":
            if flow.again:
                reads[threads * flow.between] = reads.get(threads * flow.between, 0.0) + flow.again
            continue
        if buffer in past:
            continue
        distance = max(distances.get(buffer, whole), whole if buffer in written else 0.0)
        kind = writes if buffer in written else reads
        kind[distance] = kind.get(distance, 0.0) + flow.footprint
        rest = flow.fetched - flow.footprint
        if rest > 0 and buffer not in written:
            reads[threads * flow.between] = reads.get(threads * flow.between, 0.0) + rest
    parts = {"L3": 0.0, "memory": 0.0}
    if streamed:
        farthest = max(reads, default=0.0)
        beside = min(streamed, reads.get(farthest, 0.0))
        reads[farthest] = reads.get(farthest, 0.0) - beside
        parts["memory"] = rates.beyond_l2(max(farthest, whole), threads).past(beside, streamed)
    for distance in {*reads, *writes}:
        if distance <= threads * target.l2:
            continue
        taken = rates.beyond_l2(distance, threads).seconds(reads.get(distance, 0.0), writes.get(distance, 0.0))
        parts["memory" if distance > target.l3 else "L3"] += taken
    return parts


def _nest(grid: Grid, touched: Nest) -> Nest:
    nest = touched
    for it in reversed(grid.iters):
        if it.extent > 1:
            nest = (Repeat(it.var, it.extent, nest),)
    return nest


def _samples(grid: Grid) -> list[dict[Symbol, Index]]:
    """Values of the grid's symbols at some points: one in the middle where all do the same."""
    own = {it.var for it in grid.iters}
    points = prod(it.extent for it in grid.iters)
    count = min(points, SAMPLES) if _differ(grid, own) else 1
    return [_point(grid.iters, int((k + WITHIN[k]) * points / count)) for k in range(count)]


def _point(iters: Sequence[Iter], number: int) -> dict[Symbol, Index]:
    values: dict[Symbol, Index] = {}
    for it in reversed(iters):
        number, values[it.var] = divmod(number, it.extent)
    return values


def _differ(grid: Grid, own: set[Symbol]) -> bool:
    """Whether some loop of the body is longer at one point than at another."""
    for s in statements(grid.body):
        bounds: Iterable[Index | None] = ()
        match s:
            case Loop():
                bounds = (s.start, s.stop)
            case Map() | Store() | Reduce() | Scan():
                bounds = (it.limit for it in s.domain)
            case Dot():
                bounds = (it.limit for it in (s.m, s.n, s.k))
            case SoftmaxExp():
                bounds = (it.limit for it in (s.keys, s.queries))
            case _:
                pass
        if any(symbols_of(b) & own for b in bounds if b is not None):
            return True
    return False
