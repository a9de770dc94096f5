# SPDX-License-Identifier: Apache-2.0
"""Measures this machine's rates for the cost model, with kernels of fusec's own: no other compiler is needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import harmonic_mean, median
from typing import Any

import numpy as np

from fusec.ir.index import symbol
from fusec.ir.indexing import round_up
from fusec.ir.types import f32
from fusec.runtime.memory import allocate
from fusec.target.cpu import CpuTarget
from fusec.target.rates import Bandwidth, Rates, usual_rates
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Alloc, Grid, Iter, Map, Reduce, Statement, Store
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr
from fusec.tuning.probe_matmuls import TIMES, Probe, found_in, probes, repeated

ROUNDS, REPEATS = 3, 3
"""A round measures all rates. Of its runs the one in the middle counts, and of the rounds the mean but for the slowest:
what kernels find, which the best is not. Two Zen 5 cores of a host with other guests took 1.1 times the least time for
a matmul in the middle of 960 runs, 1.46 times in a quarter of them, for tenths of a second together; memory gave 41
GB/s in the middle of 120, 50 at best. The slowest says nothing: a run of 0.1 ms may wait for 2 ms, or for 8."""

SECONDS = 0.002
"""About how long a run lasts."""

VECTOR_ELEMENTS = 2048
"""Of the elementwise code measured; operand and result stay in L1."""

EXP_INSTRUCTIONS = 14
"""Vector instructions of ``exp`` on one vector of f32 with its load and its store, in AVX-512."""

STREAMS = ("read", "write", "copy", "stream", "flush")
FILLS = ("write", "flush")

LARGEST = 512 << 20
"""Bytes of the largest footprint measured."""


class Prober:
    """Measures the rates that this machine has with so many threads, as often as it is asked.

    Raises what compiling raises: LoweringError, CodegenError.
    """

    def __init__(self, target: CpuTarget, threads: int) -> None:
        from fusec.codegen.tvm.build import compile_kernels

        self._target, self._threads, self._matmuls = target, threads, list(probes(target, threads))
        streams = {_stream(what, n).name: _stream(what, n) for what in STREAMS for n in {1, threads}}
        regions = {_empty(n).name: _empty(n) for n in {1, threads}}
        matmuls = [p.kernel for p in self._matmuls]
        kernels = [*matmuls, *streams.values(), *regions.values(), _exponentials(threads)]
        self._module = compile_kernels(kernels, target)
        self._memory = _Memory()

    def measure(self) -> Rates:
        """Takes some two seconds, which other programs should leave to it."""
        target, threads = self._target, self._threads
        rounds = [_measured(self._module, self._memory, target, threads, self._matmuls) for _ in range(ROUNDS)]
        return typical_rates(rounds, self._matmuls, usual_rates(target, threads))


def measure_rates(target: CpuTarget, threads: int) -> Rates:
    """This machine's rates, measured once: :class:`Prober`."""
    return Prober(target, threads).measure()


def _measured(
    module: Any, memory: _Memory, target: CpuTarget, threads: int, matmuls: Sequence[Probe]
) -> dict[str, float]:
    """Rates by name, and how many of each kernel's repetitions and of regions there are in a second."""
    found = _matmul_rates(module, memory, matmuls, threads)
    seconds = per_repeat(module.function("exponentials"), memory.pair(threads * VECTOR_ELEMENTS * 4)[:1])
    found["vector"] = EXP_INSTRUCTIONS * VECTOR_ELEMENTS / target.lanes(32) / seconds
    found["l2"] = _stream_rate(module, memory, "read", threads, threads * target.l2 // 2) / threads
    for footprint in reversed(_footprints(target, threads)):
        for count in {1, threads}:
            for what in STREAMS:
                found[f"{what} {count} {footprint}"] = _stream_rate(module, memory, what, count, footprint)
    found["far starts"] = 1 / _far_start(module, memory, target, threads)
    found["regions"] = 1 / (_region(module, threads) if threads > 1 else usual_rates(target, 1).region)
    return found


def _matmul_rates(module: Any, memory: _Memory, matmuls: Sequence[Probe], threads: int) -> dict[str, float]:
    """Repetitions a second. All threads work: the clock may be lower than with one."""
    largest = max(p.nbytes for p in matmuls)
    first, second = memory.pair(threads * max(largest, _LARGEST_TILE))
    return {p.kernel.name: 1 / per_repeat(module.function(p.kernel.name), [first, second]) for p in matmuls}


def typical_rates(rounds: Sequence[Mapping[str, float]], matmuls: Sequence[Probe], usual: Rates) -> Rates:
    """The rates that a probe's rounds found: of each figure the harmonic mean of all rounds but the slowest.

    usual: where a figure that was not measured is taken from.
    """
    counted = max(len(rounds) - 1, 1)
    typical = {name: harmonic_mean(sorted(found[name] for found in rounds)[-counted:]) for name in rounds[0]}
    read = sorted((int(n.split()[1]), int(n.split()[2])) for n in typical if n.startswith("read "))
    found = found_in(matmuls, typical)
    return Rates(
        multiply=found.multiply,
        vector=typical["vector"],
        l2=typical["l2"],
        bandwidth=tuple(
            Bandwidth(threads, size, *(typical[f"{what} {threads} {size}"] for what in STREAMS))
            for threads, size in read
        ),
        region=1 / typical["regions"],
        call=usual.call,
        far_start=1 / typical["far starts"],
        ends=found.ends,
        measured=True,
    )


def _footprints(target: CpuTarget, threads: int) -> list[int]:
    """From what L2 no longer holds to what no cache holds."""
    sizes = {2 * threads * target.l2 << shift for shift in range(0, 16, 2)} | {target.l3 * 3 // 4, target.l3}
    return sorted({n for n in sizes if n <= LARGEST} | {min(2 * threads * target.l2, LARGEST)})


class _Memory:
    """Arrays for the kernels, made as large as they are asked for, and where programs' own are: on pages."""

    def __init__(self) -> None:
        self.arrays = _ones(1 << 16)

    def pair(self, nbytes: int) -> list[int]:
        """The addresses of two arrays of so many bytes."""
        if self.arrays[0].nbytes < nbytes:
            self.arrays = _ones(nbytes)
        return [int(a.ctypes.data) for a in self.arrays]


def _ones(nbytes: int) -> list[np.ndarray[Any, Any]]:
    arrays = [allocate(round_up(nbytes, 4)).view(np.float32) for _ in range(2)]
    for array in arrays:
        array.fill(1.0)
    return arrays


def per_repeat(function: Callable[..., None], addresses: list[int], *sizes: int) -> float:
    """Seconds of one repetition of the kernel's work: of some runs, the one in the middle."""

    def timed(count: int) -> float:
        return _timed(function, addresses, *sizes, count)

    count, again = 1, 0.0
    while count < 1 << 24:
        seconds = min(timed(count), timed(count))
        if seconds >= SECONDS / 4 and (again := timed(4 * count)) >= 2 * seconds:  # not the wait of a loaded machine
            break
        count *= 4
    if seconds >= SECONDS:
        return median([seconds, again / 4, timed(count)]) / count
    count = max(1, int(count * SECONDS / seconds))
    return median(timed(count) for _ in range(REPEATS)) / count


def _timed(function: Callable[..., None], addresses: list[int], *sizes: int) -> float:
    start = time.perf_counter()
    function(*addresses, *sizes)
    return time.perf_counter() - start


def _stream_rate(module: Any, memory: _Memory, what: str, threads: int, footprint: int) -> float:
    """Bytes a second read and written by all threads together, each passing its share of the footprint."""
    arrays = 1 if what == "read" or what in FILLS else 2
    share = footprint // (4 * arrays * threads)
    addresses = memory.pair(threads * share * 4)
    used = addresses[1:] if what in FILLS else addresses
    seconds = per_repeat(module.function(f"{what}{threads}"), used, share)
    return threads * share * 4 * arrays / seconds


CALLS = 200
_LARGEST_TILE = 1 << 14
"""Bytes of sums of a matmul, at most."""


def _region(module: Any, threads: int) -> float:
    """Seconds by which a kernel that is a loop of one point a thread takes longer than one of a single point."""
    out = np.zeros(threads * 16, np.float32)

    def seconds(points: int) -> float:
        function, address = module.function(f"empty{points}"), int(out.ctypes.data)
        start = time.perf_counter()
        for _ in range(CALLS):
            function(address)
        return (time.perf_counter() - start) / CALLS

    return max(min(seconds(threads) for _ in range(REPEATS)) - min(seconds(1) for _ in range(REPEATS)), 1e-8)


FAR_STARTS = 5


def _far_start(module: Any, memory: _Memory, target: CpuTarget, threads: int) -> float:
    """Seconds by which a kernel of a single point takes longer where other memory has passed since its last start."""
    share = min(2 * target.l3, LARGEST) // (4 * threads)
    passed, function = memory.pair(threads * share * 4), module.function("empty1")
    out = np.zeros(16, np.float32)
    address = [int(out.ctypes.data)]

    def seconds(far: bool) -> float:
        if far:
            module.function(f"read{threads}")(*passed, share, 1)
        return _timed(function, address)

    near, far = (median(seconds(far) for _ in range(FAR_STARTS)) for far in (False, True))
    return max(far - near, 1e-8)


# kernels


_ELEMENTS = symbol("elements", 1, LARGEST // 4)


def _empty(points: int) -> Kernel:
    """One store a point."""
    out = Buffer("out", f32, (points, 16), (16, 1))
    p, j = symbol("p", 0, points - 1), symbol("j", 0, 0)
    store = Store((Iter(j, 1),), out, (p, j), Const(0.0, f32))
    return Kernel(f"empty{points}", "map", (out,), 1, (Grid((Iter(p, points),), (store,)),))


def _stream(what: str, threads: int) -> Kernel:
    """Each thread's share of an array is read, filled or copied, also past the caches, again and again."""
    source, out = (Buffer(name, f32, (threads, _ELEMENTS), (_ELEMENTS, 1)) for name in ("source", "out"))
    t, j = symbol("t", 0, threads - 1), symbol("j", 0, _ELEMENTS - 1)
    domain = (Iter.over(j, _ELEMENTS),)
    body: tuple[Statement, ...]
    if what == "read":
        total = Buffer("total", f32, (1,), (1,), "tile")
        one = symbol("one", 0, 0)
        zero = Map((Iter(one, 1),), total, (0,), Const(0.0, f32))
        add_up = Reduce(domain, total, (0,), "sum", Load(source, (t, j)), fresh=False)
        ends = Store((Iter(one, 1),), out, (t, one), Load(total, (0,)))
        body = (Alloc(total), zero, repeated(add_up), ends)
        parameters: tuple[Buffer, ...] = (source, out)
    else:
        value: ScalarExpr = Const(1.0, f32) if what in FILLS else Load(source, (t, j))
        body = (repeated(Store(domain, out, (t, j), value, non_temporal=what in ("stream", "flush"))),)
        parameters = (out,) if what in FILLS else (source, out)
    grid = Grid((Iter(t, threads),), body)
    return Kernel(f"{what}{threads}", "map", parameters, 1, (grid,), sizes=(_ELEMENTS, TIMES))


def _exponentials(threads: int) -> Kernel:
    """``exp`` of numbers that stay in L1, the same in each thread."""
    out = Buffer("out", f32, (threads, VECTOR_ELEMENTS), (VECTOR_ELEMENTS, 1))
    t = symbol("t", 0, threads - 1)
    scratch = [Buffer(name, f32, (VECTOR_ELEMENTS,), (1,), "tile") for name in ("x", "y")]
    j = symbol("j", 0, VECTOR_ELEMENTS - 1)
    domain = (Iter(j, VECTOR_ELEMENTS),)
    x, y = (Load(b, (j,)) for b in scratch)
    body: tuple[Statement, ...] = (
        *map(Alloc, scratch),
        Map(domain, scratch[0], (j,), Const(0.5, f32)),
        repeated(
            Map(domain, scratch[1], (j,), Apply("exp", (x,), f32)),
            Map((Iter(symbol("one", 0, 0), 1),), scratch[0], (0,), Load(scratch[1], (0,))),
        ),
        Store(domain, out, (t, j), y),
    )
    return Kernel("exponentials", "map", (out,), 1, (Grid((Iter(t, threads),), body),), sizes=(TIMES,))
