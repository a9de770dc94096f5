# SPDX-License-Identifier: Apache-2.0
"""How a block's threads share the points of its domains: which lie side by side, and how many in one vector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusec.errors import LoweringError
from fusec.ir.index import Symbol
from fusec.ir.indexing import round_up
from fusec.ir.stepping import Step, step_of
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Block, Dot, If, Iter, Loop, Map, Reduce, Store
from fusec.tile.scalar import Load, loads, offset_of

Pointwise = Map | Store | Reduce
MOST_BYTES = 16
"""Widest access of one thread."""


def pointwise(block: Block) -> Iterator[Pointwise]:
    """The statements on domains, in order, those inside loops among them. LoweringError for a matmul."""
    for s in block:
        if isinstance(s, Map | Store | Reduce):
            yield s
        elif isinstance(s, Loop):
            yield from pointwise(s.body)
        elif isinstance(s, If):
            yield from pointwise((*s.body, *s.orelse))
        elif isinstance(s, Dot):
            raise LoweringError("a matmul in a kernel of maps and reductions")


@dataclass(frozen=True)
class Layout:
    """A domain is rows by columns (or one of the two).

    ``lanes`` threads lie along the columns, ``heights`` along the rows; the threads of one warp go along the fast axis
    first. A thread has ``vector`` neighbours of the fast axis at a time.
    """

    row_symbols: frozenset[Symbol]
    rows: int
    lanes: int
    heights: int
    vector: int
    fast_rows: bool

    @property
    def threads(self) -> int:
        return self.lanes * self.heights

    def is_row(self, i: Iter) -> bool:
        return i.var in self.row_symbols

    def chunks(self, i: Iter) -> int:
        """How often a thread steps along an axis."""
        row = self.is_row(i)
        width = (self.heights if row else self.lanes) * (self.vector if row == self.fast_rows else 1)
        return -(-i.extent // width)


def layout_of(kernel: Kernel, body: Block, *, vectors: bool = True) -> Layout:
    """The layout for a kernel's statements; without ``vectors`` addresses may be any multiple of their element.

    LoweringError for domains of more than two axes.
    """
    statements = list(pointwise(body))
    if any(len(s.domain) > 2 for s in statements):
        raise LoweringError("a domain of more than two axes")
    wide = [s for s in statements if len(s.domain) == 2]
    row_symbols = frozenset(s.domain[0].var for s in wide)
    rows = max((s.domain[0].extent for s in wide), default=1)
    columns = [s.domain[-1] for s in statements if s.domain and s.domain[-1].var not in row_symbols]
    threads = 32 * (kernel.warps or 4)
    width = max((i.extent for i in columns), default=1)
    accesses = list(_accesses(statements, row_symbols))
    along_rows = sum(a.bytes for a in accesses if _unit(a.load, a.row))
    along_columns = sum(a.bytes for a in accesses if _unit(a.load, a.column))
    fast_rows = along_rows > along_columns and rows > 1
    if fast_rows:
        vector = _vector([(a, a.row) for a in accesses if a.row is not None], rows) if vectors else 1
        heights = _power(min(rows // vector, threads))
        return Layout(row_symbols, rows, max(1, threads // heights), heights, vector, True)
    vector = _vector([(a, a.column) for a in accesses if a.column is not None], width) if vectors else 1
    lanes = _lanes(-(-width // vector), threads)
    return Layout(row_symbols, rows, lanes, _power(min(rows, threads // lanes)), vector, False)


@dataclass(frozen=True)
class _Access:
    load: Load
    row: Iter | None
    column: Iter | None

    @property
    def bytes(self) -> int:
        return self.load.buffer.dtype.itemsize


def _accesses(statements: list[Pointwise], row_symbols: frozenset[Symbol]) -> Iterator[_Access]:
    """Reads and writes of parameters."""
    for s in statements:
        row = next((i for i in s.domain if i.var in row_symbols), None)
        column = next((i for i in s.domain if i.var not in row_symbols), None)
        found = loads(s.value)
        if isinstance(s, Store):
            found = [*found, Load(s.target, s.index)]
        for load in found:
            if load.buffer.space == "parameter":
                yield _Access(load, row, column)


def vector_step(load: Load, i: Iter, vector: int) -> Step | None:
    """How the load's address goes along a vector of the iterator; None for unevenly."""
    flat = offset_of(load.buffer, load.index)
    return None if flat is None else step_of(flat, i.var, vector)


def is_vector(load: Load, i: Iter, vector: int) -> bool:
    """Whether a vector of the iterator is neighbouring memory, at a multiple of its size (or of 16 bytes)."""
    step = vector_step(load, i, vector)
    unit = max(1, min(vector, MOST_BYTES // load.buffer.dtype.itemsize))
    return step is not None and step.along == 1 and step.multiple % unit == 0


def _unit(load: Load, i: Iter | None) -> bool:
    step = vector_step(load, i, 1) if i is not None else None
    return step is not None and step.along == 1


def _vector(accesses: list[tuple[_Access, Iter]], extent: int) -> int:
    """The longest vector that divides the limits, and that every write and most reads allow."""
    narrowest = min((a.bytes for a, _ in accesses), default=4)
    vector = MOST_BYTES // narrowest if narrowest > 1 else 8
    while vector > 1 and not _allows(accesses, vector, extent):
        vector //= 2
    return vector


def _allows(accesses: list[tuple[_Access, Iter]], vector: int, extent: int) -> bool:
    if extent % vector:
        return False
    good = total = 0
    for access, i in accesses:
        if i.limit is not None:
            limit = step_of(i.limit, i.var, 1)
            if limit is None or limit.multiple % vector:
                return False
        if _unit(access.load, i):
            total += access.bytes
            good += access.bytes if is_vector(access.load, i, vector) else 0
    return total > 0 and 2 * good > total


def _lanes(vectors: int, threads: int) -> int:
    """Threads side by side for so many vectors: as many as leave at most an eighth of them idle in the last step."""
    options = [1 << k for k in range(threads.bit_length()) if 1 << k <= threads]
    fitting = [n for n in options if round_up(vectors, n) <= vectors + vectors // 8]
    return max(fitting or options[:1])


def _power(n: int) -> int:
    """The greatest power of two up to ``n``, at least 1."""
    return 1 << max(n.bit_length() - 1, 0)
