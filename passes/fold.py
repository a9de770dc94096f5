# SPDX-License-Identifier: Apache-2.0
"""Constants: what can be known at compile time is computed there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np

from fusec.ir.attributes import ConstantAttributes, IotaAttributes, Scalar
from fusec.ir.graph import Graph
from fusec.ir.index import bounds, sub
from fusec.ir.interval import Range, bits, extremum, scaled_sum
from fusec.ir.monoid import highest, lowest
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.types import DType, TensorType, bool_
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule

_ELEMENTWISE = tuple(name for name, op in OPS.items() if op.kind == "elementwise" and name != "copy")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def fold(graph: Graph) -> Graph:
    """The graph with constant expressions evaluated in their own dtype, by the ops' references."""
    return rewrite(graph, FOLD_RULES)


def known(r: Rewriter, value: Value) -> Scalar | None:
    """The one number that every element of ``value`` is: a constant seen through views; None if not known."""
    made = r.producer(value)
    while made is not None and made.definition.kind == "view":
        made = r.producer(made.operands[0])
    return made.attributes.value if made and isinstance(made.attributes, ConstantAttributes) else None


def filled(r: Rewriter, number: Scalar, like: TensorType) -> Value:
    """A value of the type ``like`` with every element ``number``."""
    attributes = ConstantAttributes(number, like.dtype, like.device)
    return r.broadcast(r.constant_of(attributes), like.shape)


@rule(*_ELEMENTWISE)
def elementwise_of_constants(r: Rewriter) -> Outcome:
    """f(c1, c2) ⇒ c3"""
    numbers = [known(r, v) for v in r.operands]
    result = r.op.result.type
    if None in numbers or (result.dtype.is_integer and not all(_fits_integer(n) for n in numbers)):
        return None
    return filled(r, evaluate(r.op, [n for n in numbers if n is not None]), result)


def evaluate(op: Op, numbers: Sequence[Scalar]) -> Scalar:
    """What an elementwise op gives for constant operands, rounded to its result's dtype.

    Floats no wider than f32 compute in f64: the same on every machine, and for + - * / and the square root the
    same as in their own dtype (Figueroa, 1995: 53 digits are at least twice 24 and 2).
    """
    with np.errstate(all="ignore"):
        arrays = [np.array(n).astype(v.type.dtype.numpy) for n, v in zip(numbers, op.operands, strict=True)]
        computes_in_f64 = [v.type.dtype.is_float and v.type.dtype.bits <= 32 for v in op.operands]
        if op.name != "cast":
            arrays = [a.astype(np.float64) if short else a for a, short in zip(arrays, computes_in_f64)]
        (array,) = op.definition.reference(arrays, op.attributes)
        return to_scalar(array.astype(op.result.type.dtype.numpy), op.result.type.dtype)


def _fits_integer(number: Scalar | None) -> bool:
    """False for a float whose cast to an integer is not defined."""
    return not isinstance(number, float) or (isfinite(number) and abs(number) < 2**31)


def to_scalar(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], dtype: DType) -> Scalar:
    """The only element of an array as the Python number that a constant of ``dtype`` holds."""
    convert: Callable[[object], Scalar] = {
        "bool": bool,
        "int": int,
        "uint": int,
        "float": float,
        "complex": complex,
    }[dtype.kind]
    return convert(array.reshape(()).item())


@rule("select")
def select_known(r: Rewriter) -> Outcome:
    """select(true, a, b) ⇒ a;  select(c, a, a) ⇒ a"""
    condition, a, b = r.operands
    decided = known(r, condition)
    if decided is None and a is not b:
        return None
    return r.broadcast(a if decided or a is b else b, r.op.result.type.shape)


@rule("logical_and", "logical_or", "bitwise_and", "bitwise_or")
def bool_identity(r: Rewriter) -> Outcome:
    """logical_and(x, true) ⇒ x;  logical_and(x, false) ⇒ false; the same for logical_or, exchanged"""
    result = r.op.result.type
    if result.dtype != bool_:
        return None
    neutral = r.op.name.endswith("and")
    for value, other in (r.operands, r.operands[::-1]):
        number = known(r, other)
        if number is not None:
            return r.broadcast(value, result.shape) if number == neutral else filled(r, not neutral, result)
    return None


@rule("iota")
def iota_of_one(r: Rewriter) -> Outcome:
    """iota along an axis of extent 1 ⇒ 0"""
    attributes = r.op.expect(IotaAttributes)
    if attributes.shape[attributes.axis] != 1:
        return None
    return filled(r, 0.0 if attributes.dtype.is_float else 0, r.op.result.type)


@rule(*_COMPARISONS)
def comparison_by_range(r: Rewriter) -> Outcome:
    """le(i, j) ⇒ true or false, where the ranges of two integers decide it"""
    left, right = r.operands
    if not left.type.dtype.is_integer:
        return None
    decided = _decide(r.op.name, integer_range(r, left), integer_range(r, right))
    return None if decided is None else filled(r, decided, r.op.result.type)


def _decide(name: str, left: Range, right: Range) -> bool | None:
    least, most = _combine("sub", left, right)
    below, above = most is not None and most < 0, least is not None and least > 0
    at_most, at_least = most is not None and most <= 0, least is not None and least >= 0
    holds, fails = {
        "lt": (below, at_least),
        "le": (at_most, above),
        "gt": (above, at_most),
        "ge": (at_least, below),
        "eq": (least == most == 0, below or above),
        "ne": (below or above, least == most == 0),
    }[name]
    return True if holds else False if fails else None


def integer_range(r: Rewriter, value: Value) -> Range:
    """Inclusive bounds of an integer value's elements; (None, None) where nothing is known."""
    made = r.producer(value)
    if made is None:
        return None, None
    match made.name:
        case "constant":
            number = made.expect(ConstantAttributes).value
            return (number, number) if isinstance(number, int) else (None, None)
        case "iota":
            attributes = made.expect(IotaAttributes)
            extent = attributes.shape[attributes.axis]
            return _within(value.type.dtype, (0, bounds(sub(extent, 1))[1]))
        case "add" | "sub" | "minimum" | "maximum":
            return _within(value.type.dtype, _combine(made.name, *(integer_range(r, v) for v in made.operands)))
        case "bitwise_and" | "bitwise_or" | "bitwise_xor" | "shift_right":
            a, b = (_in_dtype(v.type.dtype, integer_range(r, v)) for v in made.operands)
            return bits(made.name, a, b) or (None, None)
        case "concat":
            parts = [integer_range(r, v) for v in made.operands]
            return _lowest_of(parts), _highest_of(parts)
        case "gather":  # finds nothing else: an index out of range is an error
            return integer_range(r, made.operands[0])
        case _ if made.definition.kind == "view":
            return integer_range(r, made.operands[0])
        case "cast" if made.operands[0].type.dtype.is_integer:
            return _within(value.type.dtype, integer_range(r, made.operands[0]))
    return None, None


def _in_dtype(dtype: DType, found: Range) -> tuple[int, int]:
    """The range with its open ends at the dtype's."""
    least, most = found
    return int(lowest(dtype).real) if least is None else least, int(highest(dtype).real) if most is None else most


def _lowest_of(parts: Sequence[Range]) -> int | None:
    ends = [least for least, _ in parts if least is not None]
    return min(ends) if len(ends) == len(parts) else None


def _highest_of(parts: Sequence[Range]) -> int | None:
    ends = [most for _, most in parts if most is not None]
    return max(ends) if len(ends) == len(parts) else None


def _combine(name: str, left: Range, right: Range) -> Range:
    if name in ("add", "sub"):
        return scaled_sum(0, [(left, 1), (right, 1 if name == "add" else -1)])
    return extremum(left, right, largest=name == "maximum")


def _within(dtype: DType, found: Range) -> Range:
    """The range, unless it passes the dtype's own: then the value may have wrapped around."""
    least, most = found
    if least is None or most is None or least < lowest(dtype).real or most > highest(dtype).real:
        return None, None
    return found


FOLD_RULES: tuple[Rule, ...] = (
    elementwise_of_constants,
    select_known,
    bool_identity,
    iota_of_one,
    comparison_by_range,
)
