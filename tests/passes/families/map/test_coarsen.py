"""Lanes with several results: which maps have them, along which axis, how many."""

from __future__ import annotations

import pytest
from programs import check

from fusec.ir.graph import FusedAttributes
from fusec.ir.parse import parse
from fusec.ir.types import contiguous_strides
from fusec.passes.families.map.coarsen import shared_loads
from fusec.passes.families.map.schedule.gpu import GpuMapSchedule, SharedLoads, coarse_schedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.launch import Launch
from fusec.passes.schedule.stream import Stream
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target


def pooled(h: int, w: int, c: int, size: int, step: int, *, last: bool = True) -> str:
    shape, axes = ([2, h, w, c], (1, 2)) if last else ([2, c, h, w], (2, 3))
    lines, value = [], "%x"
    for axis, extent in zip(axes, (h, w), strict=True):
        shape = [*shape[:axis], (extent - size) // step + 1, *shape[axis + 1 :], size]
        lines.append(f"%w{axis} = windows({value}) {{axis={axis}, size={size}, step={step}}} : f32{shape}")
        value = f"%w{axis}"
    x, result = ([2, h, w, c] if last else [2, c, h, w]), shape[:4]
    text = "\n".join([*lines, f"%y = reduce_max({value}) {{axes=[4, 5]}} : f32{result}", "return %y"])
    return f"graph @g(%x: f32{x}) {{\n{text}\n}}"


def shared(text: str) -> SharedLoads | None:
    found = []
    for op in lower(parse(text), "cuda:sm_90").graph.ops:
        if isinstance(op.attributes, FusedAttributes):
            values = (*op.operands, *op.results)
            context = LoweringContext(op, {v: contiguous_strides(v.type.shape) for v in values}, "k")
            found.append(shared_loads(context))
    (only,) = found
    return only


def test_neighbours_of_windows_share_all_but_a_column() -> None:
    assert shared(pooled(9, 20, 8, 3, 1)) == SharedLoads(2, 18, 9, 3)
    assert shared(pooled(9, 20, 8, 5, 2)) == SharedLoads(2, 8, 25, 10)


def test_the_axis_is_that_before_the_lanes() -> None:
    found = shared(pooled(9, 20, 8, 3, 1, last=False))
    assert found == SharedLoads(2, 7, 9, 3)


@pytest.mark.parametrize(
    "text",
    [
        pooled(8, 20, 8, 2, 2),
        pooled(9, 22, 8, 3, 4),
        "graph @g(%x: f32[64, 64]) {\n%y = exp(%x) : f32[64, 64]\nreturn %y\n}",
        """graph @g(%x: f32[40, 8, 16], %a: f32[16], %b: f32[16], %c: f32[16], %d: f32[16]) {
            %p = mul(%x, %a) : f32[40, 8, 16]
            %q = add(%p, %b) : f32[40, 8, 16]
            %r = mul(%q, %c) : f32[40, 8, 16]
            %y = add(%r, %d) : f32[40, 8, 16]
            return %y
        }""",
    ],
    ids=["parts", "apart", "elements", "vectors"],
)
def test_what_shares_little_has_one_result_a_lane(text: str) -> None:
    assert shared(text) is None


@pytest.mark.parametrize(("extent", "results"), [(56, 8), (28, 7), (14, 7), (13, 7), (7, 7), (5, 5), (2, 2), (1, 1)])
def test_results_fill_the_axis(extent: int, results: int) -> None:
    assert SharedLoads(2, extent, 99, 7).results() == results


TARGET = gpu_target("cuda:sm_90")


def scheduled(loads: SharedLoads, size: int) -> GpuMapSchedule | None:
    return coarse_schedule(loads, size, Stream(1e6, 1e6, 1e6, 0.0), TARGET)


def test_few_results_keep_all_sms() -> None:
    """A large image has eight results a lane, a small one as many as leave every SM its warps."""
    loads = SharedLoads(2, 56, 19, 3)
    large, small = scheduled(loads, 64 * 56 * 56 * 144), scheduled(loads, 56 * 56 * 144)
    assert large is not None
    assert small is not None
    assert (large.results, small.results) == (8, 6)
    assert large.elements > small.elements
    assert scheduled(loads, 7 * 7 * 144) is None


def test_many_loads_leave_registers_for_few_elements() -> None:
    size = 1 << 28
    elements = [made.elements for n in (4, 40, 99) if (made := scheduled(SharedLoads(2, 56, n, 1), size)) is not None]
    assert elements == [1024, 512, 256]


class Coarse(GpuSelector):
    """Lowers with four results a lane."""

    def lower(self, context: LoweringContext) -> LoweredGroup:
        return lower_with(context, GpuMapSchedule(64, Launch(4, 1), results=4))


@pytest.mark.parametrize("extent", [16, 13, 7, 3])
def test_values(extent: int) -> None:
    """The last lane may have more results than are left of its axis, and an axis fewer than a lane's results."""
    run = check(pooled(5, extent + 2, 24, 3, 1), target="cuda:sm_90", selector=Coarse(TARGET))
    assert run.lowered.stages["tile"].count("store") == min(4, extent)
