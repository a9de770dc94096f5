# SPDX-License-Identifier: Apache-2.0
"""Powers, hypotenuses and remainders on vectors, in f32 and f64."""

from __future__ import annotations

import math

from fusec.codegen.tvm import pairs
from fusec.codegen.tvm.logarithms import log_pair
from fusec.codegen.tvm.math import exp2, exp_rest, format_of, log2, reduce_exp_pair, scale
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code
from fusec.codegen.tvm.widened import in_f64


def power(code: Code, x: Value, y: Value) -> Value:
    """``x**y``; the special cases are those of the C standard (F.10.4.4)."""
    zero, one, size = code.constant(x, 0.0), code.constant(x, 1.0), code.abs(x)
    result = in_f64(code, _power_by_log2, size, y) if x.type == "float32" else _power_of_positive(code, size, y)
    result = code.select(code.compare("eq", size, one), one, result)
    half = code.mul(y, code.constant(y, 0.5))
    whole = code.settle(code.compare("eq", code.call("llvm.trunc", y.type, y), y))
    odd = code.both(whole, code.compare("ne", code.call("llvm.trunc", y.type, half), half))
    result = code.select(odd, code.copysign(result, x), result)
    finite_negative = code.both(code.compare("lt", x, zero), code.compare("gt", x, code.constant(x, -math.inf)))
    outside = code.both(finite_negative, code.invert(whole))
    result = code.select(outside, code.constant(x, math.nan), result)
    return code.select(code.compare("eq", y, zero), one, result)


def _power_by_log2(code: Code, x: Value, y: Value) -> Value:
    """``x**y`` of x at least 0, to more digits than f32 has."""
    return exp2(code, code.mul(log2(code, x), y))


def _power_of_positive(code: Code, x: Value, y: Value) -> Value:
    """``e**(y * log(x))`` in f64 with 64 digits in the exponent, for x at least 0; NaN for NaN."""
    zero, inf = code.constant(x, 0.0), code.constant(x, math.inf)
    log, log_lost = log_pair(code, x)
    product, lost = pairs.two_product(code, y, log)
    lost = code.fma(y, log_lost, lost)
    low, high = (code.constant(x, end) for end in format_of(x).exp_range)
    inside = code.both(code.compare("gt", product, low), code.compare("lt", product, high))
    beyond = code.select(code.compare("gt", product, zero), high, low)
    n, r = reduce_exp_pair(code, code.select(inside, product, beyond), code.select(inside, lost, zero))
    result = scale(code, exp_rest(code, *r), n)
    edge = code.either(code.compare("eq", x, zero), code.compare("eq", x, inf))
    grows = code.compare("eq", code.byte(code.compare("gt", x, zero)), code.byte(code.compare("gt", y, zero)))
    result = code.select(edge, code.select(grows, inf, zero), result)
    ordered = code.both(code.compare("eq", x, x), code.compare("eq", y, y))
    return code.select(ordered, result, code.add(x, y))


def hypot(code: Code, x: Value, y: Value) -> Value:
    """``sqrt(x**2 + y**2)``; infinite where either is, even beside a NaN."""
    inf = code.constant(x, math.inf)
    result = in_f64(code, _hypot_f32, x, y) if x.type == "float32" else _hypot_f64(code, code.abs(x), code.abs(y))
    infinite = code.either(code.compare("eq", code.abs(x), inf), code.compare("eq", code.abs(y), inf))
    return code.select(infinite, inf, result)


def _hypot_f32(code: Code, x: Value, y: Value) -> Value:
    return code.call("llvm.sqrt", x.type, code.fma(x, x, code.mul(y, y)))


def _hypot_f64(code: Code, x: Value, y: Value) -> Value:
    """Of numbers at least 0, scaled so that no square overflows or underflows, in pairs."""
    larger, smaller = code.greater(x, y), code.lesser(x, y)
    one = code.constant(x, 1.0)
    shrink = code.select(code.compare("gt", larger, code.constant(x, 2.0**500)), code.constant(x, 2.0**-600), one)
    factor = code.select(code.compare("lt", larger, code.constant(x, 2.0**-400)), code.constant(x, 2.0**600), shrink)
    back = code.select(code.compare("gt", factor, one), code.constant(x, 2.0**-600), one)
    back = code.select(code.compare("lt", factor, one), code.constant(x, 2.0**600), back)
    larger, smaller = code.mul(larger, factor), code.mul(smaller, factor)
    square, lost = pairs.two_product(code, larger, larger)
    other, other_lost = pairs.two_product(code, smaller, smaller)
    total, more = pairs.ordered_sum(code, square, other)
    first, low = pairs.root(code, (total, code.add(more, code.add(lost, other_lost))))
    return code.mul(code.add(first, low), back)


def fmod(code: Code, x: Value, y: Value) -> Value:
    """The remainder of division towards zero, exactly: x less the quotient's whole part times y, while that has no
    more digits than a float. The quotient was rounded, so that its whole part may be one too large.
    """
    name = "fmodf" if x.type == "float32" else "fmod"
    if not code.fused:
        return _library_fmod(code, name, x, y)
    zero = code.constant(x, 0.0)
    size, divisor = code.abs(x), code.abs(y)
    whole = code.call("llvm.trunc", x.type, code.div(size, divisor))
    rest = code.fma(code.neg(whole), divisor, size)
    rest = code.select(code.compare("lt", rest, zero), code.add(rest, divisor), rest)
    rest = code.select(code.compare("lt", size, divisor), size, rest)
    near = code.compare("lt", whole, code.constant(x, 2.0 ** format_of(x).mantissa))
    return code.replace_where(code.invert(near), code.copysign(rest, x), lambda inner: _library_fmod(inner, name, x, y))


def _library_fmod(code: Code, name: str, x: Value, y: Value) -> Value:
    """LLVM takes the library's function of a finite x and a y that is not 0 to be no NaN, and forgets that y may be."""
    return code.select(code.is_nan(y), y, code.library(name, x, y))
