# SPDX-License-Identifier: Apache-2.0
"""The error function and its complement on vectors, in f32 and f64."""

from __future__ import annotations

from fusec.codegen.tvm.math import exp, exp_pair, fills_register, reduce_exp_pair, scale, tabulated
from fusec.codegen.tvm.pairs import divide, ordered_sum, two_product, two_sum
from fusec.codegen.tvm.polynomials import POLYNOMIALS
from fusec.codegen.tvm.tables import ERF_TABLE_F32
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code


def erf(code: Code, x: Value) -> Value:
    if x.type == "float32" and fills_register(code, x):
        return tabulated(code, x, ERF_TABLE_F32)
    polynomials = POLYNOMIALS[x.type]
    size, square = code.abs(x), code.mul(x, x)
    small = code.fma(code.polynomial(square, polynomials.erf_small), size, size)
    limit, one = code.constant(x, polynomials.erf_limit), code.constant(x, 1.0)
    bounded = code.select(code.compare("gt", size, limit), limit, size)
    power = code.mul(code.polynomial(bounded, polynomials.erf_large), bounded)
    large = code.sub(one, exp(code, code.neg(power)))
    y = code.copysign(code.select(code.compare("lt", size, one), small, large), x)
    return code.select(code.compare("eq", x, x), y, x)


def erfc(code: Code, x: Value) -> Value:
    """Near 0 one less erf; else ``e**(-x**2) * w(|x|) / (1 + 2|x|)``, the smooth ``w`` being 1 and a polynomial.

    Square, quotient and power are kept as pairs: an error in the exponent is that of the result times the exponent.
    """
    polynomials = POLYNOMIALS[x.type]
    one, limit, size = code.constant(x, 1.0), code.constant(x, polynomials.erfc_limit), code.abs(x)
    first, lost = two_sum(code, one, code.neg(x))
    rest = code.fma(code.polynomial(code.mul(x, x), polynomials.erfc_small), x, code.neg(lost))
    near = code.sub(first, rest)
    size = code.select(code.compare("gt", size, limit), limit, size)
    far = _erfc_far(code, size)
    far = code.select(code.compare("lt", x, code.constant(x, 0.0)), code.sub(code.constant(x, 2.0), far), far)
    y = code.select(code.compare("lt", size, code.constant(x, 0.5)), near, far)
    return code.select(code.compare("eq", x, x), y, x)


def _erfc_far(code: Code, x: Value) -> Value:
    """erfc of 1/2 up to the limit."""
    polynomials = POLYNOMIALS[x.type]
    pole, one = code.constant(x, polynomials.erfc_pole), code.constant(x, 1.0)
    scaled = code.div(code.sub(x, pole), code.add(x, pole))
    smooth = ordered_sum(code, one, code.polynomial(scaled, polynomials.erfc))
    quotient = divide(code, smooth, ordered_sum(code, code.add(x, x), one))
    square, lost = two_product(code, x, x)
    n, r = reduce_exp_pair(code, code.neg(square), code.neg(lost))
    power = exp_pair(code, r)
    small = code.fma(power[0], quotient[1], code.mul(power[1], quotient[0]))
    return scale(code, code.fma(power[0], quotient[0], small), n)
