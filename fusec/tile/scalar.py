# SPDX-License-Identifier: Apache-2.0
"""Scalar expressions: what a kernel computes at one point of its domain.

A graph's chain of elementwise ops becomes one such tree, its views folded into the index of each load.
Operation names are those of the graph's elementwise ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fusec.ir.attributes import Scalar
from fusec.ir.index import Expr, Index, Symbol, product, symbols_of
from fusec.ir.indexing import most, substitute
from fusec.ir.stepping import stays_along
from fusec.ir.types import Dim, DType, i64

Space = Literal["parameter", "tile"]


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory that a kernel reads or writes.

    parameter: a tensor argument; its pointer is that of element (0, 0, ...).
    tile: scratch of one grid point, alive from its Alloc to the end of the enclosing block.
    Strides are in elements, may be 0 or negative for parameters, and need not be ordered. A parameter's shape and
    strides may hold the kernel's sizes.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    space: Space = "parameter"

    def __str__(self) -> str:
        return self.name

    @property
    def extent(self) -> int:
        """Elements from the first to one past the last that can be addressed, at most; for a tile, its size."""
        if 0 in self.shape:
            return 0
        forward = (most(n) - 1 for n, s in zip(self.shape, self.strides, strict=True) if most(s) > 0)
        steps = (most(s) for s in self.strides if most(s) > 0)
        return 1 + sum(n * s for n, s in zip(forward, steps, strict=True))

    @property
    def most(self) -> int:
        """The largest number of elements."""
        return most(product(self.shape))


@dataclass(frozen=True)
class Const:
    """A literal of a given type."""

    value: Scalar
    dtype: DType


@dataclass(frozen=True)
class IndexValue:
    """An index expression used as a number (from ``iota`` and masks)."""

    index: Index
    dtype: DType = i64


@dataclass(frozen=True)
class Load:
    """One element of a buffer. A subscript is an index expression, or a scalar (a gather's loaded index)."""

    buffer: Buffer
    index: tuple[Subscript, ...]

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def gathers(self) -> bool:
        """Whether a subscript is known only once it has been loaded."""
        return any(not isinstance(i, int | Expr) for i in self.index)

    @property
    def symbols(self) -> set[Symbol]:
        """Those in subscripts that are index expressions."""
        return {s for i in self.index if isinstance(i, int | Expr) for s in symbols_of(i)}


@dataclass(frozen=True)
class Apply:
    """An elementwise op on scalars. ``cast`` converts its one argument to ``dtype``.

    Half-precision arguments are computed in f32 and rounded only by a ``cast`` or a store.
    """

    op: str
    args: tuple[ScalarExpr, ...]
    dtype: DType


ScalarExpr = Const | IndexValue | Load | Apply
Subscript = int | Expr | ScalarExpr


def walk(e: ScalarExpr) -> Iterator[ScalarExpr]:
    """Every node of the tree, parents first. A node object that is used several times is visited once."""
    seen: set[int] = set()
    waiting = [e]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, Apply):
            waiting.extend(reversed(node.args))
        elif isinstance(node, Load):
            waiting.extend(i for i in reversed(node.index) if not isinstance(i, int | Expr))


def offset_of(buffer: Buffer, index: Sequence[object]) -> Index | None:
    """Elements from the buffer's first to the one at ``index``; None where a subscript is loaded."""
    flat: Index = 0
    for i, stride in zip(index, buffer.strides, strict=True):
        if not isinstance(i, int | Expr):
            return None
        flat = flat + i * stride
    return flat


def loads(e: ScalarExpr) -> list[Load]:
    """The distinct loads of the tree, in order of first appearance."""
    return list(dict.fromkeys(n for n in walk(e) if isinstance(n, Load)))


def reads_memory(e: ScalarExpr) -> bool:
    """Whether a parameter is read."""
    return any(x.buffer.space == "parameter" for x in loads(e))


def symbols_in(e: ScalarExpr) -> set[Symbol]:
    """Every index symbol that the value of ``e`` depends on."""
    found: set[Symbol] = set()
    for node in walk(e):
        if isinstance(node, IndexValue):
            found |= symbols_of(node.index)
        elif isinstance(node, Load):
            found |= node.symbols
    return found


def depending_on(e: ScalarExpr, symbol: Symbol) -> set[int]:
    """The identities of the tree's nodes whose values depend on an index symbol."""
    known: dict[int, bool] = {}

    def depends(node: ScalarExpr) -> bool:
        if id(node) not in known:
            match node:
                case IndexValue(index):
                    known[id(node)] = symbol in symbols_of(index)
                case Load():
                    known[id(node)] = symbol in node.symbols
                    for i in node.index:
                        known[id(node)] |= not isinstance(i, int | Expr) and depends(i)
                case Apply():
                    known[id(node)] = True in [*map(depends, node.args)]
                case _:
                    known[id(node)] = False
        return known[id(node)]

    depends(e)
    return {key for key, found in known.items() if found}


def rewrite(e: ScalarExpr, change: Callable[[ScalarExpr], ScalarExpr | None]) -> ScalarExpr:
    """The tree with nodes replaced: ``change`` sees each node first and returns its replacement, or None to go on.

    What is shared in the tree is shared in the result.
    """
    done: dict[int, ScalarExpr] = {}

    def visit(node: ScalarExpr) -> ScalarExpr:
        if id(node) not in done:
            replaced = change(node)
            done[id(node)] = rebuilt(node) if replaced is None else replaced
        return done[id(node)]

    def rebuilt(node: ScalarExpr) -> ScalarExpr:
        match node:
            case Apply():
                args = tuple(map(visit, node.args))
                same = all(a is b for a, b in zip(args, node.args, strict=True))
                return node if same else Apply(node.op, args, node.dtype)
            case Load():
                index = tuple(i if isinstance(i, int | Expr) else visit(i) for i in node.index)
                same = all(a is b for a, b in zip(index, node.index, strict=True))
                return node if same else Load(node.buffer, index)
            case _:
                return node

    return visit(e)


def rewrite_upward(e: ScalarExpr, change: Callable[[Apply], ScalarExpr]) -> ScalarExpr:
    """The tree with each op replaced by what ``change`` makes of it once that is done with its arguments.

    What is shared in the tree is shared in the result.
    """
    done: dict[int, ScalarExpr] = {}

    def visit(node: ScalarExpr) -> ScalarExpr:
        if not isinstance(node, Apply):
            return node
        if id(node) not in done:
            args = tuple(map(visit, node.args))
            same = all(a is b for a, b in zip(args, node.args, strict=True))
            done[id(node)] = change(node if same else Apply(node.op, args, node.dtype))
        return done[id(node)]

    return visit(e)


def reindex(e: ScalarExpr, replacements: dict[Symbol, Index]) -> ScalarExpr:
    """The tree with index symbols replaced in every load and index value."""

    def change(node: ScalarExpr) -> ScalarExpr | None:
        match node:
            case IndexValue():
                return IndexValue(substitute(node.index, replacements), node.dtype)
            case Load():
                return Load(
                    node.buffer,
                    tuple(
                        substitute(i, replacements) if isinstance(i, int | Expr) else reindex(i, replacements)
                        for i in node.index
                    ),
                )
            case _:
                return None

    return rewrite(e, change)


def with_loads_replaced(e: ScalarExpr, buffer: Buffer, value: ScalarExpr) -> ScalarExpr:
    """``e`` with a value in the place of each load of a buffer."""
    return rewrite(e, lambda n: value if isinstance(n, Load) and n.buffer is buffer else None)


def is_same_along(e: ScalarExpr, axis: Symbol, count: int) -> bool:
    """Whether so many neighbours along an axis, from a multiple of it on, have the same value."""
    indices = [i for x in walk(e) if isinstance(x, Load) for i in x.index]
    indices += [x.index for x in walk(e) if isinstance(x, IndexValue)]
    return all(stays_along(i, axis, count) for i in indices if isinstance(i, int | Expr))
