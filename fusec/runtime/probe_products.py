"""Products that a probe measures, and what their times say: rates, blocks' ends, what operands are waited for.

Of each unit that multiplies there is a kernel with operands in L1. Of AMX's tiles there are also one with an operand
from L2, which they wait for, and a shallow one: a block of sums takes the time of some multiplications to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusec.ir.index import Index, floordiv, mod, symbol
from fusec.ir.types import DType, bf16, contiguous_strides, f32, i8, i32
from fusec.target.cpu import CpuTarget
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Kernel, Loop, Map, RegisterTile, Statement, Store
from fusec.tile.scalar import Buffer, Const, Load

DEPTH_BYTES = 512
"""Of a row of k: both operands of an AMX block fill two thirds of L1."""

TIMES = symbol("times", 1, 1 << 30)


def repeated(*body: Statement) -> Loop:
    """The statements as often as the kernel's last argument says."""
    return Loop(symbol("again", 0, (1 << 30) - 1), 0, TIMES, 1, body)


@dataclass(frozen=True)
class Probe:
    """A product of ``blocks`` register tiles by each thread, one after the other, which read panels of their own.

    unit: as in :class:`Rates`. flops, nbytes: of one of them, operations and its panel. shallow: of half the depth.
    """

    unit: str
    kernel: Kernel
    blocks: int
    flops: int
    panel: int
    shallow: bool = False

    @property
    def nbytes(self) -> int:
        """Of one thread's panels."""
        return self.blocks * self.panel


@dataclass(frozen=True)
class Found:
    """By unit, fields of :class:`Rates`."""

    multiply: dict[str, float]
    waits: dict[str, float]
    ends: dict[str, float]


def probes(target: CpuTarget, threads: int) -> Iterator[Probe]:
    """For each unit that multiplies: register tiles as kernels have them."""
    lanes = target.lanes(32)
    vectors = RegisterTile(8 if target.vector_registers >= 32 else 4, 2 * lanes)
    tiles = RegisterTile(32, 32, tiles=True)
    yield from _unit("f32", f32, f32, vectors, target, threads)
    for dtype, total in ((bf16, f32), (i8, i32)):
        if target.multiplies(dtype):
            yield from _unit(dtype.name, dtype, total, vectors, target, threads)
        if target.multiplies_in_tiles(dtype):
            yield from _unit(f"{dtype.name} tiles", dtype, total, tiles, target, threads)


def found_in(products: Sequence[Probe], per_second: Mapping[str, float]) -> Found:
    """``per_second``: repetitions of each kernel, by name."""
    found = Found({}, {}, {})
    seconds = {(p.unit, p.blocks > 1, p.shallow): (1 / per_second[p.kernel.name] / p.blocks, p) for p in products}
    for unit in dict.fromkeys(p.unit for p in products):
        near, p = seconds[unit, False, False]
        end = 0.0
        if (unit, True, False) in seconds:
            far, half = seconds[unit, True, False][0], seconds[unit, False, True][0]
            found.ends[unit] = end = max(2 * half - near, 0.0)
            found.waits[unit] = max(far - near, 0.0) / p.panel
        found.multiply[unit] = p.flops / (near - end)
    return found


def _unit(
    unit: str, dtype: DType, total: DType, registers: RegisterTile, target: CpuTarget, threads: int
) -> Iterator[Probe]:
    depth = DEPTH_BYTES // dtype.itemsize
    panel = depth * registers.columns * dtype.itemsize
    flops = 2 * registers.rows * registers.columns * depth
    name = unit.replace(" ", "_")
    for blocks in (1, max(target.l2 // 2 // panel, 2)) if registers.tiles else (1,):
        kernel = _kernel(f"product_{name}_{blocks}", dtype, total, registers, depth, blocks, threads)
        yield Probe(unit, kernel, blocks, flops, panel)
    if registers.tiles:
        kernel = _kernel(f"product_{name}_shallow", dtype, total, registers, depth // 2, 1, threads)
        yield Probe(unit, kernel, 1, flops // 2, panel // 2, shallow=True)


def _kernel(
    name: str, dtype: DType, total: DType, registers: RegisterTile, depth: int, blocks: int, threads: int
) -> Kernel:
    """Blocks of sums of the same rows, and of panels that lie one behind the other, each thread's by themselves."""
    group = 1 if dtype is f32 else 32 // dtype.bits
    rows, columns = registers.rows, registers.columns
    m, n, k = symbol("m", 0, rows - 1), symbol("n", 0, columns - 1), symbol("k", 0, depth - 1)
    t, p = symbol("t", 0, threads - 1), symbol("p", 0, blocks - 1)
    left = Buffer("left", dtype, (rows, depth), (depth + 64 // dtype.itemsize, 1), "tile")
    shape = (threads, blocks, depth // group, columns, group)
    right = Buffer("right", dtype, shape, contiguous_strides(shape))
    sums = Buffer("sums", total, (rows, columns), (columns, 1), "tile")
    out = Buffer("out", total, (threads, rows, columns), (rows * columns, columns, 1))
    at_right: tuple[Index, ...] = (t, p, floordiv(k, group), n, mod(k, group))
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
        repeated(Loop(p, 0, blocks, 1, (dot,))),
        Store((Iter(m, rows), Iter(n, columns)), out, (t, m, n), Load(sums, (m, n))),
    )
    return Kernel(name, "gemm", (right, out), 1, (Grid((Iter(t, threads),), body),), sizes=(TIMES,))
