from __future__ import annotations

import numpy as np
import pytest
from rewriting import applying, becomes, computes_the_same, unchanged

from fusec.ir.interpret import interpret
from fusec.ir.ops import OPS
from fusec.ir.parse import parse
from fusec.passes.canonicalize import canonicalize
from fusec.passes.canonicalize.composites import COMPOSITE_RULES

opened = applying(*COMPOSITE_RULES)


def test_softmax() -> None:
    becomes(
        opened,
        """
        graph @g(%x: f32[3, 5]) {
          %p = softmax(%x) {axis=1} : f32[3, 5]        // model.py:9
          return %p
        }
        """,
        """
        graph @g(%x: f32[3, 5]) {
          %p_max = reduce_max(%x) {axes=[1]} : f32[3]        // model.py:9
          %p_max_kept = reshape(%p_max) : f32[3, 1]        // model.py:9
          %p_shifted = sub(%x, %p_max_kept) : f32[3, 5]        // model.py:9
          %p_exp = exp(%p_shifted) : f32[3, 5]        // model.py:9
          %p_sum = reduce_sum(%p_exp) {axes=[1]} : f32[3]        // model.py:9
          %p_sum_kept = reshape(%p_sum) : f32[3, 1]        // model.py:9
          %p = div(%p_exp, %p_sum_kept) : f32[3, 5]        // model.py:9
          return %p
        }
        """,
    )


def test_softmax_of_halves_is_rounded_once() -> None:
    becomes(
        opened,
        """
        graph @g(%x: bf16[5]) {
          %p = softmax(%x) {axis=0} : bf16[5]
          return %p
        }
        """,
        """
        graph @g(%x: bf16[5]) {
          %p_f32 = cast(%x) : f32[5]
          %p_max = reduce_max(%p_f32) {axes=[0]} : f32[]
          %p_max_kept = reshape(%p_max) : f32[1]
          %p_shifted = sub(%p_f32, %p_max_kept) : f32[5]
          %p_exp = exp(%p_shifted) : f32[5]
          %p_sum = reduce_sum(%p_exp) {axes=[0]} : f32[]
          %p_sum_kept = reshape(%p_sum) : f32[1]
          %p_div = div(%p_exp, %p_sum_kept) : f32[5]
          %p = cast(%p_div) {implied=true} : bf16[5]
          return %p
        }
        """,
    )


def test_softmax_of_a_masked_row_is_nan() -> None:
    text = """
graph @g(%x: f32[2, 3]) {
  %p = softmax(%x) {axis=1} : f32[2, 3]
  return %p
}
"""
    x = np.array([[-np.inf, -np.inf, -np.inf], [0.0, -np.inf, 0.0]], np.float32)
    (p,) = interpret(canonicalize(parse(text)), [x])
    np.testing.assert_array_equal(p, np.array([[np.nan] * 3, [0.5, 0.0, 0.5]], np.float32))


def test_layer_norm() -> None:
    becomes(
        opened,
        """
        graph @g(%x: f32[3, 5], %w: f32[5], %b: f32[5]) {
          %y = layer_norm(%x, %w, %b) {axes=[1], eps=1e-05} : f32[3, 5]
          return %y
        }
        """,
        """
        graph @g(%x: f32[3, 5], %w: f32[5], %b: f32[5]) {
          %y_sum = reduce_sum(%x) {axes=[1]} : f32[3]
          %y_mean = div(%y_sum, f32(5.0)) : f32[3]
          %y_mean_kept = reshape(%y_mean) : f32[3, 1]
          %y_centred = sub(%x, %y_mean_kept) : f32[3, 5]
          %y_square = mul(%y_centred, %y_centred) : f32[3, 5]
          %y_sum_1 = reduce_sum(%y_square) {axes=[1]} : f32[3]
          %y_var = div(%y_sum_1, f32(5.0)) : f32[3]
          %y_var_kept = reshape(%y_var) : f32[3, 1]
          %y_add = add(%y_var_kept, f32(1e-05)) : f32[3, 1]
          %y_rsqrt = rsqrt(%y_add) : f32[3, 1]
          %y_normal = mul(%y_centred, %y_rsqrt) : f32[3, 5]
          %y_scaled = mul(%y_normal, %w) : f32[3, 5]
          %y = add(%y_scaled, %b) : f32[3, 5]
          return %y
        }
        """,
    )


def test_silu() -> None:
    becomes(
        opened,
        """
        graph @g(%x: f16[5]) {
          %y = silu(%x) : f16[5]
          return %y
        }
        """,
        """
        graph @g(%x: f16[5]) {
          %y_f32 = cast(%x) : f32[5]
          %y_neg = neg(%y_f32) : f32[5]
          %y_exp = exp(%y_neg) : f32[5]
          %y_add = add(%y_exp, f32(1.0)) : f32[5]
          %y_div = div(%y_f32, %y_add) : f32[5]
          %y = cast(%y_div) {implied=true} : f16[5]
          return %y
        }
        """,
    )


def test_an_empty_softmax_axis_has_nothing_to_sum() -> None:
    becomes(
        opened,
        """
        graph @g(%x: f32[3, 0]) {
          %p = softmax(%x) {axis=1} : f32[3, 0]
          return %p
        }
        """,
        """
        graph @g(%x: f32[3, 0]) {
          %p = copy(%x) : f32[3, 0]
          return %p
        }
        """,
    )


CALLS = [
    ("relu(%x)", "3, 5"),
    ("sigmoid(%x)", "3, 5"),
    ("silu(%x)", "3, 5"),
    ("softplus(%x)", "3, 5"),
    ("gelu(%x) {approximate=none}", "3, 5"),
    ("gelu(%x) {approximate=tanh}", "3, 5"),
    ("softmax(%x) {axis=0}", "3, 5"),
    ("log_softmax(%x) {axis=1}", "3, 5"),
    ("log_softmax(%x) {axis=1}", "3, 0"),
    ("mean(%x) {axes=[0, 1]}", ""),
    ("mean(%x) {axes=[1]}", "3"),
    ("var(%x) {axes=[1], correction=1.0}", "3"),
    ("var(%x) {axes=[0, 1]}", ""),
    ("var(%x) {axes=[1], correction=7.0}", "3"),
    ("layer_norm(%x) {axes=[1], eps=0.001}", "3, 5"),
    ("layer_norm(%x, %w) {axes=[1], eps=0.001}", "3, 5"),
    ("layer_norm(%x, %w, %w) {axes=[1], eps=0.001}", "3, 5"),
    ("rms_norm(%x) {axes=[0, 1], eps=0.001}", "3, 5"),
    ("rms_norm(%x, %w) {axes=[1], eps=0.001}", "3, 5"),
]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(("call", "shape"), CALLS)
def test_primitives_compute_what_the_composite_does(call: str, shape: str, dtype: str) -> None:
    operand = "3, 0" if shape == "3, 0" else "3, 5"
    graph = computes_the_same(
        opened,
        f"""
        graph @g(%x: {dtype}[{operand}], %w: {dtype}[5]) {{
          %y = {call} : {dtype}[{shape}]
          return %y
        }}
        """,
    )
    assert all(OPS[op.name].kind != "composite" for op in graph.ops)


def test_relu_of_integers() -> None:
    computes_the_same(
        opened,
        """
        graph @g(%x: i32[7]) {
          %y = relu(%x) : i32[7]
          return %y
        }
        """,
    )


def test_large_softplus_neither_overflows_nor_cancels() -> None:
    text = "graph @g(%x: f32[4]) {\n  %y = softplus(%x) : f32[4]\n  return %y\n}"
    (y,) = interpret(opened(parse(text)), [np.array([1000.0, -1000.0, 20.5, -20.5], np.float32)])
    np.testing.assert_allclose(y, np.logaddexp(0, np.array([1000.0, -1000.0, 20.5, -20.5])), rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_a_symbolic_extent_is_counted_at_run_time(rows: int) -> None:
    text = """
graph @g(%x: f32[B, 3]) {
  %m = mean(%x) {axes=[0]} : f32[3]
  %v = var(%x) {axes=[0], correction=1.0} : f32[3]
  return %m, %v
}
"""
    x = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
    with np.errstate(all="ignore"):
        mean, var = interpret(opened(parse(text)), [x])
        np.testing.assert_allclose(mean, x.mean(0), rtol=1e-5)
        np.testing.assert_allclose(var, x.astype(np.float64).var(0, ddof=1) if rows > 1 else [np.nan] * 3, rtol=1e-5)


def test_primitives_are_left_alone() -> None:
    assert (
        unchanged(
            opened,
            """
            graph @g(%x: f32[3]) {
              %y = exp(%x) : f32[3]
              return %y
            }
            """,
        )
        == []
    )
