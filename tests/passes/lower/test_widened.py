"""Weights of 16 bits that every row of a task reads are widened once, before the rows."""

from __future__ import annotations

import pytest
from programs import STAGED, STREAMING, Run, Streaming, check


def norm(rows: int, length: int, dtype: str = "bf16", selector: Streaming | None = None) -> Run:
    shape, weight = f"{dtype}[{rows}, {length}]", f"{dtype}[{length}]"
    text = f"""graph @g(%x: {shape}, %w: {weight}, %b: {weight}) {{
        %y = layer_norm(%x, %w, %b) {{axes=[1], eps=1e-3}} : {shape}
        return %y
    }}"""
    return check(text, slack=4, atol=1e-2, selector=selector)


def widened(run: Run) -> list[str]:
    return [
        line.strip()
        for line in run.lowered.stages["tile"].splitlines()
        if line.strip().startswith(("alloc w_wide", "alloc b_wide"))
    ]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("rows", "length"), [(300, 96), (513, 130), (50, 1000)])
def test_once_a_task(dtype: str, rows: int, length: int) -> None:
    assert len(widened(norm(rows, length, dtype))) == 2


def test_left_where_they_are_wide_or_no_task_has_two_rows_or_they_fill_the_cache() -> None:
    assert not widened(norm(300, 96, "f32"))
    assert not widened(norm(2, 20000))
    assert not widened(norm(300, 5000))


def test_what_differs_from_row_to_row_is_left() -> None:
    run = check(
        """graph @g(%x: f32[300, 96], %w: bf16[300, 96], %b: bf16[96]) {
        %c = layer_norm(%x) {axes=[1], eps=1e-3} : f32[300, 96]
        %v = cast(%w) : f32[300, 96]
        %a = cast(%b) : f32[96]
        %s = mul(%c, %v) : f32[300, 96]
        %y = add(%s, %a) : f32[300, 96]
        return %y
    }""",
        slack=4,
        atol=1e-2,
    )
    (found,) = widened(run)
    assert "b_wide" in found


@pytest.mark.parametrize("selector", [STREAMING, STAGED], ids=["streaming", "staged"])
def test_where_rows_are_taken_in_turn(selector: Streaming) -> None:
    assert len(widened(norm(300, 256, selector=selector))) == 2
