"""Scan kernels on CPUs: along the lanes and across them, in chunks and in parts, with every tail."""

from __future__ import annotations

import numpy as np
import pytest
from programs import build, check, run_built


def text(name: str, shape: list[int], axis: int, dtype: str = "f32", strides: str = "", reverse: str = "false") -> str:
    return f"""graph @g(%x: {dtype}{shape}{strides}) {{
        %s = {name}(%x) {{axis={axis}, reverse={reverse}}} : {dtype}{shape}
        %y = add(%s, %x) : {dtype}{shape}
        return %y
    }}"""


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ([1, 1], 1),
        ([7, 1], 1),
        ([3, 5], 1),
        ([5, 77], 1),
        ([2, 2048], 1),
        ([3, 5000], 1),
        ([5000, 3], 0),
        ([77, 130], 0),
        ([4, 9, 33], 1),
        ([33, 4], 0),
        ([300], 0),
    ],
    ids=str,
)
def test_shapes(shape: list[int], axis: int, reverse: str) -> None:
    run = check(text("cumsum", shape, axis, reverse=reverse), slack=4)
    assert set(run.kernels) == {"scan"}


@pytest.mark.sweep
@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize("name", ["cumsum", "cummin", "logcumsumexp"])
@pytest.mark.parametrize(("shape", "axis"), [([1, 140001], 1), ([140001], 0), ([70001, 2], 0)], ids=str)
def test_few_long_rows_are_cut_into_parts(name: str, shape: list[int], axis: int, reverse: str) -> None:
    run = check(text(name, shape, axis, reverse=reverse), slack=4, threads=2)
    assert run.kernels == ["scan", "scan"]


def test_scans_of_each_other_are_not_cut() -> None:
    run = check(
        """graph @g(%x: f32[140000]) {
        %s = cummax(%x) {axis=0} : f32[140000]
        %y = cumsum(%s) {axis=0} : f32[140000]
        return %y
    }""",
        slack=4,
        threads=2,
    )
    assert run.kernels == ["scan"]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "i8", "u8", "i32", "i64"])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax"])
def test_dtypes(name: str, dtype: str) -> None:
    check(text(name, [3, 37], 1, dtype), slack=4)
    check(text(name, [37, 19], 0, dtype), slack=4)


def test_strided_and_transposed_rows() -> None:
    check(text("cumsum", [5, 37], 1, strides=" strides=[1, 5]"), slack=4)
    check(text("cumsum", [5, 37], 0, strides=" strides=[1, 5]"), slack=4)
    check(text("cumsum", [5, 37], 1, strides=" strides=[100, 2]"), slack=4)


def test_a_value_dear_to_compute_is_kept() -> None:
    tile = check(
        """graph @g(%x: f32[5, 300]) {
        %t = tanh(%x) : f32[5, 300]
        %s = cumsum(%t) {axis=1} : f32[5, 300]
        %y = mul(%s, %t) : f32[5, 300]
        return %y
    }""",
        slack=4,
    ).lowered.stages["tile"]
    assert tile.count("tanh(") == 1


def recurrence(shape: list[int], axis: int, dtype: str = "f32", strides: str = "", reverse: str = "false") -> str:
    """Of half of what is added, so that results stay small, with factors between -1 and 1."""
    start = [1 if a == axis else n for a, n in enumerate(shape)]
    maps = f"""%f = sin(%a) : {dtype}{shape}""" if dtype[0] in "fb" else f"%f = sign(%a) : {dtype}{shape}"
    return f"""graph @g(%x: {dtype}{shape}{strides}, %a: {dtype}{shape}, %h: {dtype}{start}) {{
        {maps}
        %s = recurrence(%x, %f, %h) {{axis={axis}, reverse={reverse}}} : {dtype}{shape}
        %y = add(%s, %x) : {dtype}{shape}
        return %y
    }}"""


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize(
    ("shape", "axis"), [([1, 1], 1), ([5, 77], 1), ([3, 5000], 1), ([77, 130], 0), ([4, 9, 33], 1), ([300], 0)], ids=str
)
def test_recurrences(shape: list[int], axis: int, reverse: str) -> None:
    run = check(recurrence(shape, axis, reverse=reverse), slack=4, threads=2)
    assert run.kernels == ["scan"]


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize(("shape", "axis"), [([5, 77], 1), ([77, 130], 0), ([4, 9, 33], 1), ([300], 0)], ids=str)
def test_last_results_of_recurrences(shape: list[int], axis: int, reverse: str) -> None:
    start = [1 if a == axis else n for a, n in enumerate(shape)]
    run = check(
        f"""graph @g(%x: f32{shape}, %a: f32{shape}, %h: f32{start}) {{
        %f = sin(%a) : f32{shape}
        %s = recurrence(%x, %f, %h) {{axis={axis}, reverse={reverse}, last=true}} : f32{start}
        %y = exp(%x) : f32{shape}
        return %s, %y
    }}""",
        slack=4,
        threads=2,
    )
    assert "scan" in run.kernels


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "i8", "i32", "i64"])
def test_dtypes_of_recurrences(dtype: str) -> None:
    check(recurrence([3, 7], 1, dtype), slack=4)
    check(recurrence([17, 19], 0, dtype, strides=" strides=[1, 17]"), slack=4)


def test_a_recurrence_has_infinities_and_nans_where_steps_have_them() -> None:
    """A product of factors that overflows is no factor of any step."""
    x = np.zeros((8, 3), np.float32)
    a = np.full((8, 3), 1e30, np.float32)
    x[5, 1], a[6, 2], a[3, 0] = np.inf, np.nan, 0
    x[1, 0] = 2
    built = build(
        """graph @g(%x: f32[8, 3], %a: f32[8, 3], %h: f32[1, 3]) {
        %s = recurrence(%x, %a, %h) {axis=0} : f32[8, 3]
        return %s
    }"""
    )
    (found,) = run_built(built, [x, a, np.zeros((1, 3), np.float32)]).outputs
    exact = np.zeros((8, 3), np.float32)
    before = np.zeros(3, np.float32)
    with np.errstate(all="ignore"):
        for t in range(8):
            before = exact[t] = a[t] * before + x[t]
    np.testing.assert_array_equal(found, exact)
