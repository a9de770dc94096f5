# SPDX-License-Identifier: Apache-2.0
"""Instructions of copies that turn or interleave small elements: they travel as groups of 32 bits, in registers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fusec.ir.index import Index
from fusec.ir.indexing import coefficient
from fusec.target.cpu import CpuTarget
from fusec.tile.nodes import Iter, Map, Store
from fusec.tile.scalar import Load, offset_of

GROUP = 4
"""Bytes of a group of small elements that a matmul takes together."""

SIDE = 16
"""Rows, and groups, of a block that is transposed in registers."""

STEPS = 4
"""Of turning a block: so many instructions for each of its rows."""


def copying(s: Map | Store, counts: Sequence[int], target: CpuTarget) -> float | None:
    """Instructions of all of a statement, loops aside; None for what is computed element by element."""
    load = s.value
    if not isinstance(load, Load) or load.dtype != s.target.dtype or load.dtype.bits > 16:
        return None
    source, written = offset_of(load.buffer, load.index), offset_of(s.target, s.index)
    if source is None or written is None or not target.has_avx512:
        return None
    elements = float(prod(counts))
    last = s.domain[-1]
    together = last.extent
    if len(s.domain) > 1 and together * load.dtype.itemsize == GROUP and coefficient(written, last.var) == 1:
        beside = s.domain[-2]
        if coefficient(written, beside.var) == together:
            vectors = elements / together / SIDE
            return _grouped(source, s.domain, together, vectors)
    return _transposed(source, written, s.domain, elements) if load.dtype.bits == 16 else None


def _grouped(source: Index, domain: Sequence[Iter], together: int, vectors: float) -> float | None:
    """Groups side by side in the target: words of the source, in its order or transposed, or rows that interleave."""
    *others, beside, last = domain
    if coefficient(source, last.var) == 1:
        if coefficient(source, beside.var) == together:
            return 2 * vectors
        transposes = any(coefficient(source, it.var) == together and it.extent >= SIDE // 2 for it in others)
        return (2 + STEPS) * vectors if transposes else None
    if coefficient(source, beside.var) == 1 and beside.extent % SIDE == 0:
        return (1 + 2.5 * (together - 1) + 1) * vectors
    return None


def _transposed(source: Index, written: Index, domain: Sequence[Iter], elements: float) -> float | None:
    """Rows of 16 bits that become columns: two rows are joined to groups, and those transposed."""
    across = next((it for it in domain if coefficient(source, it.var) == 1), None)
    along = next((it for it in domain if coefficient(written, it.var) == 1), None)
    if across is None or along is None or across is along or across.extent < SIDE or along.extent < 2 * SIDE:
        return None
    return (2 + 1 + STEPS + 1) * elements / (2 * SIDE)
