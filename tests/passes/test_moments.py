"""Means and variances of columns on a GPU: of parts, which are read once for both."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
from oracle import assert_close_to_oracle
from programs import check, reductions
from torch import nn

import fusec
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.moments import FEWEST_PIXELS, MOST_PIXELS, moments_of_parts

SMS = 4
LAST = [32 * 144, 1, 12 * 32, 32]
"""Strides of [4, 32, 12, 12] with channels last."""


def statistics(
    shape: list[int],
    strides: list[int],
    axes: list[int],
    given: str = "%x",
    around: str = "%e",
    count: float = 0.0,
    by: str = "div",
) -> Graph:
    """A mean, and the squares around it."""
    left = [n for a, n in enumerate(shape) if a not in axes]
    ones = [1 if a in axes else n for a, n in enumerate(shape)]
    count = count or float(np.prod([shape[a] for a in axes]))
    return parse(
        f'graph @g(%x: f32{shape} argument "x" strides={strides}, %o: f32{left} argument "o") {{\n'
        f"  %y = mul(%x, f32(2.0)) : f32{shape}\n"
        f"  %s = reduce_sum({given}) {{axes={axes}}} : f32{left}\n"
        f"  %m = {by}(%s, f32({count if by == 'div' else 1 / count})) : f32{left}\n"
        f"  %k = reshape(%m) : f32{ones}\n"
        f"  %e = sub(%x, %k) : f32{shape}\n"
        f"  %j = reshape(%o) : f32{ones}\n"
        f"  %f = sub(%x, %j) : f32{shape}\n"
        f"  %q = mul({around}, {around}) : f32{shape}\n"
        f"  %v = reduce_sum(%q) {{axes={axes}}} : f32{left}\n"
        "  return %m, %v\n}"
    )


def of_parts(graph: Graph) -> Graph:
    return moments_of_parts(graph, SMS, 256)


CASES = {
    "images": ([4, 32, 12, 12], LAST, [2, 3]),
    "groups": ([4, 8, 4, 12, 12], [32 * 144, 4, 1, 12 * 32, 32], [2, 3, 4]),
    "a batch": ([4, 32, 12, 12], LAST, [0, 2, 3]),
    "columns": ([1536, 32], [32, 1], [0]),
    "long axes": ([2, 8, 33, 65], [8 * 33 * 65, 1, 65 * 8, 8], [2, 3]),
    "a prime": ([1, 8, 1201, 3], [8 * 3603, 1, 24, 8], [2, 3]),
    "one image": ([1, 8, 4, 24, 12], [32 * 288, 4, 1, 12 * 32, 32], [2, 3, 4]),
}


def arguments(graph: Graph, x: np.ndarray) -> list[np.ndarray]:
    return [x, np.zeros(graph.inputs[1].type.static_shape, np.float32)]


def compare(graph: Graph, x: np.ndarray) -> None:
    given = arguments(graph, x)
    exact, eager = interpret(graph, given, float64=True), interpret(graph, given)
    for found, right, theirs in zip(interpret(of_parts(graph), given), exact, eager, strict=True):
        assert_close_to_oracle(found, right, theirs)


@pytest.mark.parametrize("by", ["div", "mul"])
@pytest.mark.parametrize("name", CASES)
def test_sums_of_parts_are_made_in_one_pass(name: str, by: str) -> None:
    """Of numbers far from 0: a square of the mean would leave no digit of the variance."""
    graph = statistics(*CASES[name], by=by)
    sums, mean, rest, squares, variance = reductions(of_parts(graph))
    assert sums == rest == squares
    assert mean == variance
    shape, axes = sums
    places = prod(shape[a] for a in axes)
    assert FEWEST_PIXELS <= places <= MOST_PIXELS
    assert shape[-1] == prod(CASES[name][0]) // (places * prod(shape[: axes[0]]))
    x = np.random.default_rng(0).standard_normal(CASES[name][0]) + 1000.0
    compare(graph, x.astype(np.float32))


def test_the_first_of_a_part_may_be_far_from_the_others() -> None:
    """``sum(d²)`` is at most as many times the variance as the part has places."""
    x = np.random.default_rng(0).standard_normal(CASES["images"][0]).astype(np.float32)
    x[:, :, 0, 0] = 300.0
    compare(statistics(*CASES["images"]), x)


def test_equal_numbers_have_no_variance() -> None:
    graph = statistics(*CASES["groups"])
    x = np.full(CASES["groups"][0], 0.1, np.float32)
    mean, variance = interpret(of_parts(graph), arguments(graph, x))
    assert np.abs(mean - 0.1).max() < 1e-7
    assert variance.max() < 1e-10


@pytest.mark.parametrize(
    "changed", [{"given": "%y"}, {"around": "%f"}, {"around": "%x"}], ids=["another mean", "a given mean", "squares"]
)
def test_squares_around_no_mean_of_the_same_are_summed_as_they_are(changed: dict[str, str]) -> None:
    graph = statistics(*CASES["images"], **changed)
    assert of_parts(graph) is graph


def test_few_elements_and_rows_along_memory_stay() -> None:
    graph = statistics(*CASES["images"])
    assert reductions(moments_of_parts(graph, SMS)) == reductions(graph)
    rows = statistics([64, 1536], [1536, 1], [1])
    assert reductions(of_parts(rows)) == reductions(rows)


def test_squares_around_the_sum_by_another_number_are_squares_around_it() -> None:
    """A variance around what is not the mean."""
    graph = statistics(*CASES["images"], count=100.0)
    compare(graph, np.random.default_rng(0).standard_normal(CASES["images"][0]).astype(np.float32) + 3)


@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_a_special_value_is_in_its_mean_and_variance_alone(special: float, place: int) -> None:
    """Also as the first place of a part, from which the others are taken."""
    graph = statistics(*CASES["images"])
    x = np.random.default_rng(0).standard_normal(CASES["images"][0]).astype(np.float32)
    x[1, 3, 0, place] = special
    given = arguments(graph, x)
    with np.errstate(all="ignore"):
        (mean, variance), wanted = interpret(of_parts(graph), given), interpret(graph, given)
        assert_close_to_oracle(mean, interpret(graph, given, float64=True)[0], wanted[0])
        np.testing.assert_array_equal(np.isnan(variance), np.isnan(wanted[1]))


@pytest.mark.parametrize("target", ["cuda:sm_90", "hip:gfx942"])
def test_a_group_norm_for_gpus_has_three_kernels(target: str) -> None:
    module = nn.Sequential(nn.GroupNorm(32, 256), nn.SiLU()).bfloat16()
    x = torch.randn(16, 256, 32, 32, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    text = str(fusec.compile(module, x, target=target).explain())
    assert "in 3 kernels" in text


def normalised(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A batch norm in training behind what a matmul rounds, with the statistics that it keeps."""
    return torch.ops.aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)


def test_a_batch_norm_in_training_for_gpus_has_three_kernels() -> None:
    """Parts; the mean and the variance of them; and the map. None reads an image in f32."""
    x = torch.randn(4, 64, 48, 48, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    w, b = torch.rand(64, dtype=torch.bfloat16) + 0.5, torch.randn(64, dtype=torch.bfloat16)
    graph = fusec.trace(normalised, x, w, b, target="cuda:sm_90")
    assert "isfinite" not in {op.name for op in graph.ops if op.result.type.count == x.numel()}
    lowered = fusec.lower(graph, "cuda:sm_90")
    assert [k.name.partition("_")[0] for k in lowered.kernels] == ["row", "row", "map"]
    check(str(graph), target="cuda:sm_90")


class Block(nn.Module):
    """A convolution, and the norm behind it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, 1, 1), nn.GroupNorm(32, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.norm(self.conv(x)))


def test_a_norm_behind_a_convolution_reads_its_result_as_it_is() -> None:
    """And as one of an input: an image in f32 is twice as large, and its parts' medians were a kernel of their own."""
    x = torch.randn(2, 128, 64, 64, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    block = Block(128).bfloat16().to(memory_format=torch.channels_last)
    graph = fusec.trace(block, x, target="cuda:sm_90")
    kernels = fusec.lower(graph, "cuda:sm_90").kernels
    after = [k for k in kernels if not k.name.startswith("gemm")]
    assert sum(k.name.startswith("row") for k in after) == 2
    for k in after:
        large = [b for b in k.kernel.parameters if prod(map(int, b.shape)) >= x.numel()]
        assert all(b.dtype.name == "bf16" for b in large), k.name


@pytest.mark.parametrize("channels", [128, 320, 640])
def test_neighbouring_channels_of_several_groups_lie_side_by_side(channels: int) -> None:
    """What a block reads of them is one run of memory: no division by a group's channels is left in its address."""
    module = nn.GroupNorm(32, channels).bfloat16()
    x = torch.randn(4, channels, 32, 64, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    graph = fusec.trace(module, x, target="cuda:sm_90")
    first = fusec.lower(graph, "cuda:sm_90").kernels[0]
    loads = [line for line in first.source.splitlines() if "tl.load(input_ptr" in line]
    assert loads
    assert not any(f"% {channels // 32})" in line or f"// {channels // 32})" in line for line in loads)
