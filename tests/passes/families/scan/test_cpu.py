"""Scan kernels on CPUs: along the lanes and across them, in chunks and in parts, with every tail."""

from __future__ import annotations

import pytest
from programs import check


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
