# SPDX-License-Identifier: Apache-2.0
"""Views, which are index maps, and ops that move elements without arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from fusec.errors import TypeRuleError
from fusec.ir.attributes import (
    AliasAttributes,
    Attributes,
    ConcatAttributes,
    GatherAttributes,
    PadAttributes,
    PermuteAttributes,
    ShapeAttributes,
    SliceAttributes,
    StridedAttributes,
    UpdateAttributes,
    WindowsAttributes,
)
from fusec.ir.definition import (
    Array,
    Arrays,
    OpDef,
    Types,
    define,
    require_axes,
    require_kind,
    require_positions,
    require_same_dtype,
    show,
)
from fusec.ir.index import add, bounds, floordiv, product, sub
from fusec.ir.ops.shapes import broadcast_shapes, shape_text
from fusec.ir.types import NUMBER, Dim, bool_


def _permute_rule(types: Types, attributes: PermuteAttributes) -> Types:
    (t,) = types
    if sorted(attributes.permutation) != list(range(t.rank)):
        raise TypeRuleError(f"{list(attributes.permutation)} is not a permutation of the {t.rank} axes of {t}")
    return (t.with_shape([t.shape[p] for p in attributes.permutation]),)


def _permute(arrays: Arrays, attributes: PermuteAttributes) -> Array:
    return arrays[0].transpose(attributes.permutation)


def _reshape_rule(types: Types, attributes: ShapeAttributes) -> Types:
    (t,) = types
    have, want = product(t.shape), product(attributes.shape)
    if have != want or any(isinstance(d, int) and d < 0 for d in attributes.shape):
        raise TypeRuleError(f"{t} of {have} elements can't be reshaped to {shape_text(attributes.shape)} of {want}")
    return (t.with_shape(attributes.shape),)


def static(shape: tuple[Dim, ...]) -> tuple[int, ...]:
    """The dimensions as integers: a reference is only called with symbols bound."""
    return tuple(d for d in shape if isinstance(d, int))


def _reshape(arrays: Arrays, attributes: ShapeAttributes) -> Array:
    return arrays[0].reshape(static(attributes.shape))


def _broadcast_rule(types: Types, attributes: ShapeAttributes) -> Types:
    (t,) = types
    if broadcast_shapes(t.shape, attributes.shape) != attributes.shape:
        raise TypeRuleError(f"{t} does not broadcast to {shape_text(attributes.shape)}: an extent would shrink")
    return (t.with_shape(attributes.shape),)


def _broadcast(arrays: Arrays, attributes: ShapeAttributes) -> Array:
    return np.broadcast_to(arrays[0], static(attributes.shape))


def _slice_extent(start: Dim, stop: Dim, step: int) -> Dim:
    span = sub(stop, start) if step > 0 else sub(start, stop)
    size = abs(step)
    extent = floordiv(add(span, size - 1), size)
    return max(0, extent) if isinstance(extent, int) else extent


def _slice_rule(types: Types, attributes: SliceAttributes) -> Types:
    (t,) = types
    triples = list(zip(attributes.starts, attributes.stops, attributes.steps))
    if not len(attributes.starts) == len(attributes.stops) == len(attributes.steps) == t.rank:
        raise TypeRuleError(f"a slice of {t} needs {t.rank} starts, stops and steps")
    for axis, (start, stop, step) in enumerate(triples):
        extent = t.shape[axis]
        first, last = (start, stop) if step > 0 else (stop, start)
        least, beyond = (0, extent) if step > 0 else (-1, sub(extent, 1))
        if step == 0:
            raise TypeRuleError(f"slice {start}:{stop}:{step} has a step of 0")
        empty = first == last or _slice_extent(start, stop, step) == 0
        if _below(first, least) or (_below(beyond, last) and not empty):
            raise TypeRuleError(f"slice {start}:{stop}:{step} leaves axis {axis} of {t}; clamp it to the extent first")
    return (t.with_shape([_slice_extent(*triple) for triple in triples]),)


def _below(a: Dim, b: Dim) -> bool:
    """True when ``a < b`` is certain."""
    highest = bounds(sub(a, b))[1]
    return highest is not None and highest < 0


def _slice(arrays: Arrays, attributes: SliceAttributes) -> Array:
    index: list[slice] = []
    for start, stop, step in zip(static(attributes.starts), static(attributes.stops), attributes.steps):
        empty = start >= stop if step > 0 else start <= stop
        index.append(slice(0, 0) if empty else slice(start, None if stop < 0 else stop, step))
    return np.asarray(arrays[0][tuple(index)])


def _strided_rule(types: Types, attributes: StridedAttributes) -> Types:
    (t,) = types
    if len(attributes.shape) != len(attributes.strides) or any(d < 0 for d in attributes.shape):
        raise TypeRuleError(f"shape {list(attributes.shape)} and strides {list(attributes.strides)} do not go together")
    if not t.is_static:
        raise TypeRuleError(f"strides into {t} can't be checked against its size; make its dimensions static")
    reach = [(n - 1) * s for n, s in zip(attributes.shape, attributes.strides)]
    low = attributes.offset + sum(min(r, 0) for r in reach)
    high = attributes.offset + sum(max(r, 0) for r in reach)
    if 0 not in attributes.shape and not 0 <= low <= high < t.size:
        raise TypeRuleError(
            f"shape {list(attributes.shape)} with strides {list(attributes.strides)} and offset {attributes.offset} "
            f"reads elements {low} to {high} of {t}, which has {t.size}"
        )
    return (t.with_shape(attributes.shape),)


def _strided(arrays: Arrays, attributes: StridedAttributes) -> Array:
    flat = np.ascontiguousarray(arrays[0]).reshape(-1)
    if 0 in attributes.shape:
        return np.zeros(attributes.shape, flat.dtype)
    strides = tuple(s * flat.itemsize for s in attributes.strides)
    return as_strided(flat[attributes.offset :], attributes.shape, strides, writeable=False)


def _windows_rule(types: Types, attributes: WindowsAttributes) -> Types:
    (t,) = types
    require_axes((attributes.axis,), t)
    extent = t.shape[attributes.axis]
    if attributes.size < 1 or attributes.step < 1:
        raise TypeRuleError(f"windows of size {attributes.size} every {attributes.step}: both must be at least 1")
    if _below(extent, attributes.size):
        raise TypeRuleError(f"axis {attributes.axis} of {t} is shorter than one window of {attributes.size}")
    count = add(floordiv(sub(extent, attributes.size), attributes.step), 1)
    shape = list(t.shape)
    shape[attributes.axis] = count
    return (t.with_shape([*shape, attributes.size]),)


def _windows(arrays: Arrays, attributes: WindowsAttributes) -> Array:
    every = sliding_window_view(arrays[0], attributes.size, axis=attributes.axis)
    index = [slice(None)] * attributes.axis + [slice(None, None, attributes.step)]
    return np.asarray(every[tuple(index)])


def _concat_rule(types: Types, attributes: ConcatAttributes) -> Types:
    require_same_dtype(types)
    first, axis = types[0], attributes.axis
    require_axes((axis,), first)
    total: Dim = 0
    for t in types:
        if t.rank != first.rank or any(d != e for i, (d, e) in enumerate(zip(t.shape, first.shape)) if i != axis):
            raise TypeRuleError(f"{show(types)} can't be joined along axis {axis}: the other axes must be equal")
        total = add(total, t.shape[axis])
    return (first.with_shape([*first.shape[:axis], total, *first.shape[axis + 1 :]]),)


def _concat(arrays: Arrays, attributes: ConcatAttributes) -> Array:
    return np.concatenate(list(arrays), axis=attributes.axis)


def _pad_rule(types: Types, attributes: PadAttributes) -> Types:
    t, fill = types
    require_same_dtype(types)
    if fill.rank:
        raise TypeRuleError(f"the fill value is {fill}; it must be 0-d")
    if not len(attributes.low) == len(attributes.high) == t.rank or min((*attributes.low, *attributes.high, 0)) < 0:
        low, high = list(attributes.low), list(attributes.high)
        raise TypeRuleError(f"padding {low} and {high} of {t} needs one number of elements, 0 or more, for each axis")
    return (t.with_shape([add(add(lo, d), hi) for d, lo, hi in zip(t.shape, attributes.low, attributes.high)]),)


def _pad(arrays: Arrays, attributes: PadAttributes) -> Array:
    x, fill = arrays
    shape = [lo + d + hi for d, lo, hi in zip(x.shape, attributes.low, attributes.high)]
    result = np.full(shape, fill, x.dtype)
    result[tuple(slice(lo, lo + d) for d, lo in zip(x.shape, attributes.low))] = x
    return result


def _update_rule(types: Types, attributes: UpdateAttributes) -> Types:
    t, value, *positions = types
    require_same_dtype((t, value))
    if not t.rank == value.rank == len(attributes.starts):
        raise TypeRuleError(f"{value} can't be written into {t} at {list(attributes.starts)}: the ranks differ")
    require_positions(value, attributes.axes, positions)
    for axis in attributes.axes:
        if (start := attributes.starts[axis]) != 0:
            raise TypeRuleError(f"axis {axis} has a position, and {start} for its start; that must be 0")
    rows = any(p.rank for p in positions)
    for axis, (start, n, extent) in enumerate(zip(attributes.starts, value.shape, t.shape, strict=True)):
        if rows and axis in attributes.axes:
            continue
        if _below(start, 0) or _below(extent, add(start, n)):
            raise TypeRuleError(f"{value} at {list(attributes.starts)} leaves axis {axis} of {t}")
    return (t,)


def _update(arrays: Arrays, attributes: UpdateAttributes) -> Array:
    x, value, *positions = arrays
    starts, result = list(static(attributes.starts)), x.copy()
    for count in range(positions[0].size if positions else 1):
        part = value
        for axis, at in zip(attributes.axes, positions):
            starts[axis] = int(at.ravel()[count])
        if positions and positions[0].ndim:
            part = value.take([count], attributes.axes[0])
        result[tuple(slice(start, start + n) for start, n in zip(starts, part.shape))] = part
    return result


def _require_index(types: Types) -> None:
    if not types[1].dtype.is_integer:
        raise TypeRuleError(f"the index is {types[1]}; it must be an integer type")


def _gather_rule(types: Types, attributes: GatherAttributes) -> Types:
    t, index = types
    _require_index(types)
    require_axes((attributes.axis,), t)
    return (t.with_shape([*t.shape[: attributes.axis], *index.shape, *t.shape[attributes.axis + 1 :]]),)


def _gather(arrays: Arrays, attributes: GatherAttributes) -> Array:
    return np.take(arrays[0], arrays[1], axis=attributes.axis)


def _gather_elements_rule(types: Types, attributes: GatherAttributes) -> Types:
    t, index = types
    _require_index(types)
    require_axes((attributes.axis,), t)
    others = [i for i in range(t.rank) if i != attributes.axis]
    if index.rank != t.rank or any(_below(t.shape[i], index.shape[i]) for i in others):
        raise TypeRuleError(
            f"the index {index} must have the rank of {t} and be no longer on the axes other than {attributes.axis}"
        )
    return (t.with_shape(index.shape),)


def _gather_elements(arrays: Arrays, attributes: GatherAttributes) -> Array:
    x, index = arrays
    cut: list[Any] = [slice(0, n) for n in index.shape]
    cut[attributes.axis] = slice(None)
    return np.take_along_axis(x[tuple(cut)], index, axis=attributes.axis)


def _scatter_add_rule(types: Types, attributes: GatherAttributes) -> Types:
    t, index, value = types
    _require_index(types)
    require_kind((t,), NUMBER)
    require_axes((attributes.axis,), t)
    wanted = (*t.shape[: attributes.axis], *index.shape, *t.shape[attributes.axis + 1 :])
    if index.rank != 1 or value.shape != wanted or value.dtype != t.dtype:
        raise TypeRuleError(f"{value} can't be added to {t} along axis {attributes.axis} at {index}")
    return (t,)


def _scatter_add(arrays: Arrays, attributes: GatherAttributes) -> Array:
    x, index, value = arrays
    rows, added = (np.moveaxis(a, attributes.axis, 0) for a in (x.copy(), value))
    np.add.at(rows, index, added)
    return np.ascontiguousarray(np.moveaxis(rows, 0, attributes.axis))


def _scatter_add_where_rule(types: Types, _: Attributes) -> Types:
    mask = types[3]
    (made,) = _scatter_add_rule(types[:3], GatherAttributes(0))
    if mask.dtype is not bool_ or mask.shape != types[1].shape:
        raise TypeRuleError(f"{mask} does not say which rows at {types[1]} are added")
    return (made,)


def _scatter_add_where(arrays: Arrays, _: Attributes) -> Array:
    x, index, value, mask = arrays
    return _scatter_add((x, index[mask], value[mask]), GatherAttributes(0))


def _alias_rule(types: Types, attributes: AliasAttributes) -> Types:
    return types


def _alias(arrays: Arrays, attributes: AliasAttributes) -> Array:
    return arrays[0]


VIEW_OPS: tuple[OpDef, ...] = (
    define("permute", "view", PermuteAttributes, (1, 1), _permute_rule, _permute),
    define("reshape", "view", ShapeAttributes, (1, 1), _reshape_rule, _reshape),
    define("broadcast", "view", ShapeAttributes, (1, 1), _broadcast_rule, _broadcast),
    define("slice", "view", SliceAttributes, (1, 1), _slice_rule, _slice),
    define("strided", "view", StridedAttributes, (1, 1), _strided_rule, _strided),
    define("windows", "view", WindowsAttributes, (1, 1), _windows_rule, _windows),
)

DATA_OPS: tuple[OpDef, ...] = (
    define("concat", "data", ConcatAttributes, (1, None), _concat_rule, _concat),
    define("pad", "data", PadAttributes, (2, 2), _pad_rule, _pad),
    define("gather", "data", GatherAttributes, (2, 2), _gather_rule, _gather),
    define("gather_elements", "data", GatherAttributes, (2, 2), _gather_elements_rule, _gather_elements),
    define("scatter_add", "scatter", GatherAttributes, (3, 3), _scatter_add_rule, _scatter_add),
    define("scatter_add_where", "scatter", Attributes, (4, 4), _scatter_add_where_rule, _scatter_add_where),
    define("alias", "alias", AliasAttributes, (1, 1), _alias_rule, _alias),
    define("update", "write", UpdateAttributes, (2, None), _update_rule, _update),
)
