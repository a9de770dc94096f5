# SPDX-License-Identifier: Apache-2.0
"""The logarithm as a pair of f64, for functions that pass its error on magnified: powers and inverse hyperbolics."""

from __future__ import annotations

from fusec.codegen.tvm.math import format_of, mantissa_exponent, scale
from fusec.codegen.tvm.pairs import Pair, divide, multiply, ordered_sum, two_sum
from fusec.codegen.tvm.polynomials import LOG_PAIR_F64
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code

_THIRD = (1.0 / 3.0, float.fromhex("0x1.5555555555555p-56"))
"""1/3 in two floats."""


def log_pair(code: Code, x: Value) -> Pair:
    """``log(x)`` of a finite x > 0, to some 2**-65 of it."""
    mantissa, exponent = mantissa_exponent(code, x)
    f = code.sub(mantissa, code.constant(x, 1.0))
    return _log_reduced(code, (f, code.constant(x, 0.0)), exponent)


def log1p_pair(code: Code, t: Pair, doubled: Value | None = None) -> Pair:
    """``log(1 + t)`` of a finite t > -1; ``doubled`` (a float of 0 or 1 on each lane) adds that many times log 2."""
    u, lost = two_sum(code, code.constant(t[0], 1.0), t[0])
    mantissa, exponent = mantissa_exponent(code, u)
    rest = scale(code, code.add(lost, t[1]), code.neg(exponent))
    f = two_sum(code, code.sub(mantissa, code.constant(u, 1.0)), rest)
    return _log_reduced(code, f, exponent if doubled is None else code.add(exponent, doubled))


def _log_reduced(code: Code, f: Pair, exponent: Value) -> Pair:
    """``log(1 + f) + exponent * log 2`` for 1 + f in [sqrt(1/2), sqrt(2)]: twice the series of atanh(f / (2 + f))."""
    divisor, lost = ordered_sum(code, code.constant(exponent, 2.0), f[0])
    s = divide(code, f, (divisor, code.add(lost, f[1])))
    z = multiply(code, s, s)
    third, third_low = (code.constant(exponent, part) for part in _THIRD)
    series, series_lost = ordered_sum(code, third, code.mul(z[0], code.polynomial(z[0], LOG_PAIR_F64)))
    twice = code.add(s[0], s[0]), code.add(s[1], s[1])
    cube = multiply(code, twice, multiply(code, z, (series, code.add(series_lost, third_low))))
    ln2, ln2_low = (code.constant(exponent, part) for part in format_of(exponent).ln2_short)
    total, lost = ordered_sum(code, code.mul(exponent, ln2), twice[0])
    total, more = ordered_sum(code, total, cube[0])
    rest = code.add(code.add(cube[1], twice[1]), code.fma(exponent, ln2_low, code.add(lost, more)))
    return ordered_sum(code, total, rest)
