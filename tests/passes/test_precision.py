from __future__ import annotations

import numpy as np
import pytest
from programs import run
from rewriting import becomes, computes_the_same, unchanged

from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.precision import precision


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_prod"])
def test_sums_of_halves_accumulate_in_f32(name: str) -> None:
    becomes(
        precision,
        f"""
        graph @g(%x: bf16[4, 300]) {{
          %y = {name}(%x) {{axes=[1]}} : bf16[4]
          return %y
        }}
        """,
        f"""
        graph @g(%x: bf16[4, 300]) {{
          %y_wide = cast(%x) : f32[4, 300]
          %y_total = {name}(%y_wide) {{axes=[1]}} : f32[4]
          %y = cast(%y_total) : bf16[4]
          return %y
        }}
        """,
    )


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running_sums_are_left(name: str) -> None:
    """What computes them adds up in f32 by itself."""
    graph = computes_the_same(
        precision,
        f"""
        graph @g(%x: f16[4, 30]) {{
          %y = {name}(%x) {{axis=1}} : f16[4, 30]
          return %y
        }}
        """,
    )
    assert [op.name for op in graph.ops] == [name]


def test_a_comparison_sees_the_rounded_sum() -> None:
    becomes(
        precision,
        """
        graph @g(%x: bf16[9], %z: bf16[9]) {
          %a = add(%x, %z) : bf16[9]
          %n = neg(%a) : bf16[9]
          %t = lt(%n, %z) : bool[9]
          return %t
        }
        """,
        """
        graph @g(%x: bf16[9], %z: bf16[9]) {
          %a = add(%x, %z) : bf16[9]
          %n = neg(%a) : bf16[9]
          %t_rounded = cast(%n) : bf16[9]
          %t = lt(%t_rounded, %z) : bool[9]
          return %t
        }
        """,
    )


def test_each_step_to_a_jump_is_rounded() -> None:
    """The scale of a row decides where its integers lie."""
    becomes(
        precision,
        """
        graph @g(%x: bf16[4, 9]) {
          %m = reduce_max(%x) {axes=[1]} : bf16[4]
          %s = div(%m, bf16(127.0)) : bf16[4]
          %k = reshape(%s) : bf16[4, 1]
          %q = div(%x, %k) : bf16[4, 9]
          %y = round(%q) : bf16[4, 9]
          %i = cast(%y) : i8[4, 9]
          return %i, %s
        }
        """,
        """
        graph @g(%x: bf16[4, 9]) {
          %m = reduce_max(%x) {axes=[1]} : bf16[4]
          %s = div(%m, bf16(127.0)) : bf16[4]
          %s_rounded = cast(%s) : bf16[4]
          %k = reshape(%s_rounded) : bf16[4, 1]
          %q = div(%x, %k) : bf16[4, 9]
          %q_rounded = cast(%q) : bf16[4, 9]
          %y = round(%q_rounded) : bf16[4, 9]
          %i_rounded = cast(%y) : bf16[4, 9]
          %i = cast(%i_rounded) : i8[4, 9]
          return %i, %s
        }
        """,
        special=False,
    )


def test_steps_that_decide_nothing_keep_their_digits() -> None:
    graph = computes_the_same(
        precision,
        """
        graph @g(%x: bf16[9], %z: bf16[9]) {
          %a = mul(%x, %z) : bf16[9]
          %b = exp(%a) : bf16[9]
          %t = lt(%x, %z) : bool[9]
          %y = select(%t, %b, %x) : bf16[9]
          return %y
        }
        """,
    )
    assert not [op for op in graph.ops if op.name == "cast"]


@pytest.mark.parametrize("call", ["floor(%a) : f16[9]", "cast(%a) : i32[9]", "argmax(%a) {axis=0} : i64[]"])
def test_other_jumps(call: str) -> None:
    graph = computes_the_same(
        precision,
        f"""
        graph @g(%x: f16[9], %z: f16[9]) {{
          %a = mul(%x, %z) : f16[9]
          %t = {call}
          return %t
        }}
        """,
        special=not call.startswith("cast"),
    )
    assert [op.result.name for op in graph.ops] == ["a", "t_rounded", "t"]


def test_a_jump_sees_the_rounding_at_the_end_of_a_library_call() -> None:
    graph = computes_the_same(
        precision,
        """
        graph @g(%x: bf16[9]) {
          %w = cast(%x) : f32[9]
          %m = mul(%w, f32(0.3)) : f32[9]
          %h = cast(%m) {implied=true} : bf16[9]
          %y = gt(%h, bf16(0.25)) : bool[9]
          return %y
        }
        """,
    )
    assert "y_rounded" in [op.result.name for op in graph.ops]


KEPT = [
    # The library's own rounding between two steps may be left out by a kernel.
    "%h = cast(%x) {implied=true} : bf16[9]\n%y = exp(%h) : bf16[9]",
    # A user's own rounding stays, however pointless it looks.
    "%a = cast(%x) : bf16[9]\n%y = cast(%a) : f32[9]",
    # Nothing is rounded before the comparison: the input is a half.
    "%h = cast(%x) : bf16[9]\n%y = lt(%h, bf16(0.5)) : bool[9]",
    # No jump, so the f32 digits only help.
    "%h = cast(%x) : bf16[9]\n%a = mul(%h, %h) : bf16[9]\n%y = exp(%a) : bf16[9]",
    # The largest of halves is one of them.
    "%h = cast(%x) : f16[9]\n%y = reduce_max(%h) {axes=[0]} : f16[]",
    # Full precision needs no care.
    "%a = mul(%x, %x) : f32[9]\n%s = reduce_sum(%a) {axes=[0]} : f32[]\n%y = floor(%s) : f32[]",
]


@pytest.mark.parametrize("body", KEPT)
def test_what_stays(body: str) -> None:
    lines = "\n".join(f"      {line}" for line in body.splitlines())
    unchanged(precision, f"    graph @g(%x: f32[9]) {{\n{lines}\n      return %y\n    }}\n")


def test_an_intermediate_selection_is_looked_through() -> None:
    graph = computes_the_same(
        precision,
        """
        graph @g(%x: bf16[9], %c: bool[9]) {
          %a = mul(%x, %x) : bf16[9]
          %s = select(%c, %a, %x) : bf16[9]
          %r = reshape(%s) : bf16[3, 3]
          %y = ge(%r, bf16(0.25)) : bool[3, 3]
          return %y
        }
        """,
    )
    assert "y_rounded" in [op.result.name for op in graph.ops]


def test_many_small_terms_are_not_lost() -> None:
    text = "graph @g(%x: bf16[4096]) {\n  %y = reduce_sum(%x) {axes=[0]} : bf16[]\n  return %y\n}"
    ones = np.ones(4096, np.float32).astype(parse(text).inputs[0].type.dtype.numpy)
    (y,) = interpret(precision(parse(text)), [ones])
    assert float(y) == 4096.0


_PRODUCTS = """
graph @g(%x: f32[4, 30], %w: f32[30, 8], %h: f16[4, 30], %v: f16[30, 8]) {
  %y = dot(%x, %w) {contract=[1]x[0]} : f32[4, 8]
  %z = dot(%h, %v) {contract=[1]x[0]} : f16[4, 8]
  return %y, %z
}
"""


def test_products_of_f32_keep_their_digits_unless_asked() -> None:
    unchanged(precision, _PRODUCTS)
    becomes(
        lambda graph: precision(graph, tf32=True), _PRODUCTS, _PRODUCTS.replace("[0]} : f32", "[0], tf32=true} : f32")
    )


def _doubles(graph: Graph) -> Graph:
    return precision(graph, doubles=True)


def test_a_mean_is_made_in_f64_on_a_cpu() -> None:
    text = """
    graph @g(%x: f32[4, 9]) {
      %s = reduce_sum(%x) {axes=[1]} : f32[4]
      %m = div(%s, f32(9.0)) : f32[4]
      return %m
    }
    """
    unchanged(precision, text)
    becomes(
        _doubles,
        text,
        """
        graph @g(%x: f32[4, 9]) {
          %m_total = reduce_sum(%x) {axes=[1], dtype=f64} : f64[4]
          %m_count = cast(f32(9.0)) : f64[]
          %m_wide = div(%m_total, %m_count) : f64[4]
          %m = cast(%m_wide) : f32[4]
          return %m
        }
        """,
    )


@pytest.mark.parametrize("divisor", ["%n", "%x"])
def test_other_quotients_of_sums_stay(divisor: str) -> None:
    text = f"""
    graph @g(%x: f32[9], %n: f32[]) {{
      %s = reduce_sum(%x) {{axes=[0]}} : f32[]
      %y = div(%s, {divisor}) : f32[{"9" if divisor == "%x" else ""}]
      return %y
    }}
    """
    unchanged(_doubles, text)


def test_the_mean_of_equal_numbers_is_that_number() -> None:
    text = """
    graph @g(%x: f32[3, 100]) {
      %s = reduce_sum(%x) {axes=[1]} : f32[3]
      %k = reshape(%s) : f32[3, 1]
      %m = div(%k, f32(100.0)) : f32[3, 1]
      %y = sub(%x, %m) : f32[3, 100]
      return %y
    }
    """
    x = np.repeat(np.array([[0.1], [1000.1], [3.3333]], np.float32), 100, axis=1)
    assert not np.any(run(text, [x]).outputs[0])


def test_a_product_s_factors_are_no_roundings() -> None:
    text = """
    graph @g(%x: f32[4, 9]) {
      %p = reduce_prod(%x) {axes=[1]} : f32[4]
      return %p
    }
    """
    unchanged(precision, text)
    becomes(
        _doubles,
        text,
        """
        graph @g(%x: f32[4, 9]) {
          %p_product = reduce_prod(%x) {axes=[1], dtype=f64} : f64[4]
          %p = cast(%p_product) : f32[4]
          return %p
        }
        """,
    )
    x = np.array([[1e30, 1e30, 1e-30, 1e-30, 1, 1, 1, 1, 3]] * 4, np.float32)
    np.testing.assert_allclose(run(text, [x]).outputs[0], 3, rtol=1e-6)
