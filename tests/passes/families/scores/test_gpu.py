"""Score spaces on a GPU, in the tile IR's interpreter against the graph in float64."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import build, check_built, random_inputs

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[3] / "codegen" / "triton"))
from scores_cases import SCORES, STORED

from fusec.ir.parse import parse
from fusec.passes.families.scores.schedule.gpu import GpuScoresSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.schedule.launch import Launch
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target
from fusec.tile.nodes import Dot, Grid, Loop, Map
from fusec.tile.scalar import Apply, walk

BLOCKS = [(16, 16), (32, 64), (128, 32)]


class Own(GpuSelector):
    """Score spaces by one schedule, never in pieces."""

    blocks: tuple[int, int] = (16, 16)

    def lower(self, context: LoweringContext) -> LoweredGroup:
        if context.op.attributes.kind != "scores":  # type: ignore[union-attr]
            return super().lower(context)  # type: ignore[return-value]
        return lower_with(context, GpuScoresSchedule(*self.blocks, Launch(4, 2)))


def selector(blocks: tuple[int, int]) -> Own:
    own = Own(gpu_target("cuda:sm_90"))
    own.blocks = blocks
    return own


@pytest.mark.sweep(1)
@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("name", list(SCORES))
def test_against_float64(name: str, blocks: tuple[int, int]) -> None:
    run = check_built(build(SCORES[name].text(), target="cuda:sm_90", selector=selector(blocks)))
    assert set(run.kernels) == {"scores"}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("name", list(STORED))
def test_values_that_are_results(name: str, blocks: tuple[int, int]) -> None:
    """One kernel writes them whole, with zeros where a mask leaves columns out, and the others compute them."""
    program = check_built(build(STORED[name].text(), target="cuda:sm_90", selector=selector(blocks))).lowered.program
    kinds = [k.kind for k in program.kernels]
    assert kinds.count("scores") == (2 if "bias" in name else 1)
    assert set(kinds) <= {"scores", "row", "map"}


def lowered(name: str, blocks: tuple[int, int] = (16, 16)) -> Any:
    return build(SCORES[name].text(), target="cuda:sm_90", selector=selector(blocks)).lowered


def loops(name: str, blocks: tuple[int, int] = (16, 16), kernel: int = 0) -> list[Loop]:
    (grid,) = lowered(name, blocks).program.kernels[kernel].body
    assert isinstance(grid, Grid)
    return [s for s in grid.body if isinstance(s, Loop)]


def test_blocks_that_a_mask_empties_are_skipped() -> None:
    for name in (
        "sigmoid, causal",
        "sigmoid, zeroed",
        "retention",
        "backward, queries, causal",
        "backward, keys, causal",
    ):
        (report,) = lowered(name).program.reports
        skipped = dict(report.schedule)["skipped"]
        assert int(str(skipped).rstrip("%")) > 40, name
    (report,) = lowered("polynomial, windowed").program.reports
    assert dict(report.schedule)["skipped"] == "81%"


def test_columns_that_data_leave_are_found() -> None:
    """By rows and by columns; no kernel stores the mask."""
    kernels = lowered("documents, backward").program.kernels
    assert [k.kind for k in kernels] == ["scores", "scores"]
    for number in range(2):
        assert all(loop.within for loop in loops("documents, backward", kernel=number) if loop.var.name == "c0")
    assert all(loop.within for loop in loops("length") if loop.var.name == "c0")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_see_nothing_are_where_the_code_has_them(value: float) -> None:
    graph = parse(SCORES["documents, backward"].text())
    arrays = random_inputs(graph)
    arrays[6][:] = np.arange(280) // 37
    arrays[4][0, 1, 77] = value
    with np.errstate(all="ignore"):
        check_built(build(graph, target="cuda:sm_90", selector=selector((16, 16))), arrays)


def test_the_longest_rows_run_first() -> None:
    """The last under a causal mask, the first where queries are the columns."""
    assert str(loops("sigmoid, zeroed")[0].stop) == "(-16*row_block + 144)"
    assert str(loops("backward, keys, causal")[0].start) == "(16*row_block)"


def test_whole_blocks_have_no_mask() -> None:
    masked, whole = loops("backward, keys, causal", (64, 32))[:2]
    assert [_selects(loop) for loop in (masked, whole)] == [True, False]


def _selects(loop: Loop) -> bool:
    maps = (s for s in loop.body if isinstance(s, Map))
    return any(isinstance(n, Apply) and n.op == "select" for s in maps for n in walk(s.value))


def test_both_results_share_a_block_that_is_read_once() -> None:
    (body,) = {len([s for s in loop.body if isinstance(s, Dot)]) for loop in loops("backward, keys, causal")}
    assert body == 4
    program = lowered("backward, keys, causal").program
    assert len(program.kernels) == 1
    assert program.kernels[0].outputs == 2


@pytest.mark.sweep(1)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["sigmoid", "sigmoid, f32", "relu squared", "backward, keys"])
def test_special_values_are_where_the_code_has_them(name: str, value: float) -> None:
    graph = parse(SCORES[name].text())
    arrays = random_inputs(graph)
    arrays[1][0, 0, 77, 3] = value
    arrays[0][0, 1, 5, 2] = value
    with np.errstate(all="ignore"):
        check_built(build(graph, target="cuda:sm_90", selector=selector((16, 16))), arrays)
