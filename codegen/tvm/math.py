"""Vector versions of the elementary functions in f32, in a few units in the last place.

Each works on any number of lanes. Infinities, NaN, signed zeros and subnormal results are those of the C
library. Coefficients are near-minimax fits (weighted Chebyshev) rounded to f32; reductions follow Cody and
Waite, *Software Manual for the Elementary Functions* (1980).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code

LOG2E = 1.4426950408889634
LN2_HIGH = 0.693145751953125
LN2_LOW = 1.42860682030941723212e-6


def _scale(code: Code, x: Value, n: Value) -> Value:
    """``x * 2**n`` for a whole number ``n`` (a float), rounded once, also where the result is subnormal."""
    if code.avx512 and x.lanes == 16:
        every, mode = tir.integer(-1, "int16"), tir.integer(4)
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        return code.let(Value(tir.intrinsic(name, "float32", 16, x.node, n.node, x.node, every, mode), "float32", 16))
    whole = _whole(code, n)
    half = code.bitwise("shift_right", whole, code.constant(whole, 1))
    rest = code.sub(whole, half)
    return code.mul(code.mul(x, _power(code, half)), _power(code, rest))


ROUNDING = 12582912.0
"""1.5 * 2**23: added to a float of less than 2**22, it leaves the whole part in the lowest bits."""


def _whole(code: Code, n: Value) -> Value:
    """A whole float of less than 2**22 as int32. Of a NaN, some number: LLVM's own conversion is undefined there."""
    bits = code.reinterpret(code.add(n, code.constant(n, ROUNDING)), "int32")
    return code.sub(bits, code.constant(bits, 0x4B400000))


def _power(code: Code, n: Value) -> Value:
    """``2**n`` of an int32 in the range of normal exponents."""
    biased = code.add(n, code.constant(n, 127))
    return code.reinterpret(code.bitwise("shift_left", biased, code.constant(n, 23)), "float32")


def _clamp(code: Code, x: Value, low: float, high: float) -> Value:
    """``x`` within [low, high]; NaN stays NaN."""
    x = code.select(code.compare("gt", x, code.constant(x, high)), code.constant(x, high), x)
    return code.select(code.compare("lt", x, code.constant(x, low)), code.constant(x, low), x)


EXP = (0.0001989951706, 0.00139338302, 0.008333298378, 0.04166646302, 0.1666666716, 0.5)
"""(e**r - 1 - r) / r**2 on [-ln2/2, ln2/2]."""


def _reduce_exp(code: Code, x: Value) -> tuple[Value, Value]:
    """``n`` and ``r`` with ``x = n*ln2 + r``."""
    n = code.call("llvm.rint", "float32", code.mul(x, code.constant(x, LOG2E)))
    r = code.fma(n, code.constant(x, -LN2_HIGH), x)
    return n, code.fma(n, code.constant(x, -LN2_LOW), r)


def _exp_parts(code: Code, x: Value) -> tuple[Value, Value]:
    """``n`` and ``e**r - 1`` with ``x = n*ln2 + r``."""
    n, r = _reduce_exp(code, x)
    return n, code.fma(code.mul(code.polynomial(r, EXP), r), r, r)


def _exp_rest(code: Code, r: Value, low: Value | None = None) -> Value:
    """``e**(r + low)``. What rounding ``1 + r`` loses is added to the small terms."""
    one = code.constant(r, 1.0)
    first = code.add(one, r)
    lost = code.sub(r, code.sub(first, one))
    if low is not None:
        lost = code.add(lost, low)
    return code.add(first, code.fma(code.mul(code.polynomial(r, EXP), r), r, lost))


def exp(code: Code, x: Value) -> Value:
    n, r = _reduce_exp(code, _clamp(code, x, -104.0, 89.0))
    return _scale(code, _exp_rest(code, r), n)


def exp2(code: Code, x: Value) -> Value:
    x = _clamp(code, x, -151.0, 129.0)
    n = code.call("llvm.rint", "float32", x)
    fraction = code.sub(x, n)
    high = code.mul(fraction, code.constant(x, math.log(2.0)))
    low = code.fma(fraction, code.constant(x, math.log(2.0)), code.neg(high))
    low = code.fma(fraction, code.constant(x, _LN2_ERROR), low)
    return _scale(code, _exp_rest(code, high, low), n)


_LN2_ERROR = -1.904654323148236e-09
"""ln2 less its f32 value."""


def expm1(code: Code, x: Value) -> Value:
    n, less_one = _exp_parts(code, _clamp(code, x, -104.0, 89.0))
    one, top = code.constant(x, 1.0), code.constant(x, 127.0)
    overflows = code.compare("gt", n, top)
    power = _scale(code, one, code.select(overflows, top, n))
    y = code.fma(power, less_one, code.sub(power, one))
    y = code.select(overflows, _scale(code, code.add(less_one, one), n), y)
    return code.select(code.compare("eq", x, code.constant(x, 0.0)), x, y)


TANH = (
    0.0001438288164,
    -0.0009271475137,
    0.003211853793,
    -0.008701320738,
    0.02183077857,
    -0.05396362394,
    0.1333331168,
    -0.3333333433,
)
"""(tanh(x)/x - 1) / x**2 in x**2 on [0, 1]."""


def tanh(code: Code, x: Value) -> Value:
    size = code.abs(x)
    ten = code.constant(x, 10.0)
    bounded = code.select(code.compare("gt", size, ten), ten, size)
    n, r = _reduce_exp(code, code.add(bounded, bounded))
    power = _scale(code, _exp_rest(code, r), n)
    one = code.constant(x, 1.0)
    large = code.sub(one, code.div(code.constant(x, 2.0), code.add(power, one)))
    square = code.mul(x, x)
    p = code.polynomial(square, TANH)
    small = code.fma(code.mul(p, square), size, size)
    return code.copysign(code.select(code.compare("lt", size, one), small, large), x)


LOG = (
    0.0714975372,
    -0.1157120094,
    0.1166151091,
    -0.124110505,
    0.1424993724,
    -0.1666848063,
    0.200007081,
    -0.2499998957,
    0.3333333135,
)
"""(log(1 + f) - f + f**2/2) / f**3 on [sqrt(1/2) - 1, sqrt(2) - 1]."""

SMALLEST_NORMAL = 1.1754943508222875e-38


def _mantissa_exponent(code: Code, x: Value) -> tuple[Value, Value]:
    """``m`` in [sqrt(1/2), sqrt(2)) and a whole ``e`` (both floats) with ``x = m * 2**e``, for finite x > 0."""
    if code.avx512 and x.lanes == 16:
        return _mantissa_exponent_avx512(code, x)
    tiny = code.compare("lt", x, code.constant(x, SMALLEST_NORMAL))
    bits = code.reinterpret(code.select(tiny, code.mul(x, code.constant(x, 2.0**24)), x), "int32")
    offset = code.sub(bits, code.constant(bits, 0x3F3504F3))  # the bits of sqrt(1/2)
    whole = code.bitwise("shift_right", offset, code.constant(bits, 23))
    shifted = code.bitwise("shift_left", whole, code.constant(bits, 23))
    mantissa = code.reinterpret(code.sub(bits, shifted), "float32")
    exponent = code.convert(whole, "float32")
    return mantissa, code.select(tiny, code.sub(exponent, code.constant(x, 24.0)), exponent)


def _mantissa_exponent_avx512(code: Code, x: Value) -> tuple[Value, Value]:
    every, mode = tir.integer(-1, "int16"), tir.integer(4)
    get_mantissa, get_exponent = "llvm.x86.avx512.mask.getmant.ps.512", "llvm.x86.avx512.mask.getexp.ps.512"
    raw = tir.intrinsic(get_mantissa, "float32", 16, x.node, tir.integer(0), x.node, every, mode)
    mantissa = code.let(Value(raw, "float32", 16))
    exponent = code.let(Value(tir.intrinsic(get_exponent, "float32", 16, x.node, x.node, every, mode), "float32", 16))
    large = code.compare("gt", mantissa, code.constant(x, math.sqrt(2.0)))
    mantissa = code.select(large, code.mul(mantissa, code.constant(x, 0.5)), mantissa)
    return mantissa, code.select(large, code.add(exponent, code.constant(x, 1.0)), exponent)


def _log_parts(code: Code, mantissa: Value, exponent: Value, correction: Value | None) -> Value:
    """``log(mantissa + correction) + exponent * ln2``."""
    f = code.sub(mantissa, code.constant(mantissa, 1.0))
    if correction is not None:
        f = code.add(f, correction)
    square = code.mul(f, f)
    t = code.mul(code.mul(square, f), code.polynomial(f, LOG))
    t = code.fma(exponent, code.constant(f, LN2_LOW), t)
    t = code.fma(square, code.constant(f, -0.5), t)
    return code.fma(exponent, code.constant(f, LN2_HIGH), code.add(f, t))


def _log_edges(code: Code, x: Value, y: Value, zero: float) -> Value:
    """``y`` corrected where ``x`` is ``zero`` (the pole), below it, infinite or NaN."""
    inf = code.constant(x, math.inf)
    y = code.select(code.compare("eq", x, code.constant(x, zero)), code.constant(x, -math.inf), y)
    y = code.select(code.compare("eq", x, inf), inf, y)
    y = code.select(code.compare("lt", x, code.constant(x, zero)), code.constant(x, math.nan), y)
    return code.select(code.compare("eq", x, x), y, x)


def log(code: Code, x: Value) -> Value:
    mantissa, exponent = _mantissa_exponent(code, x)
    return _log_edges(code, x, _log_parts(code, mantissa, exponent, None), 0.0)


def log1p(code: Code, x: Value) -> Value:
    one = code.constant(x, 1.0)
    u = code.add(x, one)
    lost = code.sub(x, code.sub(u, one))  # what rounding 1 + x lost, exact while |x| < 2**24
    huge = code.compare("gt", code.abs(x), code.constant(x, 1e7))
    lost = code.select(huge, code.constant(x, 0.0), lost)
    mantissa, exponent = _mantissa_exponent(code, u)
    y = _log_parts(code, mantissa, exponent, _scale(code, lost, code.neg(exponent)))
    y = _log_edges(code, x, y, -1.0)
    return code.select(code.compare("eq", x, code.constant(x, 0.0)), x, y)


def log2(code: Code, x: Value) -> Value:
    mantissa, exponent = _mantissa_exponent(code, x)
    y = _log_parts(code, mantissa, code.constant(x, 0.0), None)
    y = code.fma(y, code.constant(x, LOG2E), exponent)
    return _log_edges(code, x, y, 0.0)


LOG10E = 0.4342944819032518
LOG10_2_HIGH = 0.301025390625
LOG10_2_LOW = 4.605038981195214e-06


def log10(code: Code, x: Value) -> Value:
    mantissa, exponent = _mantissa_exponent(code, x)
    y = _log_parts(code, mantissa, code.constant(x, 0.0), None)
    y = code.fma(exponent, code.constant(x, LOG10_2_LOW), code.mul(y, code.constant(x, LOG10E)))
    return _log_edges(code, x, code.fma(exponent, code.constant(x, LOG10_2_HIGH), y), 0.0)


SIN = (2.718311493989822e-6, -1.98408743366e-4, 8.33333293858894e-3, -1.66666666416265e-1)
COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
HALF_PI = (float.fromhex("0x1.921fb6p0"), float.fromhex("-0x1.777a5cp-25"), float.fromhex("-0x1.ee59dap-50"))
SIN_RANGE = 1.0e6
"""Beyond this the reduction by three parts of pi/2 loses too much; the C library takes over."""


def _reduce_quarter(code: Code, x: Value) -> tuple[Value, Value, Value]:
    """``n``, ``r`` and ``low`` with ``x = n*pi/2 + r + low``, the reduction good to some 70 bits."""
    n = code.call("llvm.rint", "float32", code.mul(x, code.constant(x, 2.0 / math.pi)))
    first, second, third = (code.constant(x, -piece) for piece in HALF_PI)
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
    square = code.mul(r, r)
    cube = code.mul(square, r)
    sine = code.add(r, code.fma(code.polynomial(square, SIN), cube, low))
    one, half = code.constant(r, 1.0), code.constant(r, 0.5)
    halved = code.mul(square, half)
    first = code.sub(one, halved)
    lost = code.sub(code.sub(one, first), halved)
    square_lost = code.fma(r, r, code.neg(square))
    lost = code.sub(lost, code.fma(r, low, code.mul(square_lost, half)))
    fourth = code.mul(square, square)
    return sine, code.add(first, code.fma(code.polynomial(square, COS), fourth, lost))


def _sin_or_cos(code: Code, x: Value, quarter: int) -> Value:
    n, r, low = _reduce_quarter(code, x)
    q = code.add(_whole(code, n), tir.constant(quarter, "int32", x.lanes))
    sine, cosine = _sin_and_cos(code, r, low)
    odd = code.compare("ne", code.bitwise("bitwise_and", q, code.constant(q, 1)), code.constant(q, 0))
    y = code.reinterpret(code.select(odd, cosine, sine), "int32")
    sign = code.bitwise("shift_left", code.bitwise("bitwise_and", q, code.constant(q, 2)), code.constant(q, 30))
    return code.reinterpret(code.bitwise("bitwise_xor", y, sign), "float32")


def _with_large(code: Code, x: Value, y: Value, name: str) -> Value:
    large = code.compare("gt", code.abs(x), code.constant(x, SIN_RANGE))
    return code.replace_where(large, y, lambda inner: inner.library(name, x))


def sin(code: Code, x: Value) -> Value:
    y = code.select(code.compare("eq", x, code.constant(x, 0.0)), x, _sin_or_cos(code, x, 0))
    return _with_large(code, x, y, "sinf")


def cos(code: Code, x: Value) -> Value:
    return _with_large(code, x, _sin_or_cos(code, x, 1), "cosf")


ERF_SMALL = (
    -9.673590284e-06,
    0.0001126825373,
    -0.0008484396385,
    0.005221053492,
    -0.02686543763,
    0.1128378287,
    -0.3761263788,
    0.1283791661,
)
"""erf(x)/x - 1 in x**2 on [0, 1]."""

ERF_LARGE = (
    1.414138637e-07,
    -3.426901685e-06,
    3.491582538e-05,
    -0.0001796495199,
    0.000295571168,
    0.002401813399,
    -0.02220931835,
    0.1050612628,
    0.6356418729,
    1.128562331,
)


def erf(code: Code, x: Value) -> Value:
    size, square = code.abs(x), code.mul(x, x)
    small = code.fma(code.polynomial(square, ERF_SMALL), size, size)
    four = code.constant(x, 4.0)
    bounded = code.select(code.compare("gt", size, four), four, size)
    power = code.mul(code.polynomial(bounded, ERF_LARGE), bounded)
    one = code.constant(x, 1.0)
    large = code.sub(one, exp(code, code.neg(power)))
    y = code.copysign(code.select(code.compare("lt", size, one), small, large), x)
    return code.select(code.compare("eq", x, x), y, x)


VECTOR_FUNCTIONS: dict[str, Callable[[Code, Value], Value]] = {
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
    "erf": erf,
}
"""Functions of one f32 argument that are computed on vectors; all others are called in the C library."""
