"""Reductions in the order of memory: what is reduced in front of what stays, and behind it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from programs import reductions
from torch import nn

import fusec
from fusec.ir.graph import Graph
from fusec.ir.parse import parse
from fusec.passes.reduced_axes import FEWEST, LONGEST, SHORTEST, reduce_in_memory_order


def image(shape: list[int], strides: list[int], axes: list[int], name: str = "reduce_sum") -> Graph:
    left = [n for a, n in enumerate(shape) if a not in axes]
    return parse(
        f'graph @g(%x: f32{shape} argument "x" strides={strides}) {{\n'
        f"  %y = {name}(%x) {{axes={axes}}} : f32{left}\n"
        "  return %y\n}"
    )


LAST = [32 * 144, 1, 12 * 32, 32]
"""Strides of [4, 32, 12, 12] with channels last."""


def test_columns_of_an_image_with_channels_last() -> None:
    assert reductions(reduce_in_memory_order(image([4, 32, 12, 12], LAST, [2, 3]))) == [((4, 12, 12, 32), (1, 2))]


def test_groups_of_channels_are_reduced_behind() -> None:
    grouped = image([4, 8, 4, 12, 12], [32 * 144, 4, 1, 12 * 32, 32], [2, 3, 4])
    assert reductions(reduce_in_memory_order(grouped)) == [((4, 12, 12, 32), (1, 2)), ((4, 8, 4), (2,))]


def test_reduced_axes_in_the_other_order_in_memory() -> None:
    """As a bias gradient of what lies positions first: [batch, positions, columns]."""
    positions_first = image([16, 24, 64], [64, 16 * 64, 1], [0, 1])
    assert reductions(reduce_in_memory_order(positions_first)) == [((24, 16, 64), (0, 1))]


def test_statistics_of_a_batch() -> None:
    assert reductions(reduce_in_memory_order(image([4, 32, 12, 12], LAST, [0, 2, 3]))) == [((4, 12, 12, 32), (0, 1, 2))]


@pytest.mark.parametrize(
    ("shape", "strides", "axes"),
    [
        ([4, 32, 12, 12], [32 * 144, 144, 12, 1], [2, 3]),  # rows as they lie
        ([2, 144, 32], [144 * 32, 32, 1], [1]),  # columns as they lie
        ([4, 32, 12, 12], LAST, [1]),  # rows of channels
        ([1, 32, 3, 12], [32 * 36, 1, 12 * 32, 32], [2, 3]),  # few elements
        ([128, 32, SHORTEST - 1], [32 * (SHORTEST - 1), 1, 32], [2]),  # little in front
        ([64, 8, LONGEST + 1], [8 * (LONGEST + 1), LONGEST + 1, 1], [0, 2]),  # much behind
    ],
)
def test_others_stay(shape: list[int], strides: list[int], axes: list[int]) -> None:
    graph = image(shape, strides, axes)
    assert str(reduce_in_memory_order(graph)) == str(graph)


def test_scores_of_an_attention_stay() -> None:
    graph = parse("""graph @g(%q: f32[8, 64, 16], %k: f32[8, 64, 16]) {
  %s = dot(%q, %k) {batch=[0]x[0], contract=[2]x[2]} : f32[8, 64, 64]
  %t = permute(%s) {permutation=[0, 2, 1]} : f32[8, 64, 64]
  %m = reduce_max(%t) {axes=[2]} : f32[8, 64]
  return %m
}""")
    assert graph.ops[0].result.type.size >= FEWEST
    assert str(reduce_in_memory_order(graph)) == str(graph)


def near(x: torch.Tensor, f: nn.Module) -> None:
    """No further from float64 than twice eager, which adds in another order."""
    exact = f.double()(x.double())
    f.float()
    eager = (f(x).double() - exact).abs().max()
    made = fusec.jit(f)(x)
    assert made.stride() == f(x).stride()
    assert (made.double() - exact).abs().max() <= 2 * eager + 1e-6


class Block(nn.Module):
    """A convolution, whose result has its channels last, a norm, and an activation."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(24, 48, 3, padding=1), norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(self.conv(x)))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("groups", [1, 6, 24, 48])
def test_group_norm(groups: int, last: bool) -> None:
    torch.manual_seed(groups)
    x = torch.randn(4, 24, 9, 11) * 3 + 1
    near(x.to(memory_format=torch.channels_last) if last else x, Block(nn.GroupNorm(groups, 48)).eval())


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(48), nn.BatchNorm2d(48, track_running_stats=False)])
def test_norms_with_statistics_of_the_image(norm: nn.Module) -> None:
    torch.manual_seed(0)
    near(torch.randn(3, 24, 16, 15).to(memory_format=torch.channels_last), Block(norm).eval())


@pytest.mark.parametrize("name", ["amax", "amin", "sum", "mean", "var", "prod", "argmax", "logsumexp", "any"])
def test_any_reduction(name: str) -> None:
    """Values that are not numbers are where eager has them."""
    torch.manual_seed(0)
    x = (torch.rand(8, 40, 9, 8) / 8 + 0.95).to(memory_format=torch.channels_last)
    x[1, 3, 2, 2], x[2, 5, 0, 0] = torch.nan, torch.inf

    def run(x: torch.Tensor) -> torch.Tensor:
        if name == "argmax":
            return x.flatten(2).argmax(-1)
        return getattr(torch, name)(x * 2 - 1, dim=(2, 3)) if name not in ("any", "prod") else each(x)

    def each(x: torch.Tensor) -> torch.Tensor:
        return (x > 1).any(2).any(2) if name == "any" else (x * 2 - 1).prod(3).prod(2)

    torch.testing.assert_close(fusec.jit(run)(x), run(x), rtol=1e-5, atol=1e-5, equal_nan=True)
