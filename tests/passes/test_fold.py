from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest
from rewriting import becomes, computes_the_same, unchanged

from fusec.ir.attributes import ConstantAttributes
from fusec.ir.parse import parse
from fusec.passes.fold import fold

CASES = [
    # Arithmetic in the constants' own dtype.
    (
        "%a = add(f32(0.1), f32(0.2)) : f32[]\n%y = mul(%x, %a) : f32[2, 3]",
        "%y = mul(%x, f32(0.30000001192092896)) : f32[2, 3]",
    ),
    (
        "%a = mul(u8(200), u8(2)) : u8[]\n%b = cast(%a) : f32[]\n%y = mul(%x, %b) : f32[2, 3]",
        "%y = mul(%x, f32(144.0)) : f32[2, 3]",
    ),
    ("%a = cast(f64(0.1)) : f32[]\n%y = mul(%x, %a) : f32[2, 3]", "%y = mul(%x, f32(0.10000000149011612)) : f32[2, 3]"),
    (
        "%a = div(f32(-1.0), f32(0.0)) : f32[]\n%y = maximum(%x, %a) : f32[2, 3]",
        "%y = maximum(%x, f32(-inf)) : f32[2, 3]",
    ),
    ("%a = neg(f32(0.0)) : f32[]\n%y = add(%x, %a) : f32[2, 3]", "%y = add(%x, f32(-0.0)) : f32[2, 3]"),
    # Filled arrays stay one number and a view.
    (
        "%o = broadcast(f32(1.0)) : f32[3]\n%a = exp(%o) : f32[3]\n%y = mul(%x, %a) : f32[2, 3]",
        "%a = broadcast(f32(2.7182817459106445)) : f32[3]\n%y = mul(%x, %a) : f32[2, 3]",
    ),
    # Conditions.
    ("%y = select(bool(true), %x, %z) : f32[2, 3]\n%w = exp(%y) : f32[2, 3]", "%w = exp(%x) : f32[2, 3]"),
    ("%y = select(bool(false), %x, %z) : f32[2, 3]\n%w = exp(%y) : f32[2, 3]", "%w = exp(%z) : f32[2, 3]"),
    ("%y = select(%c, %x, %x) : f32[2, 3]\n%w = exp(%y) : f32[2, 3]", "%w = exp(%x) : f32[2, 3]"),
    (
        "%t = logical_and(%c, bool(true)) : bool[2, 3]\n%w = select(%t, %x, %z) : f32[2, 3]",
        "%w = select(%c, %x, %z) : f32[2, 3]",
    ),
    (
        "%t = logical_or(bool(true), %c) : bool[2, 3]\n%w = select(%t, %x, %z) : f32[2, 3]\n%v = exp(%w) : f32[2, 3]",
        "%v = exp(%x) : f32[2, 3]",
    ),
    # Indices whose ranges decide a comparison.
    (
        "%i = iota() {axis=0} : i64[2, 3]\n%t = lt(%i, i64(2)) : bool[2, 3]\n"
        "%w = select(%t, %x, %z) : f32[2, 3]\n%v = exp(%w) : f32[2, 3]",
        "%v = exp(%x) : f32[2, 3]",
    ),
    (
        "%i = iota() {axis=0} : i64[2, 3]\n%j = iota() {axis=1} : i64[2, 3]\n%k = add(%j, i64(2)) : i64[2, 3]\n"
        "%t = ge(%k, %i) : bool[2, 3]\n%w = select(%t, %x, %z) : f32[2, 3]\n%v = exp(%w) : f32[2, 3]",
        "%v = exp(%x) : f32[2, 3]",
    ),
    (
        "%i = iota() {axis=0} : i64[1, 3]\n%j = iota() {axis=1} : i64[1, 3]\n%t = le(%i, %j) : bool[1, 3]\n"
        "%w = select(%t, %x, %z) : f32[2, 3]\n%v = exp(%w) : f32[2, 3]",
        "%v = exp(%x) : f32[2, 3]",
    ),
]


def _graph(body: str) -> str:
    lines = body.splitlines()
    result = lines[-1].partition(" ")[0]
    indented = "\n".join(f"      {line}" for line in lines)
    return f"""
    graph @g(%x: f32[2, 3], %z: f32[2, 3], %c: bool[2, 3]) {{
{indented}
      return {result}
    }}
    """


@pytest.mark.parametrize(("before", "after"), CASES)
def test_fires(before: str, after: str) -> None:
    becomes(fold, _graph(before), _graph(after), rounds=True)


KEPT = [
    "%i = iota() {axis=0} : i64[2, 3]\n%t = lt(%i, i64(1)) : bool[2, 3]\n%w = select(%t, %x, %z) : f32[2, 3]",
    "%i = iota() {axis=1} : i64[2, 3]\n%j = iota() {axis=0} : i64[2, 3]\n%t = le(%i, %j) : bool[2, 3]\n"
    "%w = select(%t, %x, %z) : f32[2, 3]",
    # The sum may have wrapped around.
    "%i = iota() {axis=1} : i8[2, 3]\n%k = add(%i, i8(126)) : i8[2, 3]\n%t = gt(%k, i8(0)) : bool[2, 3]\n"
    "%w = select(%t, %x, %z) : f32[2, 3]",
    # Not a number, or none that fits: what the cast gives depends on the machine.
    "%a = cast(f32(nan)) : i32[]\n%b = cast(%a) : f32[]\n%y = mul(%x, %b) : f32[2, 3]",
    "%a = cast(f32(1e+20)) : i32[]\n%b = cast(%a) : f32[]\n%y = mul(%x, %b) : f32[2, 3]",
    # NaN may be anywhere.
    "%t = eq(%x, %x) : bool[2, 3]\n%w = select(%t, %x, %z) : f32[2, 3]",
    "%y = mul(%x, f32(0.0)) : f32[2, 3]",
]


@pytest.mark.parametrize("body", KEPT)
def test_does_not_fire(body: str) -> None:
    unchanged(fold, _graph(body))


def test_an_iota_that_wraps_around_decides_nothing() -> None:
    unchanged(
        fold,
        """
        graph @g(%x: f32[300]) {
          %i = iota() {axis=0} : u8[300]
          %t = le(%i, u8(254)) : bool[300]
          %y = select(%t, %x, f32(0.0)) : f32[300]
          return %y
        }
        """,
    )


def test_bounds_of_a_symbol_decide() -> None:
    text = """
    graph @g<B in [1, 8]>(%x: f32[B]) {
      %i = iota() {axis=0} : i64[B]
      %t = lt(%i, i64(8)) : bool[B]
      %w = select(%t, %x, f32(0.0)) : f32[B]
      %y = exp(%w) : f32[B]
      return %y
    }
    """
    assert [op.name for op in fold(parse(dedent(text))).ops] == ["exp"]
    assert [op.name for op in fold(parse(dedent(text.replace("i64(8)", "i64(7)")))).ops].count("select") == 1


def test_a_constant_output_is_one_number() -> None:
    graph = computes_the_same(
        fold,
        """
        graph @g(%x: f32[2]) {
          %a = broadcast(f32(2.0)) : f32[4]
          %y = sqrt(%a) : f32[4]
          return %y
        }
        """,
        rounds=True,
    )
    assert [op.name for op in graph.ops] == ["constant", "broadcast"]


def test_the_branch_that_is_taken() -> None:
    graph = computes_the_same(fold, _graph("%y = select(bool(true), %x, %z) : f32[2, 3]"))
    assert not graph.ops


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_folding_rounds_as_the_op_does(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = (float(v) for v in rng.standard_normal(2))
        text = f"""
        graph @g() {{
          %s = add({dtype}({a!r}), {dtype}({b!r})) : {dtype}[]
          %p = mul(%s, {dtype}({b!r})) : {dtype}[]
          return %p
        }}
        """
        graph = computes_the_same(fold, text, rounds=True)
        (op,) = graph.ops
        assert isinstance(op.attributes, ConstantAttributes)
