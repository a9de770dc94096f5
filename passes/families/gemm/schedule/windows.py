# SPDX-License-Identifier: Apache-2.0
"""Schedules of convolutions in groups of few channels on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import ClassVar

from fusec.ir.indexing import round_up
from fusec.passes.schedule.base import by_seconds
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language
from fusec.tile.templates import WindowAxis, WindowTile


@dataclass(frozen=True)
class WindowSchedule:
    """A block computes a tile of windows of one image, all columns of the channels that it has."""

    language: ClassVar[Language] = "cuda"
    tile: WindowTile
    seconds: float = field(default=0.0, compare=False)

    @property
    def launch(self) -> Launch:
        return Launch(self.tile.warps, 1)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        t = self.tile
        more = (("down", t.down),) if t.down > 1 else ()
        return (("windows", f"{t.rows}x{t.wide}"), ("channels", t.channels), *more, ("warps", t.warps))


@dataclass(frozen=True)
class WindowsProblem:
    """Windows along two axes of so many images, and groups of ``depth`` channels and ``columns``. read, written: bytes
    that are moved once."""

    images: int
    rows: WindowAxis
    wide: WindowAxis
    groups: int
    depth: int
    columns: int
    read: float
    written: float


_WIDEST = 64
"""Windows of a row that a block takes at most."""
_BUDGETS = (56, 72, 108)
"""KiB of shared memory of a block, best guess first: three blocks share an SM, one of which waits for memory."""
_OF_MEMORY = 0.85
"""What is reached of memory's rate."""
_START = 2.0e-6
"""Seconds of a block's tile on its way in before the first multiplication, and of the last results."""


def fits_groups(depth: int, columns: int) -> bool:
    """Whether the kernels multiply such groups: one channel with its column, or MMAs without an empty half."""
    return (depth, columns) == (1, 1) or (depth in (8, 16) and columns in (8, 16))


def window_candidates(p: WindowsProblem, target: GpuTarget) -> list[WindowSchedule]:
    """Best predicted first; none for GPUs before sm_80 and others than NVIDIA's."""
    if target.backend != "cuda" or not isinstance(target.arch, int) or target.arch < 80:
        return []
    found: dict[WindowSchedule, None] = {}
    for kib in _BUDGETS:
        tile = _depthwise(p, kib << 10) if p.depth == 1 else _grouped(p, kib << 10)
        if tile is not None and shared_bytes(p, tile) <= target.shared_memory:
            found[WindowSchedule(tile)] = None
    return sorted((replace(s, seconds=_seconds(p, s.tile, target)) for s in found), key=by_seconds)


def _grouped(p: WindowsProblem, budget: int) -> WindowTile | None:
    channels = p.groups * p.depth
    together = next((n for n in (64, 32) if channels % n == 0), 0)
    if not together:
        return None
    wide = _equal(p.wide.count, _WIDEST)
    groups = together // p.depth
    made = WindowTile(1, wide, together, groups * max(1, 8 // groups))
    return _tallest(p, made, budget, 1)


def _depthwise(p: WindowsProblem, budget: int) -> WindowTile | None:
    together = 16 if p.groups % 16 == 0 else 8
    if p.groups % together:
        return None
    wide = round_up(_equal(p.wide.count, _WIDEST), 8)
    down = 2 if p.rows.count >= 16 and p.rows.stride == 1 else 1
    return _tallest(p, WindowTile(down, wide, together, 4, down), budget, down)


def _equal(count: int, most: int) -> int:
    """Equal parts, of at most so many."""
    return ceil(count / ceil(count / most))


def _tallest(p: WindowsProblem, tile: WindowTile, budget: int, step: int) -> WindowTile | None:
    """Equal tiles of as many rows as fit."""
    rows = round_up(p.rows.count, step)
    while rows > step and shared_bytes(p, replace(tile, rows=rows)) > budget:
        rows -= step
    return replace(tile, rows=round_up(_equal(p.rows.count, rows), step))


def shared_bytes(p: WindowsProblem, t: WindowTile) -> int:
    """As ``windows.cuh`` counts them."""
    rows, wide = p.rows, p.wide
    around = (rows.size - 1) * rows.dilation + 1
    if p.depth > 1:
        pixels = ((t.rows - 1) * rows.stride + around) * (
            (t.wide - 1) * wide.stride + (wide.size - 1) * wide.dilation + 1
        )
        return pixels * (2 * t.channels + 16)
    steps = (7 * wide.stride + (wide.size - 1) * wide.dilation + 16) // 16
    filled = (ceil(t.wide / 8) - 1) * 8 * wide.stride + 16 * steps
    pitch = filled if filled // 8 % 2 else filled + 8
    high = (round_up(t.rows, t.down) - 1) * rows.stride + around
    weights = rows.size * 2 * (16 * steps + 8 * wide.stride)
    return 2 * t.channels * (high * pitch + weights)


def _seconds(p: WindowsProblem, t: WindowTile, target: GpuTarget) -> float:
    """Memory moves everything once, L2 what tiles have in common again; MMAs with the zeros in them run beside."""
    rates = target.rates
    parts = p.groups * p.depth // t.channels
    blocks = p.images * parts * ceil(p.rows.count / t.rows) * ceil(p.wide.count / t.wide)
    memory = rates.moved(p.read, p.written) / _OF_MEMORY
    near = (blocks * shared_bytes(p, t) + p.written) / rates.l2
    windows = p.images * p.rows.count * round_up(p.wide.count, 8) * p.groups
    if p.depth == 1:
        steps = (7 * p.wide.stride + (p.wide.size - 1) * p.wide.dilation + 16) // 16
        flops = 2.0 * windows * p.rows.size * steps * 16
    else:
        flops = 2.0 * windows * p.columns * round_up(p.rows.size * p.wide.size * p.depth, 16)
    filled = min(1.0, blocks / target.sms)
    work = flops / (0.5 * rates.warp_tensor * filled)
    slowest, *rest = sorted((memory / sqrt(filled), near, work), reverse=True)
    return rates.launch + _START + slowest + 0.15 * sum(rest)
