# SPDX-License-Identifier: Apache-2.0
"""ATen calls that move elements: joins, padding, indexing, repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from fusec.frontend.torch_emit import Declined, Emitter, Operand, axis_of, extents
from fusec.ir.attributes import ConcatAttributes, GatherAttributes, PadAttributes, Scalar, SliceAttributes
from fusec.ir.nodes import Value
from fusec.ir.types import bool_, i32, i64

Lowering = Callable[..., Value]


def _cat(e: Emitter, tensors: Sequence[Value], dim: int = 0) -> Value:
    parts = [e.cast(t, e.out.dtype) for t in tensors if extents(t) != (0,) or e.out.rank == 1]
    axis = axis_of(e.out.rank, dim)
    if len(parts) == 1:
        return e.emit("copy", parts[0])
    return e.emit("concat", *parts, attributes=ConcatAttributes(axis))


def _stack(e: Emitter, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = axis_of(e.out.rank, dim)
    parts = [e.cast(t, e.out.dtype) for t in tensors]
    shape = [*parts[0].type.shape[:axis], 1, *parts[0].type.shape[axis:]]
    return e.emit("concat", *(e.reshape(p, shape) for p in parts), attributes=ConcatAttributes(axis))


def _pad(e: Emitter, x: Value, pad: Sequence[int], value: Scalar = 0) -> Value:
    """Pairs of amounts from the last axis forward; a negative amount cuts."""
    rank = x.type.rank
    low, high = [0] * rank, [0] * rank
    for k in range(len(pad) // 2):
        low[rank - 1 - k], high[rank - 1 - k] = pad[2 * k], pad[2 * k + 1]
    for axis, (before, after) in enumerate(zip(low, high)):
        if before < 0 or after < 0:
            x = e.narrow(x, axis, max(-before, 0), extents(x)[axis] - max(-after, 0))
    attributes = PadAttributes(tuple(max(p, 0) for p in low), tuple(max(p, 0) for p in high))
    return e.emit("pad", x, e.constant(value, x.type.dtype), attributes=attributes)


def _embedding(e: Emitter, weight: Value, indices: Value, *_: object, **__: object) -> Value:
    return e.emit("gather", weight, indices, attributes=GatherAttributes(0))


def _index_select(e: Emitter, x: Value, dim: int, index: Value) -> Value:
    if x.type.rank == 0 or index.type.rank == 0:
        raise Declined("of 0-d tensors")
    return e.emit("gather", x, index, attributes=GatherAttributes(axis_of(x.type.rank, dim)))


def _gather(e: Emitter, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    if x.type.rank == 0 or index.type.rank == 0:
        raise Declined("of 0-d tensors")
    return e.emit("gather_elements", x, index, attributes=GatherAttributes(axis_of(x.type.rank, dim)))


def _scatter(e: Emitter, x: Value, dim: int, index: Value, src: Operand, *, reduce: str | None = None) -> Value:
    """Where each row is written once: ``src`` where an iota equals the index, and ``x`` elsewhere."""
    axis = axis_of(x.type.rank, dim)
    once = [1 if a == axis else n for a, n in enumerate(extents(x))]
    if reduce is not None or x.type.rank == 0 or list(extents(index)) != once:
        raise Declined("writes through an index")
    if isinstance(src, Value) and src.type.rank:
        for a, n in enumerate(once):
            src = e.narrow(src, a, 0, n)
    size = extents(x)[axis]
    positions = e.iota((size,), 0, i64)
    flat = e.reshape(e.cast(index, i64), (index.type.size,))
    checked = e.reshape(e.emit("gather", positions, flat, attributes=GatherAttributes(0)), once)
    here = e.emit("eq", e.iota(extents(x), axis, i64), checked)
    return e.emit("select", here, e.broadcast(e.value(src, x.type.dtype), extents(x)), x)


def _index(e: Emitter, x: Value, indices: Sequence[Value | None]) -> Value:
    """``x[i, :, j]``: indices broadcast, and pick from the axes they stand at, merged into one."""
    used = [axis for axis, index in enumerate(indices) if index is not None]
    listed = [index for index in indices if index is not None]
    if any(not index.type.dtype.is_integer for index in listed):
        raise Declined("a mask as an index")
    shape = extents(x)
    together = used == list(range(used[0], used[-1] + 1))
    order = list(range(len(shape))) if together else used + [a for a in range(len(shape)) if a not in used]
    moved = e.permute(x, order)
    axis = used[0] if together else 0
    sizes = [shape[a] for a in used]
    merged = e.reshape(moved, [*extents(moved)[:axis], prod(sizes), *extents(moved)[axis + len(used) :]])
    return e.emit("gather", merged, _joined_index(e, listed, sizes), attributes=GatherAttributes(axis))


def _joined_index(e: Emitter, indices: list[Value], sizes: list[int]) -> Value:
    """One index into the merged axes, row-major, each part made non-negative first."""
    total: Value | None = None
    for index, size in zip(indices, sizes):
        part = e.cast(index, i64)
        if not e.is_iota(index):
            part = _non_negative(e, part, size)
        if total is not None:
            part = e.emit("add", e.emit("mul", total, e.constant(size, i64)), part)
        total = part
    assert total is not None
    return total


def _non_negative(e: Emitter, index: Value, size: int) -> Value:
    negative = e.emit("lt", index, e.constant(0, i64))
    return e.emit("select", negative, e.emit("add", index, e.constant(size, i64)), index)


def _index_add(e: Emitter, x: Value, dim: int, index: Value, source: Value, *, alpha: Scalar = 1) -> Value:
    """Rows are added one after another, so that the order of sums is eager's."""
    if alpha != 1 or x.type.rank == 0 or index.type.rank != 1 or source.type.rank != x.type.rank:
        raise Declined("of 0-d tensors, or times a number")
    return _added(e, x, axis_of(x.type.rank, dim), index, source)


def _scatter_add(e: Emitter, x: Value, dim: int, index: Value, src: Value) -> Value:
    """Of an index that is expanded, so that all of a row goes to one place."""
    if x.type.rank == 0 or extents(index) != extents(src):
        raise Declined("adds through an index")
    axis = axis_of(x.type.rank, dim)
    wanted = [n if a == axis else 1 for a, n in enumerate(extents(index))]
    row = index
    while [*(1 for _ in range(x.type.rank - row.type.rank)), *extents(row)] != wanted:
        if row not in e.repeated:
            raise Declined("adds through an index")
        row = e.repeated[row]
    return _added(e, x, axis, e.reshape(row, (wanted[axis],)), src)


def _added(e: Emitter, x: Value, axis: int, index: Value, value: Value) -> Value:
    kinds = ("float", "int", "uint")
    wanted = (*extents(x)[:axis], *extents(index), *extents(x)[axis + 1 :])
    if not e.is_on_cpu(x.type) or x.type.dtype.kind not in kinds or extents(value) != wanted or not x.type.size:
        raise Declined("adds through an index")
    if x.type.dtype.is_half:
        raise Declined("adds through an index, and rounds after each term")
    if value.type.size < x.type.size:
        raise Declined("adds to a few places, which may be done in place")
    return e.emit("scatter_add", x, index, value, attributes=GatherAttributes(axis))


def _index_put(e: Emitter, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    """``x[mask] = value`` with a mask of leading axes and one value; other index writes go to the library."""
    mask = indices[0] if len(indices) == 1 else None
    if accumulate and mask is not None and mask.type.dtype in (i32, i64) and mask.type.rank == 1:  # a mask of u8 is one
        row = _non_negative(e, e.cast(mask, i64), extents(x)[0])
        return _added(e, x, 0, row, e.broadcast(values, (*extents(mask), *extents(x)[1:])))
    if mask is None or mask.type.dtype is not bool_ or accumulate or values.type.size != 1:
        raise Declined("writes through an index")
    mask = e.reshape(mask, [*mask.type.shape, *(1 for _ in range(x.type.rank - mask.type.rank))])
    return e.emit("select", mask, e.reshape(values, ()), x)


def _index_copy(e: Emitter, x: Value, dim: int, index: Value, source: Value) -> Value:
    """Left to the library: PyTorch's decomposition takes negative indices, which are an error here."""
    raise Declined("writes through an index", final=True)


def _diagonal_scatter(e: Emitter, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """``x`` with ``src`` on a diagonal: spread along ``dim2``, and chosen where the diagonal lies."""
    shape = extents(x)
    row_axis, column_axis = axis_of(len(shape), dim1), axis_of(len(shape), dim2)
    first, length = max(0, -offset), extents(src)[-1]
    if not length:
        return e.emit("copy", x)
    low, high = [0] * src.type.rank, [0] * src.type.rank
    low[-1], high[-1] = first, shape[row_axis] - first - length
    padding = PadAttributes(tuple(low), tuple(high))
    rows = e.emit("pad", src, e.constant(0, src.type.dtype), attributes=padding)
    rest = [a for a in range(len(shape)) if a not in (row_axis, column_axis)]
    column = e.reshape(rows, (*rows.type.shape, 1))
    spread = e.permute(column, [[*rest, row_axis, column_axis].index(a) for a in range(len(shape))])
    row = e.emit("add", e.iota(shape, row_axis, i64), e.constant(offset, i64))
    on = e.emit("eq", row, e.iota(shape, column_axis, i64))
    return e.emit("select", on, e.broadcast(spread, shape), x)


def _flip(e: Emitter, x: Value, dims: Sequence[int]) -> Value:
    flipped = {axis_of(x.type.rank, d) for d in dims}
    if not x.type.rank or not flipped:
        return e.emit("copy", x)
    shape = extents(x)
    attributes = SliceAttributes(
        tuple(n - 1 if a in flipped and n else 0 for a, n in enumerate(shape)),
        tuple(-1 if a in flipped and n else n for a, n in enumerate(shape)),
        tuple(-1 if a in flipped and n else 1 for a, n in enumerate(shape)),
    )
    return e.emit("slice", x, attributes=attributes)


def _roll(e: Emitter, x: Value, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Value:
    by = [shifts] if isinstance(shifts, int) else list(shifts)
    along = [dims] if isinstance(dims, int) else list(dims)
    result = x if along else e.reshape(x, (x.type.size,))
    for shift, dim in zip(by, along or [0]):
        axis = axis_of(result.type.rank, dim)
        extent = extents(result)[axis] if result.type.rank else 0
        cut = (-shift) % extent if extent else 0
        if cut:
            parts = e.narrow(result, axis, cut, extent), e.narrow(result, axis, 0, cut)
            result = e.emit("concat", *parts, attributes=ConcatAttributes(axis))
    return e.reshape(result, e.out.shape)


def _repeat(e: Emitter, x: Value, repeats: Sequence[int]) -> Value:
    """Each axis gets an axis of repeats before it; merging the two lays copies side by side."""
    shape = (1,) * (len(repeats) - x.type.rank) + extents(x)
    split = [d for n in shape for d in (1, n)]
    wide = [d for n, r in zip(shape, repeats) for d in (r, n)]
    return e.reshape(e.broadcast(e.reshape(x, split), wide), e.out.shape)


def _repeat_interleave(
    e: Emitter, x: Value, repeats: Operand, dim: int | None = None, *, output_size: int | None = None
) -> Value:
    if not isinstance(repeats, int) or isinstance(repeats, bool):
        raise Declined("with a number of repeats for each element")
    flat = e.reshape(x, (x.type.size,)) if dim is None else x
    axis = 0 if dim is None else axis_of(x.type.rank, dim)
    shape = list(extents(flat))
    one = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
    many = [*shape[: axis + 1], repeats, *shape[axis + 1 :]]
    return e.reshape(e.broadcast(e.reshape(flat, one), many), e.out.shape)


def _one_hot(e: Emitter, index: Value, num_classes: int = -1) -> Value:
    """Where an iota equals the index; a class out of range is an error."""
    if num_classes <= 0 or index.type.size == 0 or index.type.dtype != i64:
        raise Declined("of as many classes as the index has, or of an index that is not i64", final=True)
    classes = e.iota((num_classes,), 0, i64)
    flat = e.reshape(index, (index.type.size, 1))
    e.emit("gather", classes, flat, attributes=GatherAttributes(0))
    return e.reshape(e.cast(e.emit("eq", flat, classes), i64), e.out.shape)


def _take(e: Emitter, x: Value, index: Value) -> Value:
    flat = e.reshape(x, (x.type.size,))
    where = _non_negative(e, e.cast(index, i64), x.type.size)
    return e.emit("gather", flat, where, attributes=GatherAttributes(0))


DATA: dict[str, Lowering] = {
    "cat": _cat,
    "stack": _stack,
    "constant_pad_nd": _pad,
    "embedding": _embedding,
    "index_select": _index_select,
    "gather": _gather,
    "scatter": _scatter,
    "index": _index,
    "_unsafe_index": _index,
    "index_put": _index_put,
    "index_add": _index_add,
    "scatter_add": _scatter_add,
    "index_copy": _index_copy,
    "diagonal_scatter": _diagonal_scatter,
    "flip": _flip,
    "roll": _roll,
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "one_hot": _one_hot,
    "take": _take,
}
