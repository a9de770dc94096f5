"""Scans along the same axis, and the maps around them, are one kernel."""

from __future__ import annotations

import pytest
from programs import Run, check, group_kinds

SCANS = ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"]


def one_scan_kernel(text: str) -> Run:
    run = check(text, slack=4)
    assert group_kinds(run.lowered) == ["scan"], run.lowered.stages["fuse"]
    assert run.kernels == ["scan"]
    return run


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", SCANS)
def test_scans_along_each_axis_with_maps_before_and_after(name: str, axis: int, reverse: str) -> None:
    one_scan_kernel(f"""graph @g(%x: f32[5, 7, 19]) {{
        %a = abs(%x) : f32[5, 7, 19]
        %s = {name}(%a) {{axis={axis}, reverse={reverse}}} : f32[5, 7, 19]
        %y = mul(%s, %x) : f32[5, 7, 19]
        return %y
    }}""")


def test_scans_of_one_value_and_of_each_other() -> None:
    run = one_scan_kernel("""graph @g(%x: f32[5, 300]) {
        %e = exp(%x) : f32[5, 300]
        %s = cumsum(%e) {axis=1} : f32[5, 300]
        %m = cummax(%x) {axis=1} : f32[5, 300]
        %d = div(%e, %s) : f32[5, 300]
        %t = cumsum(%d) {axis=1} : f32[5, 300]
        return %t, %m, %e
    }""")
    assert len(run.lowered.graph.ops[0].results) == 3


def test_scans_along_other_axes_and_directions_are_kernels_of_their_own() -> None:
    run = check(
        """graph @g(%x: f32[5, 30]) {
        %s = cumsum(%x) {axis=1} : f32[5, 30]
        %t = cumsum(%x) {axis=0} : f32[5, 30]
        %u = cumsum(%x) {axis=1, reverse=true} : f32[5, 30]
        return %s, %t, %u
    }""",
        slack=4,
    )
    assert group_kinds(run.lowered) == ["scan", "scan", "scan"]


def test_a_reduction_of_a_scan_is_another_kernel() -> None:
    run = check(
        """graph @g(%x: f32[5, 30]) {
        %s = cumsum(%x) {axis=1} : f32[5, 30]
        %m = reduce_max(%s) {axes=[1]} : f32[5]
        return %m
    }""",
        slack=4,
    )
    assert group_kinds(run.lowered) == ["scan", "row"]


def test_bools_stay_the_library_s() -> None:
    run = check("""graph @g(%x: bool[5, 30]) {
        %s = cummax(%x) {axis=1} : bool[5, 30]
        return %s
    }""")
    assert group_kinds(run.lowered) == []


def test_recurrences_of_each_other_are_one_kernel_and_sums_beside_them_another() -> None:
    run = check(
        """graph @g(%x: f32[12, 30], %a: f32[12, 30], %h: f32[1, 30]) {
        %f = tanh(%a) : f32[12, 30]
        %s = recurrence(%x, %f, %h) {axis=0} : f32[12, 30]
        %t = recurrence(%s, %f, %h) {axis=0} : f32[12, 30]
        %c = cumsum(%x) {axis=0} : f32[12, 30]
        return %t, %c
    }""",
        slack=4,
    )
    assert sorted(run.kernels) == ["scan", "scan"]
