"""Scatter kernels on CPUs: rows and columns, gathers and maps on the way, in parts, with every dtype."""

from __future__ import annotations

import numpy as np
import pytest
from programs import build, run_built

from fusec.ir.interpret import interpret
from fusec.ir.parse import parse


def text(shape: list[int], count: int, axis: int, dtype: str = "f32", index: str = "i64") -> str:
    added = [count if a == axis else n for a, n in enumerate(shape)]
    return f"""graph @g(%x: {dtype}{shape}, %i: {index}[{count}], %v: {dtype}{added}) {{
        %w = mul(%v, %v) : {dtype}{added}
        %y = scatter_add(%x, %i, %w) {{axis={axis}}} : {dtype}{shape}
        return %y
    }}"""


def check_scatter(source: str, extent: int, threads: int = 1) -> None:
    """Against the reference, whose sums are in the same order."""
    graph = parse(source)
    rng = np.random.default_rng(0)
    arrays = []
    for value in graph.inputs:
        kind, shape = value.type.dtype, value.type.static_shape
        high = extent if value.type.rank == 1 and kind.is_integer else 9
        arrays.append(rng.integers(0, high, shape).astype(kind.numpy))
    run = run_built(build(source, threads=threads), arrays)
    assert run.kernels == ["scatter"]
    for ours, wanted in zip(run.outputs, interpret(graph, arrays), strict=True):
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "count", "axis"),
    [([5], 9, 0), ([7, 19], 40, 0), ([1, 3], 1, 0), ([3, 5, 7], 12, 1), ([4, 6], 9, 1), ([301, 33], 700, 0)],
    ids=str,
)
def test_shapes(shape: list[int], count: int, axis: int, threads: int) -> None:
    check_scatter(text(shape, count, axis), shape[axis], threads)


@pytest.mark.parametrize("dtype", ["f64", "f32", "i8", "u8", "i32", "i64"])
def test_dtypes(dtype: str) -> None:
    check_scatter(text([7, 5], 11, 0, dtype, "i32"), 7)


def test_gathered_rows_are_never_in_memory() -> None:
    """A layer of a graph network: rows of neighbours times weights, added up."""
    source = """graph @gcn(%x: f32[50, 33], %s: i64[400], %d: i64[400], %w: f32[400, 1]) {
        %z = broadcast(f32(0.0)) : f32[50, 33]
        %g = gather(%x, %s) {axis=0} : f32[400, 33]
        %m = mul(%g, %w) : f32[400, 33]
        %y = scatter_add(%z, %d, %m) {axis=0} : f32[50, 33]
        return %y
    }"""
    rng = np.random.default_rng(0)
    x, w = rng.integers(-4, 5, (50, 33)).astype(np.float32), rng.integers(-4, 5, (400, 1)).astype(np.float32)
    s, d = rng.integers(0, 50, 400), rng.integers(0, 50, 400)
    run = run_built(build(source), [x, s, d, w])
    assert run.kernels == ["scatter"]
    wanted = np.zeros_like(x)
    np.add.at(wanted, d, x[s] * w)
    np.testing.assert_array_equal(run.outputs[0], wanted)


def test_special_values() -> None:
    source = text([4, 3], 6, 0)
    x = np.zeros((4, 3), np.float32)
    x[1] = -np.inf
    v = np.ones((6, 3), np.float32)
    v[0], v[2, 1] = np.inf, np.nan
    i = np.array([1, 0, 2, 2, 0, 0])
    (found,) = run_built(build(source), [x, i, v]).outputs
    (wanted,) = interpret(parse(source), [x, i, v])
    np.testing.assert_array_equal(found, wanted)
