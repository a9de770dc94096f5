"""What makes the rows that a scatter adds is part of its kernel, where nothing else needs it."""

from __future__ import annotations

from programs import group_kinds

from fusec.ir.parse import parse
from fusec.passes.pipeline import lower

ROWS = """graph @g(%x: f32[9, 4], %s: i64[20], %d: i64[20]) {{
        %m = gather(%x, %s) {{axis=0}} : f32[20, 4]
        %e = exp(%m) : f32[20, 4]
        %y = scatter_add(%x, %d, %e) {{axis=0}} : f32[9, 4]
        return %y{others}
    }}"""


def test_gather_map_and_sum_are_one_kernel() -> None:
    assert group_kinds(lower(parse(ROWS.format(others="")))) == ["scatter"]


def test_rows_that_are_results_too_are_made_by_a_kernel_of_their_own() -> None:
    assert sorted(group_kinds(lower(parse(ROWS.format(others=", %e"))))) == ["map", "scatter"]
