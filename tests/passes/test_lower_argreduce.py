"""Searches as reductions: the first of equals, the first NaN, along any axis and of any type."""

from __future__ import annotations

import numpy as np
import pytest
from programs import check

from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.lower_argreduce import lower_argreduce

TARGETS = ("cpu", "cuda:sm_90")


def search(name: str, dtype: str, axis: int = 1) -> str:
    shape = [4, 30, 3]
    del shape[axis]
    return f"graph @g(%x: {dtype}[4, 30, 3]) {{\n  %y = {name}(%x) {{axis={axis}}} : i64{shape}\n  return %y\n}}"


def test_the_text() -> None:
    lines = str(lower_argreduce(parse(search("argmax", "f32")))).splitlines()[1:-2]
    assert [line.split(" : ")[0].strip() for line in lines] == [
        "%y_extreme = reduce_max(%x) {axes=[1]}",
        "%y_extreme_kept = reshape(%y_extreme)",
        "%y_found = eq(%x, %y_extreme_kept)",
        "%y_isnan = isnan(%x)",
        "%y_logical_or = logical_or(%y_found, %y_isnan)",
        "%y_position = iota() {axis=1}",
        "%y_positions = select(%y_logical_or, %y_position, i32(30))",
        "%y_first = reduce_min(%y_positions) {axes=[1]}",
        "%y = cast(%y_first)",
    ]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "u8", "bool"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_every_type_and_axis(name: str, dtype: str, axis: int, target: str) -> None:
    run = check(search(name, dtype, axis), target=target)
    assert run.kernels == ["row"]


@pytest.mark.parametrize("target", TARGETS)
def test_the_first_of_equals_and_the_first_nan(target: str) -> None:
    x = np.zeros((4, 30, 3), np.float32)
    x[1, 7, 1] = x[1, 9, 1] = x[2, 5, :] = np.nan
    x[3, 8, 0] = x[3, 20, 0] = np.inf
    x[3, 2, 1] = x[3, 3, 1] = -np.inf
    for name in ("argmax", "argmin"):
        check(search(name, "f32"), [x], target=target)


def test_symbolic_extents() -> None:
    """Only where a CPU's kernels reduce them: the place past the end is the most there can be."""
    text = "graph @g<M in [1, 9], N in [1, 70]>(%x: f32[M, N]) {\n  %y = argmax(%x) {axis=1} : i64[M]\n  return %y\n}"
    graph = parse(text)
    assert lower_argreduce(graph) is graph
    opened = lower_argreduce(graph, symbolic=True)
    assert "i32(70)" in str(opened)
    x = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    np.testing.assert_array_equal(interpret(opened, [x])[0], x.argmax(1))
