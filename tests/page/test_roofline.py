"""The roofline plot."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from fusec.digest import Alike
from fusec.page.roofline import amount, roofline
from fusec.runtime.program import KernelReport

SVG = "{http://www.w3.org/2000/svg}"


def report(flops: int, moved: int, predicted: float, limit: float) -> KernelReport:
    return KernelReport("k<1>", "row", (), (), flops, moved, predicted, limit, "memory")


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cuda:sm_90", "hip:gfx942"])
def test_dots_lie_at_or_below_their_rings(target: str) -> None:
    plot = ElementTree.fromstring(roofline(target, [Alike([report(10**9, 10**8, 2e-3, 1e-3)], 2e-3)]))
    ring, dot = plot.findall(f"{SVG}g/{SVG}circle")
    assert ring.get("cx") == dot.get("cx")
    assert float(ring.get("cy", "")) < float(dot.get("cy", ""))
    for roof in plot.findall(f"{SVG}polyline"):
        _, knee, end = (tuple(map(float, point.split(","))) for point in roof.get("points", "").split())
        assert knee[1] == end[1]
        assert knee[0] < end[0]


@pytest.mark.parametrize(("target", "flops"), [("cpu:x86-64-v3", 0), ("cpu:pdp-11", 100)])
def test_nothing_to_plot(target: str, flops: int) -> None:
    assert roofline(target, [Alike([report(flops, 8, 1e-6, 1e-6)], 1e-6)]) == ""


@pytest.mark.parametrize(("number", "text"), [(12.0, "12 "), (3.2e10, "32 G"), (4e15, "4 P")])
def test_amounts(number: float, text: str) -> None:
    assert amount(number) == text


def test_labels_do_not_cover_each_other() -> None:
    alike = [KernelReport(f"gemm_{k}", "gemm", (), (), 10**9 + k, 10**8, 2e-3, 1e-3, "memory") for k in range(30)]
    plot = ElementTree.fromstring(roofline("cpu:x86-64-v3", [Alike([r], 2e-3) for r in alike]))
    places = [
        (float(t.get("x", "")), float(t.get("y", "")), t.get("text-anchor")) for t in plot.iterfind(f"{SVG}g/{SVG}text")
    ]
    assert 2 < len(places) <= len(alike)
    assert len(set(places)) == len(places)
    for anchor in ("start", "end"):
        heights = sorted(y for _, y, side in places if side == anchor)
        assert all(b - a >= 12 for a, b in pairwise(heights))


def test_axes_have_titles_and_like_kernels_one_dot() -> None:
    same = report(10**9, 10**8, 2e-3, 1e-3)
    text = roofline("cpu:x86-64-v3", [Alike([same, same, same], 6e-3)])
    assert "operations a second (FLOP/s)" in text
    assert "operations a byte of memory traffic" in text
    assert "k&lt;1&gt; × 3" in text
    assert text.count("<g ") == 1
