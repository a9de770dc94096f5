"""Row kernels that add up columns on the way: which sums join, and the same results from tiles of any height."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "codegen" / "triton"))
from column_cases import CASES, layer_norm
from programs import check, group_kinds

from fusec.codegen.triton.emit import emit_kernel
from fusec.ir.parse import parse
from fusec.passes.families.row.schedule.columns import column_candidates
from fusec.passes.families.row.schedule.gpu import GpuRowSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.launch import Launch
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target

TARGET = gpu_target("cuda:sm_90")


@dataclass
class With(GpuSelector):
    """Lowers every row group with one schedule."""

    schedule: GpuRowSchedule | None = None

    def lower(self, context: LoweringContext) -> LoweredGroup:
        assert self.schedule is not None
        return lower_with(context, self.schedule)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", [n for n in CASES if n != "columns_wide"])
def test_tiles_of_any_height(name: str, rows: int) -> None:
    schedule = GpuRowSchedule(rows, 512, Launch(4, 1))
    run = check(CASES[name], target=TARGET.name, selector=With(TARGET, schedule=schedule), slack=8)
    assert run.kernels == ["row"]


def kinds(text: str) -> list[str]:
    return group_kinds(lower(parse(text), TARGET.name))


def test_sums_over_other_parts_are_kernels_of_their_own() -> None:
    text = layer_norm("bf16", (256, 96), 64, 4)
    assert kinds(text) == ["row"]
    other = text.replace("%db_a = reshape(%db_s) : f32[64, 4, 96]", "%db_a = reshape(%db_s) : f32[128, 2, 96]")
    other = other.replace(
        "%db = reduce_sum(%db_a) {axes=[1]} : f32[64, 96]", "%db = reduce_sum(%db_a) {axes=[1]} : f32[128, 96]"
    )
    assert kinds(other) == ["row", "row"]


def test_few_parts_are_kernels_of_their_own() -> None:
    assert len(kinds(layer_norm("bf16", (256, 96), 32, 8))) > 1


def test_rows_that_leave_no_registers_are_kernels_of_their_own() -> None:
    assert kinds(layer_norm("bf16", (128, 8192), 64, 2)) == ["row"]
    assert len(kinds(layer_norm("bf16", (128, 8200), 64, 2))) > 1


def test_loads_run_ahead() -> None:
    (kernel,) = lower(parse(layer_norm("bf16", (512, 4096), 128, 4)), TARGET.name).program.kernels
    text = emit_kernel(kernel).text
    assert "in tl.range(0, 4, 1, num_stages=3):" in text
    assert text.count("tl.load(w_ptr") == 1
    assert text.index("tl.load(w_ptr") < text.index("tl.range")


def test_cuda_takes_one_row_at_a_time() -> None:
    assert {s.rows for s in column_candidates(64, 32, TARGET, triton=False)} == {1}
    assert column_candidates(64, 32, TARGET, triton=True)[0].rows == 32


def test_tiles_under_way_fit_shared_memory() -> None:
    assert [s.launch.stages for s in column_candidates(8192, 32, TARGET, triton=True)] == [3, 2]
    assert [s.launch.stages for s in column_candidates(8192, 96, TARGET, triton=True)] == [2, 1]
    assert column_candidates(4096, 96, TARGET, triton=True)[0].launch.stages == 2


def test_a_bias_gradient_beside_a_map_is_read_once() -> None:
    n, c = 8192, 4096
    text = f"""graph @g(%dy: bf16[{n}, {c}], %x: bf16[{n}, {c}]) {{
      %y = mul(%dy, %x) : bf16[{n}, {c}]
      %b = reduce_sum(%dy) {{axes=[0]}} : bf16[{c}]
      return %y, %b
    }}"""
    program = lower(parse(text), TARGET.name).program
    first, _ = program.reports
    assert [r.kind for r in program.reports] == ["row", "row"]
    assert first.predicted < 1.3 * first.limit
