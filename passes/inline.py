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
    PermuteAttributes,
    SliceAttributes,
    StridedAttributes,
    WindowsAttributes,
)
from fusec.ir.graph import Graph
from fusec.ir.index import (
    Expr,
    Index,
    Symbol,
    add,
    is_at_least,
    is_below,
    maximum,
    minimum,
    mul,
    product,
    sub,
    symbol,
    symbols_of,
)
from fusec.ir.indexing import delinearize, last, linearize, most, substitute
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim, DType, bool_, i64
from fusec.passes.subscripts import fill_symbols
from fusec.tile.scalar import Apply, Const, IndexValue, ScalarExpr, Subscript

Subscripts = tuple[Subscript, ...]
Leaf = Callable[[Subscripts], ScalarExpr | None]
"""How to read one value that is in memory, at an index; None where it has to be computed after all."""


def fresh_index(prefix: str, shape: tuple[Dim, ...]) -> tuple[Symbol, ...]:
    """One symbol an axis, each with exactly the range of its axis."""
    return tuple(symbol(f"{prefix}{k}", 0, last(n)) for k, n in enumerate(shape))


def settled(index: Subscripts) -> Subscripts:
    """The index with every symbol that can take one value only replaced by that value."""
    return tuple(_settle(i) if isinstance(i, int | Expr) else i for i in index)


def _settle(i: Index) -> Index:
    fixed: dict[Symbol, Index] = {s: s.lo for s in symbols_of(i) if s.lo is not None and s.lo == s.hi}
    return substitute(i, fixed) if fixed else i


def pure(index: Subscripts) -> tuple[Index, ...]:
    """The subscripts as index expressions; LoweringError where one is a loaded value."""
    result: list[Index] = []
    for i in index:
        if not isinstance(i, int | Expr):
            raise LoweringError("a loaded subscript where an index expression is needed")
        result.append(i)
    return tuple(result)


def view_index(op: Op, index: Subscripts) -> Subscripts:
    """The operand's index that a view op's result reads at ``index``."""
    source = op.operands[0].type.shape
    target = op.result.type.shape
    match op.attributes:
        case PermuteAttributes(permutation=permutation):
            back: list[Subscript] = [0] * len(source)
            for k, axis in enumerate(permutation):
                back[axis] = index[k]
            return tuple(back)
        case SliceAttributes(starts=starts, steps=steps):
            return tuple(_affine(i, start, step) for i, start, step in zip(index, starts, steps))
        case WindowsAttributes(axis=axis, step=step):
            place = pure((index[-1],))[0]
            return tuple(add(mul(pure((i,))[0], step), place) if k == axis else i for k, i in enumerate(index[:-1]))
        case StridedAttributes(strides=strides, offset=offset):
            flat: Index = offset
            for i, stride in zip(pure(index), strides, strict=True):
                flat = add(flat, mul(i, stride))
            return delinearize(flat, source)
    if op.name == "broadcast":
        return broadcast_index(index, source)
    if op.name == "reshape":
        return reshape_index(index, target, source)
    raise LoweringError(f"{op.name} is not a view that fusec knows", op.location)


def _affine(i: Subscript, start: object, step: int) -> Subscript:
    assert isinstance(start, int | Expr)
    if step == 1 and start == 0:
        return i
    return add(mul(pure((i,))[0], step), start)


def broadcast_index(index: Subscripts, source: tuple[Dim, ...]) -> Subscripts:
    """NumPy's rule: aligned at the right, an axis of extent 1 is read at 0."""
    own = index[len(index) - len(source) :]
    return tuple(0 if n == 1 else i for i, n in zip(own, source, strict=True))


def reshape_index(index: Subscripts, target: tuple[Dim, ...], source: tuple[Dim, ...]) -> Subscripts:
    """The source index with the same place in row-major order; runs of equal axes pass through untouched."""
    if _squeezed(target) == _squeezed(source):
        kept = iter(i for i, n in zip(index, target) if n != 1)
        return tuple(0 if n == 1 else next(kept) for n in source)
    result: list[Subscript] = []
    for t, s in _matching_runs(target, source):
        if len(t) == 1 and len(s) == 1:
            result.append(index[t[0]])
            continue
        flat = linearize(pure(tuple(index[k] for k in t)), [target[k] for k in t])
        result.extend(delinearize(flat, tuple(source[k] for k in s)))
    return tuple(result)


def _squeezed(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(n for n in shape if n != 1)


def _matching_runs(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> list[tuple[list[int], list[int]]]:
    """Splits two shapes of equal size into the shortest runs of axes with equal products."""
    if 0 in a:
        return [(list(range(len(a))), list(range(len(b))))]
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        left, right = [], []
        pa: Index = 1
        pb: Index = 1
        if i < len(a):
            left, pa, i = [i], a[i], i + 1
        if j < len(b):
            right, pb, j = [j], b[j], j + 1
        while pa != pb:
            if j == len(b) or (i < len(a) and most(pa) < most(pb)):
                left.append(i)
                pa, i = pa * a[i], i + 1
            else:
                right.append(j)
                pb, j = pb * b[j], j + 1
        runs.append((left, right))
    return runs


COPIES = ("copy", "copy_at")
"""Ops that give their operand a new place in memory."""


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
                name = self._loaded.setdefault((i, n), symbol(f"loaded{len(self._loaded)}", 0, last(n)))
                loaded[name] = i
                i = name
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
        args = tuple(self.at(v, broadcast_index(index, v.type.shape)) for v in op.operands)
        if op.name in COPIES:
            return args[0]
        if isinstance(op.attributes, CastAttributes) and isinstance(args[0], Const):
            return Apply("cast", args, op.attributes.dtype)
        if isinstance(op.attributes, CastAttributes) and op.attributes.implied:
            return Apply("copy", args, op.attributes.dtype)
        return Apply(op.name, args, op.result.type.dtype)

    def _gather(self, op: Op, index: Subscripts, axis: int) -> ScalarExpr:
        source, indices = op.operands
        count = indices.type.rank
        picked = self.at(indices, index[axis : axis + count])
        return self.at(source, (*index[:axis], picked, *index[axis + count :]))

    def _concat(self, op: Op, index: Subscripts, axis: int) -> ScalarExpr:
        """The piece that the index falls into, as far as its bounds tell, else a choice of the pieces it may."""
        place = pure((index[axis],))[0]
        result: ScalarExpr | None = None
        stop: Index = op.result.type.shape[axis]
        for piece in reversed(op.operands):
            extent = piece.type.shape[axis]
            start = sub(stop, extent)
            stop = start
            if extent == 0 or is_below(place, start) or is_at_least(place, add(start, extent)):
                continue
            inside = minimum(maximum(sub(place, start), 0), last(extent))
            element = self.at(piece, (*index[:axis], inside, *index[axis + 1 :]))
            result = (
                element
                if result is None
                else Apply("select", (_less(place, add(start, extent)), element, result), element.dtype)
            )
        if result is None:
            raise LoweringError("a concatenation of nothing", op.location)
        return result

    def _pad(self, op: Op, index: tuple[Index, ...], attributes: PadAttributes) -> ScalarExpr:
        source, fill = op.operands
        inside: list[Index] = []
        conditions: list[ScalarExpr] = []
        for i, low, n in zip(index, attributes.low, source.type.shape):
            place = sub(i, low)
            if is_below(place, 0) or is_at_least(place, n):
                return self.at(fill, ())
            inside.append(minimum(maximum(place, 0), last(n)))
            if not is_at_least(place, 0):
                conditions.append(Apply("ge", (IndexValue(place), Const(0, i64)), bool_))
            if not is_below(place, n):
                conditions.append(_less(place, n))
        value = self.at(source, tuple(inside))
        if not conditions:
            return value
        condition = conditions[0]
        for c in conditions[1:]:
            condition = Apply("logical_and", (condition, c), bool_)
        return Apply("select", (condition, value, self.at(fill, ())), value.dtype)


def _less(place: Index, bound: Index) -> ScalarExpr:
    end = Const(bound, i64) if isinstance(bound, int) else IndexValue(bound)
    return Apply("lt", (IndexValue(place), end), bool_)


def _index_number(i: Subscript, dtype: DType) -> ScalarExpr:
    if isinstance(i, int | Expr):
        if dtype.is_integer:
            return IndexValue(i, dtype)
        return Apply("cast", (IndexValue(i, i64),), dtype)
    return Apply("cast", (i,), dtype)
