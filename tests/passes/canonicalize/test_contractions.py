from __future__ import annotations

import pytest
from rewriting import applying, becomes, computes_the_same, unchanged

from fusec.passes.canonicalize.contractions import CONTRACTION_RULES

opened = applying(*CONTRACTION_RULES)


def test_linear_keeps_the_leading_axes() -> None:
    becomes(
        opened,
        """
        graph @g(%x: f32[2, 8, 16], %w: f32[4, 16], %b: f32[4]) {
          %h = linear(%x, %w, %b) : f32[2, 8, 4]        // model.py:3
          return %h
        }
        """,
        """
        graph @g(%x: f32[2, 8, 16], %w: f32[4, 16], %b: f32[4]) {
          %h_dot = dot(%x, %w) {contract=[2]x[1]} : f32[2, 8, 4]        // model.py:3
          %h = add(%h_dot, %b) : f32[2, 8, 4]        // model.py:3
          return %h
        }
        """,
    )


def test_linear_of_halves_adds_the_bias_before_it_rounds() -> None:
    becomes(
        opened,
        """
        graph @g(%x: bf16[8, 16], %w: bf16[4, 16], %b: bf16[4]) {
          %h = linear(%x, %w, %b) : bf16[8, 4]
          return %h
        }
        """,
        """
        graph @g(%x: bf16[8, 16], %w: bf16[4, 16], %b: bf16[4]) {
          %h_dot = dot(%x, %w) {contract=[1]x[1], dtype=f32} : f32[8, 4]
          %h_f32 = cast(%b) : f32[4]
          %h_biased = add(%h_dot, %h_f32) : f32[8, 4]
          %h = cast(%h_biased) {implied=true} : bf16[8, 4]
          return %h
        }
        """,
    )


def test_attention_scores_read_through_the_heads_permute() -> None:
    becomes(
        opened,
        """
        graph @g(%q: f32[2, 8, 4, 16], %k: f32[2, 8, 4, 16]) {
          %qh = permute(%q) {permutation=[0, 2, 1, 3]} : f32[2, 4, 8, 16]
          %kt = permute(%k) {permutation=[0, 2, 3, 1]} : f32[2, 4, 16, 8]
          %s = matmul(%qh, %kt) : f32[2, 4, 8, 8]
          return %s
        }
        """,
        """
        graph @g(%q: f32[2, 8, 4, 16], %k: f32[2, 8, 4, 16]) {
          %s = dot(%q, %k) {contract=[3]x[3], batch=[0, 2]x[0, 2]} : f32[2, 4, 8, 8]
          return %s
        }
        """,
    )


def test_a_matrix_with_no_batch_axes_is_not_repeated() -> None:
    becomes(
        opened,
        """
        graph @g(%a: f32[4, 5], %b: f32[2, 3, 5, 6]) {
          %c = matmul(%a, %b) : f32[2, 3, 4, 6]
          return %c
        }
        """,
        """
        graph @g(%a: f32[4, 5], %b: f32[2, 3, 5, 6]) {
          %c_dot = dot(%a, %b) {contract=[1]x[2]} : f32[4, 2, 3, 6]
          %c = permute(%c_dot) {permutation=[1, 2, 0, 3]} : f32[2, 3, 4, 6]
          return %c
        }
        """,
    )


def test_batch_axes_of_both_become_broadcast_views() -> None:
    becomes(
        opened,
        """
        graph @g(%a: f32[2, 1, 4, 5], %b: f32[3, 5, 6]) {
          %c = matmul(%a, %b) : f32[2, 3, 4, 6]
          return %c
        }
        """,
        """
        graph @g(%a: f32[2, 1, 4, 5], %b: f32[3, 5, 6]) {
          %c_lhs = broadcast(%a) : f32[2, 3, 4, 5]
          %c_rhs = broadcast(%b) : f32[2, 3, 5, 6]
          %c = dot(%c_lhs, %c_rhs) {contract=[3]x[2], batch=[0, 1]x[0, 1]} : f32[2, 3, 4, 6]
          return %c
        }
        """,
    )


def test_a_permute_of_free_axes_stays_and_says_why() -> None:
    text = """
    graph @g(%a: f32[4, 3, 5], %b: f32[5, 6]) {
      %p = permute(%a) {permutation=[1, 0, 2]} : f32[3, 4, 5]
      %c = dot(%p, %b) {contract=[2]x[0]} : f32[3, 4, 6]
      return %c
    }
    """
    (reason,) = unchanged(applying(*CONTRACTION_RULES), text)
    assert reason == (
        "dot-of-permuted: %c: %p puts the free axes of %a in the order [1, 0], and so would the result be"
    )


SHAPES = [
    ("5", "5", ""),
    ("5", "5, 6", "6"),
    ("4, 5", "5", "4"),
    ("4, 5", "5, 6", "4, 6"),
    ("3, 4, 5", "5", "3, 4"),
    ("5", "3, 5, 6", "3, 6"),
    ("3, 4, 5", "5, 6", "3, 4, 6"),
    ("3, 4, 5", "3, 5, 6", "3, 4, 6"),
    ("1, 4, 5", "3, 5, 6", "3, 4, 6"),
    ("1, 1, 4, 5", "5, 6", "1, 1, 4, 6"),
    ("1, 1, 4, 5", "1, 5, 6", "1, 1, 4, 6"),
    ("3, 4, 5", "1, 1, 5, 6", "1, 3, 4, 6"),
    ("2, 1, 4, 5", "3, 5, 6", "2, 3, 4, 6"),
    ("0, 5", "5, 6", "0, 6"),
    ("4, 0", "0, 6", "4, 6"),
]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
@pytest.mark.parametrize(("left", "right", "result"), SHAPES)
def test_matmul_is_one_dot(left: str, right: str, result: str, dtype: str) -> None:
    graph = computes_the_same(
        opened,
        f"""
        graph @g(%a: {dtype}[{left}], %b: {dtype}[{right}]) {{
          %c = matmul(%a, %b) : {dtype}[{result}]
          return %c
        }}
        """,
    )
    assert [op.name for op in graph.ops if op.definition.kind != "view"] == ["dot"]


@pytest.mark.parametrize("order", ["0, 1, 2", "0, 2, 1", "1, 0, 2", "1, 2, 0", "2, 0, 1", "2, 1, 0"])
def test_dot_of_any_permute(order: str) -> None:
    extents = {"0": 3, "1": 4, "2": 5}
    shape = ", ".join(str(extents[k]) for k in order.split(", "))
    first, second, last = shape.split(", ")
    computes_the_same(
        opened,
        f"""
        graph @g(%a: f32[3, 4, 5], %b: f32[{first}, {last}, 7]) {{
          %p = permute(%a) {{permutation=[{order}]}} : f32[{shape}]
          %c = dot(%p, %b) {{contract=[2]x[1], batch=[0]x[0]}} : f32[{first}, {second}, 7]
          return %c
        }}
        """,
    )


@pytest.mark.parametrize("dtype", ["f16", "f32", "i64"])
def test_linear_without_bias(dtype: str) -> None:
    computes_the_same(
        opened,
        f"""
        graph @g(%x: {dtype}[16], %w: {dtype}[4, 16]) {{
          %h = linear(%x, %w) : {dtype}[4]
          return %h
        }}
        """,
    )


WIDENED = """
        graph @g(%x: {a}[8, 16], %w: {b}[16, 4]) {{
          %xi = cast(%x) : i32[8, 16]
          %wi = cast(%w) : i32[16, 4]
          %y = dot(%xi, %wi) {{contract=[1]x[0]}} : i32[8, 4]
          return %y
        }}
        """


def test_a_product_of_bytes_takes_them_as_they_are() -> None:
    becomes(
        opened,
        WIDENED.format(a="i8", b="i8"),
        """
        graph @g(%x: i8[8, 16], %w: i8[16, 4]) {
          %y = dot(%x, %w) {contract=[1]x[0], dtype=i32} : i32[8, 4]
          return %y
        }
        """,
    )
    computes_the_same(opened, WIDENED.format(a="i8", b="i8"))


@pytest.mark.parametrize(("a", "b"), [("i8", "i16"), ("u8", "i8"), ("i16", "i16")])
def test_a_product_of_other_integers_stays(a: str, b: str) -> None:
    unchanged(opened, WIDENED.format(a=a, b=b))
