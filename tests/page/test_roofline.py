"""The roofline plot."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from fusec.page.roofline import amount, roofline
from fusec.runtime.program import KernelReport

SVG = "{http://www.w3.org/2000/svg}"


def report(flops: int, moved: int, predicted: float, limit: float) -> KernelReport:
    return KernelReport("k<1>", "row", (), (), flops, moved, predicted, limit, "memory")


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cuda:sm_90", "hip:gfx942"])
def test_dots_lie_at_or_below_their_rings(target: str) -> None:
    plot = ElementTree.fromstring(roofline(target, [report(10**9, 10**8, 2e-3, 1e-3)]))
    ring, dot = plot.findall(f"{SVG}g/{SVG}circle")
    assert ring.get("cx") == dot.get("cx")
    assert float(ring.get("cy", "")) < float(dot.get("cy", ""))
    for roof in plot.findall(f"{SVG}polyline"):
        _, knee, end = (tuple(map(float, point.split(","))) for point in roof.get("points", "").split())
        assert knee[1] == end[1]
        assert knee[0] < end[0]


@pytest.mark.parametrize(("target", "flops"), [("cpu:x86-64-v3", 0), ("cpu:pdp-11", 100)])
def test_nothing_to_plot(target: str, flops: int) -> None:
    assert roofline(target, [report(flops, 8, 1e-6, 1e-6)]) == ""


@pytest.mark.parametrize(("number", "text"), [(12.0, "12 "), (3.2e10, "32 G"), (4e15, "4 P")])
def test_amounts(number: float, text: str) -> None:
    assert amount(number) == text
