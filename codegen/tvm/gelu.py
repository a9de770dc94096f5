# SPDX-License-Identifier: Apache-2.0
"""gelu on AVX-512's vectors: one table for the whole of it, where erf alone would need more digits near 0."""

from __future__ import annotations

import math

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.context import Numbers
from fusec.codegen.tvm.math import fills_register, format_of, within
from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code
from fusec.tile.scalar import Apply, Const, ScalarExpr


def gelu_operand(e: Apply, numbers: Numbers) -> ScalarExpr | None:
    """``x`` of ``0.5 x (1 + erf(x / sqrt(2)))`` in f32, in whatever order it is multiplied."""
    if e.op != "mul" or e.dtype.name != "f32":
        return None
    a, b = e.args
    for factors in ([a, *_factors(b)], [b, *_factors(a)]):
        rest = [f for f in factors if not _is_constant(f, 0.5)]
        polynomials = [x for f in rest if (x := _erf_of(f)) is not None]
        others = [f for f in rest if _erf_of(f) is None]
        if len(factors) == 3 and len(polynomials) == len(others) == 1:
            x = others[0]
            if numbers.number(x) == numbers.number(polynomials[0]):
                return x
    return None


def _factors(e: ScalarExpr) -> tuple[ScalarExpr, ...]:
    return e.args if isinstance(e, Apply) and e.op == "mul" else (e,)


def _is_constant(e: ScalarExpr, value: float) -> bool:
    """To f32's digits."""
    return isinstance(e, Const) and math.isclose(e.value.real, value, rel_tol=2.0**-23)


def _erf_of(e: ScalarExpr) -> ScalarExpr | None:
    """``x`` of ``1 + erf(x / sqrt(2))``."""
    if not (isinstance(e, Apply) and e.op == "add"):
        return None
    for one, erf in (e.args, e.args[::-1]):
        if _is_constant(one, 1.0) and isinstance(erf, Apply) and erf.op == "erf":
            return _over_root_two(erf.args[0])
    return None


def _over_root_two(e: ScalarExpr) -> ScalarExpr | None:
    if not isinstance(e, Apply):
        return None
    if e.op == "div" and _is_constant(e.args[1], math.sqrt(2.0)):
        return e.args[0]
    if e.op == "mul":
        for constant, x in (e.args, e.args[::-1]):
            if _is_constant(constant, math.sqrt(0.5)):
                return x
    return None


def gelu(code: Code, x: Value) -> Value | None:
    """``x/2 + |x| G(|x|)`` with ``G(a)`` the normal distribution's share from 0 to ``a``; None without AVX-512.

    16 instructions, where erf alone takes 22 and what is left 5; the last gives a zero the sign of ``x``. G is off by
    half a unit of 2**-24, about as much as what adding 1 to an exact erf rounds off. From LIMIT on it is 1/2, so that
    gelu is x or 0 there; of infinities and NaN it is what the formula gives. For bf16 too: erf + 1 to bf16's digits
    takes 20 instructions alone.
    """
    if not (x.type == "float32" and fills_register(code, x)):
        return None
    size = within(code, x, LIMIT, absolute=True)
    rounding, scale = code.constant(x, format_of(x).rounding), code.constant(x, PIECES_PER_UNIT)
    biased = code.fma(size, scale, rounding)
    piece = code.reinterpret(biased, "int32")
    t = code.fma(size, scale, code.neg(code.sub(biased, rounding)))
    share, *others = (_pick(code, column, piece) for column in COLUMNS)
    for coefficient in others:
        share = code.fma(share, t, coefficient)
    return code.copysign(code.fma(code.abs(x), share, code.mul(x, code.constant(x, 0.5))), x)


def _pick(code: Code, column: tuple[float, ...], piece: Value) -> Value:
    """``column[piece & 31]`` on each lane: one instruction that takes two registers for a table."""
    low, high = (tir.join([tir.constant(number, "float32") for number in half]) for half in (column[:16], column[16:]))
    name = "llvm.x86.avx512.vpermi2var.ps.512"
    return code.let(Value(tir.intrinsic(name, "float32", 16, low.node, piece.node, high.node), "float32", 16))


LIMIT = 6.0

PIECES_PER_UNIT = 5.166666507720947


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split())


COLUMNS = (
    _numbers("""
        3.20245181e-06 1.30144235e-05 2.41734306e-05 3.01110358e-05 3.25817236e-05 2.85880069e-05 2.35094758e-05
        1.50954475e-05 6.88939872e-06 -2.37656479e-07 -5.46772344e-06 -7.80396658e-06 -8.60965702e-06 -8.95042831e-06
        -6.52767176e-06 -5.44977229e-06 -4.33731566e-06 -2.08909614e-06 -2.34192476e-06 -1.34784636e-06
        -1.03434263e-06 -1.0590652e-06 -2.45554332e-07 -1.0526454e-07 -2.53639598e-08 -1.33176428e-07 1.93831525e-07
        -1.42171757e-07 3.95942124e-09 5.08792994e-07 1.63154283e-07 0
    """),
    _numbers("""
        -0.000483377546 -0.000454666326 -0.000379703328 -0.000269712124 -0.000143165176 -1.94687e-05 8.51616205e-05
        0.000160368567 0.000202694515 0.000214738087 0.000203181742 0.000176481903 0.000142769713 0.000108500135
        7.78968097e-05 5.30357138e-05 3.433858e-05 2.1186388e-05 1.24761673e-05 7.02102898e-06 3.77963352e-06
        1.94796803e-06 9.61817705e-07 4.55229696e-07 2.06634027e-07 8.9987978e-08 3.76127929e-08 1.50933435e-08
        5.81639492e-09 2.15299378e-09 7.6567358e-10 0
    """),
    _numbers("""
        1.98528554e-07 -0.00141940219 -0.00268384465 -0.0036656193 -0.00428717956 -0.00452729408 -0.00442159269
        -0.00404359167 -0.00348931295 -0.00285492861 -0.00222215801 -0.00164955598 -0.00116968551 -0.00079310796
        -0.000515376916 -0.000320671534 -0.000191267944 -0.00010978544 -6.00518724e-05 -3.17061349e-05 -1.5989237e-05
        -7.62769832e-06 -3.65521601e-06 -1.6493766e-06 -7.21189679e-07 -2.62263939e-07 -1.82381143e-07 -2.53606225e-09
        -1.86566229e-08 -1.65213621e-07 -5.31197841e-08 0
    """),
    _numbers("""
        0.0772146285 0.075781785 0.0716409311 0.0652361885 0.0572198704 0.0483432785 0.0393419787 0.0308394916
        0.0232856888 0.0169356465 0.0118643874 0.00800607447 0.0052038487 0.00325807021 0.00196483848 0.00114136329
        0.00063863321 0.000344199012 0.000178689166 8.93546603e-05 4.30394321e-05 1.99685328e-05 8.92392654e-06
        3.84145642e-06 1.59281706e-06 6.36159314e-07 2.44734792e-07 9.06891628e-08 3.23701528e-08 1.11291945e-08
        3.68563424e-09 0
    """),
    _numbers("""
        0 0.0767352432 0.150657728 0.219260186 0.280591846 0.333413363 0.377238095 0.412265539 0.439235449 0.459240139
        0.473534524 0.483374208 0.489899158 0.494067401 0.496632576 0.498153299 0.499021798 0.499499649 0.499752879
        0.499882191 0.49994579 0.49997592 0.499989688 0.499995738 0.499998301 0.499999344 0.499999762 0.499999911
        0.49999997 0.5 0.5 0.5
    """),
)
"""The coefficients of the 4th to the 0th power of the distance from a piece's centre, in pieces, for each of 32 pieces:
least squares, each coefficient rounded to f32 before those of higher powers were fitted. The last piece is 1/2."""
