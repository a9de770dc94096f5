"""Rows in stages: what is reduced of the rows behind the one that is stored."""

from __future__ import annotations

import pytest
from programs import STAGED, check

SMALLEST = """%m = reduce_min(%x) {axes=[1]} : R
    %k = reshape(%m) : f32[20, 1]
    %y = sub(%x, %k) : X
    return %y"""


def stages(body: str, length: int, rows: int, params: str = "") -> str:
    x = f"f32[{rows}, {length}]"
    text = f"graph @g(%x: {x}{params}) {{\n" + body.replace("X", x).replace("R", f"f32[{rows}]") + "\n}"
    return check(text, slack=4, selector=STAGED).lowered.stages["tile"]


@pytest.mark.parametrize("rows", [2, 3, 33])
def test_two_reductions_of_what_is_loaded(rows: int) -> None:
    body = """%s = reduce_sum(%x) {axes=[1]} : R
        %k = reshape(%s) : f32[ROWS, 1]
        %d = sub(%x, %k) : X
        %q = mul(%d, %d) : X
        %t = reduce_sum(%q) {axes=[1]} : R
        %u = reshape(%t) : f32[ROWS, 1]
        %e = mul(%d, %u) : X
        %y = add(%e, %w) : X
        return %y""".replace("ROWS", str(rows))
    tile = stages(body, 384, rows, ", %w: f32[384]")
    assert "s_lanes[lane] <- sum(x[r_2" in tile
    assert "t_lanes[lane] <- sum(((x[r_1" in tile
    assert "s_1[0] = s_0[0]" in tile
    assert "fetching x[r + 3" in tile


def test_the_smallest() -> None:
    assert "m_lanes[lane] <- min(x[r_1" in stages(SMALLEST, 256, 20)


PRODUCT = """%m = reduce_prod(%x) {axes=[1]} : R
    %k = reshape(%m) : f32[20, 1]
    %y = sub(%x, %k) : X
    return %y"""
SOFTMAX = "%y = softmax(%x) {axis=1} : X\nreturn %y"
TWO_RESULTS = """%m = reduce_max(%x) {axes=[1]} : R
    %k = reshape(%m) : f32[20, 1]
    %d = sub(%x, %k) : X
    %e = add(%d, %k) : X
    return %e, %d"""


@pytest.mark.parametrize(
    ("body", "length", "rows"),
    [
        (PRODUCT, 256, 20),
        (TWO_RESULTS, 256, 20),
        (SOFTMAX, 256, 20),
        (SMALLEST, 128, 20),
        (SMALLEST, 200, 20),
        (SMALLEST, 8192, 20),
    ],
    ids=["product", "two results", "powers that are kept", "one block", "no whole blocks", "long"],
)
def test_rows_that_have_no_stages(body: str, length: int, rows: int) -> None:
    assert "_lanes" not in stages(body, length, rows)


def test_one_row() -> None:
    assert "_lanes" not in stages(SMALLEST.replace("20", "1"), 256, 1)
