from __future__ import annotations

import numpy as np
import pytest
from rewriting import applying, becomes, computes_the_same, unchanged

from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.canonicalize import canonicalize
from fusec.passes.canonicalize.attention import ATTENTION_RULES

opened = applying(*ATTENTION_RULES)


def test_causal_attention() -> None:
    becomes(
        opened,
        """
        graph @g(%q: f32[2, 4, 6, 16], %k: f32[2, 4, 8, 16], %v: f32[2, 4, 8, 12]) {
          %o = sdpa(%q, %k, %v) {causal=true} : f32[2, 4, 6, 12]        // model.py:5
          return %o
        }
        """,
        """
        graph @g(%q: f32[2, 4, 6, 16], %k: f32[2, 4, 8, 16], %v: f32[2, 4, 8, 12]) {
          %o_raw_scores = dot(%q, %k) {contract=[3]x[3], batch=[0, 1]x[0, 1]} : f32[2, 4, 6, 8]        // model.py:5
          %o_scores = mul(%o_raw_scores, f32(0.25)) : f32[2, 4, 6, 8]        // model.py:5
          %o_i = iota() {axis=0} : i64[6, 1]        // model.py:5
          %o_j = iota() {axis=1} : i64[1, 8]        // model.py:5
          %o_causal = le(%o_j, %o_i) : bool[6, 8]        // model.py:5
          %o_masked = select(%o_causal, %o_scores, f32(-inf)) : f32[2, 4, 6, 8]        // model.py:5
          %o_max = reduce_max(%o_masked) {axes=[3]} : f32[2, 4, 6]        // model.py:5
          %o_max_kept = reshape(%o_max) : f32[2, 4, 6, 1]        // model.py:5
          %o_eq = eq(%o_max_kept, f32(-inf)) : bool[2, 4, 6, 1]        // model.py:5
          %o_shift = select(%o_eq, f32(0.0), %o_max_kept) : f32[2, 4, 6, 1]        // model.py:5
          %o_shifted = sub(%o_masked, %o_shift) : f32[2, 4, 6, 8]        // model.py:5
          %o_exp = exp(%o_shifted) : f32[2, 4, 6, 8]        // model.py:5
          %o_sum = reduce_sum(%o_exp) {axes=[3]} : f32[2, 4, 6]        // model.py:5
          %o_sum_kept = reshape(%o_sum) : f32[2, 4, 6, 1]        // model.py:5
          %o_eq_1 = eq(%o_sum_kept, f32(0.0)) : bool[2, 4, 6, 1]        // model.py:5
          %o_divisor = select(%o_eq_1, f32(1.0), %o_sum_kept) : f32[2, 4, 6, 1]        // model.py:5
          %o_div = div(%o_exp, %o_divisor) : f32[2, 4, 6, 8]        // model.py:5
          %o = dot(%o_div, %v) {contract=[3]x[2], batch=[0, 1]x[0, 1]} : f32[2, 4, 6, 12]        // model.py:5
          return %o
        }
        """,
    )


def test_shared_keys_are_a_broadcast_view_over_the_heads_of_a_group() -> None:
    graph = computes_the_same(
        opened,
        """
        graph @g(%q: f32[2, 6, 4, 8], %k: f32[2, 3, 5, 8], %v: f32[2, 3, 5, 8]) {
          %o = sdpa(%q, %k, %v) {grouped=true} : f32[2, 6, 4, 8]
          return %o
        }
        """,
    )
    lines = str(graph).splitlines()
    assert "  %o_k_1 = broadcast(%o_k) : f32[2, 3, 2, 5, 8]" in lines
    assert any("batch=[0, 1, 2]x[0, 1, 2]} : f32[2, 3, 2, 4, 5]" in line for line in lines)


MASKS = ["bool[4, 5]", "bool[2, 1, 1, 5]", "bool[6, 4, 5]", "bool[5]", "f32[4, 1]", "f32[2, 6, 4, 5]", "f32[1, 4, 5]"]


@pytest.mark.parametrize("heads", ["6, 6", "3, 3", "1, 1", "3, 2", "6, 1"])
@pytest.mark.parametrize("mask", ["", *MASKS])
def test_masks_and_shared_heads(mask: str, heads: str) -> None:
    keys, values = heads.split(", ")
    declared = f", %m: {mask}" if mask else ""
    computes_the_same(
        opened,
        f"""
        graph @g(%q: f32[2, 6, 4, 8], %k: f32[2, {keys}, 5, 8], %v: f32[2, {values}, 5, 3]{declared}) {{
          %o = sdpa(%q, %k, %v{", %m" if mask else ""}) {{scale=0.3, grouped=true}} : f32[2, 6, 4, 3]
          return %o
        }}
        """,
    )


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
@pytest.mark.parametrize("causal", ["true", "false"])
def test_dtypes(dtype: str, causal: str) -> None:
    computes_the_same(
        opened,
        f"""
        graph @g(%q: {dtype}[4, 8], %k: {dtype}[5, 8], %v: {dtype}[5, 3]) {{
          %o = sdpa(%q, %k, %v) {{causal={causal}}} : {dtype}[4, 3]
          return %o
        }}
        """,
    )


def test_batch_axes_broadcast() -> None:
    computes_the_same(
        opened,
        """
        graph @g(%q: f32[3, 4, 8], %k: f32[2, 1, 5, 8], %v: f32[5, 3]) {
          %o = sdpa(%q, %k, %v) : f32[2, 3, 4, 3]
          return %o
        }
        """,
    )


@pytest.mark.parametrize("mask", ["bool[4, 0]", "f32[4, 0]", "f32[1]"])
def test_no_keys_give_zeros(mask: str) -> None:
    computes_the_same(
        opened,
        f"""
        graph @g(%q: f32[4, 8], %k: f32[0, 8], %v: f32[0, 3], %m: {mask}) {{
          %o = sdpa(%q, %k, %v, %m) : f32[4, 3]
          return %o
        }}
        """,
    )


def test_a_row_masked_whole_gives_zeros_as_the_library_does() -> None:
    text = """
graph @g(%q: f32[2, 4], %k: f32[3, 4], %v: f32[3, 2], %m: bool[2, 3]) {
  %o = sdpa(%q, %k, %v, %m) : f32[2, 2]
  return %o
}
"""
    ones = [np.ones((n, d), np.float32) for n, d in ((2, 4), (3, 4), (3, 2))]
    mask = np.array([[True, False, True], [False, False, False]])
    for given, masked in ((text, mask), (text.replace("bool", "f32"), np.where(mask, 0, -np.inf).astype(np.float32))):
        (o,) = interpret(canonicalize(parse(given)), [*ones, masked])
        np.testing.assert_array_equal(o, np.array([[1, 1], [0, 0]], np.float32))


def test_a_symbolic_head_size_has_no_default_scale() -> None:
    text = """
    graph @g(%q: f32[4, D], %k: f32[5, D], %v: f32[5, 3]) {
      %o = sdpa(%q, %k, %v) : f32[4, 3]
      return %o
    }
    """
    assert unchanged(applying(*ATTENTION_RULES), text) == [
        "sdpa: %o: the default scale needs a fixed head size, and %q has D"
    ]
