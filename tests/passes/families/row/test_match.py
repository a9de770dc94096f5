"""Reductions over the same rows, and the maps around them, are one kernel."""

from __future__ import annotations

import pytest
from programs import Run, check, group_kinds, random_inputs

from fusec.ir.parse import parse


def one_row_kernel(text: str, **options: object) -> Run:
    run = check(text, **options)  # type: ignore[arg-type]
    assert group_kinds(run.lowered) == ["row"], run.lowered.stages["fuse"]
    assert run.kernels == ["row"]
    return run


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_over_each_axis(name: str, axis: int) -> None:
    one_row_kernel(f"""graph @g(%x: f32[5, 7, 19]) {{
        %s = mul(%x, f32(3.0)) : f32[5, 7, 19]
        %y = {name}(%s) {{axis={axis}}} : f32[5, 7, 19]
        return %y
    }}""")


def test_norm_with_residual_that_is_also_returned() -> None:
    run = one_row_kernel("""graph @g(%x: f32[5, 37], %r: f32[5, 37], %w: f32[37], %b: f32[37]) {
        %h = add(%x, %r) : f32[5, 37]
        %n = layer_norm(%h, %w, %b) {axes=[1], eps=1e-5} : f32[5, 37]
        %y = gelu(%n) {approximate=none} : f32[5, 37]
        return %y, %h
    }""")
    assert len(run.lowered.graph.ops[0].results) == 2


@pytest.mark.parametrize(
    ("axes", "result"),
    [
        ([0], [4, 5, 6]), ([1], [3, 5, 6]), ([2], [3, 4, 6]), ([3], [3, 4, 5]), ([1, 2], [3, 6]), ([0, 2], [4, 6]),
        ([0, 3], [4, 5]), ([1, 3], [3, 5]), ([0, 1, 2], [6]), ([1, 2, 3], [3]), ([0, 1, 2, 3], []),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", ["mean", "var"])
def test_statistics_over_any_axes(name: str, axes: list[int], result: list[int]) -> None:
    more = ", correction=1.0" if name == "var" else ""
    one_row_kernel(f"""graph @g(%x: f32[3, 4, 5, 6]) {{
        %y = {name}(%x) {{axes={axes}{more}}} : f32{result}
        return %y
    }}""")


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8"])
def test_reductions_of_each_dtype(name: str, dtype: str) -> None:
    check(f"""graph @g(%x: {dtype}[5, 35]) {{
        %y = {name}(%x) {{axes=[1]}} : {dtype}[5]
        %z = {name}(%x) {{axes=[0]}} : {dtype}[35]
        return %y, %z
    }}""")


def test_any_and_all() -> None:
    check("""graph @g(%x: bool[5, 33], %y: f32[5, 33]) {
        %c = gt(%y, f32(1.0)) : bool[5, 33]
        %a = reduce_any(%c) {axes=[1]} : bool[5]
        %b = reduce_all(%x) {axes=[0]} : bool[33]
        return %a, %b
    }""")


def test_a_second_reduction_of_the_same_rows_joins() -> None:
    one_row_kernel("""graph @g(%x: f32[5, 33], %m: f32[33]) {
        %e = exp(%x) : f32[5, 33]
        %s = reduce_sum(%e) {axes=[1]} : f32[5]
        %w = mul(%e, %m) : f32[5, 33]
        %t = reduce_sum(%w) {axes=[1]} : f32[5]
        %y = div(%t, %s) : f32[5]
        return %y
    }""")


def test_moments_of_one_row_are_one_kernel() -> None:
    one_row_kernel("""graph @g(%x: f32[5, 33]) {
        %a = mean(%x) {axes=[1]} : f32[5]
        %q = mul(%x, %x) : f32[5, 33]
        %b = mean(%q) {axes=[1]} : f32[5]
        return %a, %b
    }""")


def test_a_map_beside_the_rows_goes_to_its_reader() -> None:
    """The second reduction computes exp(x) on the way; the first one would have to store it."""
    run = check("""graph @g(%x: f32[5, 33]) {
        %a = reduce_sum(%x) {axes=[1]} : f32[5]
        %e = exp(%x) : f32[5, 33]
        %z = mul(%e, f32(2.0)) : f32[5, 33]
        %b = reduce_max(%z) {axes=[0]} : f32[33]
        return %a, %b
    }""")
    assert run.kernels == ["row", "row"]
    assert all(s.kind in ("input", "output") for s in run.lowered.program.slots)


def test_reductions_over_different_axes_are_two_kernels() -> None:
    text = """graph @g(%x: f32[5, 33]) {
        %s = reduce_sum(%x) {axes=[1]} : f32[5]
        %t = reduce_sum(%x) {axes=[0]} : f32[33]
        return %s, %t
    }"""
    assert check(text).kernels == ["row", "row"]


def test_rows_are_normalised_by_the_maximum_of_the_row_not_of_the_column() -> None:
    """max over axis 1 without its axis kept broadcasts along the other: the difference reads another row's maximum."""
    text = """graph @g(%x: f32[9, 9]) {
        %m = reduce_max(%x) {axes=[1]} : f32[9]
        %y = sub(%x, %m) : f32[9, 9]
        return %y
    }"""
    assert check(text).kernels == ["row", "map"]


def test_a_value_read_backwards_is_not_in_the_row_kernel() -> None:
    text = """graph @g(%x: f32[5, 33]) {
        %p = softmax(%x) {axis=1} : f32[5, 33]
        %f = slice(%p) {starts=[0, 32], stops=[5, -1], steps=[1, -1]} : f32[5, 33]
        %y = add(%p, %f) : f32[5, 33]
        return %y
    }"""
    assert check(text).kernels == ["row", "map"]


def test_a_producer_through_a_permute_and_a_reshape_joins() -> None:
    one_row_kernel("""graph @g(%x: f32[4, 5, 6]) {
        %e = tanh(%x) : f32[4, 5, 6]
        %p = permute(%e) {permutation=[1, 0, 2]} : f32[5, 4, 6]
        %r = reshape(%p) : f32[5, 24]
        %y = reduce_sum(%r) {axes=[1]} : f32[5]
        return %y, %e
    }""")


def test_a_broadcast_producer_that_is_dear_is_made_once() -> None:
    text = """graph @g(%x: f32[40, 33], %b: f32[33]) {
        %e = tanh(%b) : f32[33]
        %h = add(%x, %e) : f32[40, 33]
        %y = softmax(%h) {axis=1} : f32[40, 33]
        return %y
    }"""
    assert check(text).kernels == ["map", "row"]


def test_a_cheap_broadcast_producer_is_inlined() -> None:
    one_row_kernel("""graph @g(%x: f32[40, 33], %b: f32[33]) {
        %e = mul(%b, f32(2.0)) : f32[33]
        %h = add(%x, %e) : f32[40, 33]
        %y = softmax(%h) {axis=1} : f32[40, 33]
        return %y
    }""")


def test_windows_are_summed_without_a_copy() -> None:
    run = one_row_kernel("""graph @g(%x: f32[5, 400]) {
        %w = windows(%x) {axis=1, size=40, step=2} : f32[5, 181, 40]
        %y = mean(%w) {axes=[2]} : f32[5, 181]
        return %y
    }""")
    assert all(slot.kind != "workspace" for slot in run.lowered.program.slots)


def test_gathered_rows() -> None:
    text = """graph @g(%table: f32[11, 33], %i: i64[7], %p: f32[7, 33]) {
        %e = gather(%table, %i) {axis=0} : f32[7, 33]
        %h = add(%e, %p) : f32[7, 33]
        %y = layer_norm(%h) {axes=[1], eps=1e-5} : f32[7, 33]
        return %y
    }"""
    assert check(text).kernels == ["row"]


def test_nan_and_infinity() -> None:
    text = """graph @g(%x: f32[5, 33]) {
        %a = reduce_max(%x) {axes=[1]} : f32[5]
        %b = reduce_min(%x) {axes=[0]} : f32[33]
        %c = reduce_sum(%x) {axes=[1]} : f32[5]
        %y = softmax(%x) {axis=1} : f32[5, 33]
        return %a, %b, %c, %y
    }"""
    arrays = random_inputs(parse(text))
    arrays[0][0, 3] = float("nan")
    arrays[0][1, 4] = float("inf")
    arrays[0][2, 5] = -float("inf")
    arrays[0][3] = -float("inf")
    check(text, arrays)


@pytest.mark.parametrize(
    ("shape", "axes", "result"),
    [([0, 7], [1], [0]), ([0, 7], [0], [7]), ([7, 0], [1], [7]), ([0], [0], []), ([3, 0, 2], [0, 1], [2])],
    ids=str,
)
def test_empty_axes(shape: list[int], axes: list[int], result: list[int]) -> None:
    run = check(f"""graph @g(%x: f32{shape}, %b: bool{shape}) {{
        %s = reduce_sum(%x) {{axes={axes}}} : f32{result}
        %p = reduce_prod(%x) {{axes={axes}}} : f32{result}
        %m = mean(%x) {{axes={axes}}} : f32{result}
        %o = reduce_any(%b) {{axes={axes}}} : bool{result}
        %a = reduce_all(%b) {{axes={axes}}} : bool{result}
        return %s, %p, %m, %o, %a
    }}""")
    assert "row" not in run.kernels


def test_rows_of_one_element_and_no_axes() -> None:
    check("""graph @g(%x: f32[5, 1], %y: f32[]) {
        %a = softmax(%x) {axis=1} : f32[5, 1]
        %b = reduce_sum(%x) {axes=[]} : f32[5, 1]
        %c = reduce_max(%y) {axes=[]} : f32[]
        %d = mean(%x) {axes=[0, 1]} : f32[]
        return %a, %b, %c, %d
    }""")


@pytest.mark.parametrize("strides", [[1, 5], [40, 1], [0, 1], [33, 0], [-33, 1], [33, -1]], ids=str)
def test_inputs_and_outputs_with_strides(strides: list[int]) -> None:
    one_row_kernel(f"""graph @g(%x: f32[5, 33] strides={strides}) {{
        %y = softmax(%x) {{axis=1}} : f32[5, 33]
        return %y strides=[1, 5]
    }}""")


def test_argmax_is_one_kernel_with_what_it_reads_and_what_reads_it() -> None:
    run = check("""graph @g(%x: f32[5, 33]) {
        %e = tanh(%x) : f32[5, 33]
        %i = argmax(%e) {axis=1} : i64[5]
        %y = add(%i, i64(1)) : i64[5]
        return %y
    }""")
    assert not run.calls
    assert run.kernels == ["row"]
