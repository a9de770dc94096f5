"""Score spaces on a CPU: rows on lanes, against the graph in float64."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from programs import build, check, check_built, group_kinds, random_inputs, reasons
from sweeps import by_night

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[3] / "codegen" / "triton"))
from scores_cases import SCORES  # noqa: E402

from fusec.ir.parse import parse  # noqa: E402
from fusec.passes.families.scores.schedule.cpu import CpuScoresSchedule  # noqa: E402
from fusec.passes.lower.context import LoweredGroup, LoweringContext  # noqa: E402
from fusec.passes.select import Selector, lower_with  # noqa: E402
from fusec.target.cpu import cpu_target  # noqa: E402
from fusec.tile.nodes import RegisterTile  # noqa: E402


def single(name: str) -> str:
    return replace(SCORES[name], dtype=torch.float32).text()


class Small(Selector):
    """Blocks that divide nothing."""

    def lower(self, context: LoweringContext) -> LoweredGroup:
        lanes = cpu_target("cpu").lanes(32)
        return lower_with(context, CpuScoresSchedule(lanes, 24, RegisterTile(3, lanes), RegisterTile(5, lanes)))


@pytest.mark.parametrize("name", by_night(SCORES, *(name for name in SCORES if name.endswith(", f32"))))
def test_against_float64(name: str) -> None:
    run = check(single(name))
    assert set(run.kernels) == {"scores"}


@pytest.mark.parametrize("name", ["sigmoid, causal", "biased", "backward, queries", "backward, keys, causal"])
def test_other_blocks(name: str) -> None:
    check(single(name), selector=Small(cpu_target("cpu"), 2))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["sigmoid", "relu squared", "backward, keys"])
def test_special_values_are_where_the_code_has_them(name: str, value: float) -> None:
    graph = parse(single(name))
    arrays = random_inputs(graph)
    arrays[1][0, 0, 77, 3] = value
    arrays[0][0, 1, 5, 2] = value
    with np.errstate(all="ignore"):
        check_built(build(graph), arrays)


def test_doubles() -> None:
    run = check(replace(SCORES["retention"], dtype=torch.float64).text(), slack=4)
    assert run.kernels == ["scores"]


def test_half_types_stay_products() -> None:
    lowered = build(SCORES["sigmoid"].text()).lowered
    assert group_kinds(lowered) == ["gemm", "gemm"]
    assert "half types on a CPU" in reasons(lowered)


def test_queries_are_scaled_in_the_kernel() -> None:
    text = """graph @g(%q: f32[2, 100, 16], %k: f32[2, 90, 16], %v: f32[2, 90, 16]) {
      %t = mul(%q, f32(0.25)) : f32[2, 100, 16]
      %s = dot(%t, %k) {contract=[2]x[2], batch=[0]x[0]} : f32[2, 100, 90]
      %p = mul(%s, %s) : f32[2, 100, 90]
      %o = dot(%p, %v) {contract=[2]x[1], batch=[0]x[0]} : f32[2, 100, 16]
      return %o
    }"""
    assert check(text).kernels == ["scores"]
