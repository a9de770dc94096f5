# SPDX-License-Identifier: Apache-2.0
"""Which blocks of memory a tensor descriptor can fetch (Hopper's TMA), and where in the tensor they lie."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.index import Expr, Index, Mod, add, bounds, floordiv, mod, mul, symbols_of, terms_of
from fusec.ir.indexing import coefficient, most, substitute
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Buffer, Load

MAX_RANK = 5
MAX_BOX = 256
"""Limits of cuTensorMapEncodeTiled."""


@dataclass(frozen=True)
class Fetch:
    """A block by descriptor: its first element's coordinates. ``transposed``: it comes as columns by rows. Shape and
    strides may depend on the kernel's sizes."""

    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    block: tuple[int, ...]
    coordinates: tuple[Index, ...]
    transposed: bool


@dataclass(frozen=True)
class _Axis:
    index: Index
    size: Index
    stride: Index


def fetch_of(load: Load, domain: tuple[Iter, Iter]) -> Fetch | None:
    """How a descriptor reads the load over (rows, columns), with zeros beyond the limits; None if none can."""
    axes = _axes(load)
    if axes is None:
        return None
    plain: list[tuple[_Axis, Index]] = []
    found: dict[int, tuple[_Axis, Index]] = {}
    for axis in axes:
        inside = [k for k, i in enumerate(domain) if i.var in symbols_of(axis.index)]
        if not inside:
            plain.append((axis, axis.index))
            continue
        parts = _parts(axis, domain[inside[0]]) if len(inside) == 1 else None
        if parts is not None:
            outer, axis = parts
            plain.append((outer, outer.index))
        base = _base(axis, domain[inside[0]]) if len(inside) == 1 else None
        if base is None or inside[0] in found:
            return None
        found[inside[0]] = (axis, base)
    if len(found) != 2:
        return None
    transposed = found[0][0].stride == 1
    order = (1, 0) if transposed else (0, 1)
    ordered = [*plain, *(found[k] for k in order)]
    block = (*(1 for _ in plain), *(domain[k].extent for k in order))
    if not _encodable([a for a, _ in ordered], block, load.buffer):
        return None
    shape, strides = tuple(a.size for a, _ in ordered), tuple(a.stride for a, _ in ordered)
    return Fetch(shape, strides, block, tuple(c for _, c in ordered), transposed)


def _axes(load: Load) -> list[_Axis] | None:
    """The buffer's axes as they lie in memory, those joined that the load walks through as one."""
    axes: list[_Axis] = []
    buffer = load.buffer
    along = zip(load.index, buffer.shape, buffer.strides, strict=True)
    for index, size, stride in sorted(along, key=lambda axis: -most(axis[2])):
        if not isinstance(index, int | Expr):
            return None
        if size == 1:
            continue
        joined = _join(axes[-1], index, size, stride) if axes else None
        if joined is not None:
            axes[-1] = joined
        else:
            axes.append(_Axis(index, size, stride))
    return axes


def _join(outer: _Axis, index: Index, size: Index, stride: Index) -> _Axis | None:
    """Two axes that the load walks through as one: ``v // size`` and ``v % size``."""
    if not isinstance(index, Mod) or index.divisor != size or outer.stride != mul(size, stride):
        return None
    return _Axis(index.value, mul(outer.size, size), stride) if floordiv(index.value, size) == outer.index else None


def _base(axis: _Axis, iterator: Iter) -> Index | None:
    """The index without the iterator, where it is base + iterator and the limit is the axis's own end."""
    if coefficient(axis.index, iterator.var) != 1:
        return None
    base = substitute(axis.index, {iterator.var: 0})
    if iterator.limit is not None and add(base, iterator.limit) != axis.size:
        return None
    return base


def _parts(axis: _Axis, iterator: Iter) -> tuple[_Axis, _Axis] | None:
    """An axis as parts of which the iterator walks through one, up to its end: ``v * size + iterator``."""
    if iterator.limit is None or coefficient(axis.index, iterator.var) != 1:
        return None
    end = add(substitute(axis.index, {iterator.var: 0}), iterator.limit)
    size = terms_of(iterator.limit)[0]
    if not isinstance(axis.size, int) or size <= 0 or end == axis.size or axis.size % size:
        return None
    which = floordiv(add(end, -size), size)
    if mul(which, size) != add(end, -size):
        return None
    whole = _Axis(which, axis.size // size, mul(axis.stride, size))
    return whole, _Axis(add(axis.index, mul(which, -size)), size, axis.stride)


def _encodable(axes: list[_Axis], block: tuple[int, ...], buffer: Buffer) -> bool:
    item = buffer.dtype.itemsize
    if len(axes) > MAX_RANK or axes[-1].stride != 1 or max(block) > MAX_BOX or block[-1] * item < 32:
        return False
    steps = [mul(a.stride, item) for a in axes[:-1]]
    return all((bounds(n)[0] or 0) > 0 and mod(n, 16) == 0 for n in steps) and all(most(a.size) < 2**31 for a in axes)
