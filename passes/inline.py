# SPDX-License-Identifier: Apache-2.0
"""From values to scalar expressions: views become index maps, chains of elementwise ops become one tree.

``Inliner.at(value, index)`` is the value's element at ``index`` as a scalar expression over what is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusec.errors import LoweringError
from fusec.ir.attributes import (
    CastAttributes,
    ConcatAttributes,
    ConstantAttributes,
    ExtentAttributes,
    GatherAttributes,
    IotaAttributes,
    PadAttributes,
)
from fusec.ir.graph import Graph
from fusec.ir.index import (
    Expr,
    Index,
    Symbol,
    add,
    floordiv,
    is_at_least,
    is_below,
    maximum,
    minimum,
    mul,
    product,
    sub,
    symbol,
)
from fusec.ir.indexing import last, needs_int64
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim, DType, bool_, i32, i64
from fusec.passes.subscripts import fill_symbols
from fusec.tile.integers import ARITHMETIC, applied
from fusec.tile.scalar import Apply, Const, IndexValue, ScalarExpr, Subscript
from fusec.tile.views import Subscripts, broadcast_index, pure, view_index

Leaf = Callable[[Subscripts], ScalarExpr | None]
"""How to read one value that is in memory, at an index; None where it has to be computed after all."""


MOVES = ("copy_at", "scatter")
"""Ops that put their operand where data says."""

COPIES = ("copy", *MOVES)
"""Ops that give their operand new memory."""


def index_only(graph: Graph) -> set[Value]:
    """Values that constants and iota alone make, through views, maps and moves: expressions of the index, no data.

    A copy is not one of them: it says that its result is to be memory.
    """
    found: set[Value] = set()
    for op in graph.ops:
        pointwise = op.definition.kind in ("view", "elementwise", "data") and op.name not in COPIES
        if op.definition.kind == "create" or (pointwise and found.issuperset(op.operands)):
            found.update(op.results)
    return found


class Inliner:
    """Expands values of one graph into scalar expressions.

    ``producers`` gives the op that makes a value; ``leaves`` how to read those that are in memory.
    A value with neither is an error of the caller (LoweringError).
    """

    def __init__(self, producers: Mapping[Value, Op], leaves: Mapping[Value, Leaf]) -> None:
        self._producers = producers
        self.leaves = dict(leaves)
        self._memo: dict[tuple[Value, Subscripts], ScalarExpr] = {}
        self._loaded: dict[tuple[ScalarExpr, Dim], Symbol] = {}

    def add_leaf(self, value: Value, leaf: Leaf) -> None:
        """From now on ``value`` is read from memory."""
        self.leaves[value] = leaf
        self._memo.clear()

    def drop_leaf(self, value: Value) -> None:
        """From now on ``value`` is computed again."""
        self.leaves.pop(value, None)
        self._memo.clear()

    def at(self, value: Value, index: Subscripts) -> ScalarExpr:
        """The element of ``value`` at ``index``."""
        key = (value, index)
        if key not in self._memo:
            self._memo[key] = self._expand(value, index)
        return self._memo[key]

    def _expand(self, value: Value, index: Subscripts) -> ScalarExpr:
        leaf = self.leaves.get(value)
        read = leaf(index) if leaf is not None else None
        if read is not None:
            return read
        op = self._producers.get(value)
        if op is None:
            raise LoweringError(f"{value} is not in memory")
        if op.definition.kind == "view" or op.name in ("concat", "pad"):
            named, loaded = self._named(index, value.type.shape)
            element = self._compute(op, named)
            return fill_symbols(element, loaded) if loaded else element
        return self._compute(op, index)

    def _named(self, index: Subscripts, shape: tuple[Dim, ...]) -> tuple[Subscripts, dict[Symbol, ScalarExpr]]:
        """The index with a symbol for each loaded subscript (a gather's), so that index arithmetic can go on."""
        loaded: dict[Symbol, ScalarExpr] = {}
        named: list[Subscript] = []
        for i, n in zip(index, shape, strict=True):
            if not isinstance(i, int | Expr):
                first, step, rest = _block_and_rest(i)
                extent = add(floordiv(last(n), step), 1)
                name = self._loaded.setdefault((first, extent), symbol(f"loaded{len(self._loaded)}", 0, last(extent)))
                loaded[name] = first
                i = add(mul(name, step), rest)
            named.append(i)
        return tuple(named), loaded

    def _compute(self, op: Op, index: Subscripts) -> ScalarExpr:
        kind = op.definition.kind
        if kind == "view":
            return self.at(op.operands[0], view_index(op, index))
        if kind == "elementwise":
            return self._elementwise(op, index)
        match op.attributes:
            case ConstantAttributes(value=number, dtype=dtype):
                return Const(number, dtype)
            case ExtentAttributes(factors=factors, dtype=dtype):
                return _index_number(product(factors), dtype)
            case IotaAttributes(axis=axis, dtype=dtype):
                return _index_number(index[axis], dtype)
            case GatherAttributes(axis=axis) if op.name == "gather":
                return self._gather(op, index, axis)
            case GatherAttributes(axis=axis):
                picked = self.at(op.operands[1], index)
                return self.at(op.operands[0], (*index[:axis], picked, *index[axis + 1 :]))
            case ConcatAttributes(axis=axis):
                return self._concat(op, index, axis)
            case PadAttributes():
                return self._pad(op, pure(index), op.attributes)
        raise LoweringError(f"{op.name} can't be computed one element at a time", op.location)

    def _elementwise(self, op: Op, index: Subscripts) -> ScalarExpr:
        if op.name in COPIES:
            return self.at(op.operands[0], index)
        args = tuple(self.at(v, broadcast_index(index, v.type.shape)) for v in op.operands)
        if isinstance(op.attributes, CastAttributes) and isinstance(args[0], Const):
            return Apply("cast", args, op.attributes.dtype)
        if isinstance(op.attributes, CastAttributes) and op.attributes.implied:
            return Apply("copy", args, op.attributes.dtype)
        made = Apply(op.name, args, op.result.type.dtype)
        return _decided(made) or made

    def _gather(self, op: Op, index: Subscripts, axis: int) -> ScalarExpr:
        source, indices = op.operands
        count = indices.type.rank
        picked = self.at(indices, index[axis : axis + count])
        position = _index_of(picked)
        if position is not None and is_at_least(position, 0) and is_below(position, source.type.shape[axis]):
            return self.at(source, (*index[:axis], position, *index[axis + count :]))
        return self.at(source, (*index[:axis], picked, *index[axis + count :]))

    def _concat(self, op: Op, index: Subscripts, axis: int) -> ScalarExpr:
        """The piece that the index falls into, as far as its bounds tell, else a choice of the pieces it may."""
        position = pure((index[axis],))[0]
        result: ScalarExpr | None = None
        stop: Index = op.result.type.shape[axis]
        for piece in reversed(op.operands):
            extent = piece.type.shape[axis]
            start = sub(stop, extent)
            stop = start
            if extent == 0 or is_below(position, start) or is_at_least(position, add(start, extent)):
                continue
            inside = minimum(maximum(sub(position, start), 0), last(extent))
            element = self.at(piece, (*index[:axis], inside, *index[axis + 1 :]))
            result = (
                element
                if result is None
                else Apply("select", (_less(position, add(start, extent)), element, result), element.dtype)
            )
        if result is None:
            raise LoweringError("a concatenation of nothing", op.location)
        return result

    def _pad(self, op: Op, index: tuple[Index, ...], attributes: PadAttributes) -> ScalarExpr:
        source, fill = op.operands
        inside: list[Index] = []
        conditions: list[ScalarExpr] = []
        for i, low, n in zip(index, attributes.low, source.type.shape):
            position = sub(i, low)
            if is_below(position, 0) or is_at_least(position, n):
                return self.at(fill, ())
            inside.append(minimum(maximum(position, 0), last(n)))
            if not is_at_least(position, 0):
                conditions.append(Apply("ge", (IndexValue(position), Const(0, i64)), bool_))
            if not is_below(position, n):
                conditions.append(_less(position, n))
        value = self.at(source, tuple(inside))
        if not conditions:
            return value
        condition = conditions[0]
        for c in conditions[1:]:
            condition = Apply("logical_and", (condition, c), bool_)
        return Apply("select", (condition, value, self.at(fill, ())), value.dtype)


def _index_of(e: ScalarExpr) -> Index | None:
    """The index expression that integer arithmetic on positions comes to; None for what is made of data, and where a
    number might not fit 32 bits."""
    if e.dtype not in (i32, i64):
        return None
    match e:
        case IndexValue(index=found) if not needs_int64(found):
            return found
        case Const(value=int() as number) if not needs_int64(number):
            return number
        case Apply("cast", (part,)):
            return _index_of(part)
        case Apply(name, args) if name in ARITHMETIC:
            parts = [_index_of(a) for a in args]
            known = [p for p in parts if p is not None]
            return applied(name, known) if len(known) == len(parts) else None
    return None


def _decided(e: Apply) -> ScalarExpr | None:
    """What an expression is wherever its position is: a comparison of positions that is always so, arithmetic on
    numbers, a choice that is made; None where that depends on the position, or on data."""
    match e:
        case Apply("select", (Const(value=chosen), a, b)):
            return a if chosen else b
        case Apply("ge" | "lt", (a, b)):
            first, second = _index_of(a), _index_of(b)
            if first is None or second is None:
                return None
            if is_at_least(sub(first, second), 0):
                return Const(e.op == "ge", bool_)
            return Const(e.op == "lt", bool_) if is_below(sub(first, second), 0) else None
        case Apply(name) if name in ARITHMETIC:
            position = _index_of(e)
            return Const(position, e.dtype) if isinstance(position, int) else None
    return None


def _block_and_rest(e: ScalarExpr) -> tuple[ScalarExpr, int, Index]:
    """A loaded subscript as a number of equal blocks, their size, and the position in a block, which is known: the
    number of a page and the position there, as one number of both."""
    match e:
        case Apply("add", (Apply("mul", (number, Const(value=int() as size))), rest)) if size > 0:
            position = _index_of(rest)
            if position is not None and is_at_least(position, 0) and is_below(position, size):
                return number, size, position
    return e, 1, 0


def _less(position: Index, bound: Index) -> ScalarExpr:
    end = Const(bound, i64) if isinstance(bound, int) else IndexValue(bound)
    return Apply("lt", (IndexValue(position), end), bool_)


def _index_number(i: Subscript, dtype: DType) -> ScalarExpr:
    if isinstance(i, int | Expr):
        if dtype.is_integer:
            return IndexValue(i, dtype)
        return Apply("cast", (IndexValue(i, i64),), dtype)
    return Apply("cast", (i,), dtype)
