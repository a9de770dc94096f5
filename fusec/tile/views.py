# SPDX-License-Identifier: Apache-2.0
"""Views as index maps: which element of its operand a view shows at an index, and what strides say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusec.errors import LoweringError
from fusec.ir.attributes import PermuteAttributes, SliceAttributes, StridedAttributes, WindowsAttributes
from fusec.ir.index import Expr, Index, Symbol, add, mul, symbol, symbols_of
from fusec.ir.indexing import delinearize, last, linearize, most, slope, substitute
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim, contiguous_strides
from fusec.tile.scalar import Subscript

Subscripts = tuple[Subscript, ...]
Strides = tuple[Dim, ...]


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
            inner = pure((index[-1],))[0]
            return tuple(add(mul(pure((i,))[0], step), inner) if k == axis else i for k, i in enumerate(index[:-1]))
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
    """The source index with the same position in row-major order; runs of equal axes pass through untouched."""
    if _squeezed(target) == _squeezed(source):
        long_axes = iter(i for i, n in zip(index, target) if n != 1)
        return tuple(0 if n == 1 else next(long_axes) for n in source)
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


def same_layout(shape: tuple[Dim, ...], a: Strides, b: Strides) -> bool:
    """Equal strides on every axis with more than one element (others are never stepped along)."""
    return 0 in shape or all(x == y for n, x, y in zip(shape, a, b, strict=True) if n != 1)


@dataclass(frozen=True)
class StridedView:
    """``value[i...]`` is element ``offset + sum(i * strides)`` after the first of ``base``."""

    base: Value
    strides: Strides
    offset: Dim


def strided_view(
    value: Value, producers: Mapping[Value, Op], base_strides: Mapping[Value, Strides]
) -> StridedView | None:
    """A chain of views as strides over the memory of its source, or None where it is none or no strides say it."""
    shape = value.type.shape
    if 0 in shape:
        return StridedView(under_views(value, producers), contiguous_strides(value.type.shape), 0)
    symbols = fresh_index("v", shape)
    index: tuple[Index, ...] = symbols
    base = value
    op = producers.get(base)
    try:
        while op is not None and op.definition.kind == "view":
            index = pure(view_index(op, index))
            base = op.operands[0]
            op = producers.get(base)
    except LoweringError:
        return None
    strides = base_strides.get(base, contiguous_strides(base.type.shape))
    flat: Index = 0
    for i, stride in zip(index, strides, strict=True):
        flat = add(flat, mul(i, stride))
    steps = [slope(flat, s) if n != 1 else 0 for s, n in zip(symbols, shape, strict=True)]
    if any(k is None for k in steps):
        return None
    zero: dict[Symbol, Index] = dict.fromkeys(symbols, 0)
    offset = substitute(flat, zero)
    return StridedView(base, tuple(k or 0 for k in steps), offset)


def joined(axes: Sequence[tuple[int, int]], step: int = 1) -> tuple[int, int] | None:
    """Axes walked through as one: its extent and stride, ``step`` for one of a single element; None where the strides
    don't allow it."""
    size = 1
    for extent, stride in reversed([a for a in axes if a[0] != 1]):
        if size == 1:
            size, step = extent, stride
        elif stride == size * step:
            size *= extent
        else:
            return None
    return size, step


def under_views(value: Value, producers: Mapping[Value, Op]) -> Value:
    """What a chain of views starts from."""
    while (op := producers.get(value)) is not None and op.definition.kind == "view":
        value = op.operands[0]
    return value
