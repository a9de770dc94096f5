"""Reductions, searches for an extreme and running sums along axes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusec.errors import TypeRuleError
from fusec.ir.attributes import ArgReduceAttributes, ReduceAttributes, ScanAttributes
from fusec.ir.ops.definition import (
    BOOL,
    NUMBER,
    ORDERED,
    Array,
    Arrays,
    OpDef,
    Types,
    define,
    require_axes,
    require_kind,
    widened,
)
from fusec.ir.ops.shapes import without_axes
from fusec.ir.types import DTypeKind, i64


def _reduction(
    name: str, function: Callable[..., Array], kinds: tuple[DTypeKind, ...], *, has_identity: bool = True
) -> OpDef:
    def rule(types: Types, attributes: ReduceAttributes) -> Types:
        (t,) = types
        require_kind(types, kinds)
        require_axes(attributes.axes, t, ascending=True)
        if not has_identity and any(t.shape[a] == 0 for a in attributes.axes):
            raise TypeRuleError(f"{t} is empty along axes {list(attributes.axes)}: {name} of nothing is undefined")
        return (t.with_shape(without_axes(t, attributes.axes)),)

    def reference(arrays: Arrays, attributes: ReduceAttributes) -> Array:
        (x,) = widened(arrays)
        return np.asarray(function(x, axis=attributes.axes)).astype(arrays[0].dtype, copy=False)

    return define(name, "reduce", ReduceAttributes, (1, 1), rule, reference)


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

    return define(name, "argreduce", ArgReduceAttributes, (1, 1), rule, reference)


def _scan(name: str, function: Callable[..., Array]) -> OpDef:
    def rule(types: Types, attributes: ScanAttributes) -> Types:
        require_kind(types, NUMBER)
        require_axes((attributes.axis,), types[0])
        return types

    def reference(arrays: Arrays, attributes: ScanAttributes) -> Array:
        (x,) = widened(arrays)
        return np.asarray(function(x, axis=attributes.axis, dtype=x.dtype)).astype(arrays[0].dtype, copy=False)

    return define(name, "scan", ScanAttributes, (1, 1), rule, reference)


def _sum(x: Array, axis: tuple[int, ...]) -> Array:
    return np.asarray(np.sum(x, axis=axis, dtype=x.dtype))


def _prod(x: Array, axis: tuple[int, ...]) -> Array:
    return np.asarray(np.prod(x, axis=axis, dtype=x.dtype))


REDUCE_OPS: tuple[OpDef, ...] = (
    _reduction("reduce_sum", _sum, NUMBER),
    _reduction("reduce_prod", _prod, NUMBER),
    _reduction("reduce_max", np.max, ORDERED, has_identity=False),
    _reduction("reduce_min", np.min, ORDERED, has_identity=False),
    _reduction("reduce_any", np.any, BOOL),
    _reduction("reduce_all", np.all, BOOL),
    _search("argmax", np.argmax),
    _search("argmin", np.argmin),
    _scan("cumsum", np.cumsum),
    _scan("cumprod", np.cumprod),
)
