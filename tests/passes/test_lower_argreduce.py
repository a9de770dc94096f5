"""Searches as reductions: the first of equals, the first NaN, along any axis and of any type."""

from __future__ import annotations

import numpy as np
import pytest
from programs import check

from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.lower_argreduce import lower_argreduce
from fusec.passes.pipeline import lower

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


LONG = 3 * 2**15
"""Elements of a row that blocks share out."""


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_parts_of_a_row(name: str, dtype: str) -> None:
    """The first of equals is in an earlier part than others, the first NaN behind infinities and other NaN."""
    text = f"graph @g(%x: {dtype}[5, {LONG}]) {{\n  %y = {name}(%x) {{axis=1}} : i64[5]\n  return %y\n}}"
    graph = parse(text)
    x = np.random.default_rng(0).integers(-9, 9, (5, LONG)).astype(graph.inputs[0].type.dtype.numpy)
    extreme = 10 if name == "argmax" else -10
    x[0, [7, 90000]] = x[1, [30000, 30001, 80000]] = extreme
    if dtype != "i32":
        x[2, [50, 70000]] = np.inf if name == "argmax" else -np.inf
        x[3, [20000, 60000]] = np.nan
        x[3, [3, 50000]] = np.inf if name == "argmax" else -np.inf
        x[4] = np.nan
    run = check(graph, [x], target="cuda:sm_90")
    assert run.kernels == ["row", "row"]
    found = run.outputs[0][:2].tolist()
    assert found == [7, 30000]
    assert dtype == "i32" or run.outputs[0][2:].tolist() == [50, 20000, 0]


def test_parts_of_what_a_matmul_makes_are_all_that_reads_it() -> None:
    """Nothing but the product is stored for them."""
    text = f"""graph @g(%x: bf16[4, 16], %w: bf16[{LONG}, 16]) {{
      %z = dot(%x, %w) {{contract=[1]x[1]}} : bf16[4, {LONG}]
      %y = argmax(%z) {{axis=1}} : i64[4]
      return %y
    }}"""
    product, *searches = lower(parse(text), "cuda:sm_90").program.kernels
    assert [k.kind for k in (product, *searches)] == ["gemm", "row", "row"]
    assert product.outputs == 1


@pytest.mark.parametrize("rows", [(7, 50257), (600, LONG), (2, 32771)], ids=str)
def test_rows_that_are_shared_out(rows: tuple[int, int]) -> None:
    text = f"graph @g(%x: f32{list(rows)}) {{\n  %y = argmax(%x) {{axis=1}} : i64[{rows[0]}]\n  return %y\n}}"
    parts = [op for op in lower_argreduce(parse(text), sms=132).ops if op.name == "reduce_max"]
    assert len(parts) == (2 if rows[0] == 7 else 1)
