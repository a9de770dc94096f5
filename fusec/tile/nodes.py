# SPDX-License-Identifier: Apache-2.0
"""The tile IR: one fused kernel as a small closed tree.

A statement works on a *domain*, a few iterators, and says what happens at each of its points. On a CPU
the last iterator of a domain is the one whose points lie on vector lanes; on a GPU a domain is a block.
Scratch buffers hold tiles. Nothing here knows threads, registers or barriers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from fusec.ir.index import Index, Symbol
from fusec.ir.indexing import most
from fusec.ir.monoid import ReduceOp
from fusec.ir.types import bf16
from fusec.tile.scalar import Buffer, Load, ScalarExpr


@dataclass(frozen=True)
class Iter:
    """``var`` runs over ``[0, extent)``, and where ``limit`` is given only over ``[0, min(extent, limit))``.

    ``limit`` may depend on outer loop variables; it is how a last, smaller tile is said. It may be negative
    or 0 (nothing runs).
    """

    var: Symbol
    extent: int
    limit: Index | None = None

    @staticmethod
    def over(var: Symbol, extent: Index) -> Iter:
        """All of an axis; one of symbolic extent is as long as it can be, with the extent as limit."""
        return Iter(var, extent) if isinstance(extent, int) else Iter(var, most(extent), extent)

    @property
    def count(self) -> Index:
        """The extent of an axis that is said by :meth:`over`."""
        return self.extent if self.limit is None else self.limit


@dataclass(frozen=True)
class Grid:
    """Independent points, run in parallel in any order. Always a kernel's outermost statement."""

    iters: tuple[Iter, ...]
    body: Block


@dataclass(frozen=True)
class Loop:
    """``for var in range(start, stop, step)``, in order.

    ``within``: two scalars of integers, and no step below the first or from the second on is run. The first is a
    multiple of the step away from the start.
    """

    var: Symbol
    start: Index
    stop: Index
    step: int
    body: Block
    within: tuple[Load, Load] | None = None


@dataclass(frozen=True)
class If:
    """Runs ``body`` where the condition (a bool of index values, on a CPU of scratch too) holds, else ``orelse``."""

    condition: ScalarExpr
    body: Block
    orelse: Block = ()


@dataclass(frozen=True)
class Let:
    """``var`` is an integer of the block's scratch, for the rest of the enclosing block; it is in the symbol's
    range."""

    var: Symbol
    value: Load


@dataclass(frozen=True)
class Choose:
    """``buffer`` is one of several parameters, all of its shape and strides, for the rest of the enclosing block: the
    ``index``-th, which is in range."""

    buffer: Buffer
    index: Index
    sources: tuple[Buffer, ...]


@dataclass(frozen=True)
class Alloc:
    """Scratch memory for the rest of the enclosing block, its contents not defined."""

    buffer: Buffer


@dataclass(frozen=True)
class Map:
    """``target[index] = value`` at every point of the domain, ``target`` a tile buffer.

    ``value`` may load ``target`` at the same index. Points are independent. ``prefetch``: elements that are brought to
    a CPU's cache meanwhile, one line a vector; they may lie outside of their buffers.
    """

    domain: tuple[Iter, ...]
    target: Buffer
    index: tuple[Index, ...]
    value: ScalarExpr
    prefetch: tuple[Load, ...] = ()


@dataclass(frozen=True)
class Store:
    """Like Map, into a parameter. The value is converted to the buffer's dtype (round to nearest even).

    ``non_temporal``: what is stored goes past a CPU's caches to memory; nothing reads it soon. ``beside``: it is
    computed with the store before, which has its domain and whose value reads much of the same; neither reads what is
    stored. ``posts``: points of the grid that come later wait for what is stored, in a reduction that ``awaits`` it.
    It is a number of 32 bits at an even place of memory whose like behind it is not 0 from then on.
    """

    domain: tuple[Iter, ...]
    target: Buffer
    index: tuple[Index, ...]
    value: ScalarExpr
    non_temporal: bool = False
    prefetch: tuple[Load, ...] = ()
    beside: bool = False
    posts: bool = False


@dataclass(frozen=True)
class Reduce:
    """``target[index] = op(target[index], value)`` over the domain; ``index`` uses only some of its iterators.

    With ``fresh`` the target need not be set before: it starts from the op's identity.
    The accumulation runs in the target's dtype, in any order. A ``loose`` max or min may pass over NaN.
    ``branches``: the value is ``select(c, x, identity)`` with one ``c`` for all points of the last iterator, and a CPU
    doesn't compute ``x``, nor read what it is made of, where ``c`` is false. ``awaits``: the value is a load of what
    earlier points of the grid post, and waits for it.
    """

    domain: tuple[Iter, ...]
    target: Buffer
    index: tuple[Index, ...]
    op: ReduceOp
    value: ScalarExpr
    fresh: bool = True
    loose: bool = False
    branches: bool = False
    awaits: bool = False


@dataclass(frozen=True)
class Scan:
    """``target[index] = op(carry, values up to this point)`` along the iterator ``along``, and the carry of all of
    them.

    Up to a point are those from the first on or, ``reverse``, from the last one. ``carry``: scratch that does not use
    ``along``, set before. All are combined in its dtype, in any grouping, and converted to the target's.

    With a ``factor`` what came before is multiplied with it at each point: ``carry = op(factor * carry, value)``, one
    point after another.
    """

    domain: tuple[Iter, ...]
    along: Symbol
    target: Buffer
    index: tuple[Index, ...]
    op: ReduceOp
    value: ScalarExpr
    carry: Load
    reverse: bool = False
    factor: ScalarExpr | None = None

    @property
    def values(self) -> tuple[ScalarExpr, ...]:
        """What is read at each point besides the carry."""
        return (self.value,) if self.factor is None else (self.value, self.factor)


@dataclass(frozen=True)
class SoftmaxExp:
    """What keys weigh for queries: ``weights = 2 ** ((score - shift) * factor)`` over keys and queries.

    The shift is subtracted first, so that a score that equals it weighs 1, however large it is. To ``row_sum``, one
    number a query as ``shift`` is, the weights are added up before they are rounded to their buffer's dtype. Where that
    is bf16, a power may be off by 2**-13 of itself. On a CPU the queries fill vectors, and weights of bf16 lie in
    pairs: those of two keys side by side, those of the next query behind them. ``prefetch``: elements whose cache lines
    a CPU brings to its L2 meanwhile, at each key (each pair of keys where weights are bf16).
    """

    keys: Iter
    queries: Iter
    weights: Load
    row_sum: Load
    score: ScalarExpr
    shift: Load
    factor: float
    prefetch: tuple[Load, ...] = ()


@dataclass(frozen=True)
class RegisterTile:
    """The register-resident part of a Dot on a CPU: ``rows`` by ``columns`` accumulators, ``unroll`` steps of k.

    With ``tiles`` they are AMX's, 16 by 16 each, or of fewer rows if there are no more. ``streamed`` names the operand
    of which nothing need stay in L1. ``prefetch_bytes``: bytes from a position of ``b`` that is read to the one fetched
    meanwhile; 0 leaves it to the processor. Vectors' blocks of rows that take the same columns share that out among
    them, and fetch to L2.

    ``along``: k lies on the lanes, a sum is a vector until its end; ``columns`` is a power of two.
    """

    rows: int
    columns: int
    unroll: int = 1
    tiles: bool = False
    along: bool = False
    streamed: Literal["", "a", "b"] = ""
    prefetch_bytes: int = 0


@dataclass(frozen=True)
class Dot:
    """``accumulator[m, n] += sum over k of a[m, k] * b[k, n]`` on a tile.

    ``m``, ``n``, ``k`` are iterators; the subscripts of the three buffers are written in their symbols.
    With ``fresh`` the accumulator starts from zero. Reads of ``a`` and ``b`` beyond the limit of ``m`` or
    ``n`` do not happen unless the buffer is a tile (whose padding may hold anything); the accumulator there
    may be left with anything. On a CPU ``b`` and the accumulator have stride 1 along ``n``. With ``tf32`` a GPU may
    round f32 operands to ten bits of mantissa.

    On a CPU operands narrower than the accumulator (bf16 into f32, i8 into i32) are multiplied in groups of
    :func:`grouped` along ``k``: those of a group are adjacent in both operands, those of the next column follow in
    ``b``, and k's extent is a multiple of the group (with ``tiles``, of 64 bytes). With ``registers.along`` both
    operands have stride 1 along ``k`` instead, and k any extent.

    ``beside`` are stores that end before the sums are written, on a CPU whose ``tiles`` multiply beside its vectors:
    the rows of their first iterators are spread over k.
    """

    m: Iter
    n: Iter
    k: Iter
    accumulator: Load
    a: Load
    b: Load
    fresh: bool
    registers: RegisterTile
    tf32: bool = False
    beside: tuple[Store, ...] = ()


def grouped(dot: Dot) -> int:
    """How many steps of k one multiplication of a CPU's takes: as many elements as fit 32 bits, 1 where none is
    narrow."""
    return 1 if dot.a.dtype == dot.accumulator.dtype else 32 // dot.a.dtype.bits


Statement = Grid | Loop | If | Let | Choose | Alloc | Map | Store | Reduce | Scan | SoftmaxExp | Dot
Block = tuple[Statement, ...]


def statements(block: Block) -> Iterator[Statement]:
    """Every statement of the block and of the blocks inside it, enclosing ones first."""
    for statement in block:
        yield statement
        match statement:
            case Grid() | Loop():
                yield from statements(statement.body)
            case If():
                yield from statements(statement.body)
                yield from statements(statement.orelse)
            case Dot():
                yield from statement.beside
            case Let() | Choose() | Alloc() | Map() | Store() | Reduce() | Scan() | SoftmaxExp():
                pass
            case _:
                assert_never(statement)


def tiled_dots(block: Block) -> Iterator[Dot]:
    """The matmuls that are made on AMX's tile registers."""
    return (s for s in statements(block) if isinstance(s, Dot) and s.registers.tiles)


def uses_tiles(block: Block) -> bool:
    """Whether a matmul is made on AMX's tile registers."""
    return any(True for _ in tiled_dots(block))


def multiplies_halves(block: Block) -> bool:
    """Whether a matmul multiplies bf16 as it is, by instructions that take subnormal numbers for 0: a CPU's kernel may
    do so then when it rounds."""
    return any(isinstance(s, Dot) and s.a.dtype is bf16 and grouped(s) > 1 for s in statements(block))
