# SPDX-License-Identifier: Apache-2.0
"""How fast a CPU does what kernels are made of: the numbers that the cost model counts with.

They are measured (:mod:`fusec.tuning.probe`), or what is usual for the target's family.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import log

from fusec.ir.types import DType, bf16, i8
from fusec.target.cpu import CpuTarget


@dataclass(frozen=True)
class Bandwidth:
    """Bytes a second of ``threads`` threads together, over ``footprint`` bytes that they pass again and again.

    read: reading only. write: filling only. copy: bytes read and written of a copy, half of each. stream: the same
    where the copy is written past the caches. flush: filling past the caches.
    """

    threads: int
    footprint: int
    read: float
    write: float
    copy: float
    stream: float
    flush: float

    def past(self, read: float, written: float) -> float:
        """What reading so many bytes, at most as many as are written past the caches, takes with writing them."""
        both = min(read, written)
        return 2 * both / self.stream + (written - both) / self.flush

    def seconds(self, read: float, written: float) -> float:
        """What a kernel that reads and writes so many bytes takes for them."""
        both = min(read, written)
        return 2 * both / self.copy + (read - both) / self.read + (written - both) / self.write


@dataclass(frozen=True)
class Rates:
    """All but ``bandwidth`` is of one core.

    multiply: operations a second (a multiply-add is two) with operands in L1, by unit: ``f32``, ``bf16`` and ``i8``
    of vectors, ``bf16 tiles`` and ``i8 tiles`` of AMX. vector: vector instructions a second of elementwise code.
    l2: bytes a second read from L2. bandwidth: from beyond L2 on, by growing number of threads and footprint. region:
    seconds to start a parallel loop and to wait for its end. call: seconds of a call around its kernels, with one
    input. argument: of each further input. tensors: more of a call whose arrays are PyTorch's. library: of a call of a
    library function, of making a result's array, or of the call itself, by a program that leaves nothing of it in the
    caches. far_argument: of each further input of such a program. far_start: more of starting a
    kernel whose code the caches don't hold. ends: by
    unit, seconds in which a block of sums starts and ends, and nothing is multiplied. measured: on this machine.
    """

    multiply: Mapping[str, float]
    vector: float
    l2: float
    bandwidth: tuple[Bandwidth, ...]
    region: float
    call: float
    argument: float = 1.5e-7
    tensors: float = 5e-7
    library: float = 2e-5
    far_argument: float = 1.1e-6
    far_start: float = 3.5e-6
    ends: Mapping[str, float] = field(default_factory=dict)
    measured: bool = False

    def seconds_of_call(self, inputs: int, *, far: bool = False) -> float:
        """What a call with so many inputs takes around its kernels; ``far``: they leave nothing of it in the caches."""
        further = max(inputs - 1, 0)
        return self.call + (self.library + self.far_argument * further if far else self.argument * further)

    def matmul(self, dtype: DType, tiles: bool) -> float:
        """Operations a second of matmuls of this type on one core, in tiles or in vectors."""
        name = unit_of(dtype, tiles)
        if name in self.multiply:
            return self.multiply[name]
        return self.multiply["f32"] / max(dtype.bits // 32, 1)

    def beyond_l2(self, footprint: float, threads: int) -> Bandwidth:
        """The bandwidth where so many bytes pass before they are used again; by most of the threads that are known,
        for more."""
        counts = sorted({b.threads for b in self.bandwidth})
        position = min(bisect_left(counts, threads), len(counts) - 1)
        most = _at([b for b in self.bandwidth if b.threads == counts[position]], footprint)
        if position == 0 or counts[position] <= threads:
            return most
        least = _at([b for b in self.bandwidth if b.threads == counts[position - 1]], footprint)
        return _between(least, most, (threads - counts[position - 1]) / (counts[position] - counts[position - 1]))

    def halfway(self, later: Rates) -> Rates:
        """Between what was measured and what was ``later``, with the same units, threads and footprints, of what cores
        and memory do and of calls: the times of both, in halves; the later rates else."""
        return replace(
            later,
            multiply={unit: _halfway(rate, later.multiply[unit]) for unit, rate in self.multiply.items()},
            vector=_halfway(self.vector, later.vector),
            l2=_halfway(self.l2, later.l2),
            bandwidth=tuple(_between(a, b, 0.5) for a, b in zip(self.bandwidth, later.bandwidth)),
            ends={unit: (end + later.ends[unit]) / 2 for unit, end in self.ends.items()},
            call=(self.call + later.call) / 2,
            argument=(self.argument + later.argument) / 2,
        )

    def to_json(self) -> str:
        """One line for a file."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Rates:
        """The inverse of :meth:`to_json`. ValueError, KeyError or TypeError for anything else."""
        data = json.loads(text)
        data["bandwidth"] = tuple(Bandwidth(**b) for b in data["bandwidth"])
        rates = Rates(**data)
        numbers = (rates.vector, rates.l2, rates.region, rates.call, rates.multiply["f32"])
        if not rates.bandwidth or not all(n > 0 for n in numbers):
            raise ValueError("rates that are not positive")
        return rates


def unit_of(dtype: DType, tiles: bool) -> str:
    """What multiplies operands of a type: its name in :class:`Rates`."""
    return f"{dtype.name} tiles" if tiles else dtype.name


def _at(known: Sequence[Bandwidth], footprint: float) -> Bandwidth:
    """Interpolated along the footprint's logarithm."""
    position = bisect_left([b.footprint for b in known], footprint)
    if position in (0, len(known)):
        return known[min(position, len(known) - 1)]
    low, high = known[position - 1], known[position]
    return _between(low, high, log(footprint / low.footprint) / log(high.footprint / low.footprint))


def _halfway(a: float, b: float) -> float:
    return 2 / (1 / a + 1 / b)


def _between(a: Bandwidth, b: Bandwidth, part: float) -> Bandwidth:
    """The times of both, in parts, for a byte."""
    pairs = ((a.read, b.read), (a.write, b.write), (a.copy, b.copy), (a.stream, b.stream), (a.flush, b.flush))
    return Bandwidth(b.threads, b.footprint, *(1 / ((1 - part) / x + part / y) for x, y in pairs))


@dataclass(frozen=True)
class _Family:
    """A cycle's work on one core: vector instructions of elementwise code, bytes from L2 and from L3.

    memory: bytes a second that one core reads and writes there.
    """

    vector: float
    l2: float
    l3: float
    memory: float = 27e9
    region: float = 2e-6


_TILES_END = 45.0
"""Cycles. Measured on Emerald Rapids: 15 ns of bf16, 20 of int8."""

_FAMILIES: Mapping[str, _Family] = {
    "znver5": _Family(2.6, 50.0, 20.0),
    "znver4": _Family(2.2, 28.0, 18.0),
    "znver3": _Family(2.2, 28.0, 18.0),
    "sapphirerapids": _Family(2.4, 42.0, 10.0, 20e9),
    "icelake-server": _Family(1.6, 42.0, 10.0, 20e9),
    "skylake-avx512": _Family(1.6, 40.0, 8.0),
}
_USUAL = _Family(1.8, 28.0, 10.0)


def usual_rates(target: CpuTarget, threads: int) -> Rates:
    """What a machine of the target's family reaches; clock, units and memory are those that the target names."""
    family = _FAMILIES.get(target.mcpu, _USUAL)
    clock = target.frequency
    multiply = {"f32": 0.97 * target.peak_flops(32, 1)}
    tiles = [unit_of(dtype, tiles=True) for dtype in (bf16, i8) if target.multiplies_in_tiles(dtype)]
    for dtype in (bf16, i8):
        if target.multiplies(dtype):
            multiply[dtype.name] = 0.95 * target.peak_flops(dtype.bits, 1)
        if target.multiplies_in_tiles(dtype):
            multiply[unit_of(dtype, tiles=True)] = 0.97 * target.tile_flops(dtype.bits)
    return Rates(
        multiply=multiply,
        vector=family.vector * clock,
        l2=family.l2 * clock,
        bandwidth=tuple(b for n in sorted({1, threads}) for b in _usual_bandwidth(target, n, family)),
        region=family.region,
        call=7.5e-7,
        ends=dict.fromkeys(tiles, _TILES_END / clock),
    )


def _usual_bandwidth(target: CpuTarget, threads: int, family: _Family) -> Iterator[Bandwidth]:
    """Stores read a line before they write it, so filling is half as fast."""
    memory = min(target.bandwidth, threads * family.memory)
    cache = max(threads * family.l3 * target.frequency, memory)
    near = 2 * threads * target.l2
    half, far = max(target.l3 // 2, 2 * near), max(target.l3 + target.l3 // 4, 4 * near)
    yield Bandwidth(threads, near, cache, 0.6 * cache, cache, memory, 0.7 * memory)
    yield Bandwidth(threads, half, cache, 0.6 * cache, cache, memory, 0.7 * memory)
    yield Bandwidth(threads, far, memory, 0.5 * memory, 0.8 * memory, memory, 0.7 * memory)
