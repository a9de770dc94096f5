"""Elements picked from rows that are reduced, as sums over these rows."""

from __future__ import annotations

import numpy as np
import pytest
from programs import check

from fusec.ir.parse import parse
from fusec.passes import row_picks
from fusec.passes.row_picks import pick_in_rows

LOSS = """graph @g(%x: f32[5, 60], %i: i64[5, 1]) {
  %m = reduce_max(%x) {axes=[1]} : f32[5]
  %k = reshape(%m) : f32[5, 1]
  %b = broadcast(%k) : f32[5, 60]
  %s = sub(%x, %b) : f32[5, 60]
  %e = exp(%s) : f32[5, 60]
  %t = reduce_sum(%e) {axes=[1]} : f32[5]
  %y = gather_elements(%s, %i) {axis=1} : f32[5, 1]
  return %y, %t
}"""
ALONE = """graph @g(%x: f32[5, 60], %i: i64[5, 1]) {
  %s = exp(%x) : f32[5, 60]
  %y = gather_elements(%s, %i) {axis=1} : f32[5, 1]
  return %y
}"""


def names(text: str) -> list[str]:
    return [op.name for op in pick_in_rows(parse(text)).ops]


def test_what_is_picked_from_a_reduced_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "gather_elements" in names(LOSS), "a short row is left"
    monkeypatch.setattr(row_picks, "FEWEST", 16)
    assert "gather_elements" not in names(LOSS)
    assert "gather_elements" in names(ALONE)
    two = LOSS.replace("i64[5, 1]", "i64[5, 2]").replace("{axis=1} : f32[5, 1]", "{axis=1} : f32[5, 2]")
    assert "gather_elements" in names(two)


@pytest.mark.parametrize("value", [0.5, np.nan, -np.inf])
def test_one_kernel_gives_the_same(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_picks, "FEWEST", 16)
    x = np.random.default_rng(0).standard_normal((5, 60)).astype(np.float32)
    x[2, 7], x[3, 9] = value, value
    index = np.array([[0], [59], [7], [4], [31]])
    run = check(LOSS, [x, index], target="cuda:sm_90", slack=4)
    assert run.kernels == ["row"]
