"""Few elements are picked before maps are computed on all of them."""

from __future__ import annotations

import numpy as np
import pytest
from programs import check

from fusec.ir.parse import parse
from fusec.passes.sink_gathers import sink_gathers


def names(text: str) -> list[str]:
    return [op.name for op in sink_gathers(parse(text)).ops]


PICK = """graph @g(%x: f32[6, 40], %w: f32[40], %i: i64[6, {few}]) {{
  %s = mul(%x, %w) : f32[6, 40]
  %t = exp(%s) : f32[6, 40]
  %y = gather_elements(%t, %i) {{axis=1}} : f32[6, {few}]
  return %y
}}"""


def test_maps_follow_a_gather_of_few() -> None:
    picked = ["gather_elements", "broadcast", "gather_elements", "mul", "exp"]
    assert names(PICK.format(few=10)) == picked
    assert names(PICK.format(few=11)) == ["mul", "exp", "gather_elements"]


@pytest.mark.parametrize("few", [1, 10, 11])
def test_the_same_elements(few: int) -> None:
    rng = np.random.default_rng(0)
    index = rng.integers(0, 40, (6, few))
    arrays = [rng.standard_normal((6, 40)).astype(np.float32), rng.standard_normal(40).astype(np.float32), index]
    check(PICK.format(few=few), arrays, target="cuda:sm_90", slack=4)


def test_rows_of_a_table() -> None:
    text = """graph @g(%x: f32[50, 6], %b: f32[50, 1], %i: i64[2, 3]) {
  %s = sub(%x, %b) : f32[50, 6]
  %y = gather(%s, %i) {axis=0} : f32[2, 3, 6]
  return %y
}"""
    assert names(text) == ["gather", "broadcast", "gather", "sub"]
    assert check(text, target="cuda:sm_90").kernels == ["map"]


def test_a_loss_never_stores_what_it_picks_from() -> None:
    text = """graph @g(%x: f32[7, 100], %i: i64[7, 1]) {
  %p = log_softmax(%x) {axis=1} : f32[7, 100]
  %q = gather_elements(%p, %i) {axis=1} : f32[7, 1]
  %y = reduce_sum(%q) {axes=[0, 1]} : f32[]
  return %y
}"""
    run = check(text, target="cuda:sm_90", slack=4)
    assert run.kernels == ["row", "row"]
    assert all(slot.type.size <= 7 for slot in run.lowered.program.slots if slot.kind == "workspace")
