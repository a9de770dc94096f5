"""Map kernels: lanes along memory, one store for each part of a join, dear outputs read again."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
from programs import check

from fusec.ir.parse import parse
from fusec.passes.families.map.schedule.cpu import MapSchedule
from fusec.passes.lower.context import LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.base import CpuSchedule
from fusec.passes.select import Selector
from fusec.target.cpu import cpu_target


def stores(text: str, **options: object) -> list[str]:
    """The stores of the one kernel, after a check of its results."""
    run = check(text, **options)  # type: ignore[arg-type]
    assert run.kernels == ["map"]
    return re.findall(r"store (.*)", run.lowered.stages["tile"])


def test_contiguous_axes_are_one_lane_axis() -> None:
    (store,) = stores("""graph @g(%x: f32[4, 5, 6]) {
        %y = exp(%x) : f32[4, 5, 6]
        return %y
    }""")
    assert store.endswith("for l:120")


def test_lanes_follow_the_memory_of_the_output() -> None:
    (store,) = stores("""graph @g(%x: f32[40, 60]) {
        %y = exp(%x) : f32[40, 60]
        return %y strides=[1, 40]
    }""")
    assert store.endswith("for row:60, l:40")


def test_a_broadcast_row_ends_the_lanes() -> None:
    (store,) = stores("""graph @g(%x: f32[4, 5, 6], %w: f32[5, 6]) {
        %y = add(%x, %w) : f32[4, 5, 6]
        return %y
    }""")
    assert store.endswith("for row:4, l:30")


def test_each_piece_of_a_join_is_stored_by_itself() -> None:
    found = stores("""graph @g(%x: f32[6, 20], %z: f32[6, 30]) {
        %n = neg(%z) : f32[6, 30]
        %y = concat(%x, %n, %x) {axis=1} : f32[6, 70]
        return %y
    }""")
    assert [s.split(" for ")[1] for s in found] == ["row:6, l:20", "row:6, l:30", "row:6, l:20"]
    assert not any("select" in s or "min(" in s for s in found)


def test_a_join_of_outer_axes_keeps_long_lanes() -> None:
    found = stores("""graph @g(%x: f32[6, 20], %z: f32[7, 20]) {
        %y = concat(%x, %z) {axis=0} : f32[13, 20]
        return %y
    }""")
    assert [s.split(" for ")[1] for s in found] == ["l:120", "l:140"]


def test_the_inside_of_padding_is_a_plain_copy() -> None:
    found = stores("""graph @g(%x: f32[20, 30]) {
        %y = pad(%x, f32(7.0)) {low=[1, 2], high=[0, 1]} : f32[21, 33]
        return %y
    }""")
    assert len(found) == 6
    inside = next(s for s in found if "x[" in s)
    assert inside == "y[20*g + row + 1, l + 2] = x[20*g + row, l] for row:20, l:30"
    assert all("= 7.0 for" in s for s in found if s is not inside)


@pytest.mark.parametrize("pieces", [[1, 1], [1, 2, 1], [3, 40, 2], [5] * 12, [17, 1, 30]], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_joins_of_any_pieces(pieces: list[int], axis: int) -> None:
    """Thin pieces, and many, are chosen between element by element."""
    shapes = [[n if a == axis else 3 + a for a in range(3)] for n in pieces]
    whole = [sum(pieces) if a == axis else 3 + a for a in range(3)]
    inputs = ", ".join(f"%x{k}: f32{shape}" for k, shape in enumerate(shapes))
    operands = ", ".join(f"%x{k}" for k in range(len(pieces)))
    found = stores(f"""graph @g({inputs}, %w: f32{whole}) {{
        %c = concat({operands}) {{axis={axis}}} : f32{whole}
        %y = mul(%c, %w) : f32{whole}
        return %y
    }}""")
    assert len(found) <= 9


@pytest.mark.sweep(1)
@pytest.mark.parametrize("elements", [1, 16, 50, 10_000])
@pytest.mark.parametrize("size", [(1, 100), (100, 1), (7, 33), (1, 1)])
def test_parts_are_shared_out_to_any_number_of_tasks(elements: int, size: tuple[int, int]) -> None:
    class Small(Selector):
        def candidates(self, context):  # type: ignore[no-untyped-def]
            from fusec.passes.families.map.schedule.cpu import MapSchedule

            return [MapSchedule(elements)]

    rows, columns = size
    text = f"""graph @g(%x: f32[{rows}, {columns}], %z: f32[{rows}, 40]) {{
        %c = concat(%x, %z, %x) {{axis=1}} : f32[{rows}, {2 * columns + 40}]
        %y = pad(%c, f32(1.0)) {{low=[2, 0], high=[0, 17]}} : f32[{rows + 2}, {2 * columns + 57}]
        return %y
    }}"""
    check(text, selector=Small(cpu_target("cpu"), 2))
    check(text, selector=Small(cpu_target("cpu"), 2), compiled=False)


def test_an_output_made_of_another_reads_it_again() -> None:
    first, second = stores("""graph @g(%x: f32[4, 50]) {
        %a = tanh(%x) : f32[4, 50]
        %b = mul(%a, f32(2.0)) : f32[4, 50]
        return %b, %a
    }""")
    assert "tanh(" in first
    assert "tanh(" not in second


def test_a_large_output_is_streamed_where_no_other_reads_it() -> None:
    text = """graph @g(%x: f32[4096, 4096]) {
        %a = tanh(%x) : f32[4096, 4096]
        %b = mul(%a, f32(2.0)) : f32[4096, 4096]
        return %a, %b
    }"""
    first, second = re.findall(r"(store|stream) ", lower(parse(text), "cpu", threads=2).stages["tile"])
    assert (first, second) == ("store", "stream")


def test_a_cheap_output_is_computed_again() -> None:
    found = stores("""graph @g(%x: f32[4, 50]) {
        %a = neg(%x) : f32[4, 50]
        %b = mul(%a, f32(2.0)) : f32[4, 50]
        return %b, %a
    }""")
    assert all("x[" in s for s in found)


def test_a_small_map_is_one_task_and_a_large_one_many() -> None:
    def tasks(rows: int) -> int:
        text = f"graph @g(%x: f32[{rows}, 64]) {{\n%y = exp(%x) : f32[{rows}, 64]\nreturn %y\n}}"
        tile = lower(parse(text), "cpu", threads=2).stages["tile"]
        found = re.search(r"grid \(g:(\d+)\)", tile)
        assert found is not None
        return int(found.group(1))

    assert tasks(100) == 1
    assert tasks(10_000) >= 8


@dataclass
class _Streamed(Selector):
    """Every result counts as a large one."""

    def candidates(self, context: LoweringContext) -> list[CpuSchedule]:
        return [replace(s, non_temporal_bytes=1) for s in super().candidates(context) if isinstance(s, MapSchedule)]


@pytest.mark.parametrize(
    ("body", "fetched"),
    [
        ("%e = gelu(%x) : f32[40, 64]\n%y = mul(%e, %b) : f32[40, 64]", "fetching x["),
        ("%e = mul(%x, %x) : f32[40, 64]\n%y = mul(%e, %b) : f32[40, 64]", ""),
    ],
    ids=["many operations", "few"],
)
def test_maps_of_many_operations_fetch_what_they_read_next(body: str, fetched: str) -> None:
    """But nothing that every row reads again."""
    text = f"graph @g(%x: f32[40, 64], %b: f32[64]) {{\n{body}\nreturn %y\n}}"
    tile = check(text, slack=4, selector=_Streamed(cpu_target("cpu"), 2)).lowered.stages["tile"]
    assert "stream y[" in tile
    assert ("fetching" in tile) == bool(fetched)
    assert fetched in tile
    assert "b[l + " not in tile


class Together(Selector):
    """Computes four results at a time."""

    def candidates(self, context):  # type: ignore[no-untyped-def]
        from fusec.passes.families.map.schedule.cpu import MapSchedule

        return [MapSchedule(100, results=4)]


@pytest.mark.sweep
@pytest.mark.parametrize("extent", [16, 13, 7, 3, 2])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_results_side_by_side(extent: int, padding: int, reduction: str) -> None:
    """Where there are too few for the last ones, these begin earlier."""
    shape, out = [2, 5 + 2 * padding, extent + 2 + 2 * padding, 20], [2, 3 + 2 * padding, extent + 2 * padding, 20]
    text = f"""graph @g(%x: f32[2, 5, {extent + 2}, 20]) {{
        %p = pad(%x, f32(0.5)) {{low=[0, {padding}, {padding}, 0], high=[0, {padding}, {padding}, 0]}} : f32{shape}
        %u = windows(%p) {{axis=1, size=3}} : f32{[2, out[1], shape[2], 20, 3]}
        %v = windows(%u) {{axis=2, size=3}} : f32{[*out, 3, 3]}
        %s = reduce_{reduction}(%v) {{axes=[4, 5]}} : f32{out}
        %y = neg(%s) : f32{out}
        return %y
    }}"""
    check(text, selector=Together(cpu_target("cpu"), 2))
    check(text, selector=Together(cpu_target("cpu"), 2), compiled=False)
