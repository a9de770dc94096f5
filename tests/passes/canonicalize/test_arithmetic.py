from __future__ import annotations

import pytest
from rewriting import applying, becomes, computes_the_same, unchanged

from fusec.passes.canonicalize.arithmetic import ARITHMETIC_RULES

simplified = applying(*ARITHMETIC_RULES)


def _graph(dtype: str, body: str, result: str = "%y") -> str:
    lines = "\n".join(f"      {line.strip()}" for line in body.splitlines())
    return f"    graph @g(%x: {dtype}[40], %z: {dtype}[40]) {{\n{lines}\n      return {result}\n    }}\n"


RULES = [
    ("f32", "%a = mul(%x, f32(1.0)) : f32[40]\n%y = exp(%a) : f32[40]", "%y = exp(%x) : f32[40]"),
    ("f32", "%a = mul(f32(1), %x) : f32[40]\n%y = exp(%a) : f32[40]", "%y = exp(%x) : f32[40]"),
    ("f32", "%a = div(%x, f32(1.0)) : f32[40]\n%y = exp(%a) : f32[40]", "%y = exp(%x) : f32[40]"),
    ("f32", "%a = sub(%x, f32(0.0)) : f32[40]\n%y = exp(%a) : f32[40]", "%y = exp(%x) : f32[40]"),
    ("f32", "%a = add(%x, f32(-0.0)) : f32[40]\n%y = exp(%a) : f32[40]", "%y = exp(%x) : f32[40]"),
    ("f32", "%a = pow(%x, f32(1.0)) : f32[40]\n%y = exp(%a) : f32[40]", "%y = exp(%x) : f32[40]"),
    ("i32", "%a = add(i32(0), %x) : i32[40]\n%y = neg(%a) : i32[40]", "%y = neg(%x) : i32[40]"),
    ("i32", "%a = bitwise_or(%x, i32(0)) : i32[40]\n%y = neg(%a) : i32[40]", "%y = neg(%x) : i32[40]"),
    ("i32", "%a = shift_left(%x, i32(0)) : i32[40]\n%y = neg(%a) : i32[40]", "%y = neg(%x) : i32[40]"),
    ("f32", "%a = neg(%x) : f32[40]\n%b = neg(%a) : f32[40]\n%y = exp(%b) : f32[40]", "%y = exp(%x) : f32[40]"),
    ("f32", "%y = div(%x, f32(8.0)) : f32[40]", "%y = mul(%x, f32(0.125)) : f32[40]"),
    ("f32", "%y = div(%x, f32(-0.5)) : f32[40]", "%y = mul(%x, f32(-2.0)) : f32[40]"),
    ("f32", "%y = pow(%x, f32(2.0)) : f32[40]", "%y = mul(%x, %x) : f32[40]"),
    ("i64", "%y = pow(%x, i64(2)) : i64[40]", "%y = mul(%x, %x) : i64[40]"),
    (
        "f32",
        "%y = pow(%x, f32(3.0)) : f32[40]",
        "%y_square = mul(%x, %x) : f32[40]\n%y = mul(%y_square, %x) : f32[40]",
    ),
    ("f32", "%y = pow(%x, f32(-1.0)) : f32[40]", "%y = div(f32(1.0), %x) : f32[40]"),
    (
        "f32",
        "%y = pow(%x, f32(-2.0)) : f32[40]",
        "%y_square = mul(%x, %x) : f32[40]\n%y = div(f32(1.0), %y_square) : f32[40]",
    ),
    (
        "f32",
        "%y = pow(%x, f32(0.5)) : f32[40]",
        "%y = sqrt(%x) : f32[40]",
    ),
    (
        "f32",
        "%y = pow(%x, f32(-0.5)) : f32[40]",
        "%y_unsigned = add(%x, f32(0.0)) : f32[40]\n"
        "%y_sqrt = sqrt(%y_unsigned) : f32[40]\n"
        "%y_below = eq(%x, f32(-inf)) : bool[40]\n"
        "%y_select = select(%y_below, f32(inf), %y_sqrt) : f32[40]\n"
        "%y = div(f32(1.0), %y_select) : f32[40]",
    ),
    (
        "i32",
        "%c = lt(%x, %z) : bool[40]\n%y = logical_not(%c) : bool[40]",
        "%y = ge(%x, %z) : bool[40]",
    ),
    (
        "f32",
        "%c = eq(%x, %z) : bool[40]\n%y = logical_not(%c) : bool[40]",
        "%y = ne(%x, %z) : bool[40]",
    ),
    (
        "f32",
        "%c = isnan(%x) : bool[40]\n%n = logical_not(%c) : bool[40]\n%y = select(%n, %x, %z) : f32[40]",
        "%c = isnan(%x) : bool[40]\n%y = select(%c, %z, %x) : f32[40]",
    ),
    (
        "f32",
        "%c = lt(%x, %z) : bool[40]\n%y = select(%c, bool(false), bool(true)) : bool[40]",
        "%c = lt(%x, %z) : bool[40]\n%y = logical_not(%c) : bool[40]",
    ),
    (
        "f32",
        "%c = lt(%x, %z) : bool[40]\n%t = select(%c, f32(1.0), f32(0.0)) : f32[40]\n%y = eq(%t, f32(0.0)) : bool[40]",
        "%c = lt(%x, %z) : bool[40]\n%y = logical_not(%c) : bool[40]",
    ),
    (
        "i32",
        "%c = lt(%x, %z) : bool[40]\n%t = cast(%c) : f32[40]\n%y = gt(%t, f32(0.5)) : bool[40]",
        "%c = lt(%x, %z) : bool[40]",
    ),
    (
        "f32",
        "%c = lt(%x, %z) : bool[40]\n%y = eq(%c, bool(false)) : bool[40]",
        "%c = lt(%x, %z) : bool[40]\n%y = logical_not(%c) : bool[40]",
    ),
    (
        "f32",
        "%c = lt(%x, %z) : bool[40]\n%t = select(%c, f32(1.0), f32(0.0)) : f32[40]\n"
        "%u = sub(f32(1.0), %t) : f32[40]\n%y = mul(%u, f32(-10000.0)) : f32[40]",
        "%c = lt(%x, %z) : bool[40]\n%y = select(%c, f32(-0.0), f32(-10000.0)) : f32[40]",
    ),
]


@pytest.mark.parametrize(("dtype", "before", "after"), RULES)
def test_rule(dtype: str, before: str, after: str) -> None:
    last = after.splitlines()[-1].partition(" ")[0]
    becomes(simplified, _graph(dtype, before), _graph(dtype, after, last))


KEPT = [
    (
        "f32",
        "%y = add(%x, f32(0.0)) : f32[40]",
        "neutral-operand: %y: %x + 0.0 is not %x where that is -0.0",
    ),
    (
        "f32",
        "%y = div(%x, f32(1.7014118346046923e+38)) : f32[40]",
        "div-by-power-of-two: %y: 1/1.7014118346046923e+38 is not a normal number of f32",
    ),
    (
        "f32",
        "%y = pow(%x, f32(4.0)) : f32[40]",
        "pow-by-constant: %y: pow(%x, 4.0) has no spelling that is as exact and cheaper",
    ),
    (
        "f32",
        "%c = lt(%x, %z) : bool[40]\n%y = logical_not(%c) : bool[40]",
        "not-of-comparison: %y: not lt of %x holds for NaN, and ge does not",
    ),
    ("f32", "%h = broadcast(f32(0.5)) : f32[40]\n%y = pow(%x, %h) : f32[40]", None),
    ("f32", "%y = sub(%x, f32(-0.0)) : f32[40]", None),
    ("f32", "%y = sub(%x, %x) : f32[40]", None),
    ("f32", "%y = mul(%x, f32(0.0)) : f32[40]", None),
    ("f32", "%y = div(%x, f32(3.0)) : f32[40]", None),
    ("f32", "%y = div(%x, f32(0.0)) : f32[40]", None),
    ("f32", "%a = add(%x, f32(2.0)) : f32[40]\n%y = sub(%a, f32(2.0)) : f32[40]", None),
    ("f32", "%a = add(%x, %z) : f32[40]\n%y = sub(%a, %z) : f32[40]", None),
    ("i32", "%y = pow(%x, i32(-1)) : i32[40]", None),
    ("f32", "%y = mul(%x, %z) : f32[40]", None),
]


@pytest.mark.parametrize(("dtype", "body", "reason"), KEPT)
def test_what_would_change_a_bit_stays(dtype: str, body: str, reason: str | None) -> None:
    assert unchanged(simplified, _graph(dtype, body)) == ([] if reason is None else [reason])


def test_a_neutral_operand_that_broadcasts_stays() -> None:
    unchanged(
        simplified,
        """
        graph @g(%x: f32[1]) {
          %ones = broadcast(f32(1.0)) : f32[3]
          %y = mul(%x, %ones) : f32[3]
          return %y
        }
        """,
    )


def test_the_first_power() -> None:
    graph = computes_the_same(simplified, _graph("f32", "%y = pow(%x, f32(1.0)) : f32[40]"))
    assert not graph.ops


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
@pytest.mark.parametrize("exponent", ["2.0", "3.0", "-1.0", "0.5", "-0.5"])
def test_powers_of_other_dtypes(dtype: str, exponent: str) -> None:
    computes_the_same(simplified, _graph(dtype, f"%y = pow(%x, {dtype}({exponent})) : {dtype}[40]"))


def test_the_inverse_must_be_normal_in_its_own_dtype() -> None:
    body = "%y = div(%x, f16(32768.0)) : f16[40]"
    assert unchanged(simplified, _graph("f16", body)) == [
        "div-by-power-of-two: %y: 1/32768.0 is not a normal number of f16"
    ]
