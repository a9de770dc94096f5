# SPDX-License-Identifier: Apache-2.0
"""Reductions, searches for an extreme and running sums along axes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusec.errors import TypeRuleError
from fusec.ir.attributes import ArgReduceAttributes, ReduceAttributes, ScanAttributes
from fusec.ir.definition import (
    Array,
    Arrays,
    OpDef,
    Types,
    define,
    require_axes,
    require_kind,
    require_same_dtype,
    widened,
)
from fusec.ir.monoid import MONOIDS, SCANS, Monoid
from fusec.ir.ops.shapes import without_axes
from fusec.ir.types import NUMBER, ORDERED, i64


def _reduction(monoid: Monoid) -> OpDef:
    name = f"reduce_{monoid.name}"

    def rule(types: Types, attributes: ReduceAttributes) -> Types:
        (t,) = types
        require_kind(types, monoid.kinds)
        require_axes(attributes.axes, t, ascending=True)
        if not monoid.of_nothing and any(t.shape[a] == 0 for a in attributes.axes):
            raise TypeRuleError(f"{t} is empty along axes {list(attributes.axes)}: {name} of nothing is undefined")
        reduced = t.with_shape(without_axes(t, attributes.axes))
        if attributes.dtype is None:
            return (reduced,)
        if monoid.name not in ("sum", "prod") or not (t.dtype.is_float and attributes.dtype.is_float):
            raise TypeRuleError(f"{name} of {t.dtype} is not made in {attributes.dtype}")
        return (reduced.with_dtype(attributes.dtype),)

    def reference(arrays: Arrays, attributes: ReduceAttributes) -> Array:
        (x,) = widened(arrays)
        dtype = arrays[0].dtype if attributes.dtype is None else attributes.dtype.numpy
        x = x if attributes.dtype is None else x.astype(dtype)
        return np.asarray(monoid.over_axes(x, attributes.axes)).astype(dtype, copy=False)

    return define(name, "reduce", ReduceAttributes, (1, 1), rule, reference, monoid=monoid)


def _search(name: str, function: Callable[..., Array]) -> OpDef:
    def rule(types: Types, attributes: ArgReduceAttributes) -> Types:
        (t,) = types
        require_kind(types, ORDERED)
        require_axes((attributes.axis,), t)
        if t.shape[attributes.axis] == 0:
            raise TypeRuleError(f"{t} is empty along axis {attributes.axis}: {name} of nothing is undefined")
        return (t.with_shape(without_axes(t, (attributes.axis,))).with_dtype(i64),)

    def reference(arrays: Arrays, attributes: ArgReduceAttributes) -> Array:
        (x,) = widened(arrays)
        return np.asarray(function(x, axis=attributes.axis)).astype(np.int64)

    return define(name, "argreduce", ArgReduceAttributes, (1, 1), rule, reference, jumps=True)


def _scan(name: str, monoid: Monoid) -> OpDef:
    def rule(types: Types, attributes: ScanAttributes) -> Types:
        require_kind(types, monoid.kinds)
        require_axes((attributes.axis,), types[0])
        if attributes.last:
            raise TypeRuleError(f"the last result of {name} is a reduction")
        return types

    def reference(arrays: Arrays, attributes: ScanAttributes) -> Array:
        (x,) = widened(arrays)
        x = np.flip(x, attributes.axis) if attributes.reverse else x
        found = monoid.ufunc.accumulate(x, axis=attributes.axis, dtype=x.dtype).astype(arrays[0].dtype, copy=False)
        found = found + found.dtype.type(0) if monoid.name == "sum" and not attributes.signed_zero else found
        return np.flip(found, attributes.axis) if attributes.reverse else found

    return define(name, "scan", ScanAttributes, (1, 1), rule, reference, monoid=monoid)


def _recurrence() -> OpDef:
    """``y[t] = factor[t] * y[t - 1] + x[t]`` along an axis, of ``x``, ``factor`` and the ``y`` before the first."""

    def rule(types: Types, attributes: ScanAttributes) -> Types:
        x, factor, start = types
        require_kind(types, NUMBER)
        require_same_dtype(types)
        require_axes((attributes.axis,), x)
        if factor.shape != x.shape:
            raise TypeRuleError(f"recurrence of {x} has factors {factor}: broadcast them to its shape")
        before = tuple(1 if a == attributes.axis else n for a, n in enumerate(x.shape))
        if start.shape != before:
            raise TypeRuleError(f"{x} along axis {attributes.axis} starts from {list(before)}, not from {start}")
        if attributes.last and x.shape[attributes.axis] == 0:
            raise TypeRuleError(f"{x} has no last position along axis {attributes.axis}")
        return (start if attributes.last else x,)

    def reference(arrays: Arrays, attributes: ScanAttributes) -> Array:
        x, factor, start = widened(arrays)
        axis = attributes.axis
        order = range(x.shape[axis])
        found, before = np.empty_like(x), np.take(start, 0, axis)
        x, factor, rows = (np.moveaxis(array, axis, 0) for array in (x, factor, found))
        for t in reversed(order) if attributes.reverse else order:
            before = rows[t] = factor[t] * before + x[t]
        found = np.expand_dims(before, axis) if attributes.last else found
        return found.astype(arrays[0].dtype, copy=False)

    return define("recurrence", "scan", ScanAttributes, (3, 3), rule, reference, monoid=MONOIDS["sum"])


REDUCE_OPS: tuple[OpDef, ...] = (
    *(_reduction(monoid) for monoid in MONOIDS.values()),
    _search("argmax", np.argmax),
    _search("argmin", np.argmin),
    _scan("cumsum", MONOIDS["sum"]),
    _scan("cumprod", MONOIDS["prod"]),
    _scan("cummax", MONOIDS["max"]),
    _scan("cummin", MONOIDS["min"]),
    _scan("logcumsumexp", SCANS["logaddexp"]),
    _recurrence(),
)
