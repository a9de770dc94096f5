# SPDX-License-Identifier: Apache-2.0
"""Contractions: matmul, dot, tensordot, einsum."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import opt_einsum
from numpy.lib.array_utils import normalize_axis_tuple

from fusec.errors import TypeRuleError
from fusec.frontend.numpy_create import as_array
from fusec.frontend.numpy_emit import ShapeRuleError
from fusec.frontend.numpy_trace import Trace, Traced, ir_dtype, laid_out_as, twin
from fusec.frontend.numpy_ufunc import call
from fusec.frontend.steps import Step
from fusec.ir.attributes import DotAttributes, EinsumAttributes, PermuteAttributes, ShapeAttributes, SliceAttributes
from fusec.ir.nodes import Value
from fusec.ir.types import DType, bool_, i64


def _meta(x: Any) -> Any:
    return x.meta if isinstance(x, Traced) else x


def _operands(trace: Trace, *arrays: Any) -> tuple[list[Any], DType]:
    """The arrays, and the dtype they are computed in; bool computes in i64."""
    made = [x if isinstance(x, Traced) else as_array(trace, x) for x in arrays]
    return made, ir_dtype(np.result_type(*(_meta(x).dtype for x in made)))


def _emit(trace: Trace, name: str, arrays: Sequence[Any], dtype: DType, attributes: Any) -> Any:
    inside = i64 if dtype is bool_ else dtype
    values = [trace.operand(x, inside) for x in arrays]
    value = trace.emit(name, *values, attributes=attributes) if attributes is not None else trace.emit(name, *values)
    if dtype is bool_:
        value = trace.binary("ne", value, 0)
    return trace.result(value)


def _no_core(trace: Trace, name: str, a: Any, b: Any) -> ShapeRuleError:
    shapes = f"{_meta(a).shape} and {_meta(b).shape}"
    return ShapeRuleError(f"{name}: shapes {shapes} do not fit: the contracted axes differ", trace.location())


def matmul(trace: Trace, a: Any, b: Any) -> Any:
    """``a @ b``."""
    arrays, dtype = _operands(trace, a, b)
    left, right = (_meta(x) for x in arrays)
    if not left.ndim or not right.ndim:
        message = "matmul: Input operand does not have enough dimensions (a 0-d array; use * to multiply by a number)"
        raise ShapeRuleError(message, trace.location())
    if left.shape[-1] != right.shape[-2 if right.ndim > 1 else 0]:
        raise _no_core(trace, "matmul", *arrays)
    try:
        np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise _no_core(trace, "matmul", *arrays) from None
    return _emit(trace, "matmul", arrays, dtype, None)


def dot(trace: Trace, a: Any, b: Any) -> Any:
    """``np.dot``: contracts the last axis of ``a`` with the last but one of ``b``."""
    arrays, dtype = _operands(trace, a, b)
    left, right = (_meta(x) for x in arrays)
    if not left.ndim or not right.ndim:
        return call(trace, np.multiply, arrays)
    axis = max(right.ndim - 2, 0)
    if left.shape[-1] != right.shape[axis]:
        raise _no_core(trace, "dot", *arrays)
    return _emit(trace, "dot", arrays, dtype, DotAttributes((left.ndim - 1,), (axis,)))


def inner(trace: Trace, a: Any, b: Any) -> Any:
    """``np.inner``: contracts the last axes."""
    arrays, dtype = _operands(trace, a, b)
    left, right = (_meta(x) for x in arrays)
    if not left.ndim or not right.ndim:
        return call(trace, np.multiply, arrays)
    if left.shape[-1] != right.shape[-1]:
        raise _no_core(trace, "inner", *arrays)
    return _emit(trace, "dot", arrays, dtype, DotAttributes((left.ndim - 1,), (right.ndim - 1,)))


def vdot(trace: Trace, a: Any, b: Any) -> Any:
    """``np.vdot`` of real arrays: the flattened arrays' product."""
    arrays, dtype = _operands(trace, a, b)
    if dtype.kind == "complex":
        raise trace.unsupported("np.vdot of complex numbers is not compiled")
    return dot(trace, *(x.reshape(-1) for x in arrays))


def tensordot(trace: Trace, a: Any, b: Any, axes: Any = 2) -> Any:
    """``np.tensordot``."""
    arrays, dtype = _operands(trace, a, b)
    left, right = (_meta(x) for x in arrays)
    if isinstance(axes, int | np.integer):
        count = int(axes)
        lhs: Any = tuple(range(left.ndim - count, left.ndim))
        rhs: Any = tuple(range(count))
    else:
        lhs, rhs = axes
    lhs = normalize_axis_tuple(lhs, left.ndim)
    rhs = normalize_axis_tuple(rhs, right.ndim)
    if len(lhs) != len(rhs) or any(left.shape[i] != right.shape[j] for i, j in zip(lhs, rhs)):
        raise ShapeRuleError("tensordot: shape-mismatch for sum", trace.location())
    made = _emit(trace, "dot", arrays, dtype, DotAttributes(lhs, rhs))
    made.is_scalar = False
    return made


def vecdot(trace: Trace, a: Any, b: Any) -> Any:
    """``np.vecdot`` of real arrays: products summed over the last axis."""
    arrays, dtype = _operands(trace, a, b)
    if dtype.kind == "complex":
        raise trace.unsupported("np.vecdot of complex numbers is not compiled")
    return einsum(trace, "...i,...i->...", *arrays)


def matvec(trace: Trace, a: Any, b: Any) -> Any:
    """``np.matvec``: matrices times vectors."""
    return einsum(trace, "...ij,...j->...i", a, b)


def vecmat(trace: Trace, a: Any, b: Any) -> Any:
    """``np.vecmat`` of real arrays: vectors times matrices."""
    return einsum(trace, "...i,...ij->...j", a, b)


def einsum(trace: Trace, *operands: Any, dtype: Any = None, casting: Any = "safe") -> Any:
    """``np.einsum``; three operands or more are contracted pair by pair along opt_einsum's path."""
    equation, given = _parse(trace, operands)
    arrays, kind = _operands(trace, *given)
    seen = _view(trace, equation, given[0]) if len(given) == 1 and dtype is None else None
    if seen is not None:
        return seen
    if dtype is not None:
        kind = ir_dtype(np.dtype(dtype))
        _check_casts(trace, arrays, kind, casting)
    inside = i64 if kind is bool_ else kind
    left, _, output = equation.partition("->")
    terms = left.split(",")
    if any(len(set(term)) != len(term) for term in terms) or _has_ones(terms, arrays):
        prepared = [
            _simplify(trace, term, trace.operand(x, inside), _extents(terms, arrays)) for term, x in zip(terms, arrays)
        ]
    else:
        prepared = [(term, trace.operand(x, inside)) for term, x in zip(terms, arrays)]
    value = trace.asked(_contract(trace, prepared, output), dtype)
    if kind is bool_:
        value = trace.binary("ne", value, 0)
    sample = np.asarray(np.einsum(equation, *(twin(_meta(x)) for x in arrays)))
    return trace.result(value, laid_out_as(sample, value.type.static_shape, value.type.dtype.numpy))


def _check_casts(trace: Trace, arrays: Sequence[Any], dtype: DType, casting: Any) -> None:
    for x in arrays:
        if not np.can_cast(_meta(x).dtype, dtype.numpy, casting):
            message = (
                f"einsum: an operand of {_meta(x).dtype} could not be cast to {dtype.numpy} by the rule {casting!r}"
            )
            raise TypeRuleError(message, trace.location())


def _view(trace: Trace, equation: str, x: Any) -> Any:
    """What NumPy gives as a view: one array of which nothing is summed. None for others."""
    term, _, output = equation.partition("->")
    if not isinstance(x, Traced) or not term or set(term) != set(output):
        return None
    shape = list(x.meta.shape)
    if any(n != shape[term.index(letter)] for letter, n in zip(term, shape)):
        return None
    steps: list[Step] = []
    for letter in output:
        while term.count(letter) > 1:
            first, second = term.index(letter), term.index(letter, term.index(letter) + 1)
            steps += diagonal_steps(shape, 0, first, second)
            others = [i for i in range(len(term)) if i not in (first, second)]
            shape, term = [shape[i] for i in others] + [shape[first]], "".join(term[i] for i in others) + letter
    steps.append(Step("permute", PermuteAttributes(tuple(map(term.index, output)))))
    return trace.view(x, steps, np.einsum(equation, x.meta))


def _parse(trace: Trace, operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """An explicit equation of ASCII letters and the arrays."""
    if isinstance(operands[0], str):
        arrays = list(operands[1:])
        shapes: list[Any] = [operands[0], *(np.shape(_meta(x)) for x in arrays)]
    else:
        arrays = list(operands[: len(operands) // 2 * 2 : 2])
        shapes = [np.shape(_meta(x)) if i % 2 == 0 and i + 1 < len(operands) else x for i, x in enumerate(operands)]
    try:
        inputs, output, _ = opt_einsum.parser.parse_einsum_input(shapes, shapes=True)
    except ValueError as error:
        raise ShapeRuleError(f"einsum: {error}", trace.location()) from None
    letters = dict.fromkeys(c for c in inputs + output if c not in ",")
    if len(letters) > len(string.ascii_letters):
        raise trace.unsupported("einsum with more than 52 indices is not compiled")
    rename = dict(zip(letters, letters if all(c in string.ascii_letters for c in letters) else string.ascii_letters))
    text = "".join(rename.get(c, c) for c in inputs) + "->" + "".join(rename[c] for c in output)
    terms = text.partition("->")[0].split(",")
    for term, x in zip(terms, arrays):
        if len(term) != np.ndim(_meta(x)):
            message = f"einsum: {term!r} does not fit an operand of shape {np.shape(_meta(x))}"
            raise ShapeRuleError(message, trace.location())
    _check_extents(trace, text, terms, arrays)
    return text, arrays


def _extents(terms: Sequence[str], arrays: Sequence[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for term, x in zip(terms, arrays):
        for letter, n in zip(term, np.shape(_meta(x))):
            found[letter] = n if found.get(letter, 1) == 1 else found[letter]
    return found


def _check_extents(trace: Trace, equation: str, terms: Sequence[str], arrays: Sequence[Any]) -> None:
    extents = _extents(terms, arrays)
    for term, x in zip(terms, arrays):
        for letter, n in zip(term, np.shape(_meta(x))):
            if n not in (1, extents[letter]):
                message = f"einsum {equation!r}: {letter!r} is both {extents[letter]} and {n}"
                raise ShapeRuleError(message, trace.location())


def _has_ones(terms: Sequence[str], arrays: Sequence[Any]) -> bool:
    extents = _extents(terms, arrays)
    return any(n != extents[c] for term, x in zip(terms, arrays) for c, n in zip(term, np.shape(_meta(x))))


def _simplify(trace: Trace, term: str, value: Value, extents: dict[str, int]) -> tuple[str, Value]:
    """Axes of extent 1 that broadcast are dropped; a letter that is there twice is made a diagonal."""
    shape = value.type.static_shape
    full = [i for i, (c, n) in enumerate(zip(term, shape)) if n == extents[c]]
    value = trace.reshape(value, [shape[i] for i in full])
    term = "".join(term[i] for i in full)
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            value = diagonal(trace, value, 0, first, second)
            term = "".join(c for i, c in enumerate(term) if i not in (first, second)) + letter
    return term, value


def diagonal(trace: Trace, value: Value, offset: int, axis1: int, axis2: int) -> Value:
    """The diagonal of two axes as the last axis."""
    for step in diagonal_steps(value.type.static_shape, offset, axis1, axis2):
        value = trace.emit(step.name, value, attributes=step.attributes)
    return value


def diagonal_steps(shape: Sequence[int], offset: int, axis1: int, axis2: int) -> tuple[Step, ...]:
    """What shows the diagonal of two axes as the last: both are merged and every (n+1)-th element is picked."""
    others = [i for i in range(len(shape)) if i not in (axis1, axis2)]
    rows, columns = shape[axis1], shape[axis2]
    rest = [shape[i] for i in others]
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = offset if offset >= 0 else -offset * columns
    stop = start + (count - 1) * (columns + 1) + 1 if count else start
    if not count:
        start = stop = 0
    starts, stops, steps = [0] * len(rest) + [start], [*rest, stop], [1] * len(rest) + [columns + 1]
    return (
        Step("permute", PermuteAttributes((*others, axis1, axis2))),
        Step("reshape", ShapeAttributes((*rest, rows * columns))),
        Step("slice", SliceAttributes(tuple(starts), tuple(stops), tuple(steps))),
    )


def _contract(trace: Trace, operands: list[tuple[str, Value]], output: str) -> Value:
    if len(operands) <= 2:
        return _einsum_op(trace, operands, output)
    equation = ",".join(term for term, _ in operands) + "->" + output
    shapes = [v.type.static_shape for _, v in operands]
    _, info = opt_einsum.contract_path(equation, *shapes, shapes=True)
    for step in info.contraction_list:
        indices, text = step[0], step[2]
        result = text.partition("->")[2]
        picked = [operands.pop(i) for i in sorted(indices, reverse=True)]
        terms = text.partition("->")[0].split(",")
        picked.sort(key=lambda pair: terms.index(pair[0]))
        operands.append((result, _einsum_op(trace, picked, result)))
    ((_, value),) = operands
    return value


def _einsum_op(trace: Trace, operands: list[tuple[str, Value]], output: str) -> Value:
    equation = ",".join(term for term, _ in operands) + "->" + output
    return trace.emit("einsum", *(v for _, v in operands), attributes=EinsumAttributes(equation))
