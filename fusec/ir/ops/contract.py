# SPDX-License-Identifier: Apache-2.0
"""Contractions: dot, and the composites that become one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fusec.errors import TypeRuleError
from fusec.ir.attributes import (
    Attributes,
    DotAttributes,
    EinsumAttributes,
    GroupedDotAttributes,
    GroupedOuterAttributes,
)
from fusec.ir.definition import (
    Array,
    Arrays,
    OpDef,
    Types,
    define,
    is_half,
    require_axes,
    require_kind,
    require_same_dtype,
    show,
    widened,
)
from fusec.ir.monoid import MONOIDS
from fusec.ir.ops.shapes import broadcast_shapes
from fusec.ir.types import NUMBER, Dim, TensorType


def _dot_rule(types: Types, attributes: DotAttributes) -> Types:
    lhs, rhs = types
    if all(t.dtype.kind == "float8" for t in types):
        if attributes.dtype is None or not attributes.dtype.is_float:
            raise TypeRuleError(f"{show(types)}: numbers of 8 bits are added up in another type; give a float as dtype")
    else:
        require_same_dtype(types)
        require_kind(types, NUMBER)
    require_axes((*attributes.lhs_batch, *attributes.lhs_contract), lhs)
    require_axes((*attributes.rhs_batch, *attributes.rhs_contract), rhs)
    for left, right, what in (
        (attributes.lhs_contract, attributes.rhs_contract, "contracted"),
        (attributes.lhs_batch, attributes.rhs_batch, "batch"),
    ):
        if len(left) != len(right) or any(lhs.shape[i] != rhs.shape[j] for i, j in zip(left, right)):
            raise TypeRuleError(
                f"{what} axes {list(left)} of {lhs} and {list(right)} of {rhs} must pair up with equal extents"
            )
    free = [lhs.shape[i] for i in free_axes(lhs.rank, attributes.lhs_batch, attributes.lhs_contract)]
    free += [rhs.shape[i] for i in free_axes(rhs.rank, attributes.rhs_batch, attributes.rhs_contract)]
    shape = [lhs.shape[i] for i in attributes.lhs_batch] + free
    return (TensorType(attributes.dtype or lhs.dtype, tuple(shape), lhs.device),)


def free_axes(rank: int, batch: tuple[int, ...], contract: tuple[int, ...]) -> list[int]:
    """The axes of a dot's operand that are neither batch nor contracted, ascending."""
    return [i for i in range(rank) if i not in batch and i not in contract]


def _dot(arrays: Arrays, attributes: DotAttributes) -> Array:
    result_type = arrays[0].dtype if attributes.dtype is None else attributes.dtype.numpy
    lhs, rhs = widened([a.astype(np.float32) if _is_float8(a) else a for a in arrays])
    wide = np.result_type(lhs.dtype, np.zeros(0, result_type).astype(np.float32 if is_half(lhs) else result_type).dtype)
    return contract(lhs.astype(wide), rhs.astype(wide), attributes).astype(result_type, copy=False)


def _is_float8(array: Array) -> bool:
    return array.dtype.itemsize == 1 and array.dtype.kind in "fV"


def contract(lhs: Array, rhs: Array, attributes: DotAttributes) -> Array:
    """The contraction in the arrays' dtype, as one batched matmul."""
    lhs_free = free_axes(lhs.ndim, attributes.lhs_batch, attributes.lhs_contract)
    rhs_free = free_axes(rhs.ndim, attributes.rhs_batch, attributes.rhs_contract)
    batch = [lhs.shape[i] for i in attributes.lhs_batch]
    rows = [lhs.shape[i] for i in lhs_free]
    columns = [rhs.shape[i] for i in rhs_free]
    depth = int(np.prod([lhs.shape[i] for i in attributes.lhs_contract], dtype=np.int64))
    m, n = int(np.prod(rows, dtype=np.int64)), int(np.prod(columns, dtype=np.int64))
    a = lhs.transpose(*attributes.lhs_batch, *lhs_free, *attributes.lhs_contract).reshape((*batch, m, depth))
    b = rhs.transpose(*attributes.rhs_batch, *attributes.rhs_contract, *rhs_free).reshape((*batch, depth, n))
    return np.asarray(a @ b).reshape((*batch, *rows, *columns))


def _grouped_rule(types: Types, attributes: GroupedDotAttributes) -> Types:
    rows, matrices, *ends = _one_array(types, attributes)
    require_same_dtype((rows, matrices))
    require_kind((rows, matrices), NUMBER)
    contracted = attributes.rhs_contract
    if rows.rank != 2 or matrices.rank != 3 or contracted not in (1, 2) or rows.shape[1] != matrices.shape[contracted]:
        raise TypeRuleError(f"{show(types)}: rows [m, k] and matrices of groups with k as axis {contracted} do not fit")
    if bool(ends) == bool(attributes.sizes) or (ends and (ends[0].rank != 1 or not ends[0].dtype.is_integer)):
        raise TypeRuleError("groups have sizes, or integers that say where they end")
    groups = ends[0].shape[0] if ends else len(attributes.sizes)
    if groups != matrices.shape[0] or any(n < 0 for n in attributes.sizes):
        raise TypeRuleError(f"{groups} groups have {matrices.shape[0]} matrices")
    if isinstance(rows.shape[0], int) and sum(attributes.sizes) > rows.shape[0]:
        raise TypeRuleError(f"groups of {sum(attributes.sizes)} rows in all, of {rows.shape[0]}")
    return (TensorType(attributes.dtype or rows.dtype, (rows.shape[0], matrices.shape[3 - contracted]), rows.device),)


def _one_array(types: Types, attributes: GroupedDotAttributes) -> Types:
    """The operands as if one of them had all matrices."""
    if not attributes.apart:
        return types
    rows, *matrices = types[: attributes.apart + 1]
    if len(matrices) < attributes.apart or any(m != matrices[0] or m.rank != 2 for m in matrices):
        raise TypeRuleError(f"{show(types)}: there are not {attributes.apart} matrices of one type")
    return (rows, matrices[0].with_shape((len(matrices), *matrices[0].shape)), *types[attributes.apart + 1 :])


def _grouped_dot(arrays: Arrays, attributes: GroupedDotAttributes) -> Array:
    if attributes.apart:
        matrices, ends = np.stack(arrays[1 : attributes.apart + 1]), arrays[attributes.apart + 1 :]
        return _grouped_dot((arrays[0], matrices, *ends), replace(attributes, apart=0))
    rows, matrices, *ends = arrays
    stops = np.cumsum(attributes.sizes) if attributes.sizes else np.asarray(ends[0])
    kind = rows.dtype if attributes.dtype is None else attributes.dtype.numpy
    result = np.zeros((len(rows), matrices.shape[3 - attributes.rhs_contract]), kind)
    start = 0
    for matrix, stop in zip(matrices, stops, strict=True):
        one = DotAttributes((1,), (attributes.rhs_contract - 1,), dtype=attributes.dtype)
        result[start:stop] = _dot((rows[start:stop], matrix), one)
        start = max(start, int(stop))
    return result


def _outer_rule(types: Types, attributes: GroupedOuterAttributes) -> Types:
    lhs, rhs, ends = types
    require_same_dtype((lhs, rhs))
    require_kind((lhs, rhs), NUMBER)
    if lhs.rank != 2 or rhs.rank != 2 or lhs.shape[0] != rhs.shape[0]:
        raise TypeRuleError(f"{show(types)}: rows [m, p] and as many rows [m, q] are needed")
    if ends.rank != 1 or not ends.dtype.is_integer:
        raise TypeRuleError(f"{show(types)}: groups have integers that say where they end")
    return (TensorType(attributes.dtype or lhs.dtype, (ends.shape[0], lhs.shape[1], rhs.shape[1]), lhs.device),)


def _grouped_outer(arrays: Arrays, attributes: GroupedOuterAttributes) -> Array:
    lhs, rhs, ends = arrays
    kind = lhs.dtype if attributes.dtype is None else attributes.dtype.numpy
    result = np.zeros((len(ends), lhs.shape[1], rhs.shape[1]), kind)
    start = 0
    for group, stop in enumerate(ends):
        one = DotAttributes((0,), (0,), dtype=attributes.dtype)
        result[group] = _dot((lhs[start:stop], rhs[start:stop]), one)
        start = max(start, int(stop))
    return result


def _matmul_rule(types: Types, _: Attributes) -> Types:
    lhs, rhs = types
    require_same_dtype(types)
    require_kind(types, NUMBER)
    if not lhs.rank or not rhs.rank:
        raise TypeRuleError(f"{show(types)}: a matrix product needs operands of one axis or more; use mul")
    inner = rhs.shape[0] if rhs.rank == 1 else rhs.shape[-2]
    if lhs.shape[-1] != inner:
        raise TypeRuleError(
            f"{show(types)}: the last axis of the left ({lhs.shape[-1]}) must equal "
            f"the {'only' if rhs.rank == 1 else 'last but one'} axis of the right ({inner})"
        )
    batch = broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2])
    rows = lhs.shape[-2:-1] if lhs.rank > 1 else ()
    columns = rhs.shape[-1:] if rhs.rank > 1 else ()
    return (lhs.with_shape([*batch, *rows, *columns]),)


def _matmul(arrays: Arrays, _: Attributes) -> Array:
    lhs, rhs = widened(arrays)
    return np.asarray(np.matmul(lhs, rhs)).astype(arrays[0].dtype, copy=False)


def _linear_rule(types: Types, _: Attributes) -> Types:
    x, w = types[:2]
    require_same_dtype(types)
    require_kind(types, NUMBER)
    if w.rank != 2 or not x.rank or x.shape[-1] != w.shape[1]:
        raise TypeRuleError(
            f"input {x} and weight {w} do not fit: the weight must be [out, in], in the input's last axis"
        )
    if len(types) == 3 and types[2].shape != (w.shape[0],):
        raise TypeRuleError(f"bias {types[2]} must have the shape [{w.shape[0]}] of the weight's first axis")
    return (x.with_shape([*x.shape[:-1], w.shape[0]]),)


def _linear(arrays: Arrays, _: Attributes) -> Array:
    x, w, *bias = widened(arrays)
    result = np.matmul(x, w.T)
    return np.asarray(result + bias[0] if bias else result).astype(arrays[0].dtype, copy=False)


def _einsum_rule(types: Types, attributes: EinsumAttributes) -> Types:
    require_same_dtype(types)
    require_kind(types, NUMBER)
    left, arrow, right = attributes.equation.partition("->")
    terms = left.split(",")
    letters = "".join([*terms, right])
    if not arrow or (letters and not (letters.isascii() and letters.isalpha())):
        raise TypeRuleError(f"equation {attributes.equation!r} must be explicit, of letters only, such as 'ij,jk->ik'")
    if len(terms) != len(types) or any(len(term) != t.rank for term, t in zip(terms, types)):
        raise TypeRuleError(f"equation {attributes.equation!r} does not fit operands {show(types)}: one letter an axis")
    extents: dict[str, Dim] = {}
    for term, t in zip(terms, types):
        for letter, extent in zip(term, t.shape):
            if extents.setdefault(letter, extent) != extent:
                raise TypeRuleError(
                    f"equation {attributes.equation!r}: {letter!r} is both {extents[letter]} and {extent} "
                    f"in {show(types)}"
                )
    if len(set(right)) != len(right) or any(letter not in extents for letter in right):
        raise TypeRuleError(f"equation {attributes.equation!r}: each result letter must be in an operand, and once")
    return (types[0].with_shape([extents[letter] for letter in right]),)


def _einsum(arrays: Arrays, attributes: EinsumAttributes) -> Array:
    result = np.einsum(attributes.equation, *widened(arrays), optimize=len(arrays) > 2)
    return np.asarray(result).astype(arrays[0].dtype, copy=False)


DOT_OPS: tuple[OpDef, ...] = (
    define("dot", "dot", DotAttributes, (2, 2), _dot_rule, _dot, monoid=MONOIDS["sum"]),
    define("grouped_dot", "dot", GroupedDotAttributes, (2, None), _grouped_rule, _grouped_dot),
    define(
        *("grouped_outer", "dot", GroupedOuterAttributes, (3, 3), _outer_rule, _grouped_outer), monoid=MONOIDS["sum"]
    ),
)

CONTRACTION_COMPOSITES: tuple[OpDef, ...] = (
    define("linear", "composite", Attributes, (2, 3), _linear_rule, _linear),
    define("matmul", "composite", Attributes, (2, 2), _matmul_rule, _matmul),
    define("einsum", "composite", EinsumAttributes, (1, None), _einsum_rule, _einsum),
)
