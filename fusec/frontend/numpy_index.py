# SPDX-License-Identifier: Apache-2.0
"""Indexing: basic indices are views, integer arrays are gathers, masks select."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusec.errors import DataDependentError
from fusec.frontend.numpy_create import as_array
from fusec.frontend.numpy_emit import ShapeRuleError
from fusec.frontend.numpy_trace import IndexRuleError, Meta, Trace, Traced, describe, ir_dtype, laid_out_as, twin
from fusec.frontend.steps import Step
from fusec.ir.attributes import GatherAttributes, PermuteAttributes, ShapeAttributes, SliceAttributes
from fusec.ir.nodes import Value
from fusec.ir.types import bool_, i64

Item = Any
_MASK_ADVICE = (
    "how many elements a mask picks is known only when the compiled function runs; "
    "use np.where(mask, x, other), or x[mask] = one number"
)


@dataclass(frozen=True)
class _Plan:
    """One entry for each axis of the array, in order, with None for new axes between them.

    ``ellipsis`` is where the index has a ``...``, perhaps for no axis; None where it has none.
    """

    items: tuple[Item, ...]
    ellipsis: int | None

    @property
    def is_basic(self) -> bool:
        return all(item is None or isinstance(item, slice | int) for item in self.items)


def _plan(trace: Trace, x: Traced, index: Any) -> _Plan:
    rank = x.meta.ndim
    given = list(index) if isinstance(index, tuple) else [index]
    items = [_item(trace, i) for i in given]
    expanded: list[Item] = []
    for item in items:
        if isinstance(item, np.ndarray) and item.dtype.kind == "b":
            expanded.extend(_nonzero(trace, x, item, sum(1 for e in expanded if e is not None and e is not ...)))
        else:
            expanded.append(item)
    used = sum(1 for item in expanded if item is not None and item is not ...)
    ellipses = sum(1 for item in expanded if item is ...)
    if used > rank:
        message = f"too many indices for array: array is {rank}-dimensional, but {used} were indexed"
        raise IndexRuleError(message, trace.location())
    if ellipses > 1:
        raise IndexRuleError("an index can only have a single ellipsis ('...')", trace.location())
    if not ellipses:
        expanded.append(...)
    at = next(i for i, item in enumerate(expanded) if item is ...)
    expanded[at : at + 1] = [slice(None)] * (rank - used)
    return _Plan(tuple(expanded), at if ellipses else None)


def _item(trace: Trace, item: Any) -> Item:
    """One part of an index: a slice of ints, an int, None, Ellipsis, an ndarray or a traced array."""
    if item is None or item is ... or isinstance(item, slice):
        return item
    if isinstance(item, bool | np.bool_):
        raise trace.unsupported("a single True or False as an index is not compiled")
    if isinstance(item, Traced):
        if item.meta.dtype.kind not in "biu":
            message = "arrays used as indices must be of integer (or boolean) type"
            raise IndexRuleError(message, trace.location())
        if item.meta.dtype.kind == "b":
            known = trace.known(item)
            if known is None:
                raise DataDependentError(_MASK_ADVICE, trace.location())
            return known
        if not item.meta.ndim:
            known = trace.known(item)
            return item if known is None else int(known)
        return item
    if isinstance(item, list) and any(isinstance(part, Traced) for part in item):
        raise trace.unsupported("a list of traced numbers as an index is not compiled; use np.stack")
    if not isinstance(item, list | tuple | np.ndarray):
        try:
            return operator.index(item)
        except TypeError:
            message = (
                "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) "
                "and integer or boolean arrays are valid indices"
            )
            raise IndexRuleError(message, trace.location()) from None
    array = np.asarray(item)
    if array.size == 0 and not isinstance(item, np.ndarray):
        array = array.astype(np.intp)
    if array.dtype.kind not in "biu":
        raise IndexRuleError("arrays used as indices must be of integer (or boolean) type", trace.location())
    return array


def _nonzero(trace: Trace, x: Traced, mask: np.ndarray[Any, Any], axis: int) -> tuple[np.ndarray[Any, Any], ...]:
    shape = x.meta.shape[axis : axis + mask.ndim]
    if mask.shape != shape:
        message = f"boolean index did not match indexed array; its shape is {mask.shape}, the array's is {shape}"
        raise IndexRuleError(message, trace.location())
    return mask.nonzero()


def _check_int(trace: Trace, index: int, extent: int, axis: int) -> int:
    if not -extent <= index < extent:
        message = f"index {index} is out of bounds for axis {axis} with size {extent}"
        raise IndexRuleError(message, trace.location())
    return index % extent


def get_item(trace: Trace, x: Traced, index: Any) -> Any:
    """``x[index]``."""
    plan = _plan(trace, x, index)
    if plan.is_basic:
        return _basic(trace, x, plan)
    return _advanced(trace, x, plan)


def _slice_bounds(item: Item, extent: int, trace: Trace, axis: int) -> tuple[int, int, int]:
    """Normalised start, stop and step of a slice or an int."""
    if not isinstance(item, slice):
        at = _check_int(trace, item, extent, axis)
        return at, at + 1, 1
    start, stop, step = item.indices(extent)
    count = len(range(start, stop, step))
    if count == 0:
        return 0, 0, 1
    if count == 1:
        return start, start + 1, 1
    last = start + (count - 1) * step
    return start, last + (1 if step > 0 else -1), step


def _slice_step(trace: Trace, shape: tuple[int, ...], items: list[Item]) -> Step | None:
    bounds = [_slice_bounds(item, n, trace, axis) for axis, (item, n) in enumerate(zip(items, shape))]
    if all(b == (0, n, 1) for b, n in zip(bounds, shape)):
        return None
    starts, stops, steps = zip(*bounds)
    return Step("slice", SliceAttributes(starts, stops, steps))


def _basic(trace: Trace, x: Traced, plan: _Plan) -> Any:
    picked = [item for item in plan.items if item is not None]
    shape = x.meta.shape
    first = _slice_step(trace, shape, picked)
    meta = x.meta[(*plan.items, ...)]
    sliced = [len(range(*_slice_bounds(item, n, trace, 0))) for item, n in zip(picked, shape)]
    steps = [] if first is None else [first]
    if tuple(sliced) != meta.shape:
        steps.append(Step("reshape", ShapeAttributes(meta.shape)))
    scalar = not meta.ndim and plan.ellipsis is None
    return trace.view(x, steps, meta, scalar=scalar)


def _advanced(trace: Trace, x: Traced, plan: _Plan) -> Any:
    """Integer arrays: the indexed axes are put together, and one gather picks from them."""
    axes: list[Item] = [item for item in plan.items if item is not None]
    arrays = {axis: item for axis, item in enumerate(axes) if not isinstance(item, slice)}
    value = x.value
    cut = _slice_step(trace, x.meta.shape, [slice(None) if axis in arrays else item for axis, item in enumerate(axes)])
    if cut is not None:
        value = trace.emit(cut.name, value, attributes=cut.attributes)
    ramp = _as_slice(arrays, x.meta.shape)
    shape = value.type.static_shape
    index_shape = _index_shape(trace, arrays)
    adjacent = _adjacent(plan)
    first = min(arrays) if adjacent else 0
    order = [a for a in range(len(shape)) if a not in arrays]
    order[first:first] = sorted(arrays)
    rest = [shape[a] for a in range(len(shape)) if a not in arrays]
    if ramp is not None:
        start, stop, step = ramp
        bounds = [(start, stop, step) if a in arrays else (0, n, 1) for a, n in enumerate(shape)]
        starts, stops, steps = zip(*bounds)
        value = trace.emit("slice", value, attributes=SliceAttributes(starts, stops, steps))
    else:
        if order != list(range(len(shape))):
            value = trace.emit("permute", value, attributes=PermuteAttributes(tuple(order)))
        extents = [shape[a] for a in sorted(arrays)]
        merged = [*rest[:first], int(np.prod(extents, dtype=np.int64)), *rest[first:]]
        value = trace.reshape(value, merged)
        flat = _flat_index(trace, [arrays[a] for a in sorted(arrays)], extents, index_shape, sorted(arrays))
        value = trace.emit("gather", value, flat, attributes=GatherAttributes(first))
    value = trace.reshape(value, _result_shape(plan.items, shape, arrays, index_shape, adjacent))
    return trace.result(value, _advanced_meta(x, plan, value, index_shape))


def _index_shape(trace: Trace, arrays: dict[int, Item]) -> tuple[int, ...]:
    shapes = [a.meta.shape if isinstance(a, Traced) else np.shape(a) for a in arrays.values()]
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        shown = " ".join(str(s).replace(" ", "") for s in shapes)
        message = f"shape mismatch: indexing arrays could not be broadcast together with shapes {shown}"
        raise IndexRuleError(message, trace.location()) from None


def _adjacent(plan: _Plan) -> bool:
    """Whether nothing stands between arrays and ints; a ``...`` does, even one for no axis."""
    positions = [i for i, item in enumerate(plan.items) if item is not None and not isinstance(item, slice)]
    if plan.ellipsis is not None and positions[0] < plan.ellipsis <= positions[-1]:
        return False
    return positions[-1] - positions[0] + 1 == len(positions)


def _as_slice(arrays: dict[int, Item], shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """One constant index that counts up or down evenly is a slice."""
    if len(arrays) != 1:
        return None
    ((axis, index),) = arrays.items()
    if isinstance(index, Traced) or not isinstance(index, np.ndarray) or index.ndim != 1 or len(index) < 2:
        return None
    positions = np.where(index < 0, index + shape[axis], index).astype(np.int64)
    step = int(positions[1] - positions[0])
    if step == 0 or not (np.diff(positions) == step).all() or positions.min() < 0 or positions.max() >= shape[axis]:
        return None
    return int(positions[0]), int(positions[-1]) + (1 if step > 0 else -1), step


def _flat_index(
    trace: Trace, indices: list[Item], extents: list[int], index_shape: tuple[int, ...], axes: list[int]
) -> Value:
    """Row-major position in the merged axes; constants are checked against the extents now."""
    constant: Any = 0
    traced: Value | None = None
    for index, extent, axis in zip(indices, extents, axes):
        constant = constant * extent
        traced = trace.binary("mul", traced, extent) if traced is not None else None
        if isinstance(index, Traced):
            position = trace.operand(index, i64)
            if index.meta.dtype.kind == "i":
                below = trace.binary("lt", position, 0)
                position = trace.emit("select", below, trace.binary("add", position, extent), position)
            traced = position if traced is None else trace.emit("add", traced, position)
            continue
        array = np.asarray(index, dtype=np.int64)
        if array.size:
            for extreme in (int(array.min()), int(array.max())):
                _check_int(trace, extreme, extent, axis)
        constant = constant + np.where(array < 0, array + extent, array)
    if traced is None:
        return trace.operand(np.ascontiguousarray(np.broadcast_to(constant, index_shape)), i64)
    if np.any(constant):
        traced = trace.emit("add", traced, trace.operand(np.asarray(constant), i64))
    return trace.broadcast(traced, index_shape)


def _result_shape(
    items: tuple[Item, ...],
    shape: tuple[int, ...],
    arrays: dict[int, Item],
    index_shape: tuple[int, ...],
    adjacent: bool,
) -> list[int]:
    result: list[int] = [] if adjacent else list(index_shape)
    inserted = not adjacent
    axis = 0
    for item in items:
        if item is None:
            result.append(1)
            continue
        if axis not in arrays:
            result.append(shape[axis])
        elif not inserted:
            result.extend(index_shape)
            inserted = True
        axis += 1
    return result


def _advanced_meta(x: Traced, plan: _Plan, value: Value, index_shape: tuple[int, ...]) -> Meta:
    """The order of the result's axes in memory, as NumPy has it for a small array of the same order."""
    dtype = value.type.dtype.numpy
    shape = value.type.static_shape
    if 0 in shape or 0 in x.meta.shape:
        return describe(shape, dtype)
    zero = np.zeros([min(n, 2) for n in index_shape], np.intp)
    items: list[Item] = [i if i is None else slice(None) if isinstance(i, slice) else zero for i in plan.items]
    if plan.ellipsis is not None:
        items.insert(plan.ellipsis, ...)
    return laid_out_as(twin(x.meta)[tuple(items)], shape, dtype)


def set_item(trace: Trace, x: Traced, index: Any, new: Any) -> None:
    """``x[index] = new``."""
    if x.is_scalar:
        raise TypeError(
            f"'{x.meta.dtype.type.__module__}.{x.meta.dtype.type.__name__}' object does not support item assignment"
        )
    _check_writeable(trace, x)
    if isinstance(new, bool | int | float | complex):
        _check_number(trace, new, x.meta.dtype)
    mask = _mask_of(trace, index)
    if mask is not None:
        _set_masked(trace, x, mask, new)
        return
    plan = _plan(trace, x, index)
    if not plan.is_basic:
        _set_positions(trace, x, plan, new)
        return
    target = _basic(trace, x, _Plan(plan.items, 0))
    write(trace, target, new)


def write(trace: Trace, target: Traced, new: Any) -> None:
    """Stores ``new`` in a traced array in place, cast and broadcast to it."""
    _check_writeable(trace, target)
    if isinstance(new, Traced) and new.buffer is target.buffer and new.steps == target.steps:
        return
    if not isinstance(new, Traced | np.ndarray) and not np.isscalar(new):
        new = as_array(trace, new)
    if isinstance(new, bool | int | float | complex):
        _check_number(trace, new, target.meta.dtype)
    dtype = ir_dtype(target.meta.dtype)
    value = trace.operand(new, dtype)
    shape = value.type.static_shape
    extra = len(shape) - target.meta.ndim
    if extra > 0 and all(n == 1 for n in shape[:extra]):
        value = trace.reshape(value, shape[extra:])
    try:
        value = trace.broadcast(value, target.meta.shape)
    except ShapeRuleError:
        message = f"could not broadcast input array from shape {shape} into shape {target.meta.shape}"
        raise ShapeRuleError(message, trace.location()) from None
    target.buffer.write(target.steps, value)


def _check_writeable(trace: Trace, target: Traced) -> None:
    if target.is_scalar or not target.meta.flags.writeable:
        raise ShapeRuleError("assignment destination is read-only", trace.location())


def _check_number(trace: Trace, number: complex, dtype: np.dtype[Any]) -> None:
    """UnsupportedOpError for a number that NumPy refuses to store (300 in uint8, NaN in int64)."""
    try:
        with np.errstate(all="ignore"):
            np.empty((), dtype)[()] = number
    except (OverflowError, ValueError, TypeError) as error:
        raise trace.unsupported(str(error)) from None


def store(trace: Trace, made: Any, out: Any) -> Any:
    """``made``, in the array that the caller gives for it, if any."""
    if out is None or out is np._NoValue:
        return made
    target = out[0] if isinstance(out, tuple) else out
    if not isinstance(target, Traced):
        raise trace.unsupported("out= must be an array made in the function, not one made outside")
    if target.meta.dtype != made.meta.dtype:  # NumPy may compute in that dtype, or refuse it
        raise trace.unsupported(f"out= of {target.meta.dtype} for a result of {made.meta.dtype} is not compiled")
    if target.meta.shape != made.meta.shape:
        raise ShapeRuleError("output parameter has the wrong shape", trace.location())
    write(trace, target, made)
    return target


def _mask_of(trace: Trace, index: Any) -> Traced | None:
    """The traced boolean array that is the whole index, if it is one."""
    only = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if isinstance(only, Traced) and only.meta.dtype.kind == "b":
        return only
    return None


def _set_masked(trace: Trace, x: Traced, mask: Traced, new: Any) -> None:
    shape = x.meta.shape
    if mask.meta.shape != shape[: mask.meta.ndim]:
        message = f"boolean index did not match indexed array; its shape is {mask.meta.shape}, the array's is {shape}"
        raise IndexRuleError(message, trace.location())
    dtype = ir_dtype(x.meta.dtype)
    value = trace.operand(new, dtype)
    rest = len(shape) - mask.meta.ndim
    if value.type.rank > rest and any(n != 1 for n in value.type.static_shape[: value.type.rank - rest]):
        raise DataDependentError(_MASK_ADVICE, trace.location())
    condition = trace.reshape(mask.value, (*mask.meta.shape, *(1,) * rest))
    chosen = trace.emit("select", trace.broadcast(condition, shape), value, x.value)
    if chosen.type.static_shape != shape:
        raise DataDependentError(_MASK_ADVICE, trace.location())
    x.buffer.write(x.steps, chosen)


def _set_positions(trace: Trace, x: Traced, plan: _Plan, new: Any) -> None:
    """``x[:, positions] = new`` with constant places on one axis: each position looks up what is stored there last."""
    axes = [item for item in plan.items if item is not None]
    arrays = {axis: item for axis, item in enumerate(axes) if not isinstance(item, slice)}
    full = all(item == slice(None) for axis, item in enumerate(axes) if axis not in arrays)
    if (
        len(arrays) != 1
        or not full
        or any(isinstance(a, Traced) for a in arrays.values())
        or any(i is None for i in plan.items)
    ):
        raise trace.unsupported(
            "storing at positions given by arrays is compiled only for constant positions along one axis"
        )
    ((axis, index),) = arrays.items()
    shape = x.meta.shape
    positions = np.asarray(index).reshape(-1)
    if np.ndim(index) != 1 or not len(positions):
        raise trace.unsupported("storing at positions given by an array that is not 1-d is not compiled")
    source = np.full(shape[axis], -1, np.int64)
    for k, position in enumerate(positions):
        source[_check_int(trace, int(position), shape[axis], axis)] = k
    wanted = (*shape[:axis], len(positions), *shape[axis + 1 :])
    value = trace.broadcast(trace.operand(new, ir_dtype(x.meta.dtype)), wanted)
    picked = trace.operand(np.maximum(source, 0), i64)
    moved = trace.emit("gather", value, picked, attributes=GatherAttributes(axis))
    hit = trace.operand(source >= 0, bool_)
    hit = trace.reshape(hit, tuple(shape[axis] if i == axis else 1 for i in range(len(shape))))
    x.buffer.write(x.steps, trace.emit("select", trace.broadcast(hit, shape), moved, x.value))
