"""Which dots are convolutions, told by what their operand shows, in every spelling."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view

from fusec.frontend.numpy import capture as capture_numpy
from fusec.frontend.torch import capture
from fusec.ir.graph import Graph
from fusec.ir.parse import parse
from fusec.passes.canonicalize import canonicalize
from fusec.passes.convolution import Convolution, Windowed, convolution_of
from fusec.passes.cse import cse


def found_in(graph: Graph) -> Convolution | None:
    """What the only dot of a graph is, in canonical form."""
    made = cse(canonicalize(graph))
    (dot,) = (op for op in made.ops if op.name == "dot")
    return convolution_of(dot, {v: op for op in made.ops for v in op.results})


def traced(f: Callable[..., Any], *shapes: tuple[int, ...]) -> Convolution:
    found = found_in(capture(f, tuple(torch.zeros(shape) for shape in shapes), {}).graph)
    assert found is not None
    return found


def numbers(found: Convolution) -> list[tuple[int, ...]]:
    """Extent, windows, size, stride, dilation, zeros before and behind, of each axis."""
    return [(w.extent, w.count, w.size, w.stride, w.dilation, w.low, w.high) for w in found.windowed]


def test_a_convolution() -> None:
    found = traced(lambda x, w: F.conv2d(x, w, padding=1), (2, 8, 9, 11), (4, 8, 3, 3))
    assert found.image.type.static_shape == (2, 9, 11, 8)
    assert (found.batch, found.channels, found.taps) == (0, 3, 9)
    assert found.windowed == (Windowed(1, 9, 9, 3, 1, 1, 1, 0), Windowed(2, 11, 11, 3, 1, 1, 1, 1))
    assert found.pad is not None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(9, 7, 3, 1, 1, 0, 0), (13, 9, 5, 1, 1, 0, 0)]),
        ({"stride": (2, 1), "padding": (0, 2)}, [(9, 4, 3, 2, 1, 0, 0), (13, 13, 5, 1, 1, 2, 2)]),
        ({"stride": 2, "padding": 1}, [(9, 5, 3, 2, 1, 1, 1), (13, 6, 5, 2, 1, 1, 1)]),
        ({"stride": 3}, [(9, 3, 3, 3, 1, 0, 0), (13, 3, 5, 3, 1, 0, -2)]),
        ({"dilation": (2, 3), "padding": (2, 6)}, [(9, 9, 3, 1, 2, 2, 2), (13, 13, 5, 1, 3, 6, 6)]),
        ({"padding": "same", "dilation": (1, 2)}, [(9, 9, 3, 1, 1, 1, 1), (13, 13, 5, 1, 2, 4, 4)]),
    ],
    ids=str,
)
def test_strides_dilations_and_paddings(options: dict[str, Any], expected: list[tuple[int, ...]]) -> None:
    assert numbers(traced(lambda x, w: F.conv2d(x, w, **options), (2, 8, 9, 13), (4, 8, 3, 5))) == expected


def test_one_axis_and_three() -> None:
    assert numbers(traced(F.conv1d, (2, 8, 9), (4, 8, 3))) == [(9, 7, 3, 1, 1, 0, 0)]
    found = traced(lambda x, w: F.conv3d(x, w, padding=(0, 1, 0)), (2, 8, 4, 5, 6), (4, 8, 2, 3, 1))
    assert numbers(found) == [(4, 3, 2, 1, 1, 0, 0), (5, 5, 3, 1, 1, 1, 1), (6, 6, 1, 1, 1, 0, 0)]


def test_one_image_is_a_batch_of_one() -> None:
    found = traced(lambda x, w: F.conv2d(x, w), (1, 8, 9, 9), (4, 8, 3, 3))
    assert found.batch == found.image.type.static_shape.index(1)
    found = traced(lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w), (1, 9, 9, 8), (4, 8, 3, 3))
    assert (found.batch, found.channels) == (0, 3)
    assert [w.axis for w in found.windowed] == [1, 2]


def test_an_image_without_a_batch_has_none() -> None:
    graph = parse(
        """graph @g(%x: f32[9, 8], %w: f32[4, 8, 3]) {
          %s = windows(%x) {axis=0, size=3} : f32[7, 8, 3]
          %y = dot(%s, %w) {contract=[1, 2]x[1, 2]} : f32[7, 4]
          return %y
        }"""
    )
    found = convolution_of(graph.ops[-1], {v: op for op in graph.ops for v in op.results})
    assert found is not None
    assert (found.batch, found.channels) == (None, 1)


def test_padding_of_one_side_more() -> None:
    found = traced(lambda x, w: F.conv2d(F.pad(x, (0, 1, 2, 0)), w), (2, 8, 9, 9), (4, 8, 3, 3))
    assert [(w.low, w.high) for w in found.windowed] == [(2, 0), (0, 1)]


def test_an_image_that_is_cut() -> None:
    """What lies before the first window counts as padding less than none."""
    found = traced(lambda x, w: F.conv2d(x[:, :, 2:, :-3], w), (2, 8, 9, 9), (4, 8, 3, 3))
    assert found.image.type.static_shape == (2, 8, 9, 9)
    assert [(w.low, w.high) for w in found.windowed] == [(-2, 0), (0, -3)]


UNFOLDED: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda x, w: w.flatten(1) @ F.unfold(x, 3, padding=1),
    "windows first": lambda x, w: F.unfold(x, 3, padding=1).mT @ w.flatten(1).mT,
    "of Tensor.unfold": lambda x, w: (
        x.unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 2, 3, 1, 4, 5).reshape(2, 63, 72) @ w.flatten(1).T
    ),
}


@pytest.mark.xfail(strict=True, reason="a reshape that makes one axis of the windows of two is not looked through")
@pytest.mark.parametrize("name", UNFOLDED)
def test_columns_of_windows_and_a_matmul(name: str) -> None:
    assert found_in(capture(UNFOLDED[name], (torch.zeros(2, 8, 9, 11), torch.zeros(4, 8, 3, 3)), {}).graph) is not None


def test_windows_of_a_tensor_and_einsum() -> None:
    found = traced(
        lambda x, w: torch.einsum("ncijkl,ockl->noij", x.unfold(2, 3, 2).unfold(3, 5, 1), w),
        (2, 8, 9, 11),
        (4, 8, 3, 5),
    )
    assert numbers(found) == [(9, 4, 3, 2, 1, 0, 0), (11, 7, 5, 1, 1, 0, 0)]
    assert (found.batch, found.channels) == (0, 1)


def test_sliding_windows_and_einsum() -> None:
    def convolve(x: Any, w: Any) -> Any:
        seen = sliding_window_view(np.pad(x, ((0, 0), (1, 1), (0, 2), (0, 0))), (3, 5), axis=(1, 2))
        return np.einsum("nijckl,klcm->nijm", seen[:, ::2], w)

    given = (np.zeros((2, 9, 13, 8), np.float32), np.zeros((3, 5, 8, 4), np.float32))
    found = found_in(capture_numpy(convolve, given, {}).graph)
    assert found is not None
    assert found.image.type.static_shape == (2, 9, 13, 8)
    assert numbers(found) == [(9, 5, 3, 2, 1, 1, 1), (13, 11, 5, 1, 1, 0, 2)]
    assert (found.batch, found.channels) == (0, 3)


def dot_of(*lines: str, inputs: str = "%x: f32[2, 9, 13, 8]") -> str:
    body = "\n  ".join(lines)
    return f"graph @g({inputs}, %w: f32[4, 8, 3], %m: f32[8, 5]) {{\n  {body}\n  return %y\n}}"


SHOWN = "%s = windows(%x) {axis=1, size=3} : f32[2, 7, 13, 8, 3]"
NO_CONVOLUTION = {
    "a matmul": dot_of("%y = dot(%x, %m) {contract=[3]x[0]} : f32[2, 9, 13, 5]"),
    "a place that is not summed over": dot_of(SHOWN, "%y = dot(%s, %m) {contract=[3]x[0]} : f32[2, 7, 13, 3, 5]"),
    "the number of the window": dot_of(
        SHOWN,
        "%v = slice(%m) {starts=[0, 0], stops=[7, 5], steps=[1, 1]} : f32[7, 5]",
        "%y = dot(%s, %v) {contract=[1]x[0]} : f32[2, 13, 8, 3, 5]",
    ),
    "windows in another order": dot_of(
        "%s = windows(%x) {axis=1, size=3} : f32[2, 7, 13, 8, 3]",
        "%p = permute(%s) {permutation=[0, 2, 1, 3, 4]} : f32[2, 13, 7, 8, 3]",
        "%y = dot(%p, %w) {contract=[3, 4]x[1, 2]} : f32[2, 13, 7, 4]",
    ),
    "an image backwards": dot_of(
        "%r = slice(%x) {starts=[0, 8, 0, 0], stops=[2, -1, 13, 8], steps=[1, -1, 1, 1]} : f32[2, 9, 13, 8]",
        "%s = windows(%r) {axis=1, size=3} : f32[2, 7, 13, 8, 3]",
        "%y = dot(%s, %w) {contract=[3, 4]x[1, 2]} : f32[2, 7, 13, 4]",
    ),
    "one place of each window": dot_of(
        "%s = slice(%x) {starts=[0, 1, 0, 0], stops=[2, 8, 13, 8], steps=[1, 1, 1, 1]} : f32[2, 7, 13, 8]",
        "%y = dot(%s, %m) {contract=[3]x[0]} : f32[2, 7, 13, 5]",
    ),
    "a symbolic batch": dot_of(
        "%s = windows(%x) {axis=1, size=3} : f32[N, 7, 13, 8, 3]",
        "%y = dot(%s, %w) {contract=[3, 4]x[1, 2]} : f32[N, 7, 13, 4]",
        inputs="%x: f32[N, 9, 13, 8]",
    ),
}


@pytest.mark.parametrize("name", NO_CONVOLUTION)
def test_what_is_none(name: str) -> None:
    graph = parse(dedent(NO_CONVOLUTION[name]))
    (dot,) = (op for op in graph.ops if op.name == "dot")
    assert convolution_of(dot, {v: op for op in graph.ops for v in op.results}) is None


def test_what_is_around_those_is_one() -> None:
    text = dot_of(SHOWN, "%y = dot(%s, %w) {contract=[3, 4]x[1, 2]} : f32[2, 7, 13, 4]")
    graph = parse(text)
    found = convolution_of(graph.ops[-1], {v: op for op in graph.ops for v in op.results})
    assert found is not None
    assert numbers(found) == [(9, 7, 3, 1, 1, 0, 0), (13, 13, 1, 1, 1, 0, 0)]
    assert [w.tap_axis for w in found.windowed] == [1, None]


def test_one_weight_for_all_channels_has_none() -> None:
    graph = parse(
        dot_of(
            SHOWN,
            "%v = slice(%m) {starts=[0, 0], stops=[3, 5], steps=[1, 1]} : f32[3, 5]",
            "%y = dot(%s, %v) {contract=[4]x[0]} : f32[2, 7, 13, 8, 5]",
        )
    )
    found = convolution_of(graph.ops[-1], {v: op for op in graph.ops for v in op.results})
    assert found is not None
    assert found.channels is None
    assert [w.size for w in found.windowed] == [3, 1, 1]


def test_other_numbers_than_zero_around_an_image_are_no_padding() -> None:
    """The image is then what is padded."""
    for fill, shape in ((0.0, (2, 8, 9, 9)), (1.0, (2, 8, 11, 11))):
        found = traced(
            lambda x, w, fill=fill: F.conv2d(F.pad(x, (1, 1, 1, 1), value=fill), w), (2, 8, 9, 9), (4, 8, 3, 3)
        )
        assert found.image.type.static_shape == shape
        assert (found.pad is None) == (fill == 1.0)


def test_one_window_over_all_of_an_image_is_a_plain_contraction() -> None:
    def contracted(x: Any, w: Any) -> Any:
        return torch.einsum("tef,efd->td", x, w)

    for f, shapes in (
        (contracted, ((6, 4, 5), (4, 5, 3))),
        (F.conv2d, ((6, 8, 7, 7), (4, 8, 7, 7))),
    ):
        assert found_in(capture(f, tuple(torch.zeros(s) for s in shapes), {}).graph) is None
    assert traced(lambda x, w: F.conv2d(x, w, padding=1), (6, 8, 5, 5), (4, 8, 7, 7)).taps == 49
