# SPDX-License-Identifier: Apache-2.0
"""The elementwise ops on register values: one function an op, chosen by name and element type."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.functions import VECTOR_FUNCTIONS
from fusec.codegen.tvm.powers import fmod, power
from fusec.codegen.tvm.roots import square_root
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code, bits_of, is_float, is_signed
from fusec.errors import LoweringError
from fusec.tile.scalar import Apply, Const

Operation = Callable[..., Value]


def apply(code: Code, e: Apply, args: Sequence[Value]) -> Value:
    """The value of an elementwise op. Half types have been widened to f32, and are not rounded here."""
    if e.op == "pow" and isinstance(e.args[1], Const):
        special = _constant_power(code, args[0], e.args[1].value)
        if special is not None:
            return special
    operation = _OPERATIONS.get(e.op)
    if operation is not None:
        return operation(code, *args)
    vector = VECTOR_FUNCTIONS.get(args[0].type, {}).get(e.op)
    if vector is not None:
        return vector(code, *args)
    raise LoweringError(f"the CPU backend has no operation {e.op!r} on {e.dtype}")


def _rounding(name: str) -> Operation:
    """An op that leaves integers as they are."""

    def call(code: Code, x: Value) -> Value:
        return code.call(name, x.type, x) if is_float(x.type) else x

    return call


def _compare(op: str) -> Operation:
    def call(code: Code, a: Value, b: Value) -> Value:
        if a.type == "bool":
            a, b = code.byte(a), code.byte(b)
        return code.settle(code.compare(op, a, b))

    return call


def _logical(op: str) -> Operation:
    def call(code: Code, a: Value, b: Value) -> Value:
        if op == "xor":
            return code.settle(code.compare("ne", code.byte(a), code.byte(b)))
        return code.both(a, b) if op == "and" else code.either(a, b)

    return call


def _bitwise(op: str) -> Operation:
    def call(code: Code, a: Value, b: Value) -> Value:
        if a.type == "bool":
            return _logical(op)(code, a, b)
        return code.bitwise(f"bitwise_{op}", a, b)

    return call


def _bitwise_not(code: Code, a: Value) -> Value:
    return code.invert(a) if a.type == "bool" else code.complement(a)


def _maximum(code: Code, a: Value, b: Value) -> Value:
    return code.either(a, b) if a.type == "bool" else code.greater(a, b)


def _minimum(code: Code, a: Value, b: Value) -> Value:
    return code.both(a, b) if a.type == "bool" else code.lesser(a, b)


def _fmax(code: Code, a: Value, b: Value) -> Value:
    return code.call("llvm.maxnum", a.type, a, b) if is_float(a.type) else _maximum(code, a, b)


def _fmin(code: Code, a: Value, b: Value) -> Value:
    return code.call("llvm.minnum", a.type, a, b) if is_float(a.type) else _minimum(code, a, b)


def _add(code: Code, a: Value, b: Value) -> Value:
    return code.either(a, b) if a.type == "bool" else code.add(a, b)


def _mul(code: Code, a: Value, b: Value) -> Value:
    return code.both(a, b) if a.type == "bool" else code.mul(a, b)


def _sign(code: Code, x: Value) -> Value:
    if x.type == "bool":
        return x
    zero, one = code.constant(x, 0), code.constant(x, 1)
    positive = code.select(code.compare("gt", x, zero), one, zero)
    if is_float(x.type):
        signed = code.select(code.compare("lt", x, zero), code.constant(x, -1.0), positive)
        return code.select(code.is_nan(x), x, signed)
    if not is_signed(x.type):
        return positive
    return code.select(code.compare("lt", x, zero), code.constant(x, -1), positive)


def _rsqrt(code: Code, x: Value) -> Value:
    return code.div(code.constant(x, 1.0), square_root(code, x))


def _isnan(code: Code, x: Value) -> Value:
    return code.settle(code.is_nan(x)) if is_float(x.type) else tir.condition(False, x.lanes)


def _isinf(code: Code, x: Value) -> Value:
    if not is_float(x.type):
        return tir.condition(False, x.lanes)
    return code.settle(code.compare("eq", code.abs(x), code.constant(x, math.inf)))


def _isfinite(code: Code, x: Value) -> Value:
    if not is_float(x.type):
        return tir.condition(True, x.lanes)
    return code.settle(code.compare("lt", code.abs(x), code.constant(x, math.inf)))


def _constant_power(code: Code, x: Value, exponent: object) -> Value | None:
    """Powers that a few instructions give: 1, 2, 3, and for floats -1, 0.5 and -0.5."""
    if x.type == "bool":
        return None
    if exponent == 1:
        return x
    if exponent == 2:
        return code.mul(x, x)
    if exponent == 3:
        return code.mul(code.mul(x, x), x)
    if not is_float(x.type):
        return None
    if exponent == -1:
        return code.div(code.constant(x, 1.0), x)
    if exponent in (0.5, -0.5):
        root = _square_root_power(code, x)
        return root if exponent == 0.5 else code.div(code.constant(x, 1.0), root)
    return None


def _square_root_power(code: Code, x: Value) -> Value:
    """``x**0.5``, which unlike a square root is +0 at -0 and infinite at minus infinity."""
    root = code.add(square_root(code, x), code.constant(x, 0.0))
    below = code.compare("eq", x, code.constant(x, -math.inf))
    return code.select(below, code.constant(x, math.inf), root)


def _pow(code: Code, a: Value, b: Value) -> Value:
    if is_float(a.type):
        return power(code, a, b)
    return _integer_pow(code, a, b)


def _integer_pow(code: Code, base: Value, exponent: Value) -> Value:
    """Repeated squaring, wrapping. A negative exponent gives 0, but 1 and -1 keep their powers."""
    zero, one = code.constant(exponent, 0), code.constant(exponent, 1)
    result, square = code.constant(base, 1), base
    for bit in range(bits_of(base.type)):
        digit = code.bitwise("bitwise_and", code.bitwise("shift_right", exponent, code.constant(exponent, bit)), one)
        result = code.select(code.compare("ne", digit, zero), code.mul(result, square), result)
        square = code.mul(square, square)
    if not is_signed(base.type):
        return result
    negative = code.compare("lt", exponent, zero)
    minus = code.compare("eq", base, code.constant(base, -1))
    unit = code.either(minus, code.compare("eq", base, code.constant(base, 1)))
    parity = code.bitwise("bitwise_and", exponent, one)
    odd = code.compare("ne", parity, zero)
    sign = code.select(code.both(minus, odd), code.constant(base, -1), code.constant(base, 1))
    return code.select(negative, code.select(unit, sign, code.constant(base, 0)), result)


# division: floats as NumPy does it (npy_divmod), integers by zero give 0


def _fmod(code: Code, a: Value, b: Value) -> Value:
    if is_float(a.type):
        return fmod(code, a, b)
    return _integer_division(code, a, b)[1]


def _remainder(code: Code, a: Value, b: Value) -> Value:
    if not is_float(a.type):
        return _floored(code, a, b)[1]
    rest = _fmod(code, a, b)
    return _floored_rest(code, rest, b)


def _floored_rest(code: Code, rest: Value, b: Value) -> Value:
    """fmod's result moved to the sign of the divisor."""
    zero = code.constant(rest, 0.0)
    differ = code.compare("ne", code.byte(code.compare("lt", b, zero)), code.byte(code.compare("lt", rest, zero)))
    moved = code.select(differ, code.add(rest, b), rest)
    return code.select(code.compare("eq", rest, zero), code.copysign(zero, b), moved)


def _floordiv(code: Code, a: Value, b: Value) -> Value:
    if not is_float(a.type):
        return _floored(code, a, b)[0]
    zero, one = code.constant(a, 0.0), code.constant(a, 1.0)
    rest = _fmod(code, a, b)
    quotient = code.div(code.sub(a, rest), b)
    differ = code.compare("ne", code.byte(code.compare("lt", b, zero)), code.byte(code.compare("lt", rest, zero)))
    below = code.both(code.compare("ne", rest, zero), differ)
    quotient = code.select(below, code.sub(quotient, one), quotient)
    floor = code.call("llvm.floor", a.type, quotient)
    short = code.compare("gt", code.sub(quotient, floor), code.constant(a, 0.5))
    floor = code.select(short, code.add(floor, one), floor)
    plain = code.div(a, b)
    floor = code.select(code.compare("eq", quotient, zero), code.copysign(zero, plain), floor)
    return code.select(code.compare("eq", b, zero), plain, floor)


def _integer_division(code: Code, a: Value, b: Value) -> tuple[Value, Value]:
    """Quotient towards zero and its remainder; by zero both are 0, and -2**n by -1 wraps."""
    zero, one = code.constant(b, 0), code.constant(b, 1)
    by_zero = code.settle(code.compare("eq", b, zero))
    if not is_signed(b.type):
        safe = code.select(by_zero, one, b)
        quotient = code.divide_integers(a, safe)
    else:
        by_minus = code.settle(code.compare("eq", b, code.constant(b, -1)))
        safe = code.select(code.either(by_zero, by_minus), one, b)
        quotient = code.select(by_minus, code.neg(a), code.divide_integers(a, safe))
    quotient = code.select(by_zero, zero, quotient)
    rest = code.select(by_zero, zero, code.sub(a, code.mul(quotient, b)))
    return quotient, rest


def _floored(code: Code, a: Value, b: Value) -> tuple[Value, Value]:
    quotient, rest = _integer_division(code, a, b)
    if not is_signed(a.type):
        return quotient, rest
    zero = code.constant(rest, 0)
    signs = code.bitwise("bitwise_xor", rest, b)
    below = code.both(code.compare("ne", rest, zero), code.compare("lt", signs, zero))
    one = code.constant(quotient, 1)
    return (
        code.select(below, code.sub(quotient, one), quotient),
        code.select(below, code.add(rest, b), rest),
    )


def _shift(op: str) -> Operation:
    """Shifts by the type's width or more (or by a negative number) shift everything out."""

    def call(code: Code, a: Value, b: Value) -> Value:
        width = bits_of(a.type)
        inside = code.both(code.compare("ge", b, code.constant(b, 0)), code.compare("lt", b, code.constant(b, width)))
        fallback = width - 1 if op == "shift_right" and is_signed(a.type) else 0
        shifted = code.bitwise(op, a, code.select(inside, b, code.constant(b, fallback)))
        if op == "shift_right" and is_signed(a.type):
            return shifted
        return code.select(inside, shifted, code.constant(a, 0))

    return call


_OPERATIONS: dict[str, Operation] = {
    "copy": lambda code, x: x,
    "neg": Code.neg,
    "abs": lambda code, x: x if x.type == "bool" else code.abs(x),
    "sign": _sign,
    "sqrt": square_root,
    "rsqrt": _rsqrt,
    "floor": _rounding("llvm.floor"),
    "ceil": _rounding("llvm.ceil"),
    "round": _rounding("llvm.roundeven"),
    "trunc": _rounding("llvm.trunc"),
    "isnan": _isnan,
    "isinf": _isinf,
    "isfinite": _isfinite,
    "logical_not": Code.invert,
    "bitwise_not": _bitwise_not,
    "add": _add,
    "sub": Code.sub,
    "mul": _mul,
    "div": Code.div,
    "floordiv": _floordiv,
    "remainder": _remainder,
    "fmod": _fmod,
    "pow": _pow,
    "maximum": _maximum,
    "minimum": _minimum,
    "fmax": _fmax,
    "fmin": _fmin,
    "copysign": Code.copysign,
    "eq": _compare("eq"),
    "ne": _compare("ne"),
    "lt": _compare("lt"),
    "le": _compare("le"),
    "gt": _compare("gt"),
    "ge": _compare("ge"),
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_xor": _logical("xor"),
    "bitwise_and": _bitwise("and"),
    "bitwise_or": _bitwise("or"),
    "bitwise_xor": _bitwise("xor"),
    "shift_left": _shift("shift_left"),
    "shift_right": _shift("shift_right"),
}
