"""Elements that a loss picks from its rows: read where they lie, with whatever index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from losses import loss
from programs import Run, check

from fusec.ir.types import DTYPES
from fusec.passes.families.row.schedule.gpu import GpuRowSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.schedule.launch import Launch
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target

TARGET = gpu_target("cuda:sm_90")
WHOLE, CHUNKS = GpuRowSchedule(1, 64, Launch(4, 1)), GpuRowSchedule(1, 16, Launch(4, 1), whole=False)


@dataclass
class Scheduled(GpuSelector):
    """Lowers every row group with one schedule."""

    schedule: GpuRowSchedule = WHOLE

    def lower(self, context: LoweringContext) -> LoweredGroup:
        if context.op.attributes.kind == "row":  # type: ignore[attr-defined]
            return lower_with(context, self.schedule)
        return super().lower(context)


def run(kind: str, schedule: GpuRowSchedule, x: np.ndarray, index: list[int]) -> Run:
    given = [x.astype(DTYPES[kind].numpy), np.array(index)[:, None], np.linspace(-1, 2, 5, dtype=np.float32)[:, None]]
    return check(loss(kind, 5, 60), given, target=TARGET.name, selector=Scheduled(TARGET, schedule=schedule), slack=4)


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("schedule", [WHOLE, CHUNKS], ids=["whole", "chunks"])
@pytest.mark.parametrize(
    "index",
    [[0, 59, 7, 4, 31], [-1, 60, -100, 2**40 + 7, 63], [2**32 + 7, -(2**32) + 7, 2**31, -(2**63), 2**63 - 1]],
    ids=["within", "outside", "beyond 32 bits"],
)
def test_any_index(kind: str, schedule: GpuRowSchedule, index: list[int]) -> None:
    x = np.random.default_rng(0).standard_normal((5, 60)).astype(np.float32)
    made = run(kind, schedule, x, index)
    assert made.kernels == ["row"]
    tile = made.lowered.stages["tile"]
    assert "picked" in tile
    assert tile.count("sum") < 4, "one sum is left, of exponentials"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -0.0])
@pytest.mark.parametrize("schedule", [WHOLE, CHUNKS], ids=["whole", "chunks"])
def test_special_values_at_the_index_and_elsewhere(value: float, schedule: GpuRowSchedule) -> None:
    x = np.random.default_rng(1).standard_normal((5, 60)).astype(np.float32)
    x[0, 7], x[1, 8], x[2] = value, value, value
    run("f32", schedule, x, [7, 7, 7, 7, 60])
