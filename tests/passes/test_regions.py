"""Arrays that are filled region by region: what reads a region, and what all of it becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fusec
from fusec.frontend.torch import capture
from fusec.ir.attributes import ConcatAttributes
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.passes.regions import join_regions
from fusec.passes.writes import open_writes


def captured(f: Callable[..., Any], *shape: int) -> Graph:
    return open_writes(capture(f, (torch.zeros(*shape),), {}).graph)


def names(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops]


def agrees(graph: Graph, f: Callable[..., Any], *shape: int) -> None:
    """The graph before and after give what the code gives, also of NaN and infinities."""
    x = torch.randn(*shape)
    x.view(-1)[::5] = torch.tensor(float("nan"))
    x.view(-1)[1::7] = torch.tensor(float("inf"))
    wanted = f(x)
    wanted = [t.numpy() for t in (wanted if isinstance(wanted, tuple) else (wanted,))]
    for found in (graph, join_regions(graph)):
        for one, other in zip(interpret(found, [x.numpy()]), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def gates(x: Any) -> Any:
    """As PyTorch's cells of GRUs are on a CPU."""
    made = x * 2
    a, b, c = made.chunk(3, 1)
    a.add_(1).neg_()
    b.mul_(3)
    c.add_(a * b)
    return c * a


def steps(x: Any) -> Any:
    out = torch.zeros_like(x)
    for t in range(6):
        out[:, t] = x[:, t] * t
    return out


def backwards(x: Any) -> Any:
    """Each step reads what the one before wrote."""
    out = torch.zeros_like(x)
    out[5] = x[5]
    for t in (4, 3, 2, 1, 0):
        out[t] = out[t + 1] * 0.5 + x[t]
    return out


def gaps(x: Any) -> Any:
    out = x + 1
    for t in (0, 1, 3, 5):
        out[:, t] = x[:, 0]
    return out


def over_each_other(x: Any) -> Any:
    out = torch.zeros_like(x)
    out[:4] = x[:4]
    out[2:] = x[2:] * 2
    out[3] = 7
    return out


def test_gates_are_computed_alone() -> None:
    before = captured(gates, 4, 6)
    after = join_regions(before)
    assert "select" in names(before)
    assert not {"select", "pad"} & set(names(after))
    agrees(before, gates, 4, 6)


@pytest.mark.parametrize(
    ("f", "axis", "parts"), [(steps, 1, 6), (backwards, 0, 6), (gaps, 1, 6), (over_each_other, 0, 4)]
)
def test_writes_are_a_join(f: Callable[..., Any], axis: int, parts: int) -> None:
    before = captured(f, 6, 6)
    after = join_regions(before)
    (join,) = [op for op in after.ops if op.name == "concat"]
    assert (join.expect(ConcatAttributes).axis, len(join.operands)) == (axis, parts)
    assert "select" not in names(after)
    agrees(before, f, 6, 6)


def test_a_few_writes_that_leave_gaps_stay() -> None:
    def f(x: Any) -> Any:
        out = x + 1
        out[:, 0] = 0
        out[:, 2] = 1
        return out

    before = captured(f, 3, 5)
    assert names(join_regions(before)) == names(before)
    agrees(before, f, 3, 5)


def test_slices_that_show_a_part_of_a_write_stay() -> None:
    def f(x: Any) -> Any:
        out = x + 1
        out[1:3] = 0
        return out[2:5] * 2, out[3:] * 3, out[1:2] - 1

    before = captured(f, 6, 4)
    after = join_regions(before)
    assert names(after).count("select") == 1
    agrees(before, f, 6, 4)


def test_boxes_of_two_axes() -> None:
    def f(x: Any) -> Any:
        out = x + 1
        out[1:3, 2:4] = x[:2, :2]
        return out[1:3, 2:4] * 2, out[1:2, 3:4] + 1, out[:1] - 1, out[3:] - 1, out[1:3, :2] * 1

    before = captured(f, 5, 6)
    agrees(before, f, 5, 6)
    assert "select" in names(before)
    assert "select" not in names(join_regions(before))


def test_reads_between_writes() -> None:
    """A sum of all of the array sees what was there then."""

    def f(x: Any) -> Any:
        out = torch.zeros_like(x)
        found = []
        for t in range(4):
            out[t] = x[t]
            found.append(out.sum())
        return out, torch.stack(found)

    before = captured(f, 4, 3)
    after = join_regions(before)
    x = torch.randn(4, 3)
    for one, other in zip(interpret(after, [x.numpy()]), f(x), strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-6)


def test_negative_steps_are_left() -> None:
    def f(x: Any) -> Any:
        out = x + 1
        out[2:4] = x[2:4].flip(0)
        return out.flip(0)[:2] * 2

    agrees(captured(f, 6, 3), f, 6, 3)


def test_results_that_share_memory_still_do() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = torch.empty_like(x)
        out[:2] = x[:2] + 1
        out[2:] = x[2:] - 1
        return out, out[2:], out[0]

    x = torch.randn(4, 3)
    out, part, row = fusec.jit(f, fallback="error")(x)
    for one, other in zip((out, part, row), f(x), strict=True):
        torch.testing.assert_close(one, other)
    part.fill_(5)
    row.fill_(7)
    assert (out[2:] == 5).all()
    assert (out[0] == 7).all()


def test_a_chain_of_many_steps_takes_a_kernel_a_few_steps() -> None:
    """Compile time and kernels do not grow with the square of the steps."""

    def f(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        state = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            state = torch.tanh(state * 0.5 + x[:, t])
            out[:, t] = state
        return out

    x = torch.randn(2, 40, 5)
    torch.testing.assert_close(fusec.jit(f, fallback="error")(x), f(x))
    sizes = [len(fusec.lower(fusec.trace(f, torch.randn(2, t, 5))).program.reports) for t in (20, 40)]
    assert sizes[1] <= 2 * sizes[0] + 1
