"""Row kernels: which axis lies on vector lanes, and that every choice gives the same."""

from __future__ import annotations

import re

import pytest
from programs import STREAMING, check

from fusec.ir.parse import parse
from fusec.passes.pipeline import lower


def lanes(text: str) -> str:
    """The iterators of the first reduction in the kernel's text."""
    run = check(text, slack=4)
    assert run.kernels == ["row"]
    found = re.search(r"reduce .* for (.*)", run.lowered.stages["tile"])
    assert found is not None
    return found.group(1)


def softmax(shape: list[int], axis: int, strides: str = "") -> str:
    return f"""graph @g(%x: f32{shape}{strides}) {{
        %y = softmax(%x) {{axis={axis}}} : f32{shape}
        return %y
    }}"""


def test_long_rows_lie_along_the_lanes() -> None:
    assert lanes(softmax([5, 37], 1)) == "j:37"


def test_neighbouring_columns_lie_side_by_side() -> None:
    assert lanes(softmax([37, 100], 0)) == "j:37, l:min(64, -64*c + 100)"
    assert lanes(softmax([5, 37], 1, " strides=[1, 5]")) == "j:37, l:5"


def test_many_short_rows_lie_side_by_side() -> None:
    assert lanes(softmax([100, 5], 1)) == "j:5, l:min(64, -64*c + 100)"
    assert lanes(softmax([22, 3, 7], 2)) == "j:7, l:min(64, -64*c + 66)"
    assert lanes(softmax([10, 5], 1)) == "j:5"


def test_a_short_sum_is_left_to_the_emitter() -> None:
    text = """graph @g(%x: f32[100, 5]) {
        %y = reduce_sum(%x) {axes=[1]} : f32[100]
        return %y
    }"""
    assert lanes(text) == "j:5"


@pytest.mark.parametrize("rows", [63, 64, 65, 130])
@pytest.mark.parametrize("length", [1, 2, 7, 24, 25])
def test_short_rows_with_residual_and_weights(rows: int, length: int) -> None:
    run = check(
        f"""graph @g(%x: f32[{rows}, {length}], %r: f32[{rows}, {length}], %w: f32[{length}]) {{
        %h = add(%x, %r) : f32[{rows}, {length}]
        %t = tanh(%h) : f32[{rows}, {length}]
        %n = layer_norm(%t, %w) {{axes=[1], eps=1e-3}} : f32[{rows}, {length}]
        return %n, %h
    }}""",
        slack=8,
    )
    assert run.kernels == ["row"]


def test_a_value_dear_to_compute_is_kept_between_phases() -> None:
    text = """graph @g(%x: f32[5, 300]) {
        %t = tanh(%x) : f32[5, 300]
        %y = softmax(%t) {axis=1} : f32[5, 300]
        return %y
    }"""
    tile = check(text, slack=4).lowered.stages["tile"]
    assert tile.count("tanh(") == 1
    assert tile.count("exp(") == 1


def test_a_cheap_value_is_computed_again() -> None:
    text = """graph @g(%x: f32[5, 300], %r: f32[5, 300]) {
        %t = add(%x, %r) : f32[5, 300]
        %m = reduce_max(%t) {axes=[1]} : f32[5]
        %k = reshape(%m) : f32[5, 1]
        %y = sub(%t, %k) : f32[5, 300]
        return %y
    }"""
    tile = check(text).lowered.stages["tile"]
    assert "alloc t:" not in tile


@pytest.mark.parametrize(("dtype", "kept"), [("f32", False), ("bf16", True)])
def test_a_sum_of_narrow_numbers_is_kept(dtype: str, kept: bool) -> None:
    """Loading each of them costs more than adding."""
    t = f"{dtype}[64, 768]"
    text = f"""graph @g(%x: {t}, %z: {t}) {{
        %h = add(%x, %z) : {t}
        %s = softmax(%h) {{axis=1}} : {t}
        return %s
    }}"""
    assert (check(text, slack=4).lowered.stages["tile"].count("+ z[") == 1) == kept


def test_the_next_row_is_fetched_during_the_last_map() -> None:
    tile = check(softmax([50, 37], 1), slack=4, selector=STREAMING).lowered.stages["tile"]
    assert re.search(r"stream y\[r, j\] = .* for j:37 fetching x\[r \+ 1, j\]", tile)
    assert tile.count("fetching") == 1


@pytest.mark.parametrize("shape", [[50, 37], [3, 16, 64], [1, 100], [300, 4]], ids=str)
def test_streamed_rows(shape: list[int]) -> None:
    check(softmax(shape, len(shape) - 1), slack=4, selector=STREAMING)
    check(softmax(shape, 0), slack=4, selector=STREAMING)


def test_what_every_row_reads_is_not_fetched_again() -> None:
    text = """graph @g(%x: f32[50, 40], %w: f32[40], %z: f32[50, 40]) {
        %p = softmax(%x) {axis=1} : f32[50, 40]
        %q = mul(%p, %w) : f32[50, 40]
        %y = add(%q, %z) : f32[50, 40]
        return %y
    }"""
    tile = check(text, slack=4, selector=STREAMING).lowered.stages["tile"]
    assert "fetching x[r + 1, j]\n" in tile


def test_only_large_results_are_streamed() -> None:
    assert "stream" not in check(softmax([50, 37], 1), slack=4).lowered.stages["tile"]
    large = lower(parse(softmax([4096, 4096], 1)), "cpu", threads=2).stages["tile"]
    assert "stream y[" in large
    assert "fetching" in large
    rows = lower(parse(softmax([16, 1 << 20], 1)), "cpu", threads=2).stages["tile"]
    assert "fetching" not in rows
