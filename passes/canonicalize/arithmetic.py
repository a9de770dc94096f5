# SPDX-License-Identifier: Apache-2.0
"""Scalar algebra that changes no bit, or no more than the libraries' own spelling of the same thing would.

Nothing here reassociates floats or drops a NaN, an infinity or the sign of a zero.
"""

from __future__ import annotations

from collections.abc import Callable
from math import frexp, inf, isfinite

from fusec.ir.attributes import ConstantAttributes, Scalar
from fusec.ir.nodes import Op, Value
from fusec.ir.types import bool_
from fusec.passes.fold import evaluate, filled, known
from fusec.passes.rewrite import Outcome, Reject, Rewriter, Rule, rule

_NEUTRAL: dict[str, tuple[str, ...]] = {
    "mul": ("1", "1.0"),
    "div": ("1", "1.0"),
    "pow": ("1", "1.0"),
    "sub": ("0", "0.0"),
    "add": ("0", "-0.0"),
    "bitwise_or": ("0",),
    "bitwise_xor": ("0",),
    "shift_left": ("0",),
    "shift_right": ("0",),
}
"""The second operand, as Python writes it, that gives back the first. x + 0.0 is not x where x is -0.0."""

_COMMUTES = ("mul", "add", "bitwise_or", "bitwise_xor")


@rule(*_NEUTRAL)
def neutral_operand(r: Rewriter) -> Outcome:
    """mul(x, 1) ⇒ x;  likewise x / 1, x - 0, x + -0.0, pow(x, 1), and on integers x + 0, x | 0, x << 0"""
    x, y = r.operands
    if x.type.dtype.kind == "complex":  # (inf + 0j) * (1 + 0j) is inf + nanj
        return None
    pairs = ((x, y), (y, x)) if r.op.name in _COMMUTES else ((x, y),)
    for value, other in pairs:
        number = known(r, other)
        if number is None or isinstance(number, bool):
            continue
        if r.op.name == "add" and value.type.dtype.is_float and repr(number) != "-0.0":
            if number == 0:
                return Reject(f"{value} + 0.0 is not {value} where that is -0.0")
            continue
        if repr(number) in _NEUTRAL[r.op.name]:
            return value if value.type.shape == r.op.result.type.shape else None
    return None


@rule("neg", "logical_not", "bitwise_not")
def twice_undone(r: Rewriter) -> Outcome:
    """neg(neg(x)) ⇒ x, and so for logical_not and bitwise_not"""
    inner = r.producer(r.operands[0], r.op.name)
    return None if inner is None else inner.operands[0]


@rule("div")
def div_by_power_of_two(r: Rewriter) -> Outcome:
    """div(x, 2^k) ⇒ mul(x, 2^-k), where that is a normal number: both round the same exact value"""
    x, y = r.operands
    number = known(r, y)
    if number is None or isinstance(number, complex) or not isfinite(number) or not y.type.dtype.is_float:
        return None
    if abs(frexp(number)[0]) != 0.5:
        return None
    if abs(number) > _SMALLEST_INVERSE.get(y.type.dtype.name, 0.0) or abs(1 / number) == inf:
        return Reject(f"1/{number} is not a normal number of {y.type.dtype}")
    return r.emit("mul", x, filled(r, 1 / number, y.type))


_SMALLEST_INVERSE = {"f16": 2.0**14, "bf16": 2.0**126, "f32": 2.0**126, "f64": 2.0**1022}
"""The largest power of two whose inverse is a normal number."""


@rule("pow")
def pow_by_constant(r: Rewriter) -> Outcome:
    """pow(x, 2) ⇒ x·x;  pow(x, 3) ⇒ x·x·x;  pow(x, -1) ⇒ 1/x;  pow(x, -2) ⇒ 1/(x·x);  pow(x, ½) ⇒ √x

    As PyTorch and NumPy do where the exponent is one number: for ½ the root of -0.0 is -0.0 and of -inf NaN,
    unlike C's pow. For -½ NumPy does as C does: 0.0 for -inf, and inf for -0.0.
    """
    x, y = r.operands
    number = r.scalar(y)
    if number is None or x.type.shape != r.op.result.type.shape or x.type.dtype.kind == "complex":
        return None
    if number == 2:
        return r.emit("mul", x, x)
    if number == 3:
        return r.emit("mul", r.emit("mul", x, x, hint="square"), x)
    if not x.type.dtype.is_float:
        return None
    one = r.constant(1.0, x)
    match number:
        case -1:
            return r.emit("div", one, x)
        case -2:
            return r.emit("div", one, r.emit("mul", x, x, hint="square"))
        case 0.5:
            return r.emit("sqrt", x)
        case -0.5:
            return r.emit("div", one, _unsigned_root(r, x))
    return Reject(f"pow({x}, {number}) has no spelling that is as exact and cheaper")


def _unsigned_root(r: Rewriter, x: Value) -> Value:
    """The root, but 0.0 of -0.0 and inf of -inf."""
    root = r.emit("sqrt", r.emit("add", x, r.constant(0.0, x), hint="unsigned"))
    below = r.emit("eq", x, r.constant(-inf, x), hint="below")
    return r.emit("select", below, r.constant(inf, x), root)


_INVERSE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


@rule("logical_not")
def not_of_comparison(r: Rewriter) -> Outcome:
    """logical_not(lt(i, j)) ⇒ ge(i, j) on integers;  logical_not(eq(x, y)) ⇒ ne(x, y)"""
    made = r.producer(r.operands[0], *_INVERSE)
    if made is None:
        return None
    ordered = made.name not in ("eq", "ne")
    if ordered and not made.operands[0].type.dtype.is_integer:
        return Reject(f"not {made.name} of {made.operands[0]} holds for NaN, and {_INVERSE[made.name]} does not")
    return r.emit(_INVERSE[made.name], *made.operands)


@rule("select")
def select_of_not(r: Rewriter) -> Outcome:
    """select(logical_not(c), a, b) ⇒ select(c, b, a)"""
    condition, a, b = r.operands
    made = r.producer(condition, "logical_not")
    return None if made is None else r.emit("select", made.operands[0], b, a)


@rule("select")
def select_is_condition(r: Rewriter) -> Outcome:
    """select(c, true, false) ⇒ c;  select(c, false, true) ⇒ logical_not(c)"""
    condition, a, b = r.operands
    if a.type.dtype != bool_:
        return None
    return _condition(r, condition, known(r, a), known(r, b))


def _condition(r: Rewriter, condition: Value, where_true: Scalar | None, where_false: Scalar | None) -> Outcome:
    """``select(condition, where_true, where_false)`` of two bools, without the select."""
    shape = r.op.result.type.shape
    match where_true, where_false:
        case True, False:
            return r.broadcast(condition, shape)
        case False, True:
            return r.broadcast(r.emit("logical_not", condition), shape)
        case bool(), bool():
            return filled(r, where_true, r.op.result.type)
    return None


_MASK_READERS = ("cast", "neg", "logical_not", "sub", "mul", "add", "eq", "ne", "lt", "le", "gt", "ge")


@rule(*_MASK_READERS)
def function_of_mask(r: Rewriter) -> Outcome:
    """f(select(c, k1, k2), k3) ⇒ select(c, f(k1, k3), f(k2, k3)), and c itself where that is true and false

    Constants k; a bool cast to a number is ``select(c, 1, 0)``. So ``tril(ones) == 0`` is one comparison of indices.
    A chain of such functions counts as one where a half type rounds its end: ``(1 - mask) * -1e4`` and
    ``masked_fill(~mask, -1e4)`` must be the same number.
    """
    if r.op.name in ("cast", "logical_not") and r.operands[0].type.dtype == bool_:
        return None
    rounds = _rounds(r.op)
    found = _choices(r, r.op, _chosen if rounds else _two_valued)
    if found is None:
        return None
    condition, values = found
    result = r.op.result.type
    if result.dtype == bool_:
        return _condition(r, condition, *values)
    if not rounds and all(r.producer(v, "select") is None for v in r.operands):
        return None
    picked = [r.constant_of(ConstantAttributes(v, result.dtype, result.device)) for v in values]
    return r.broadcast(r.emit("select", condition, *picked), result.shape)


def _rounds(op: Op) -> bool:
    """Whether an op is a cast to a half type from a wider float."""
    source, result = op.operands[0].type.dtype, op.result.type.dtype
    return op.name == "cast" and result.is_half and source.is_float and source.bits > 16


Choices = tuple[Value, tuple[Scalar, Scalar]]
"""A condition, and the number where it holds and elsewhere."""


def _choices(r: Rewriter, op: Op, of: Callable[[Rewriter, Value], Choices | None]) -> Choices | None:
    """What an elementwise op gives that has one operand of two numbers, as ``of`` finds them, and else constants."""
    found = [of(r, v) for v in op.operands]
    masks = [k for k, mask in enumerate(found) if mask is not None]
    if len(masks) != 1 or (mask := found[masks[0]]) is None:
        return None
    others = [known(r, v) if k != masks[0] else False for k, v in enumerate(op.operands)]
    numbers = [number for number in others if number is not None]
    if len(numbers) != len(others):
        return None
    condition, (first, second) = mask

    def evaluated(choice: Scalar) -> Scalar:
        return evaluate(op, [*numbers[: masks[0]], choice, *numbers[masks[0] + 1 :]])

    return condition, (evaluated(first), evaluated(second))


def _chosen(r: Rewriter, value: Value) -> Choices | None:
    """:func:`_two_valued`, and what functions of such a value and constants give."""
    direct = _two_valued(r, value)
    if direct is not None or value.type.dtype == bool_:
        return direct
    made = r.producer(value, *_MASK_READERS)
    return None if made is None else _choices(r, made, _chosen)


def _two_valued(r: Rewriter, value: Value) -> Choices | None:
    """A value that is one constant where a condition holds, and another elsewhere."""
    if value.type.dtype == bool_:
        return (value, (True, False)) if known(r, value) is None else None
    made = r.producer(value, "select", "cast")
    if made is None or (made.name == "cast" and made.operands[0].type.dtype != bool_):
        return None
    if made.name == "cast":
        integer = value.type.dtype.is_integer
        return made.operands[0], (1, 0) if integer else (1.0, 0.0)
    a, b = known(r, made.operands[1]), known(r, made.operands[2])
    return None if a is None or b is None else (made.operands[0], (a, b))


ARITHMETIC_RULES: tuple[Rule, ...] = (
    neutral_operand,
    twice_undone,
    div_by_power_of_two,
    pow_by_constant,
    not_of_comparison,
    select_of_not,
    select_is_condition,
    function_of_mask,
)
