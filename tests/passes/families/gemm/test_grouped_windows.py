"""Convolutions in groups of few channels on a GPU: which groups get a kernel of windows, and what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from convolutions import convolution
from programs import check

from fusec.passes.families.gemm.schedule.windows import WindowSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.pieces import Pieces
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target
from fusec.tile.templates import GroupedConvolution, WindowTile

SM_90 = gpu_target("cuda:sm_90")


@dataclass
class ByWindows(GpuSelector):
    """Dots by the kernel of windows."""

    tile: WindowTile | None = None

    def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
        if not context.anchors("dot"):
            return super().lower(context)
        assert self.tile is not None
        return lower_with(context, WindowSchedule(self.tile))


def image(channels: int, columns: int, groups: int, **more: Any) -> str:
    shape = more.pop("shape", (2, 9, 10))
    return convolution(
        (*shape, channels), columns, (3, 3), **{"padding": (1, 1), "dtype": "bf16", "groups": groups, **more}
    )


@pytest.mark.parametrize(
    "text",
    [
        image(64, 64, 8),
        image(32, 64, 4, stride=(2, 2)),
        image(64, 64, 4, dilation=(2, 1), dtype="f16"),
        image(32, 32, 4, shape=(1, 7, 5)),
    ],
)
def test_kernels(text: str) -> None:
    """The template's statements say what the graph does."""
    run = check(text, target=SM_90.name, selector=ByWindows(SM_90, cuda=True, tile=WindowTile(4, 8, 32, 8)))
    templates = [k.template for k in run.lowered.program.kernels]
    assert any(isinstance(t, GroupedConvolution) for t in templates)


@pytest.mark.parametrize(
    "text",
    [
        image(64, 64, 2),
        image(48, 48, 4),
        image(32, 32, 8),
        image(64, 64, 8, dtype="f32"),
        image(64, 64, 8, image_last=False),
        image(24, 24, 3),
    ],
    ids=["32 channels", "12 channels", "4 channels", "float32", "channels first", "24 channels in all"],
)
def test_others_have_no_schedule(text: str) -> None:
    selector = GpuSelector(SM_90, cuda=True)
    run = check(text, target=SM_90.name, selector=selector, compiled=False)
    assert not any(isinstance(k.template, GroupedConvolution) for k in run.lowered.program.kernels)
