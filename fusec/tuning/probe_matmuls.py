# SPDX-License-Identifier: Apache-2.0
"""Matmuls that a probe measures, and what their times say: the rates of units, and what a block of sums takes to end.

Of each unit that multiplies there is a kernel with operands in L1. Of AMX's tiles there is also a shallow one: a block
of sums takes the time of some multiplications to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusec.ir.index import Index, floordiv, mod, symbol
from fusec.ir.types import DType, bf16, contiguous_strides, f32, i8, i32
from fusec.target.cpu import CpuTarget
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Loop, Map, RegisterTile, Statement, Store
from fusec.tile.scalar import Buffer, Const, Load

DEPTH_BYTES = 512
"""Of a row of k: both operands of an AMX block fill two thirds of L1."""

MOST_ENDS = 0.25
"""Of the time of a matmul on tiles, what its block of sums may take to end: 0.12 on Emerald Rapids. More is found
where a core was slower for the shallow one, and the unit would then be faster than any."""

TIMES = symbol("times", 1, 1 << 30)


def repeated(*body: Statement) -> Loop:
    """The statements as often as the kernel's last argument says."""
    return Loop(symbol("again", 0, (1 << 30) - 1), 0, TIMES, 1, body)


@dataclass(frozen=True)
class Probe:
    """A matmul of one register tile by each thread, again and again.

    unit: as in :class:`Rates`. flops, nbytes: of one of them, operations and its right operand. shallow: of half the
    depth.
    """

    unit: str
    kernel: Kernel
    flops: int
    nbytes: int
    shallow: bool = False


@dataclass(frozen=True)
class Found:
    """By unit, fields of :class:`Rates`."""

    multiply: dict[str, float]
    ends: dict[str, float]


def probes(target: CpuTarget, threads: int) -> Iterator[Probe]:
    """For each unit that multiplies: register tiles as kernels have them."""
    lanes = target.lanes(32)
    vectors = RegisterTile(8 if target.vector_registers >= 32 else 4, 2 * lanes)
    tiles = RegisterTile(32, 32, tiles=True)
    yield from _unit("f32", f32, f32, vectors, threads)
    for dtype, total in ((bf16, f32), (i8, i32)):
        if target.multiplies(dtype):
            yield from _unit(dtype.name, dtype, total, vectors, threads)
        if target.multiplies_in_tiles(dtype):
            yield from _unit(f"{dtype.name} tiles", dtype, total, tiles, threads)


def found_in(matmuls: Sequence[Probe], per_second: Mapping[str, float]) -> Found:
    """``per_second``: repetitions of each kernel, by name."""
    found = Found({}, {})
    seconds = {(p.unit, p.shallow): 1 / per_second[p.kernel.name] for p in matmuls}
    for p in matmuls:
        if p.shallow:
            continue
        whole = seconds[p.unit, False]
        end = 0.0
        if (p.unit, True) in seconds:
            end = min(max(2 * seconds[p.unit, True] - whole, 0.0), MOST_ENDS * whole)
            found.ends[p.unit] = end
        found.multiply[p.unit] = p.flops / (whole - end)
    return found


def _unit(unit: str, dtype: DType, total: DType, registers: RegisterTile, threads: int) -> Iterator[Probe]:
    name = f"product_{unit.replace(' ', '_')}"
    for part, suffix in ((1, ""), (2, "_shallow"))[: 2 if registers.tiles else 1]:
        depth = DEPTH_BYTES // dtype.itemsize // part
        kernel = _kernel(name + suffix, dtype, total, registers, depth, threads)
        flops = 2 * registers.rows * registers.columns * depth
        yield Probe(unit, kernel, flops, depth * registers.columns * dtype.itemsize, shallow=part > 1)


def _kernel(name: str, dtype: DType, total: DType, registers: RegisterTile, depth: int, threads: int) -> Kernel:
    """A block of sums again and again, the right operand each thread's own."""
    group = 1 if dtype is f32 else 32 // dtype.bits
    rows, columns = registers.rows, registers.columns
    m, n, k = symbol("m", 0, rows - 1), symbol("n", 0, columns - 1), symbol("k", 0, depth - 1)
    t = symbol("t", 0, threads - 1)
    left = Buffer("left", dtype, (rows, depth), (depth + 64 // dtype.itemsize, 1), "tile")
    shape = (threads, depth // group, columns, group)
    right = Buffer("right", dtype, shape, contiguous_strides(shape))
    sums = Buffer("sums", total, (rows, columns), (columns, 1), "tile")
    out = Buffer("out", total, (threads, rows, columns), (rows * columns, columns, 1))
    at_right: tuple[Index, ...] = (t, floordiv(k, group), n, mod(k, group))
    dot = Dot(
        Iter(m, rows),
        Iter(n, columns),
        Iter(k, depth),
        Load(sums, (m, n)),
        Load(left, (m, k)),
        Load(right, at_right),
        True,
        registers,
    )
    body: tuple[Statement, ...] = (
        *map(Alloc, (left, sums)),
        Map((Iter(m, rows), Iter(k, depth)), left, (m, k), Const(0, dtype)),
        Map((Iter(m, rows), Iter(n, columns)), sums, (m, n), Const(0, total)),
        repeated(dot),
        Store((Iter(m, rows), Iter(n, columns)), out, (t, m, n), Load(sums, (m, n))),
    )
    return Kernel(name, "gemm", (right, out), 1, (Grid((Iter(t, threads),), body),), sizes=(TIMES,))
