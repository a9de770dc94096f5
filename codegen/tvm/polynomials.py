# SPDX-License-Identifier: Apache-2.0
"""Polynomials of trigonometric and error functions, for f32 and f64, the highest power first.

Minimax fits of relative error (Remez), in hexadecimal.
"""

from __future__ import annotations

from dataclasses import dataclass

Coefficients = tuple[float, ...]


@dataclass(frozen=True)
class Polynomials:
    """The polynomials of one format.

    tan, atan, asin, sinh: (f(x)/x - 1) / x**2 in x**2, on [0, pi/4] and a little more,
    [0, sqrt(2) - 1], [0, 1/2] and [0, 1].
    erf_small: erf(x)/x - 1 in x**2 on [0, 1]; erfc_small: the same on [0, 1/2], to fewer digits.
    erf_large: -log(erfc(x)) / x on [1, erf_limit], from where on erf rounds to 1.
    erfc: (1 + 2*x) * e**(x**2) * erfc(x) - 1 in (x - erfc_pole) / (x + erfc_pole), for x from 1/2 to erfc_limit, from
    where on erfc rounds to 0.
    """

    tan: Coefficients
    atan: Coefficients
    asin: Coefficients
    sinh: Coefficients
    erf_small: Coefficients
    erf_large: Coefficients
    erf_limit: float
    erfc_small: Coefficients
    erfc: Coefficients
    erfc_pole: float
    erfc_limit: float


def _numbers(text: str) -> Coefficients:
    return tuple(float.fromhex(word) for word in text.split())


F32 = Polynomials(
    tan=_numbers("""
        0x1.3b0d6p-9 -0x1.82300ap-10 0x1.7f576ep-8 0x1.02de4p-7 0x1.6a243cp-6 0x1.b9dabp-5 0x1.111218p-3 0x1.555552p-2
    """),
    atan=_numbers("""
        -0x1.f1daf6p-5 0x1.b1e8fap-4 -0x1.23b4f6p-3 0x1.999194p-3 -0x1.55554ap-2
    """),
    asin=_numbers("""
        0x1.336bdap-5 0x1.d8e7c8p-7 0x1.0494d2p-5 0x1.6cae8p-5 0x1.33387ep-4 0x1.55554cp-3
    """),
    sinh=_numbers("""
        0x1.7a15b2p-19 0x1.9ffe92p-13 0x1.111134p-7 0x1.555556p-3
    """),
    erf_small=_numbers("""
        -0x1.449782p-17 0x1.d89ff4p-14 -0x1.bcd3a4p-11 0x1.562abep-8 -0x1.b829dp-6 0x1.ce2f0ap-4 -0x1.812746p-2
        0x1.06eba8p-3
    """),
    erf_large=_numbers("""
        0x1.2faf18p-23 -0x1.cbf372p-19 0x1.24e52ap-15 -0x1.78c09ap-13 0x1.35edc8p-12 0x1.3acf7cp-9
        -0x1.6be0a2p-6 0x1.ae54b8p-4 0x1.4572dap-1 0x1.20e976p0
    """),
    erf_limit=4.0,
    erfc_small=_numbers("""
        0x1.3226d6p-8 -0x1.b5f5ccp-6 0x1.ce1fccp-4 -0x1.81271cp-2 0x1.06eba8p-3
    """),
    erfc=_numbers("""
        0x1.ee7f2ep-13 -0x1.50520ap-12 -0x1.85bf6p-10 0x1.40a046p-10 0x1.1e24eep-7 -0x1.06ff8ap-7 -0x1.bc2e36p-5
        0x1.4ff9d4p-3 -0x1.5407b8p-3 -0x1.7bf5eap-4 0x1.1ba038p-2
    """),
    erfc_pole=2.0,
    erfc_limit=10.25,
)

F64 = Polynomials(
    tan=_numbers("""
        0x1.45eed38632dc8p-17 -0x1.90d35ed781a14p-16 0x1.91869c2e3f0aap-15 -0x1.9ea28af29acbep-16
        0x1.16e8ea45e9248p-14 0x1.6022930b9f6c5p-14 0x1.fedbe70b88c26p-13 0x1.34c1dc8bdb327p-11
        0x1.7db0fc343b9f5p-10 0x1.d6d2f1f2ff741p-9 0x1.226e3a42d1651p-7 0x1.664f485f122cap-6
        0x1.ba1ba1bab63c1p-5 0x1.111111111067ap-3 0x1.555555555555dp-2
    """),
    atan=_numbers("""
        -0x1.2540bea748182p-6 0x1.37c247e5ddf66p-5 -0x1.9ccaf173434c6p-5 0x1.df0d8446c629ap-5 -0x1.10eb97fce6b2p-4
        0x1.3b111627de7ebp-4 -0x1.745cf8afbf34ep-4 0x1.c71c70e467552p-4 -0x1.24924922a8bc2p-3 0x1.9999999995792p-3
        -0x1.555555555553dp-2
    """),
    asin=_numbers("""
        0x1.0b82e0cac70bp-5 -0x1.58ba15a5dadf7p-6 0x1.641f0791f3275p-6 0x1.e45136cce9d43p-9 0x1.6157c118a0728p-7
        0x1.7580cbd1bcd2fp-7 0x1.ca201e323f84dp-7 0x1.1c49ea7a04dc7p-6 0x1.6e8bdf3206dc1p-6 0x1.f1c71a921cf49p-6
        0x1.6db6db7219dacp-5 0x1.333333332e09p-4 0x1.5555555555577p-3
    """),
    sinh=_numbers("""
        0x1.b4c75c5f07e45p-41 0x1.611a5617e508fp-33 0x1.ae64671b279c2p-26 0x1.71de3a465b0bep-19
        0x1.a01a01a02899ep-13 0x1.11111111110a6p-7 0x1.5555555555556p-3
    """),
    erf_small=_numbers("""
        -0x1.abae353b8c9f6p-31 0x1.d71b21cf3dcd1p-27 -0x1.5c072df7c0e9ep-23 0x1.b97fd5d5cea58p-20
        -0x1.f4ca4dbca9a02p-17 0x1.f9a2bab00ed8ep-14 -0x1.c02db03e3cd72p-11 0x1.565bccf92eaadp-8
        -0x1.b82ce311fab6fp-6 0x1.ce2f21a040d21p-4 -0x1.812746b0379bdp-2 0x1.06eba8214db68p-3
    """),
    erf_large=_numbers("""
        -0x1.a86d3db1ec52ep-40 0x1.26b8b69299283p-34 -0x1.7f4aa104c2988p-30 0x1.35ec549bfcf13p-26
        -0x1.5c90e3317412cp-23 0x1.205105c20d682p-20 -0x1.6836b6b60c9fep-18 0x1.5471f8ec3f3f2p-16
        -0x1.d4c6fef3d623ep-15 0x1.8f24c6bcc837cp-14 -0x1.df9bc38274062p-22 -0x1.2da420dce9e86p-11
        0x1.bbe1f2e8df9e3p-10 -0x1.bdba4312bbc21p-13 -0x1.3956c17f2c61dp-6 0x1.a4f2e9ab4e41bp-4
        0x1.45f317cd13ceap-1 0x1.20dd740734492p0
    """),
    erf_limit=6.0,
    erfc_small=_numbers("""
        0x1.88d9b06dd200cp-20 -0x1.f1d1c89b9f2a3p-17 0x1.f989281aac5efp-14 -0x1.c02d2dad4d0ep-11
        0x1.565bcb6a0f2f5p-8 -0x1.b82ce30c7d847p-6 0x1.ce2f21a036af7p-4 -0x1.812746b037938p-2
        0x1.06eba8214db67p-3
    """),
    erfc=_numbers("""
        -0x1.5c2d1aa0113c3p-27 -0x1.a2e45085801f6p-27 0x1.c14b9990e03d2p-24 0x1.1f7a34ec42647p-24
        -0x1.b8d74b90fefd5p-21 0x1.41c321820dfe4p-22 0x1.7f076629d13c4p-18 -0x1.78a44d4aab0e1p-17
        -0x1.9956bd3db845ep-16 0x1.3be0d9adb680bp-13 -0x1.a1df35916b5b5p-13 -0x1.8d4aa1a585af8p-11
        0x1.49c67296e6f63p-8 -0x1.0962387d71af3p-6 0x1.3079edf65746cp-5 -0x1.0fb06dfe6c48cp-4
        0x1.7fee004e13583p-4 -0x1.9ddb23c3e7c46p-4 0x1.16ecefcfa5337p-4 0x1.f7f5df66fd561p-7
        -0x1.1df1ad154a28ep-3 0x1.dd2c8b74febf6p-3
    """),
    erfc_pole=4.0,
    erfc_limit=27.25,
)

POLYNOMIALS = {"float32": F32, "float64": F64}

LOG_PAIR_F64 = _numbers("""
    0x1.eb15577c3ae24p-5 0x1.de32fb73db9a2p-5 0x1.1120b82687cefp-4 0x1.3b1362a849a5cp-4 0x1.745d1832786e5p-4
    0x1.c71c71c5803d5p-4 0x1.2492492493035p-3 0x1.9999999999996p-3
""")
"""((atanh(s)/s - 1) / z - 1/3) / z in z = s**2, for |s| up to (sqrt(2) - 1) / (sqrt(2) + 1)."""
