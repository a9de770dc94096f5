"""A row's last store, made during the next row's last map."""

from __future__ import annotations

import pytest
from programs import STREAMING, check

ROWS = 50


def stages(body: str, length: int, rows: int = ROWS, params: str = "") -> str:
    x = f"f32[{rows}, {length}]"
    text = f"graph @g(%x: {x}{params}) {{\n" + body.replace("X", x).replace("R", f"f32[{rows}]") + "\n}"
    return check(text, slack=4, selector=STREAMING).lowered.stages["tile"]


SOFTMAX = "%y = softmax(%x) {axis=1} : X\nreturn %y"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [2, 3, 50, 600])
@pytest.mark.parametrize("length", [128, 192, 256, 1024])
def test_softmax(rows: int, length: int) -> None:
    tile = stages(SOFTMAX, length, rows)
    size = 128 if length % 128 == 0 and length > 128 else 64
    assert f"stream y[r_stored, {size}*block + element]" in tile
    assert tile.count("stream ") == 2
    assert tile.count("exp(") == 2
    assert tile.count("fetching") == 2


def test_one_row() -> None:
    assert "block" not in stages(SOFTMAX, 256, 1)


@pytest.mark.parametrize("length", [64, 100, 2000])
def test_rows_that_are_no_blocks(length: int) -> None:
    assert "block" not in stages(SOFTMAX, length)


def test_a_store_that_reads_what_the_next_row_overwrites_before() -> None:
    """The maximum is there only until the next row's, which the map needs."""
    body = """%m = reduce_max(%x) {axes=[1]} : R
        %k = reshape(%m) : f32[50, 1]
        %d = sub(%x, %k) : X
        %e = exp(%d) : X
        %s = reduce_sum(%e) {axes=[1]} : R
        %t = reshape(%s) : f32[50, 1]
        %q = div(%e, %t) : X
        %y = add(%q, %k) : X
        return %y"""
    assert "block" not in stages(body, 256)


def test_a_store_without_a_map_before() -> None:
    body = """%m = reduce_max(%x) {axes=[1]} : R
        %k = reshape(%m) : f32[50, 1]
        %y = sub(%x, %k) : X
        return %y"""
    assert "block" not in stages(body, 256)


def test_a_store_that_reads_parameters() -> None:
    body = """%p = softmax(%x) {axis=1} : X
        %q = mul(%p, %w) : X
        %y = add(%q, %z) : X
        return %y"""
    tile = stages(body, 256, params=", %w: f32[256], %z: f32[50, 256]")
    assert "z[r_stored, 128*block + element]" in tile


def test_two_results() -> None:
    body = """%m = reduce_max(%x) {axes=[1]} : R
        %k = reshape(%m) : f32[50, 1]
        %d = sub(%x, %k) : X
        %e = exp(%d) : X
        %s = reduce_sum(%e) {axes=[1]} : R
        %t = reshape(%s) : f32[50, 1]
        %y = div(%e, %t) : X
        return %e, %y"""
    tile = stages(body, 256)
    assert "stream y[r_stored" in tile


def test_a_store_that_chooses_reads_within_its_buffer() -> None:
    """Of a choice both sides are read: a place that might be outside would be read lane by lane."""
    body = """%p = softmax(%x) {axis=1} : X
        %c = gt(%z, %x) : bool[50, 256]
        %y = select(%c, %p, %z) : X
        return %y"""
    assert "r_stored" in stages(body, 256, params=", %z: f32[50, 256]")
