# SPDX-License-Identifier: Apache-2.0
"""Vector versions of the elementary functions, in f32 and f64, to about one unit in the last place.

Each works on any number of lanes. Infinities, NaN, signed zeros and subnormal results are those of the C
library. Reductions follow Cody and Waite, *Software Manual for the Elementary Functions* (1980).
"""

from __future__ import annotations

import math

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.coefficients import (
    ERF_ODDS,
    EXP2,
    EXP_F32,
    FORMATS,
    HALF_EXP2,
    LOG_F32,
    LOG_F64,
    SHORT_EXP2,
    FloatFormat,
)
from fusec.codegen.tvm.pairs import Pair, ordered_sum, two_product, two_sum
from fusec.codegen.tvm.tables import TANH_TABLE_F32, Table
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code


def format_of(x: Value) -> FloatFormat:
    return FORMATS[x.type]


# scaling by powers of two


def fills_register(code: Code, x: Value) -> bool:
    """Whether AVX-512's own instructions for exponents apply."""
    return code.avx512 and x.lanes * (32 if x.type == "float32" else 64) == 512


def avx512(code: Code, name: str, x: Value, *args: tir.Node) -> Value:
    """An AVX-512 intrinsic on all lanes, in the current rounding mode."""
    suffix, mask = ("ps", "int16") if x.type == "float32" else ("pd", "int8")
    every, mode = tir.integer(-1, mask), tir.integer(4)
    node = tir.intrinsic(f"llvm.x86.avx512.mask.{name}.{suffix}.512", x.type, x.lanes, x.node, *args, every, mode)
    return code.let(Value(node, x.type, x.lanes))


def scale(code: Code, x: Value, n: Value) -> Value:
    """``x * 2**n`` for a whole number ``n`` (a float), rounded once, also where the result is subnormal."""
    if fills_register(code, x):
        return avx512(code, "scalef", x, n.node, x.node)
    whole = whole_number(code, n)
    half = code.bitwise("shift_right", whole, code.constant(whole, 1))
    rest = code.sub(whole, half)
    return code.mul(code.mul(x, _power(code, half, format_of(x))), _power(code, rest, format_of(x)))


def whole_number(code: Code, n: Value) -> Value:
    """A small whole float as an integer. Of a NaN, some number: LLVM's own conversion is undefined there."""
    f = format_of(n)
    bits = code.reinterpret(code.add(n, code.constant(n, f.rounding)), f.integer)
    return code.sub(bits, code.constant(bits, f.rounding_bits))


def _as_float(code: Code, whole: Value, f: FloatFormat) -> Value:
    """A small integer as a float."""
    bits = code.add(whole, code.constant(whole, f.rounding_bits))
    number = code.reinterpret(bits, f.type)
    return code.sub(number, code.constant(number, f.rounding))


def _power(code: Code, n: Value, f: FloatFormat) -> Value:
    """``2**n`` of an integer in the range of normal exponents."""
    biased = code.add(n, code.constant(n, f.bias))
    return code.reinterpret(code.bitwise("shift_left", biased, code.constant(n, f.mantissa)), f.type)


def _clamp(code: Code, x: Value, low: float, high: float) -> Value:
    """``x`` within [low, high]; NaN stays NaN."""
    x = code.select(code.compare("gt", x, code.constant(x, high)), code.constant(x, high), x)
    return code.select(code.compare("lt", x, code.constant(x, low)), code.constant(x, low), x)


def within(code: Code, x: Value, limit: float, *, absolute: bool = False) -> Value:
    """``x``, or ``absolute``: its absolute value, but no further from 0 than the limit; of NaN, a limit. AVX-512."""
    mode = tir.integer(_LESS_OF_SIZES | (_WITHOUT_SIGN if absolute else 0))
    return avx512(code, "range", x, code.constant(x, limit).node, mode, x.node)


_LESS_OF_SIZES, _WITHOUT_SIGN = 2, 8
"""Of ``vrange``: the smaller absolute value with the first operand's sign, or without one."""


# exponentials


def _nearest(code: Code, x: Value, factor: float) -> Value:
    """The whole number nearest to a product that is small: added to ``rounding``, it has no digits after the point."""
    rounding = code.constant(x, format_of(x).rounding)
    return code.sub(code.fma(x, code.constant(x, factor), rounding), rounding)


def reduce_exp(code: Code, x: Value) -> tuple[Value, Value]:
    """``n`` and ``r`` with ``x = n*ln2 + r``."""
    f = format_of(x)
    n = _nearest(code, x, f.log2_e[0])
    r = code.fma(n, code.constant(x, -f.ln2_short[0]), x)
    return n, code.fma(n, code.constant(x, -f.ln2_short[1]), r)


def reduce_exp_pair(code: Code, x: Value, low: Value) -> tuple[Value, Pair]:
    """``n`` and the pair ``r`` with ``x + low = n*ln2 + r``; ``low`` may be as large as what rounding x lost."""
    f = format_of(x)
    n = _nearest(code, x, f.log2_e[0])
    first = code.fma(n, code.constant(x, -f.ln2_short[0]), x)
    ln2_low = code.constant(x, -f.ln2_short[1])
    r = code.fma(n, ln2_low, first)
    lost = code.fma(n, ln2_low, code.sub(first, r))
    return n, two_sum(code, r, code.add(lost, low))


def exp_pair(code: Code, r: Pair) -> Pair:
    """``e**r`` as a pair."""
    x = r[0]
    first, lost = ordered_sum(code, code.constant(x, 1.0), x)
    rest = code.fma(code.mul(code.polynomial(x, format_of(x).exp), x), x, code.add(lost, r[1]))
    return ordered_sum(code, first, rest)


def exp_rest(code: Code, r: Value, low: Value | None = None) -> Value:
    """``e**(r + low)``. What rounding ``1 + r`` loses is added to the small terms."""
    one = code.constant(r, 1.0)
    first = code.add(one, r)
    lost = code.sub(r, code.sub(first, one))
    if low is not None:
        lost = code.add(lost, low)
    return code.add(first, code.fma(code.mul(code.polynomial(r, format_of(r).exp), r), r, lost))


def exp(code: Code, x: Value) -> Value:
    if x.type == "float32" and fills_register(code, x):
        n, r = reduce_exp(code, x)
        r = within(code, r, 0.5)  # of infinities and of what is far beyond the range, where n alone decides
    else:
        n, r = reduce_exp(code, _clamp(code, x, *format_of(x).exp_range))
    if x.type != "float32" or not code.fused:
        return scale(code, exp_rest(code, r), n)
    one = code.constant(x, 1.0)
    return scale(code, code.fma(code.fma(code.polynomial(r, EXP_F32), r, one), r, one), n)


def exp2(code: Code, x: Value) -> Value:
    f = format_of(x)
    x = _clamp(code, x, *f.exp2_range)
    n = _nearest(code, x, 1.0)
    fraction = code.sub(x, n)
    high, low = two_product(code, fraction, code.constant(x, f.ln2[0]))
    low = code.fma(fraction, code.constant(x, f.ln2[1]), low)
    return scale(code, exp_rest(code, high, low), n)


def weight(code: Code, x: Value, *, short: bool) -> Value:
    """``2**x`` of an exponent that is no larger than a few; ``short``: to 2**-13 of itself."""
    if x.type != "float32":
        return exp2(code, x)
    powers = SHORT_EXP2 if short else EXP2
    if fills_register(code, x):
        rest = avx512(code, "reduce", x, tir.integer(_FLOOR), x.node)  # 0 of infinities
        return avx512(code, "scalef", code.polynomial(rest, powers), x.node, x.node)
    x = _clamp(code, x, *format_of(x).exp2_range)
    whole = code.call("llvm.floor", x.type, x)
    return scale(code, code.polynomial(code.sub(x, whole), powers), whole)


def expm1(code: Code, x: Value) -> Value:
    f = format_of(x)
    n, (r, low) = reduce_exp_pair(code, _clamp(code, x, *f.exp_range), code.constant(x, 0.0))
    one, top = code.constant(x, 1.0), code.constant(x, float(f.bias))
    overflows = code.compare("gt", n, top)
    power = scale(code, one, code.select(overflows, top, n))
    less_one, lost = ordered_sum(code, r, code.fma(code.mul(code.polynomial(r, f.exp), r), r, low))
    whole, rest = two_sum(code, code.sub(power, one), code.mul(power, less_one))
    y = code.add(whole, code.fma(power, lost, rest))
    y = code.select(overflows, scale(code, code.add(less_one, one), n), y)
    return code.select(code.compare("eq", x, code.constant(x, 0.0)), x, y)


def tabulated(code: Code, x: Value, table: Table) -> Value:
    """An odd function from its table, held in registers: AVX-512 picks a piece's numbers with one permutation each.

    Beyond the table it is 1 exactly, so that ``x * (1 - f(x))`` of a large x is 0.
    """
    limit = code.constant(x, table.limit)
    size = code.abs(x)
    beyond = code.compare("gt", size, limit)
    size = code.select(beyond, limit, size)
    rounding = code.constant(x, format_of(x).rounding)
    biased = code.fma(size, code.constant(x, table.pieces_per_unit), rounding)
    piece = code.reinterpret(biased, "int32")
    center, value, *powers = (_pick(code, column, piece) for column in table.columns)
    t = code.sub(size, center)
    slope = powers[-1]
    for coefficient in reversed(powers[:-1]):
        slope = code.fma(slope, t, coefficient)
    start = code.select(code.compare("eq", biased, rounding), t, value)
    return code.copysign(code.select(beyond, code.constant(x, 1.0), code.fma(slope, t, start)), x)


def _pick(code: Code, column: tuple[float, ...], piece: Value) -> Value:
    """``column[piece & 15]`` on each lane."""
    table = tir.join([tir.constant(number, "float32") for number in column])
    name = "llvm.x86.avx512.permvar.sf.512"
    return code.let(Value(tir.intrinsic(name, "float32", 16, table.node, piece.node), "float32", 16))


def tanh(code: Code, x: Value) -> Value:
    f = format_of(x)
    if x.type == "float32" and fills_register(code, x):
        return tabulated(code, x, TANH_TABLE_F32)
    size = code.abs(x)
    limit, one = code.constant(x, f.tanh_limit), code.constant(x, 1.0)
    bounded = code.select(code.compare("gt", size, limit), limit, size)
    n, r = reduce_exp(code, code.add(bounded, bounded))
    power = scale(code, exp_rest(code, r), n)
    large = code.sub(one, code.div(code.constant(x, 2.0), code.add(power, one)))
    square = code.mul(x, x)
    small = code.fma(code.mul(code.polynomial(square, f.tanh), square), size, size)
    return code.copysign(code.select(code.compare("lt", size, one), small, large), x)


def tanh_plus_one(code: Code, x: Value) -> Value:
    """``tanh(x) + 1`` as ``2 / (1 + e**(-2x))``: half the instructions of tanh, and all digits near -1, for gelu."""
    power = exp(code, code.mul(x, code.constant(x, -2.0)))
    return code.div(code.constant(x, 2.0), code.add(power, code.constant(x, 1.0)))


def short_tanh_plus_one(code: Code, x: Value, factor: float) -> Value | None:
    """``tanh(factor * x) + 1`` with a relative error of 2**-13; None where that takes AVX-512 and there is none.

    Few instructions that wait for each other: an epilogue of 32 by 32 has nothing else to do meanwhile.
    """
    if not (fills_register(code, x) and x.type == "float32"):
        return None
    return _two_over_power_plus_one(code, code.mul(x, code.constant(x, -2.0 / math.log(2.0) * factor)))


def short_erf_plus_one(code: Code, x: Value, factor: float) -> Value | None:
    """``erf(factor * x) + 1`` with a relative error of 2**-13, and beyond -3.6 an error of 2**-23; None where that
    takes AVX-512 and there is none.

    As ``2 / (1 + 2**y)`` with ``y / x`` a polynomial: 20 instructions, where the table of erf and the sum take 30.
    """
    if not (fills_register(code, x) and x.type == "float32"):
        return None
    limit = code.constant(x, (_ERF_ODDS_LIMIT / factor) ** 2)
    square = code.mul(x, x)
    square = code.select(code.compare("lt", square, limit), square, limit)
    powers = [c * factor ** (2 * k + 1) for k, c in zip(range(len(ERF_ODDS) - 1, -1, -1), ERF_ODDS, strict=True)]
    return _two_over_power_plus_one(code, code.mul(code.polynomial(square, powers), x))


_ERF_ODDS_LIMIT = 3.6


def _two_over_power_plus_one(code: Code, exponent: Value) -> Value:
    """``2 / (1 + 2**exponent)``."""
    x = exponent
    rest = avx512(code, "reduce", exponent, tir.integer(_FLOOR), exponent.node)  # 0 of infinities
    square = code.mul(rest, rest)
    constant, linear, *others = (code.constant(x, c) for c in HALF_EXP2)
    high = code.fma(code.fma(others[2], rest, others[1]), rest, others[0])
    half = avx512(code, "scalef", code.fma(high, square, code.fma(linear, rest, constant)), exponent.node, x.node)
    every = tir.integer(-1, "int16")
    below = code.add(half, code.constant(x, 0.5))
    node = tir.intrinsic("llvm.x86.avx512.rcp14.ps.512", x.type, x.lanes, below.node, x.node, every)
    return code.let(Value(node, x.type, x.lanes))


_FLOOR = 1
"""Intel's number for rounding down to whole numbers."""


# logarithms


def mantissa_exponent(code: Code, x: Value) -> tuple[Value, Value]:
    """``m`` in [sqrt(1/2), sqrt(2)) and a whole ``e`` (both floats) with ``x = m * 2**e``, for finite x > 0."""
    if fills_register(code, x):
        return _mantissa_exponent_avx512(code, x)
    f = format_of(x)
    tiny = code.compare("lt", x, code.constant(x, f.smallest_normal))
    shift = float(f.mantissa + 1)
    bits = code.reinterpret(code.select(tiny, code.mul(x, code.constant(x, 2.0**shift)), x), f.integer)
    offset = code.sub(bits, code.constant(bits, f.sqrt_half_bits))
    whole = code.bitwise("shift_right", offset, code.constant(bits, f.mantissa))
    shifted = code.bitwise("shift_left", whole, code.constant(bits, f.mantissa))
    mantissa = code.reinterpret(code.sub(bits, shifted), x.type)
    exponent = _as_float(code, whole, f)
    return mantissa, code.select(tiny, code.sub(exponent, code.constant(x, shift)), exponent)


def _mantissa_exponent_avx512(code: Code, x: Value) -> tuple[Value, Value]:
    mantissa = avx512(code, "getmant", x, tir.integer(0), x.node)
    exponent = avx512(code, "getexp", x, x.node)
    large = code.compare("gt", mantissa, code.constant(x, math.sqrt(2.0)))
    mantissa = code.select(large, code.mul(mantissa, code.constant(x, 0.5)), mantissa)
    return mantissa, code.select(large, code.add(exponent, code.constant(x, 1.0)), exponent)


def _log_parts(code: Code, mantissa: Value, exponent: Value, correction: Value | None = None) -> Pair:
    """``log(mantissa + correction) + exponent * ln2``; the first part alone is not the rounded sum."""
    f = code.sub(mantissa, code.constant(mantissa, 1.0))
    if correction is None:
        return f, _log_rest(code, f, exponent)
    f, lost = two_sum(code, f, correction)
    return f, code.add(_log_rest(code, f, exponent), code.fma(code.neg(lost), f, lost))


def _log_rest(code: Code, f: Value, exponent: Value) -> Value:
    """``log(1 + f) - f`` and the lower part of ``exponent * ln2``."""
    low = code.constant(f, format_of(f).ln2_short[1])
    square = code.mul(f, f)
    if f.type == "float32":
        t = code.fma(exponent, low, code.mul(code.mul(square, f), code.polynomial(f, LOG_F32)))
        return code.fma(square, code.constant(f, -0.5), t)
    s = code.div(f, code.add(f, code.constant(f, 2.0)))
    z = code.mul(s, s)
    half = code.mul(square, code.constant(f, 0.5))
    rest = code.fma(code.polynomial(z, LOG_F64), z, half)
    return code.sub(code.fma(s, rest, code.mul(exponent, low)), half)


def _log_sum(code: Code, parts: Pair, exponent: Value) -> Value:
    high = code.constant(exponent, format_of(exponent).ln2_short[0])
    return code.fma(exponent, high, code.add(*parts))


def log_edges(code: Code, x: Value, y: Value, zero: float) -> Value:
    """``y`` corrected where ``x`` is ``zero`` (the pole), below it, infinite or NaN."""
    inf = code.constant(x, math.inf)
    y = code.select(code.compare("eq", x, code.constant(x, zero)), code.constant(x, -math.inf), y)
    y = code.select(code.compare("eq", x, inf), inf, y)
    y = code.select(code.compare("lt", x, code.constant(x, zero)), code.constant(x, math.nan), y)
    return code.select(code.compare("eq", x, x), y, x)


def log(code: Code, x: Value) -> Value:
    mantissa, exponent = mantissa_exponent(code, x)
    return log_edges(code, x, _log_sum(code, _log_parts(code, mantissa, exponent), exponent), 0.0)


def log1p(code: Code, x: Value) -> Value:
    one = code.constant(x, 1.0)
    u = code.add(x, one)
    lost = code.sub(x, code.sub(u, one))  # what rounding 1 + x lost, exact while |x| is below 2**mantissa
    huge = code.compare("gt", code.abs(x), code.constant(x, 2.0 ** format_of(x).mantissa))
    lost = code.select(huge, code.constant(x, 0.0), lost)
    mantissa, exponent = mantissa_exponent(code, u)
    parts = _log_parts(code, mantissa, exponent, scale(code, lost, code.neg(exponent)))
    y = _log_sum(code, parts, exponent)
    y = log_edges(code, x, y, -1.0)
    return code.select(code.compare("eq", x, code.constant(x, 0.0)), x, y)


def _in_base(code: Code, x: Value, constants: tuple[float, float]) -> tuple[Value, Pair]:
    """The exponent of x, and the logarithm of its mantissa times a constant in two parts, the first of them rounded."""
    mantissa, exponent = mantissa_exponent(code, x)
    f, rest = _log_parts(code, mantissa, code.constant(x, 0.0))
    high, low = (code.constant(x, part) for part in constants)
    product, lost = two_product(code, f, high)
    return exponent, (product, code.fma(rest, high, code.fma(f, low, lost)))


def log2(code: Code, x: Value) -> Value:
    exponent, (first, rest) = _in_base(code, x, format_of(x).log2_e)
    whole, lost = ordered_sum(code, exponent, first)
    return log_edges(code, x, code.add(whole, code.add(lost, rest)), 0.0)


def log10(code: Code, x: Value) -> Value:
    exponent, (first, rest) = _in_base(code, x, format_of(x).log10_e)
    high, low = (code.constant(x, part) for part in format_of(x).log10_2_short)
    whole, lost = ordered_sum(code, code.mul(exponent, high), first)
    return log_edges(code, x, code.add(whole, code.add(lost, code.fma(exponent, low, rest))), 0.0)
