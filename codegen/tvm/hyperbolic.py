# SPDX-License-Identifier: Apache-2.0
"""Hyperbolic sine and cosine on vectors, in f32 and f64, and the inverses in f64.

Those of f32 are computed in f64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fusec.codegen.tvm.logarithms import log1p_pair
from fusec.codegen.tvm.math import exp_pair, format_of, log1p, reduce_exp_pair, scale
from fusec.codegen.tvm.pairs import divide, ordered_sum, root, two_product, two_sum
from fusec.codegen.tvm.polynomials import POLYNOMIALS
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code
from fusec.codegen.tvm.widened import in_f64


def _half_exp(code: Code, x: Value) -> tuple[Value, Value]:
    """``e**x / 2`` as a pair, for x at least 0; infinite where the halves' sum overflows."""
    limit = code.constant(x, format_of(x).exp_range[1] + 2.0)
    bounded = code.select(code.compare("gt", x, limit), limit, x)
    n, r = reduce_exp_pair(code, bounded, code.constant(x, 0.0))
    high, low = exp_pair(code, r)
    n = code.sub(n, code.constant(n, 1.0))
    return scale(code, high, n), scale(code, low, n)


def sinh(code: Code, x: Value) -> Value:
    size, square = code.abs(x), code.mul(x, x)
    small = code.fma(code.polynomial(square, POLYNOMIALS[x.type].sinh), code.mul(square, size), size)
    high, low = _half_exp(code, size)
    inverse = code.div(code.constant(x, 0.25), high)
    large = code.sub(high, code.sub(inverse, low))
    return code.copysign(code.select(code.compare("lt", size, code.constant(x, 1.0)), small, large), x)


def cosh(code: Code, x: Value) -> Value:
    high, low = _half_exp(code, code.abs(x))
    inverse = code.div(code.constant(x, 0.25), high)
    return code.add(high, code.add(inverse, low))


# the inverses of f32, in f64: its digits hide what the plain formulas lose


def _asinh_short(code: Code, x: Value) -> Value:
    one, size = code.constant(x, 1.0), code.abs(x)
    square = code.mul(x, x)
    root = code.call("llvm.sqrt", x.type, code.add(square, one))
    y = log1p(code, code.add(size, code.div(square, code.add(root, one))))
    infinite = code.compare("eq", size, code.constant(x, math.inf))
    return code.copysign(code.select(infinite, size, y), x)


def _acosh_short(code: Code, x: Value) -> Value:
    less = code.sub(x, code.constant(x, 1.0))
    less = code.select(code.compare("ge", less, code.constant(x, 0.0)), less, code.constant(x, math.nan))
    root = code.call("llvm.sqrt", x.type, code.fma(less, less, code.add(less, less)))
    return log1p(code, code.add(less, root))


def _atanh_short(code: Code, x: Value) -> Value:
    size = code.abs(x)
    y = log1p(code, code.div(code.add(size, size), code.sub(code.constant(x, 1.0), size)))
    return code.copysign(code.mul(y, code.constant(x, 0.5)), x)


def _through_f64(function: Callable[[Code, Value], Value]) -> Callable[[Code, Value], Value]:
    """The function for f32, computed in f64."""

    def call(code: Code, x: Value) -> Value:
        return in_f64(code, function, x)

    return call


# the inverses of f64, with logarithms of pairs


def _asinh(code: Code, x: Value) -> Value:
    """``log(1 + t)`` with ``t = x + (sqrt(1 + x**2) - 1)``; where x**2 is all of 1 + x**2, of 2*x."""
    one, size = code.constant(x, 1.0), code.abs(x)
    huge, bounded, doubled = _without_huge(code, size)
    square, lost = two_product(code, bounded, bounded)
    total, more = two_sum(code, one, square)
    first, low = root(code, (total, code.add(lost, more)))
    t, rest = two_sum(code, bounded, code.sub(first, one))
    t, rest = code.select(huge, size, t), code.select(huge, code.constant(x, 0.0), code.add(rest, low))
    high, low = log1p_pair(code, (t, rest), doubled)
    y = code.copysign(code.add(high, low), x)
    finite = code.compare("lt", size, code.constant(x, math.inf))
    return code.select(code.both(finite, code.compare("gt", size, code.constant(x, _TINY))), y, x)


def _acosh(code: Code, x: Value) -> Value:
    """``log(1 + t)`` with ``t = (x - 1) + sqrt(x**2 - 1)``."""
    one = code.constant(x, 1.0)
    huge, bounded, doubled = _without_huge(code, x)
    square, lost = two_product(code, bounded, bounded)
    total, more = two_sum(code, square, code.neg(one))
    first, low = root(code, ordered_sum(code, total, code.add(lost, more)))
    less, less_low = two_sum(code, bounded, code.neg(one))
    t, rest = two_sum(code, less, first)
    rest = code.add(rest, code.add(less_low, low))
    t, rest = code.select(huge, x, t), code.select(huge, code.constant(x, 0.0), rest)
    high, low = log1p_pair(code, (t, rest), doubled)
    y = code.select(code.compare("lt", x, one), code.constant(x, math.nan), code.add(high, low))
    return code.select(code.compare("lt", code.abs(x), code.constant(x, math.inf)), y, _infinity_or_nan(code, x))


def _infinity_or_nan(code: Code, x: Value) -> Value:
    """Of infinity that, of minus infinity and NaN NaN."""
    return code.select(code.compare("gt", x, code.constant(x, 0.0)), x, code.constant(x, math.nan))


def _without_huge(code: Code, x: Value) -> tuple[Value, Value, Value]:
    """Whether the square of x takes 1 away without loss; x or 1 there; and 1 there, 0 elsewhere."""
    one = code.constant(x, 1.0)
    huge = code.settle(code.compare("gt", x, code.constant(x, 2.0**60)))
    return huge, code.select(huge, one, x), code.select(huge, one, code.constant(x, 0.0))


def _atanh(code: Code, x: Value) -> Value:
    """``log(1 + 2x / (1 - x)) / 2``."""
    one, zero, size = code.constant(x, 1.0), code.constant(x, 0.0), code.abs(x)
    inside = code.settle(code.compare("lt", size, one))
    bounded = code.select(inside, size, zero)
    t = divide(code, (code.add(bounded, bounded), zero), two_sum(code, one, code.neg(bounded)))
    high, low = log1p_pair(code, t)
    y = code.mul(code.add(high, low), code.constant(x, 0.5))
    edge = code.select(code.compare("eq", size, one), code.constant(x, math.inf), code.constant(x, math.nan))
    y = code.copysign(code.select(inside, y, edge), x)
    return code.select(code.compare("lt", size, code.constant(x, _TINY)), x, y)


_TINY = 2.0**-100
"""Below it an odd function of slope 1 is its argument; halves of subnormal numbers would be rounded."""


INVERSES: dict[str, dict[str, Callable[[Code, Value], Value]]] = {
    "float64": {"asinh": _asinh, "acosh": _acosh, "atanh": _atanh},
    "float32": {
        "asinh": _through_f64(_asinh_short),
        "acosh": _through_f64(_acosh_short),
        "atanh": _through_f64(_atanh_short),
    },
}
"""By element type."""
