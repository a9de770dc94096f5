"""Convolutions on a GPU: what TMA's im2col fetches, what is put in order first, and which of all that is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from convolutions import convolution
from programs import Run, check, random_inputs

from fusec.ir.graph import FusedAttributes
from fusec.ir.parse import parse
from fusec.ir.types import contiguous_strides
from fusec.passes.families.gemm.schedule.hopper import HopperGemmSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.pieces import Pieces
from fusec.passes.pipeline import lower
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target
from fusec.tile.templates import HopperGemm, Pipeline, WindowAxis, Windows

SM_90 = gpu_target("cuda:sm_90")
SMALL = HopperGemmSchedule(128, 64, 64, 2, Pipeline(1, 1, 4, False))


def context_of(text: str, *, tf32: bool = False) -> LoweringContext:
    """Of the group with the dot."""
    graph = lower(parse(text), "cuda:sm_90", precision="tf32" if tf32 else "ieee").graph
    fused = [op for op in graph.ops if isinstance(op.attributes, FusedAttributes)]
    (op,) = (op for op in fused if any(o.name == "dot" for o in op.attributes.body.ops))  # type: ignore[union-attr]
    return LoweringContext(op, {v: contiguous_strides(v.type.static_shape) for v in (*op.operands, *op.results)}, "g")


def alternatives(text: str, *, calls: bool = True, tf32: bool = False) -> list[str]:
    """The best predicted first; kernels on Hopper's tensor cores as ``wgmma``, those of groups of few channels as
    ``windows``."""
    found = GpuSelector(SM_90, cuda=True, calls=calls).alternatives(context_of(text, tf32=tf32))
    short = {"consumers=": "wgmma", "windows=": "windows"}
    return [next((name for part, name in short.items() if part in a.text), a.text) for a in found]


def image(channels: int, columns: int = 128, **more: Any) -> str:
    return convolution((32, 28, 28, channels), columns, (3, 3), **{"padding": (1, 1), "dtype": "bf16", **more})


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (image(64), "wgmma"),
        (image(96), "wgmma"),
        (image(24), "operands first"),
        (image(24, padding=(0, 0)), "wgmma"),
        (image(64, dtype="f16"), "wgmma"),
        (image(64, stride=(2, 2)), "wgmma"),
        (image(64, dilation=(2, 2), padding=(2, 2)), "wgmma"),
        (image(448, 448, groups=8), "wgmma"),
        (image(256, 256, groups=32), "windows"),
        (image(256, 256, groups=16), "windows"),
        (image(256, 256, groups=64), "library convolution"),
        (image(64, last=False), "weights first"),
        (image(30), "rows of windows first"),
        (image(3, last=False), "rows of windows first"),
        (image(64, dtype="f32"), "library convolution"),
        (image(64, stride=(9, 1)), "library convolution"),
        (image(64, dilation=(70, 1), padding=(70, 1)), "library convolution"),
    ],
)
def test_what_is_chosen(text: str, first: str) -> None:
    assert alternatives(text)[0] == first


def test_floats_go_through_tensor_cores_where_tf32_is_allowed() -> None:
    text = convolution((32, 56, 56, 64), 64, (3, 3), padding=(1, 1))
    assert alternatives(text, tf32=True)[0] == "wgmma"
    assert "wgmma" not in alternatives(text)


def test_an_image_in_pytorch_s_order_is_put_in_order() -> None:
    assert "operands in order first" in alternatives(image(64, image_last=False))
    assert "operands in order first" not in alternatives(image(64))


def test_weights_in_order_are_not_copied() -> None:
    assert "weights first" not in alternatives(image(64))
    assert "weights first" not in alternatives(image(64, image_last=False))


def test_without_the_library_there_is_a_kernel() -> None:
    for text in (image(64, dtype="f32"), image(64, stride=(9, 1))):
        assert "library convolution" not in alternatives(text, calls=False)[0]


def windows_in(text: str, schedule: HopperGemmSchedule = SMALL) -> Windows | None:
    lowered = lower_with(context_of(text), schedule)
    assert isinstance(lowered, LoweredGroup)
    assert isinstance(lowered.kernel.template, HopperGemm)
    return lowered.kernel.template.nest.left.windows


def test_what_is_fetched_of_unlike_axes() -> None:
    found = windows_in(
        convolution((8, 29, 28, 64), 96, (3, 5), stride=(2, 1), padding=(0, 2), dtype="bf16"),
    )
    assert found is not None
    assert (found.batch, found.batch_step, found.channels, found.places) == (8, 29 * 28 * 64, 64, 15)
    assert found.axes == (WindowAxis(29, 28 * 64, 14, 3, 2, 1, 0), WindowAxis(28, 64, 28, 5, 1, 1, 2))
    assert found.memory.buffer.name == "x"


def test_of_one_image_the_step_to_the_next_is_one_that_a_map_takes() -> None:
    found = windows_in(convolution((1, 9, 1, 64), 96, (3, 1), dtype="bf16"))
    assert found is not None
    assert (found.batch, found.batch_step % 8, len(found.axes)) == (1, 0, 1)


@pytest.mark.parametrize(("places", "far"), [(1, 127), (2, 127), (3, 15)])
def test_how_far_windows_reach(places: int, far: int) -> None:
    """Offsets within windows have 16 bits of all axes together, corners as many (cuTensorMapEncodeIm2col)."""

    def reaching(dilation: int) -> list[str]:
        shape = (2, *(8 for _ in range(places - 1)), 2 * dilation, 64)
        ones = (1,) * (places - 1)
        return alternatives(
            convolution(
                shape,
                64,
                (*ones, 2),
                dilation=(*ones, dilation),
                padding=(*(0 for _ in ones), dilation),
                dtype="bf16",
            )
        )

    assert "wgmma" in reaching(far)
    assert ("wgmma" in reaching(far + 1)) == (places == 1)


@dataclass
class Choosing(GpuSelector):
    """The alternative of this text, where there is one; else a kernel on Hopper's tensor cores."""

    wanted: str = ""

    def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
        if any(op.name == "dot" for op in context.body.ops):
            found = [a for a in self.alternatives(context) if a.text == self.wanted]
            return found[0].lower(context) if found else lower_with(context, SMALL)
        return super().lower(context)


def run(text: str, wanted: str = "", inputs: Sequence[Any] | None = None) -> Run:
    """The tile IR's interpreter, against the graph."""
    selector = Choosing(SM_90, cuda=True, calls=False, wanted=wanted)
    return check(text, inputs, target="cuda:sm_90", selector=selector, slack=4)


F16_TAIL = ("%b = add(%y, %r) : RESULT", "%z = maximum(%b, f16(0.0)) : RESULT")
TAIL = ("%b = add(%y, %r) : RESULT", "%z = maximum(%b, bf16(0.0)) : RESULT")


@pytest.mark.parametrize(
    "text",
    [
        convolution((2, 5, 6, 64), 72, (3, 3), padding=(1, 1), dtype="bf16"),
        convolution((1, 9, 6, 64), 72, (3, 5), stride=(2, 1), padding=(0, 2), dtype="bf16"),
        convolution((2, 5, 6, 24), 72, (3, 3), padding=(1, 1), dtype="bf16"),
        convolution((2, 5, 6, 96), 72, (2, 2), dtype="f16"),
        convolution((3, 19, 64), 72, (3,), dilation=(3,), padding=(3,), dtype="bf16"),
        convolution((1, 4, 5, 6, 64), 72, (2, 3, 1), padding=(0, 1, 0), dtype="bf16"),
        convolution((2, 7, 6, 64), 72, (1, 1), stride=(2, 2), dtype="bf16"),
        convolution((2, 5, 6, 64), 72, (3, 3), padding=(1, 1), dtype="bf16", more="%r: bf16[72]", tail=TAIL),
        convolution((2, 5, 6, 96), 48, (3, 3), padding=(1, 1), groups=3, dtype="bf16"),
        convolution((2, 7, 6, 48), 96, (3, 2), stride=(2, 1), groups=2, dtype="f16", more="%r: f16[96]", tail=F16_TAIL),
    ],
)
def test_the_template_s_expansion_is_the_convolution(text: str) -> None:
    made = run(text)
    assert made.kernels == ["gemm"]
    (kernel,) = made.lowered.program.kernels
    assert isinstance(kernel.template, HopperGemm)
    assert kernel.template.nest.left.windows is not None


@pytest.mark.parametrize(
    ("wanted", "kernels", "text"),
    [
        ("weights first", 2, convolution((2, 5, 6, 64), 72, (3, 3), padding=(1, 1), dtype="bf16", last=False)),
        (
            "operands in order first",
            3,
            convolution((2, 5, 6, 64), 72, (3, 3), padding=(1, 1), dtype="bf16", last=False, image_last=False),
        ),
        ("weights first", 2, convolution((2, 5, 6, 80), 50, (3, 3), groups=5, dtype="bf16", last=False)),
        (
            "operands in order first",
            3,
            convolution((2, 5, 6, 80), 50, (3, 3), padding=(1, 1), groups=5, dtype="bf16", image_last=False),
        ),
        ("rows of windows first", 3, convolution((2, 9, 8, 3), 72, (3, 3), padding=(1, 1), dtype="bf16", last=False)),
        (
            "rows of windows first",
            3,
            convolution((2, 9, 8, 3), 72, (7, 7), stride=(2, 2), padding=(3, 3), dtype="bf16"),
        ),
        ("rows of windows first", 3, convolution((2, 9, 8, 3), 72, (3, 5), stride=(2, 1), padding=(0, 2), dtype="f16")),
        (
            "rows of windows first",
            3,
            convolution((2, 9, 9, 30), 72, (3, 2), dilation=(2, 3), padding=(1, 2), dtype="bf16"),
        ),
        ("rows of windows first", 3, convolution((2, 9, 9, 5), 72, (3, 3), stride=(1, 3), dtype="bf16")),
    ],
)
def test_operands_put_in_order_first(wanted: str, kernels: int, text: str) -> None:
    """The matmul behind them is one that TMA fetches windows for."""
    made = run(text, wanted)
    assert made.kernels.count("map") == kernels - 1
    assert made.kernels.count("gemm") == 1
    (kernel,) = (k for k in made.lowered.program.kernels if k.kind == "gemm")
    assert isinstance(kernel.template, HopperGemm)
    windows = kernel.template.nest.left.windows
    assert windows is not None
    assert windows.channels * 2 % 16 == 0


def test_groups_are_maps_of_parts() -> None:
    """Channels of one group end where its map does, and read as zeros beyond."""
    found = windows_in(convolution((2, 5, 6, 96), 48, (3, 3), groups=3, dtype="bf16"))
    assert found is not None
    assert (found.groups, found.channels, found.axes[-1].step) == (3, 32, 96)


@pytest.mark.parametrize("text", [image(36, 24, groups=3), image(32 * 80, 80 * 8, groups=80)])
def test_groups_that_no_map_is_of(text: str) -> None:
    """Of 24 bytes, and more than fit into a kernel's parameters."""
    found = alternatives(text)
    assert "wgmma" not in found
    assert not {"weights first", "operands in order first"} & set(found)


def windows_behind(text: str) -> Windows:
    """What is fetched of rows of windows."""
    (kernel,) = (k for k in run(text, "rows of windows first").lowered.program.kernels if k.kind == "gemm")
    assert isinstance(kernel.template, HopperGemm)
    windows = kernel.template.nest.left.windows
    assert windows is not None
    return windows


def test_two_rows_are_channels_of_one_and_a_window_s_places_a_run() -> None:
    """Three channels of two rows: 6, and 8 with zeros; four places of them; two pairs of rows."""
    windows = windows_behind(convolution((2, 9, 8, 3), 72, (4, 4), stride=(2, 2), padding=(1, 1), dtype="bf16"))
    assert windows.channels == 4 * 8
    assert windows.axes == (WindowAxis(5, 10 * 8, 4, 2, 1, 1, 0), WindowAxis(4, 16, 4, 1, 1, 1, 0))


def test_a_row_beside_a_window_is_not_multiplied_by_zeros() -> None:
    """An infinity there would be NaN: seven rows are no pairs."""
    text = convolution((2, 9, 8, 3), 72, (7, 7), stride=(2, 2), padding=(3, 3), dtype="bf16")
    windows = windows_behind(text)
    assert windows.channels == 7 * 8
    assert [(a.size, a.stride, a.low) for a in windows.axes] == [(7, 2, 3), (1, 1, 0)]
    graph = parse(text)
    x, w = random_inputs(graph, 0)
    x[:, 6] = np.inf  # the first window along the rows ends at the fourth, the second at the sixth
    run(text, "rows of windows first", [x, w])


@pytest.mark.parametrize(
    ("shape", "size", "stride", "channels"),
    [
        ((2, 9, 8, 3), (3, 3), (1, 1), 8),
        ((2, 9, 8, 4), (3, 3), (1, 2), 8),
        ((2, 9, 8, 4), (3, 4), (1, 2), 4),
        ((2, 23, 22, 3), (11, 11), (4, 4), 8),
        ((2, 23, 22, 3), (12, 12), (4, 4), 12),
        ((2, 9, 8, 1), (5, 5), (2, 2), 8),
    ],
)
def test_channels_for_which_windows_and_weights_begin_at_16_bytes(
    shape: tuple[int, ...], size: tuple[int, int], stride: tuple[int, int], channels: int
) -> None:
    windows = windows_behind(convolution(shape, 72, size, stride=stride, dtype="bf16"))
    assert windows.channels == size[1] * channels
    assert windows.axes[1].step == stride[1] * channels


def test_a_row_of_windows_whose_places_are_apart_is_filled_with_zeros() -> None:
    """Three places of three channels: 9, and 16 with zeros; windows go along the other axis alone."""
    windows = windows_behind(
        convolution((2, 9, 9, 3), 72, (3, 3), stride=(2, 2), dilation=(1, 2), padding=(1, 2), dtype="bf16")
    )
    assert windows.channels == 16
    assert [(a.extent, a.count, a.size, a.stride, a.low) for a in windows.axes] == [(9, 5, 3, 2, 1), (5, 5, 1, 1, 0)]


@pytest.mark.parametrize("padding", [(1, 0), (1, 1)])
def test_a_run_is_in_memory_as_a_whole(padding: tuple[int, int]) -> None:
    """Places in the padding have no memory: they are fetched one by one."""
    found = windows_in(convolution((2, 9, 8, 24), 96, (3, 3), padding=padding, dtype="bf16"))
    assert found is not None
    assert found.channels == (24 if padding[1] else 72)


def test_an_image_with_its_channels_in_front_needs_no_padding_to_be_put_in_order() -> None:
    text = """graph @g(%x: bf16[2, 3, 9, 8] argument "x", %w: bf16[72, 3, 3, 3] argument "w") {
  %u = windows(%x) {axis=2, size=3} : bf16[2, 3, 7, 8, 3]
  %v = windows(%u) {axis=3, size=3} : bf16[2, 3, 7, 6, 3, 3]
  %y = dot(%v, %w) {contract=[4, 5, 1]x[2, 3, 1], dtype=f32} : f32[2, 7, 6, 72]
  %z = cast(%y) : bf16[2, 7, 6, 72]
  return %z
}"""
    assert windows_behind(text).channels == 24


def test_a_run_of_whole_copies_is_fetched_place_by_place() -> None:
    found = windows_in(convolution((2, 9, 8, 64), 96, (3, 3), dtype="bf16"))
    assert found is not None
    assert (found.channels, found.places) == (64, 9)
