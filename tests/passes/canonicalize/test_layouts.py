"""The view that puts an image's channels in front goes behind what follows it."""

from __future__ import annotations

import pytest
from rewriting import applying, becomes, computes_the_same, unchanged

from fusec.passes.canonicalize import canonicalize
from fusec.passes.canonicalize.layouts import LAYOUT_RULES

sunk = applying(*LAYOUT_RULES)


def of_image(*lines: str, inputs: str = "", returns: str = "%y") -> str:
    """A graph whose ``%p`` shows an image with its channels last in PyTorch's order."""
    body = "\n  ".join(("%p = permute(%x) {permutation=[0, 3, 1, 2]} : f32[2, 3, 4, 5]", *lines))
    more = f", {inputs}" if inputs else ""
    return f"graph @g(%x: f32[2, 4, 5, 3]{more}) {{\n  {body}\n  return {returns}\n}}"


def test_elementwise_ops_and_what_they_broadcast() -> None:
    becomes(
        sunk,
        of_image(
            "%a = add(%p, %s) : f32[2, 3, 4, 5]",
            "%b = mul(%a, %k) : f32[2, 3, 4, 5]",
            "%y = maximum(%b, f32(0.0)) : f32[2, 3, 4, 5]",
            inputs="%s: f32[3, 1, 1], %k: f32[]",
        ),
        """
        graph @g(%x: f32[2, 4, 5, 3], %s: f32[3, 1, 1], %k: f32[]) {
          %a_reshape = reshape(%s) : f32[1, 3, 1, 1]
          %a_permute = permute(%a_reshape) {permutation=[0, 2, 3, 1]} : f32[1, 1, 1, 3]
          %a_add = add(%x, %a_permute) : f32[2, 4, 5, 3]
          %b_mul = mul(%a_add, %k) : f32[2, 4, 5, 3]
          %y_maximum = maximum(%b_mul, f32(0.0)) : f32[2, 4, 5, 3]
          %y = permute(%y_maximum) {permutation=[0, 3, 1, 2]} : f32[2, 3, 4, 5]
          return %y
        }
        """,
    )


def test_two_views_meet_and_another_operand_is_seen_so() -> None:
    becomes(
        sunk,
        of_image(
            "%a = add(%r, %p) : f32[2, 3, 4, 5]",
            "%q = permute(%z) {permutation=[0, 3, 1, 2]} : f32[2, 3, 4, 5]",
            "%y = mul(%a, %q) : f32[2, 3, 4, 5]",
            inputs="%r: f32[2, 3, 4, 5], %z: f32[2, 4, 5, 3]",
        ),
        """
        graph @g(%x: f32[2, 4, 5, 3], %r: f32[2, 3, 4, 5], %z: f32[2, 4, 5, 3]) {
          %a_permute = permute(%r) {permutation=[0, 2, 3, 1]} : f32[2, 4, 5, 3]
          %a_add = add(%a_permute, %x) : f32[2, 4, 5, 3]
          %y_mul = mul(%a_add, %z) : f32[2, 4, 5, 3]
          %y = permute(%y_mul) {permutation=[0, 3, 1, 2]} : f32[2, 3, 4, 5]
          return %y
        }
        """,
    )


def test_concat() -> None:
    becomes(
        sunk,
        of_image(
            "%q = permute(%z) {permutation=[0, 3, 1, 2]} : f32[2, 6, 4, 5]",
            "%y = concat(%p, %q) {axis=1} : f32[2, 9, 4, 5]",
            inputs="%z: f32[2, 4, 5, 6]",
        ),
        """
        graph @g(%x: f32[2, 4, 5, 3], %z: f32[2, 4, 5, 6]) {
          %y_concat = concat(%x, %z) {axis=3} : f32[2, 4, 5, 9]
          %y = permute(%y_concat) {permutation=[0, 3, 1, 2]} : f32[2, 9, 4, 5]
          return %y
        }
        """,
    )


def test_pad() -> None:
    becomes(
        sunk,
        of_image("%y = pad(%p, f32(0.0)) {low=[0, 1, 2, 3], high=[0, 4, 5, 6]} : f32[2, 8, 11, 14]"),
        """
        graph @g(%x: f32[2, 4, 5, 3]) {
          %y_pad = pad(%x, f32(0.0)) {low=[0, 2, 3, 1], high=[0, 5, 6, 4]} : f32[2, 11, 14, 8]
          %y = permute(%y_pad) {permutation=[0, 3, 1, 2]} : f32[2, 8, 11, 14]
          return %y
        }
        """,
    )


def test_slice() -> None:
    becomes(
        sunk,
        of_image("%y = slice(%p) {starts=[0, 1, 2, 0], stops=[2, 3, 4, 5], steps=[1, 1, 1, 2]} : f32[2, 2, 2, 3]"),
        """
        graph @g(%x: f32[2, 4, 5, 3]) {
          %y_slice = slice(%x) {starts=[0, 2, 0, 1], stops=[2, 4, 5, 3], steps=[1, 1, 2, 1]} : f32[2, 2, 3, 2]
          %y = permute(%y_slice) {permutation=[0, 3, 1, 2]} : f32[2, 2, 2, 3]
          return %y
        }
        """,
    )


def test_reductions_over_any_axes() -> None:
    becomes(
        sunk,
        of_image(
            "%y = reduce_sum(%p) {axes=[3]} : f32[2, 3, 4]",
            "%z = reduce_max(%p) {axes=[2, 3]} : f32[2, 3]",
            "%u = reduce_sum(%p) {axes=[0, 1]} : f32[4, 5]",
            returns="%y, %z, %u",
        ),
        """
        graph @g(%x: f32[2, 4, 5, 3]) {
          %y_reduce_sum = reduce_sum(%x) {axes=[2]} : f32[2, 4, 3]
          %y = permute(%y_reduce_sum) {permutation=[0, 2, 1]} : f32[2, 3, 4]
          %z = reduce_max(%x) {axes=[1, 2]} : f32[2, 3]
          %u = reduce_sum(%x) {axes=[0, 3]} : f32[4, 5]
          return %y, %z, %u
        }
        """,
    )


def signal(*lines: str) -> str:
    """A convolution of signals, whose result ``%p`` has its channels in front."""
    body = "\n  ".join(lines)
    return f"""graph @g(%x: f32[2, 10, 4], %w: f32[6, 4, 3], %v: f32[6, 4], %b: f32[6, 1]) {{
  %s = windows(%x) {{axis=1, size=3}} : f32[2, 8, 4, 3]
  {body}
  return %y
}}"""


def test_signals_only_behind_a_convolution() -> None:
    """Two axes behind the batch are as often a transposed matrix: its view stays before what reads it."""
    becomes(
        sunk,
        signal(
            "%d = dot(%s, %w) {contract=[3, 2]x[2, 1]} : f32[2, 8, 6]",
            "%e = exp(%d) : f32[2, 8, 6]",
            "%p = permute(%e) {permutation=[0, 2, 1]} : f32[2, 6, 8]",
            "%y = add(%p, %b) : f32[2, 6, 8]",
        ),
        signal(
            "%d = dot(%s, %w) {contract=[3, 2]x[2, 1]} : f32[2, 8, 6]",
            "%e = exp(%d) : f32[2, 8, 6]",
            "%y_reshape = reshape(%b) : f32[1, 6, 1]",
            "%y_permute = permute(%y_reshape) {permutation=[0, 2, 1]} : f32[1, 1, 6]",
            "%y_add = add(%e, %y_permute) : f32[2, 8, 6]",
            "%y = permute(%y_add) {permutation=[0, 2, 1]} : f32[2, 6, 8]",
        ),
    )


UNTOUCHED = {
    "a matmul's result of three axes": """graph @g(%x: f32[2, 10, 4], %w: f32[6, 4], %b: f32[6, 1]) {
      %d = dot(%x, %w) {contract=[2]x[1]} : f32[2, 10, 6]
      %p = permute(%d) {permutation=[0, 2, 1]} : f32[2, 6, 10]
      %y = add(%p, %b) : f32[2, 6, 10]
      return %y
    }""",
    "an argument of three axes": """graph @g(%x: f32[2, 10, 4]) {
      %p = permute(%x) {permutation=[0, 2, 1]} : f32[2, 4, 10]
      %y = exp(%p) : f32[2, 4, 10]
      return %y
    }""",
    "heads": """graph @g(%x: f32[2, 4, 5, 3]) {
      %p = permute(%x) {permutation=[0, 2, 1, 3]} : f32[2, 5, 4, 3]
      %y = exp(%p) : f32[2, 5, 4, 3]
      return %y
    }""",
    "channels put last": """graph @g(%x: f32[2, 3, 4, 5]) {
      %p = permute(%x) {permutation=[0, 2, 3, 1]} : f32[2, 4, 5, 3]
      %y = exp(%p) : f32[2, 4, 5, 3]
      return %y
    }""",
    "of more axes than the image": of_image("%y = add(%p, %r) : f32[6, 2, 3, 4, 5]", inputs="%r: f32[6, 1, 1, 1, 1]"),
    "beside what lies otherwise": of_image(
        "%y = concat(%p, %r) {axis=1} : f32[2, 9, 4, 5]", inputs="%r: f32[2, 6, 4, 5]"
    ),
    "the place of the largest": of_image("%y = argmax(%p) {axis=1} : i64[2, 4, 5]"),
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_stays(name: str) -> None:
    unchanged(sunk, UNTOUCHED[name])


def test_between_two_convolutions_no_view_is_left() -> None:
    graph = computes_the_same(
        canonicalize,
        """
        graph @g(%x: f32[1, 6, 6, 3], %w: f32[4, 3, 3, 3], %b: f32[4, 1, 1], %v: f32[5, 4, 1, 1]) {
          %s = windows(%x) {axis=1, size=3} : f32[1, 4, 6, 3, 3]
          %t = windows(%s) {axis=2, size=3} : f32[1, 4, 4, 3, 3, 3]
          %d = dot(%t, %w) {contract=[4, 5, 3]x[2, 3, 1]} : f32[1, 4, 4, 4]
          %p = permute(%d) {permutation=[0, 3, 1, 2]} : f32[1, 4, 4, 4]
          %a = add(%p, %b) : f32[1, 4, 4, 4]
          %r = relu(%a) : f32[1, 4, 4, 4]
          %q = permute(%r) {permutation=[0, 2, 3, 1]} : f32[1, 4, 4, 4]
          %m = reshape(%v) : f32[5, 4]
          %e = dot(%q, %m) {contract=[3]x[1]} : f32[1, 4, 4, 5]
          %y = permute(%e) {permutation=[0, 3, 1, 2]} : f32[1, 5, 4, 4]
          return %y
        }
        """,
        special=False,
    )
    images = [op for op in graph.ops if op.name == "permute" and op.operands[0].type.size > 16]
    assert [op.result for op in images] == list(graph.outputs)
