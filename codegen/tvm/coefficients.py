# SPDX-License-Identifier: Apache-2.0
"""Constants of the elementary functions, for f32 and f64.

Polynomials are near-minimax (Chebyshev) fits, the highest power first. Constants given as a sum of floats hold
more digits than one float: the first is the rounded value, or one with zeros at its end so that a product with
a small whole number is exact.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FloatFormat:
    """One IEEE format and its tables.

    mantissa, bias: of the encoding. rounding: 1.5 * 2**mantissa; added to a small whole number, it leaves that in the
    lowest bits. exp_range, exp2_range: where the result is neither 0 nor infinite, with some margin.
    tanh_limit: from where on tanh rounds to 1. sin_range: beyond it the reduction by pi/2 is not good enough.
    exp: (e**r - 1 - r) / r**2 on [-ln2/2, ln2/2]. tanh: (tanh(x)/x - 1) / x**2 in x**2 on [0, 1].
    sin: (sin(x)/x - 1) / x**2 in x**2, cos: (cos(x) - 1 + x**2/2) / x**4 in x**2, on [0, (pi/4)**2].
    """

    type: str
    integer: str
    mantissa: int
    bias: int
    smallest_normal: float
    sqrt_half_bits: int
    exp_range: tuple[float, float]
    exp2_range: tuple[float, float]
    tanh_limit: float
    sin_range: float
    ln2_short: tuple[float, float]
    ln2: tuple[float, float]
    log2_e: tuple[float, float]
    log10_e: tuple[float, float]
    log10_2_short: tuple[float, float]
    half_pi: tuple[float, float, float]
    exp: tuple[float, ...]
    tanh: tuple[float, ...]
    sin: tuple[float, ...]
    cos: tuple[float, ...]

    @property
    def rounding(self) -> float:
        return 1.5 * 2.0**self.mantissa

    @property
    def sign_shift(self) -> int:
        """From bit 1 to the sign bit."""
        return 30 if self.mantissa == 23 else 62

    @property
    def rounding_bits(self) -> int:
        """The encoding of ``rounding``."""
        return ((self.bias + self.mantissa) << self.mantissa) | (1 << (self.mantissa - 1))


F32 = FloatFormat(
    type="float32",
    integer="int32",
    mantissa=23,
    bias=127,
    smallest_normal=2.0**-126,
    sqrt_half_bits=0x3F3504F3,
    exp_range=(-104.0, 89.0),
    exp2_range=(-151.0, 129.0),
    tanh_limit=10.0,
    sin_range=1.0e6,
    ln2_short=(0.693145751953125, 1.428606820309417e-06),
    ln2=(0.6931471824645996, -1.904654323148236e-09),
    log2_e=(1.4426950216293335, 1.925963033500e-08),
    log10_e=(0.4342944920063019, -1.010305e-08),
    log10_2_short=(0.301025390625, 4.605038981195214e-06),
    half_pi=(float.fromhex("0x1.921fb6p0"), float.fromhex("-0x1.777a5cp-25"), float.fromhex("-0x1.ee59dap-50")),
    exp=(0.0001989951706, 0.00139338302, 0.008333298378, 0.04166646302, 0.1666666716, 0.5),
    tanh=(
        0.0001438288164,
        -0.0009271475137,
        0.003211853793,
        -0.008701320738,
        0.02183077857,
        -0.05396362394,
        0.1333331168,
        -0.3333333433,
    ),
    sin=(2.718311493989822e-6, -1.98408743366e-4, 8.33333293858894e-3, -1.66666666416265e-1),
    cos=(2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2),
)

F64 = FloatFormat(
    type="float64",
    integer="int64",
    mantissa=52,
    bias=1023,
    smallest_normal=2.0**-1022,
    sqrt_half_bits=0x3FE6A09E667F3BCD,
    exp_range=(-746.0, 710.0),
    exp2_range=(-1076.0, 1025.0),
    tanh_limit=22.0,
    sin_range=1.0e9,
    ln2_short=(float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")),
    ln2=(float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56")),
    log2_e=(float.fromhex("0x1.71547652b82fep+0"), float.fromhex("0x1.777d0ffda0d24p-56")),
    log10_e=(float.fromhex("0x1.bcb7b1526e50ep-2"), float.fromhex("0x1.95355baaafad3p-57")),
    log10_2_short=(float.fromhex("0x1.3441350800000p-2"), float.fromhex("0x1.f79fef311f12bp-34")),
    half_pi=(
        float.fromhex("0x1.921fb54442d18p+0"),
        float.fromhex("0x1.1a62633145c07p-54"),
        float.fromhex("-0x1.f1976b7ed8fbcp-110"),
    ),
    exp=(
        2.09147553258932e-09,
        2.5105312729622103e-08,
        2.755727347871858e-07,
        2.755725517000089e-06,
        2.480158732567746e-05,
        0.0001984126987500228,
        0.0013888888888883711,
        0.008333333333326084,
        0.04166666666666667,
        0.1666666666666667,
        0.5,
    ),
    tanh=(
        -8.538161901212156e-09,
        9.364144622965759e-08,
        -5.122767150793262e-07,
        1.9216974143833895e-06,
        -5.777484136865915e-06,
        1.541627724102249e-05,
        -3.8991741215043214e-05,
        9.67910218266933e-05,
        -0.0002390884367049363,
        0.0005900175685254319,
        -0.0014558326516768139,
        0.003592127823422879,
        -0.008863235512566054,
        0.021869488535296695,
        -0.053968253968231523,
        0.1333333333333331,
        -0.3333333333333333,
    ),
    sin=(
        -7.586094789672621e-13,
        1.6058521349954986e-10,
        -2.5052106167335705e-08,
        2.7557319219150783e-06,
        -0.00019841269841264821,
        0.008333333333333331,
        -0.16666666666666666,
    ),
    cos=(
        4.745537017319258e-14,
        -1.1470455178216906e-11,
        2.0876755754879594e-09,
        -2.755731922129809e-07,
        2.480158730158451e-05,
        -0.0013888888888888887,
        0.041666666666666664,
    ),
)

FORMATS = {"float32": F32, "float64": F64}

LOG_F32 = (
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

LOG_F64 = (
    0.1308944373626974,
    0.13268503447792365,
    0.15386249783145214,
    0.18181795454619548,
    0.22222222393451754,
    0.28571428570795937,
    0.4000000000000089,
    0.6666666666666666,
)
"""(log((1 + s)/(1 - s)) - 2*s) / s**3 in s**2, with s = f / (2 + f)."""

HALF_EXP2 = (0.5000013, 0.34650192, 0.12072138, 0.02600573, 0.00676708)
"""2**r / 2 on [0, 1) to 2.6e-6, for results that are rounded to bf16."""

ERF_ODDS = (
    1.25236683e-08,
    -7.48449509e-07,
    1.8727118e-05,
    -0.0002489053,
    0.00168783765,
    0.000921207946,
    -0.297004998,
    -3.25564218,
)
"""log2((1 - erf(x)) / (1 + erf(x))) / x in x**2 on [0, 3.6**2], times x to 2e-5."""

SHORT_EXP2 = (0.0780245215, 0.226067171, 0.695833504, 0.999925196)
"""2**r on [0, 1) to 7.5e-5 of itself, for results that are rounded to bf16."""

EXP_F32 = (0.0013814434, 0.008368797, 0.041668396, 0.1666652, 0.49999993)
"""(e**r - 1 - r) / r**2 on [-ln2/2, ln2/2], e**r to 3.1e-9 of itself: fewer terms than where digits beyond f32's
count."""

EXP2 = (0.000217022549, 0.00124396884, 0.00967884064, 0.0554833412, 0.24022983, 0.693147004, 1.0)
"""2**r on [0, 1) to 1.9e-9 of itself."""
