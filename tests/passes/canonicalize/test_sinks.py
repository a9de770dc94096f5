"""Softmax beside a few extra logits is made in parts, and those that are dropped are never made."""

from __future__ import annotations

import numpy as np
import pytest
from attentions import beside_a_sink
from programs import check, random_inputs
from rewriting import becomes

from fusec.ir.parse import parse
from fusec.passes.canonicalize import canonicalize


def test_in_parts() -> None:
    becomes(
        canonicalize,
        """
        graph @g(%x: f32[4, 9], %s: f32[4, 1]) {
          %c = concat(%x, %s) {axis=1} : f32[4, 10]
          %p = softmax(%c) {axis=1} : f32[4, 10]
          %y = slice(%p) {starts=[0, 0], stops=[4, 9], steps=[1, 1]} : f32[4, 9]
          return %y
        }
        """,
        """
        graph @g(%x: f32[4, 9], %s: f32[4, 1]) {
          %p_reduce_max = reduce_max(%x) {axes=[1]} : f32[4]
          %p_reduce_max_kept = reshape(%p_reduce_max) : f32[4, 1]
          %p_maximum = maximum(%p_reduce_max_kept, %s) : f32[4, 1]
          %p_shifted = sub(%x, %p_maximum) : f32[4, 9]
          %p_exp = exp(%p_shifted) : f32[4, 9]
          %p_shifted_1 = sub(%s, %p_maximum) : f32[4, 1]
          %p_exp_1 = exp(%p_shifted_1) : f32[4, 1]
          %p_reduce_sum = reduce_sum(%p_exp) {axes=[1]} : f32[4]
          %p_reduce_sum_kept = reshape(%p_reduce_sum) : f32[4, 1]
          %p_add = add(%p_reduce_sum_kept, %p_exp_1) : f32[4, 1]
          %p_div = div(%p_exp, %p_add) : f32[4, 9]
          return %p_div
        }
        """,
        special=False,
    )


def opened(*lines: str, inputs: str = "") -> str:
    return str(canonicalize(parse("\n".join([f"graph @g(%x: f32[4, 20]{inputs}) {{", *lines, "  return %y\n}"]))))


def test_what_subtracts_the_maximum_itself() -> None:
    lines = (
        "  %m = reduce_max(%x) {axes=[AXIS]} : f32[KEPT]",
        "  %k = reshape(%m) : f32[4, 1]",
        "  %d = sub(%x, %k) : f32[4, 20]",
        "  %y = softmax(%d) {axis=1} : f32[4, 20]",
    )
    assert opened(*(s.replace("AXIS", "1").replace("KEPT", "4") for s in lines)).count("reduce_max") == 1
    other = "\n".join(lines).replace("AXIS", "0").replace("KEPT", "20").replace("f32[4, 1]", "f32[1, 20]")
    assert opened(other).count("reduce_max") == 2


def test_wide_parts_stay_together() -> None:
    joined = "  %c = concat(%x, %z) {axis=1} : f32[4, 40]\n  %y = softmax(%c) {axis=1} : f32[4, 40]"
    assert "concat(%x, %z)" in opened(joined, inputs=", %z: f32[4, 20]")
    along = "  %c = concat(%x, %z) {axis=0} : f32[5, 20]\n  %y = softmax(%c) {axis=1} : f32[5, 20]"
    assert "concat(%x, %z)" in opened(along, inputs=", %z: f32[1, 20]")


@pytest.mark.parametrize(
    ("start", "stop", "step", "found"),
    [
        (0, 4, 1, "%x"),
        (4, 10, 1, "%z"),
        (9, 3, -2, "%z"),
        (3, -1, -1, "%x"),
        (5, 9, 3, "%z"),
        (3, 5, 1, ""),
        (9, -1, -3, ""),
    ],
)
def test_a_slice_of_one_part(start: int, stop: int, step: int, found: str) -> None:
    count = len(range(start, stop, step))
    text = f"""graph @g(%x: f32[3, 4], %z: f32[3, 6]) {{
      %c = concat(%x, %z) {{axis=1}} : f32[3, 10]
      %y = slice(%c) {{starts=[0, {start}], stops=[3, {stop}], steps=[1, {step}]}} : f32[3, {count}]
      %w = exp(%y) : f32[3, {count}]
      return %w
    }}"""
    made = str(canonicalize(parse(text)))
    assert ("concat" not in made) == bool(found)
    check(text, compiled=False)


ATTENTION = beside_a_sink()


def test_attention_with_a_sink_is_one_kernel() -> None:
    assert check(ATTENTION, slack=6).kernels == ["attention"]


def test_sinks_that_take_all_and_nothing() -> None:
    arrays = random_inputs(parse(ATTENTION))
    arrays[3] = np.asarray([-np.inf, 80.0, -80.0], np.float32).reshape(3, 1, 1)
    assert check(ATTENTION, arrays, slack=6, atol=1e-6).kernels == ["attention"]
