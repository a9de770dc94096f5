# SPDX-License-Identifier: Apache-2.0
"""Sine, cosine, tangent and their inverses on vectors, in f32 and f64."""

from __future__ import annotations

import math

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.math import format_of
from fusec.codegen.tvm.pairs import Pair, ordered_sum, product_less, root, two_product, two_sum
from fusec.codegen.tvm.polynomials import POLYNOMIALS
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code


def _reduce_quarter(code: Code, x: Value) -> tuple[Value, Value, Value]:
    """``n`` as an integer, ``r`` and ``low`` with ``x = n*pi/2 + r + low``."""
    rounding = code.constant(x, format_of(x).rounding)
    biased = code.fma(x, code.constant(x, 2.0 / math.pi), rounding)
    n = code.sub(biased, rounding)
    first, second, third = (code.constant(x, -piece) for piece in format_of(x).half_pi)
    exact = product_less(code, n, first, code.neg(x))
    product, product_lost = two_product(code, n, second)
    r, lost = two_sum(code, exact, product)
    return code.reinterpret(biased, format_of(x).integer), r, code.fma(n, third, code.add(lost, product_lost))


def _sin_and_cos(code: Code, r: Value, low: Value) -> tuple[Value, Value]:
    """Sine and cosine of ``r + low`` in [-pi/4, pi/4]."""
    f = format_of(r)
    square = code.mul(r, r)
    cube = code.mul(square, r)
    sine = code.add(r, code.fma(code.polynomial(square, f.sin), cube, low))
    one, half = code.constant(r, 1.0), code.constant(r, 0.5)
    halved = code.mul(square, half)
    first = code.sub(one, halved)
    lost = code.sub(code.sub(one, first), halved)
    square_lost = product_less(code, r, r, square)
    lost = code.sub(lost, code.fma(r, low, code.mul(square_lost, half)))
    fourth = code.mul(square, square)
    return sine, code.add(first, code.fma(code.polynomial(square, f.cos), fourth, lost))


def _sin_or_cos(code: Code, x: Value, quarter: int) -> Value:
    f = format_of(x)
    q, r, low = _reduce_quarter(code, x)
    q = code.add(q, tir.constant(quarter, f.integer, x.lanes)) if quarter else q
    sine, cosine = _sin_and_cos(code, r, low)
    odd = code.compare("ne", code.bitwise("bitwise_and", q, code.constant(q, 1)), code.constant(q, 0))
    y = code.reinterpret(code.select(odd, cosine, sine), f.integer)
    second = code.bitwise("bitwise_and", q, code.constant(q, 2))
    sign = code.bitwise("shift_left", second, code.constant(q, f.sign_shift))
    return code.reinterpret(code.bitwise("bitwise_xor", y, sign), x.type)


def _with_large(code: Code, x: Value, y: Value, name: str) -> Value:
    large = code.compare("gt", code.abs(x), code.constant(x, format_of(x).sin_range))
    suffix = "f" if x.type == "float32" else ""
    return code.replace_where(large, y, lambda inner: inner.library(name + suffix, x))


def sin(code: Code, x: Value) -> Value:
    y = code.select(code.compare("eq", x, code.constant(x, 0.0)), x, _sin_or_cos(code, x, 0))
    return _with_large(code, x, y, "sin")


def cos(code: Code, x: Value) -> Value:
    return _with_large(code, x, _sin_or_cos(code, x, 1), "cos")


def tan(code: Code, x: Value) -> Value:
    q, r, low = _reduce_quarter(code, x)
    square = code.mul(r, r)
    more = code.fma(code.polynomial(square, POLYNOMIALS[x.type].tan), code.mul(square, r), code.fma(low, square, low))
    tangent, lost = ordered_sum(code, r, more)
    minus = code.constant(x, -1.0)
    inverse = code.div(minus, tangent)
    rest = code.fma(inverse, lost, product_less(code, inverse, tangent, minus))
    odd = code.compare("ne", code.bitwise("bitwise_and", q, code.constant(q, 1)), code.constant(q, 0))
    y = code.select(odd, code.fma(inverse, rest, inverse), tangent)
    return _with_large(code, x, code.select(code.compare("eq", x, code.constant(x, 0.0)), x, y), "tan")


# inverses


def _half_pi(code: Code, x: Value, times: float = 1.0) -> Pair:
    high, low, _ = format_of(x).half_pi
    return code.constant(x, times * high), code.constant(x, times * low)


def _less(code: Code, whole: Pair, high: Value, low: Value) -> Value:
    """``whole - (high + low)``, where ``whole`` is 0 or the larger."""
    total = code.sub(whole[0], high)
    lost = code.sub(code.sub(whole[0], total), high)
    return code.add(total, code.add(lost, code.sub(whole[1], low)))


def _arc_root(code: Code, x: Value) -> tuple[Value, Value, Value]:
    """``near``, ``s``, ``rest``: asin(s) = s + rest of s = |x| where that is ``near`` 0, else of sqrt((1 - |x|)/2)."""
    size, half, zero = code.abs(x), code.constant(x, 0.5), code.constant(x, 0.0)
    near = code.settle(code.compare("le", size, half))
    z = code.select(near, code.mul(size, size), code.fma(size, code.constant(x, -0.5), half))
    first, lost = root(code, (z, zero))
    s = code.select(near, size, first)
    rest = code.fma(code.polynomial(z, POLYNOMIALS[x.type].asin), code.mul(z, s), code.select(near, zero, lost))
    return near, s, rest


def asin(code: Code, x: Value) -> Value:
    """Beyond 1/2, ``pi/2 - 2*asin(sqrt((1 - x)/2))``."""
    near, s, rest = _arc_root(code, x)
    far = _less(code, _half_pi(code, x), code.add(s, s), code.add(rest, rest))
    return code.copysign(code.select(near, code.add(s, rest), far), x)


def acos(code: Code, x: Value) -> Value:
    near, s, rest = _arc_root(code, x)
    middle = _less(code, _half_pi(code, x), code.copysign(s, x), _with_sign(code, rest, x))
    twice, twice_rest = code.add(s, s), code.add(rest, rest)
    low = _less(code, _half_pi(code, x, 2.0), twice, twice_rest)
    far = code.select(code.compare("lt", x, code.constant(x, 0.0)), low, code.add(twice, twice_rest))
    return code.select(near, middle, far)


def _with_sign(code: Code, a: Value, x: Value) -> Value:
    """``a`` times the sign of x."""
    return code.mul(a, code.copysign(code.constant(a, 1.0), x))


def atan(code: Code, x: Value) -> Value:
    one, size = code.constant(x, 1.0), code.abs(x)
    enough = code.constant(x, 2.0 ** (format_of(x).mantissa + 8))
    size = code.select(code.compare("gt", size, enough), enough, size)
    y = _octants(code, size, one, tir.condition(False, x.lanes))
    return code.select(code.compare("eq", x, x), code.copysign(y, x), x)


def atan2(code: Code, y: Value, x: Value) -> Value:
    zero, one, width, height = code.constant(x, 0.0), code.constant(x, 1.0), code.abs(x), code.abs(y)
    largest = code.greater(width, height)
    infinite = code.settle(code.compare("eq", largest, code.constant(x, math.inf)))
    edge = code.either(infinite, code.compare("eq", largest, zero))
    scale = _scale_of(code, largest)
    across, up = (
        code.select(
            edge, code.select(code.both(infinite, code.compare("eq", a, largest)), one, zero), code.mul(a, scale)
        )
        for a in (width, height)
    )
    angle = _octants(code, up, across, code.settle(code.compare("lt", code.copysign(one, x), zero)))
    ordered = code.both(code.compare("eq", x, x), code.compare("eq", y, y))
    return code.select(ordered, code.copysign(angle, y), code.add(x, y))


def _scale_of(code: Code, largest: Value) -> Value:
    """A power of two that keeps sums from overflowing and what rounding loses from underflowing."""
    bias, one = format_of(largest).bias, code.constant(largest, 1.0)
    top, low = bias - format_of(largest).mantissa - 3, bias // 2
    large = code.compare("gt", largest, code.constant(largest, 2.0**top))
    small = code.compare("lt", largest, code.constant(largest, 2.0**-low))
    scale = code.select(large, code.constant(largest, 2.0 ** (top - bias)), one)
    return code.select(small, code.constant(largest, 2.0**low), scale)


def _octants(code: Code, y: Value, x: Value, left: Value) -> Value:
    """The angle of a point right of the axis, or as far ``left`` of it; both numbers finite and at least 0.

    A multiple of pi/4 plus or less the arc tangent of a number up to tan(pi/8) = sqrt(2) - 1: of the lesser by the
    greater of them, or of ``(lesser - greater) / (lesser + greater)``.
    """
    zero, one, two = (code.constant(x, number) for number in (0.0, 1.0, 2.0))
    steep = code.settle(code.compare("gt", y, x))
    greater, lesser = code.select(steep, y, x), code.select(steep, x, y)
    middle = code.settle(code.compare("gt", lesser, code.mul(greater, code.constant(x, math.sqrt(2.0) - 1.0))))
    top, top_lost = ordered_sum(code, code.select(middle, code.neg(greater), zero), lesser)
    bottom, bottom_lost = ordered_sum(code, greater, code.select(middle, lesser, zero))
    divisor = code.select(code.compare("eq", bottom, zero), one, bottom)
    q = code.div(top, divisor)
    lost = code.sub(top_lost, code.fma(q, bottom_lost, product_less(code, q, divisor, top)))
    square = code.mul(q, q)
    cube = code.mul(square, q)
    rest = code.fma(code.polynomial(square, POLYNOMIALS[x.type].atan), cube, code.div(lost, divisor))
    backwards = code.settle(code.compare("ne", code.byte(steep), code.byte(left)))
    sign = code.select(backwards, code.constant(x, -1.0), one)
    turns = code.select(steep, two, code.select(left, code.constant(x, 4.0), zero))
    turns = code.fma(code.select(middle, one, zero), sign, turns)
    high, low = (code.mul(part, code.constant(x, 0.5)) for part in _half_pi(code, x))
    angle, angle_lost = two_product(code, turns, high)
    whole = angle, code.fma(turns, low, angle_lost)
    return _less(code, whole, code.mul(q, code.neg(sign)), code.mul(rest, code.neg(sign)))
