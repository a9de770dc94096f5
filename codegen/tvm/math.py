"""Vector versions of the elementary functions, in f32 and f64, to about one unit in the last place.

Each works on any number of lanes. Infinities, NaN, signed zeros and subnormal results are those of the C
library. Reductions follow Cody and Waite, *Software Manual for the Elementary Functions* (1980).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.coefficients import (
    ERF_LARGE_F32,
    ERF_SMALL_F32,
    ERF_TABLE_F32,
    FORMATS,
    HALF_EXP2,
    LOG_F32,
    LOG_F64,
    TANH_TABLE_F32,
    FloatFormat,
    Table,
)
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code

VectorFunction = Callable[[Code, Value], Value]


def _format(x: Value) -> FloatFormat:
    return FORMATS[x.type]


# scaling by powers of two


def _fills_register(code: Code, x: Value) -> bool:
    """Whether AVX-512's own instructions for exponents apply."""
    return code.avx512 and x.lanes * (32 if x.type == "float32" else 64) == 512


def _avx512(code: Code, name: str, x: Value, *args: tir.Node) -> Value:
    """An AVX-512 intrinsic on all lanes, in the current rounding mode."""
    suffix, mask = ("ps", "int16") if x.type == "float32" else ("pd", "int8")
    every, mode = tir.integer(-1, mask), tir.integer(4)
    node = tir.intrinsic(f"llvm.x86.avx512.mask.{name}.{suffix}.512", x.type, x.lanes, x.node, *args, every, mode)
    return code.let(Value(node, x.type, x.lanes))


def _scale(code: Code, x: Value, n: Value) -> Value:
    """``x * 2**n`` for a whole number ``n`` (a float), rounded once, also where the result is subnormal."""
    if _fills_register(code, x):
        return _avx512(code, "scalef", x, n.node, x.node)
    whole = _whole(code, n)
    half = code.bitwise("shift_right", whole, code.constant(whole, 1))
    rest = code.sub(whole, half)
    return code.mul(code.mul(x, _power(code, half, _format(x))), _power(code, rest, _format(x)))


def _whole(code: Code, n: Value) -> Value:
    """A small whole float as an integer. Of a NaN, some number: LLVM's own conversion is undefined there."""
    f = _format(n)
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


# exponentials


def _reduce_exp(code: Code, x: Value) -> tuple[Value, Value]:
    """``n`` and ``r`` with ``x = n*ln2 + r``."""
    f = _format(x)
    n = code.call("llvm.rint", x.type, code.mul(x, code.constant(x, f.log2_e[0])))
    r = code.fma(n, code.constant(x, -f.ln2_short[0]), x)
    return n, code.fma(n, code.constant(x, -f.ln2_short[1]), r)


def _exp_rest(code: Code, r: Value, low: Value | None = None) -> Value:
    """``e**(r + low)``. What rounding ``1 + r`` loses is added to the small terms."""
    one = code.constant(r, 1.0)
    first = code.add(one, r)
    lost = code.sub(r, code.sub(first, one))
    if low is not None:
        lost = code.add(lost, low)
    return code.add(first, code.fma(code.mul(code.polynomial(r, _format(r).exp), r), r, lost))


def exp(code: Code, x: Value) -> Value:
    n, r = _reduce_exp(code, _clamp(code, x, *_format(x).exp_range))
    return _scale(code, _exp_rest(code, r), n)


def exp2(code: Code, x: Value) -> Value:
    f = _format(x)
    x = _clamp(code, x, *f.exp2_range)
    n = code.call("llvm.rint", x.type, x)
    fraction = code.sub(x, n)
    ln2 = code.constant(x, f.ln2[0])
    high = code.mul(fraction, ln2)
    low = code.fma(fraction, ln2, code.neg(high))
    low = code.fma(fraction, code.constant(x, f.ln2[1]), low)
    return _scale(code, _exp_rest(code, high, low), n)


def expm1(code: Code, x: Value) -> Value:
    f = _format(x)
    n, r = _reduce_exp(code, _clamp(code, x, *f.exp_range))
    less_one = code.fma(code.mul(code.polynomial(r, f.exp), r), r, r)
    one, top = code.constant(x, 1.0), code.constant(x, float(f.bias))
    overflows = code.compare("gt", n, top)
    power = _scale(code, one, code.select(overflows, top, n))
    y = code.fma(power, less_one, code.sub(power, one))
    y = code.select(overflows, _scale(code, code.add(less_one, one), n), y)
    return code.select(code.compare("eq", x, code.constant(x, 0.0)), x, y)


def _tabulated(code: Code, x: Value, table: Table) -> Value:
    """An odd function from its table, held in registers: AVX-512 picks a piece's numbers with one permutation each.

    Beyond the table it is 1 exactly, so that ``x * (1 - f(x))`` of a large x is 0.
    """
    limit = code.constant(x, table.limit)
    size = code.abs(x)
    beyond = code.compare("gt", size, limit)
    size = code.select(beyond, limit, size)
    rounding = code.constant(x, _format(x).rounding)
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
    f = _format(x)
    if x.type == "float32" and _fills_register(code, x):
        return _tabulated(code, x, TANH_TABLE_F32)
    size = code.abs(x)
    limit, one = code.constant(x, f.tanh_limit), code.constant(x, 1.0)
    bounded = code.select(code.compare("gt", size, limit), limit, size)
    n, r = _reduce_exp(code, code.add(bounded, bounded))
    power = _scale(code, _exp_rest(code, r), n)
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
    if not (_fills_register(code, x) and x.type == "float32"):
        return None
    exponent = code.mul(x, code.constant(x, -2.0 / math.log(2.0) * factor))
    rest = _avx512(code, "reduce", exponent, tir.integer(_FLOOR), exponent.node)  # 0 of infinities
    square = code.mul(rest, rest)
    constant, linear, *others = (code.constant(x, c) for c in HALF_EXP2)
    high = code.fma(code.fma(others[2], rest, others[1]), rest, others[0])
    half = _avx512(code, "scalef", code.fma(high, square, code.fma(linear, rest, constant)), exponent.node, x.node)
    every = tir.integer(-1, "int16")
    below = code.add(half, code.constant(x, 0.5))
    node = tir.intrinsic("llvm.x86.avx512.rcp14.ps.512", x.type, x.lanes, below.node, x.node, every)
    return code.let(Value(node, x.type, x.lanes))


_FLOOR = 1
"""Intel's number for rounding down to whole numbers."""


# logarithms


def _mantissa_exponent(code: Code, x: Value) -> tuple[Value, Value]:
    """``m`` in [sqrt(1/2), sqrt(2)) and a whole ``e`` (both floats) with ``x = m * 2**e``, for finite x > 0."""
    if _fills_register(code, x):
        return _mantissa_exponent_avx512(code, x)
    f = _format(x)
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
    mantissa = _avx512(code, "getmant", x, tir.integer(0), x.node)
    exponent = _avx512(code, "getexp", x, x.node)
    large = code.compare("gt", mantissa, code.constant(x, math.sqrt(2.0)))
    mantissa = code.select(large, code.mul(mantissa, code.constant(x, 0.5)), mantissa)
    return mantissa, code.select(large, code.add(exponent, code.constant(x, 1.0)), exponent)


def _log_parts(code: Code, mantissa: Value, exponent: Value, correction: Value | None = None) -> Value:
    """``log(mantissa + correction) + exponent * ln2``."""
    f = code.sub(mantissa, code.constant(mantissa, 1.0))
    if correction is not None:
        f = code.add(f, correction)
    high, low = (code.constant(f, part) for part in _format(f).ln2_short)
    square = code.mul(f, f)
    if f.type == "float32":
        t = code.fma(exponent, low, code.mul(code.mul(square, f), code.polynomial(f, LOG_F32)))
        t = code.fma(square, code.constant(f, -0.5), t)
        return code.fma(exponent, high, code.add(f, t))
    s = code.div(f, code.add(f, code.constant(f, 2.0)))
    z = code.mul(s, s)
    half = code.mul(square, code.constant(f, 0.5))
    rest = code.fma(code.polynomial(z, LOG_F64), z, half)
    t = code.sub(half, code.fma(s, rest, code.mul(exponent, low)))
    return code.fma(exponent, high, code.sub(f, t))


def _log_edges(code: Code, x: Value, y: Value, zero: float) -> Value:
    """``y`` corrected where ``x`` is ``zero`` (the pole), below it, infinite or NaN."""
    inf = code.constant(x, math.inf)
    y = code.select(code.compare("eq", x, code.constant(x, zero)), code.constant(x, -math.inf), y)
    y = code.select(code.compare("eq", x, inf), inf, y)
    y = code.select(code.compare("lt", x, code.constant(x, zero)), code.constant(x, math.nan), y)
    return code.select(code.compare("eq", x, x), y, x)


def log(code: Code, x: Value) -> Value:
    mantissa, exponent = _mantissa_exponent(code, x)
    return _log_edges(code, x, _log_parts(code, mantissa, exponent), 0.0)


def log1p(code: Code, x: Value) -> Value:
    one = code.constant(x, 1.0)
    u = code.add(x, one)
    lost = code.sub(x, code.sub(u, one))  # what rounding 1 + x lost, exact while |x| is below 2**mantissa
    huge = code.compare("gt", code.abs(x), code.constant(x, 2.0 ** _format(x).mantissa))
    lost = code.select(huge, code.constant(x, 0.0), lost)
    mantissa, exponent = _mantissa_exponent(code, u)
    y = _log_parts(code, mantissa, exponent, _scale(code, lost, code.neg(exponent)))
    y = _log_edges(code, x, y, -1.0)
    return code.select(code.compare("eq", x, code.constant(x, 0.0)), x, y)


def log2(code: Code, x: Value) -> Value:
    mantissa, exponent = _mantissa_exponent(code, x)
    y = _log_parts(code, mantissa, code.constant(x, 0.0))
    high, low = (code.constant(x, part) for part in _format(x).log2_e)
    return _log_edges(code, x, code.fma(y, high, code.fma(y, low, exponent)), 0.0)


def log10(code: Code, x: Value) -> Value:
    mantissa, exponent = _mantissa_exponent(code, x)
    y = _log_parts(code, mantissa, code.constant(x, 0.0))
    high, low = (code.constant(x, part) for part in _format(x).log10_e)
    two_high, two_low = (code.constant(x, part) for part in _format(x).log10_2_short)
    y = code.fma(y, high, code.fma(y, low, code.mul(exponent, two_low)))
    return _log_edges(code, x, code.fma(exponent, two_high, y), 0.0)


def power_f32(code: Code, x: Value, y: Value) -> Value:
    """``x**y`` in f32, by the logarithm in f64; the special cases are those of the C standard (F.10.4.4)."""
    zero, one, size = code.constant(x, 0.0), code.constant(x, 1.0), code.abs(x)
    product = code.mul(log2(code, code.convert(size, "float64")), code.convert(y, "float64"))
    result = code.convert(exp2(code, product), "float32")
    result = code.select(code.compare("eq", size, one), one, result)
    half = code.mul(y, code.constant(y, 0.5))
    whole = code.settle(code.compare("eq", code.call("llvm.trunc", y.type, y), y))
    odd = code.both(whole, code.compare("ne", code.call("llvm.trunc", y.type, half), half))
    result = code.select(odd, code.copysign(result, x), result)
    finite_negative = code.both(code.compare("lt", x, zero), code.compare("gt", x, code.constant(x, -math.inf)))
    outside = code.both(finite_negative, code.invert(whole))
    result = code.select(outside, code.constant(x, math.nan), result)
    return code.select(code.compare("eq", y, zero), one, result)


# sine and cosine


def _reduce_quarter(code: Code, x: Value) -> tuple[Value, Value, Value]:
    """``n``, ``r`` and ``low`` with ``x = n*pi/2 + r + low``."""
    n = code.call("llvm.rint", x.type, code.mul(x, code.constant(x, 2.0 / math.pi)))
    first, second, third = (code.constant(x, -piece) for piece in _format(x).half_pi)
    exact = code.fma(n, first, x)
    product = code.mul(n, second)
    product_lost = code.fma(n, second, code.neg(product))
    r, lost = _two_sum(code, exact, product)
    return n, r, code.fma(n, third, code.add(lost, product_lost))


def _two_sum(code: Code, a: Value, b: Value) -> tuple[Value, Value]:
    """The rounded sum and what rounding lost (Knuth, TAOCP 2, section 4.2.2)."""
    total = code.add(a, b)
    second = code.sub(total, a)
    return total, code.add(code.sub(a, code.sub(total, second)), code.sub(b, second))


def _sin_and_cos(code: Code, r: Value, low: Value) -> tuple[Value, Value]:
    """Sine and cosine of ``r + low`` in [-pi/4, pi/4]."""
    f = _format(r)
    square = code.mul(r, r)
    cube = code.mul(square, r)
    sine = code.add(r, code.fma(code.polynomial(square, f.sin), cube, low))
    one, half = code.constant(r, 1.0), code.constant(r, 0.5)
    halved = code.mul(square, half)
    first = code.sub(one, halved)
    lost = code.sub(code.sub(one, first), halved)
    square_lost = code.fma(r, r, code.neg(square))
    lost = code.sub(lost, code.fma(r, low, code.mul(square_lost, half)))
    fourth = code.mul(square, square)
    return sine, code.add(first, code.fma(code.polynomial(square, f.cos), fourth, lost))


def _sin_or_cos(code: Code, x: Value, quarter: int) -> Value:
    f = _format(x)
    n, r, low = _reduce_quarter(code, x)
    q = code.add(_whole(code, n), tir.constant(quarter, f.integer, x.lanes))
    sine, cosine = _sin_and_cos(code, r, low)
    odd = code.compare("ne", code.bitwise("bitwise_and", q, code.constant(q, 1)), code.constant(q, 0))
    y = code.reinterpret(code.select(odd, cosine, sine), f.integer)
    second = code.bitwise("bitwise_and", q, code.constant(q, 2))
    sign = code.bitwise("shift_left", second, code.constant(q, f.sign_shift))
    return code.reinterpret(code.bitwise("bitwise_xor", y, sign), x.type)


def _with_large(code: Code, x: Value, y: Value, name: str) -> Value:
    large = code.compare("gt", code.abs(x), code.constant(x, _format(x).sin_range))
    suffix = "f" if x.type == "float32" else ""
    return code.replace_where(large, y, lambda inner: inner.library(name + suffix, x))


def sin(code: Code, x: Value) -> Value:
    y = code.select(code.compare("eq", x, code.constant(x, 0.0)), x, _sin_or_cos(code, x, 0))
    return _with_large(code, x, y, "sin")


def cos(code: Code, x: Value) -> Value:
    return _with_large(code, x, _sin_or_cos(code, x, 1), "cos")


# the error function, in f32 only


def erf(code: Code, x: Value) -> Value:
    if _fills_register(code, x):
        return _tabulated(code, x, ERF_TABLE_F32)
    size, square = code.abs(x), code.mul(x, x)
    small = code.fma(code.polynomial(square, ERF_SMALL_F32), size, size)
    four = code.constant(x, 4.0)
    bounded = code.select(code.compare("gt", size, four), four, size)
    power = code.mul(code.polynomial(bounded, ERF_LARGE_F32), bounded)
    one = code.constant(x, 1.0)
    large = code.sub(one, exp(code, code.neg(power)))
    y = code.copysign(code.select(code.compare("lt", size, one), small, large), x)
    return code.select(code.compare("eq", x, x), y, x)


_BOTH: dict[str, VectorFunction] = {
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "log": log,
    "log2": log2,
    "log10": log10,
    "log1p": log1p,
    "sin": sin,
    "cos": cos,
    "tanh": tanh,
}

VECTOR_FUNCTIONS: dict[str, dict[str, VectorFunction]] = {"float32": {**_BOTH, "erf": erf}, "float64": _BOTH}
"""Functions of one argument that are computed on vectors, by element type; all others are called in the C library."""
