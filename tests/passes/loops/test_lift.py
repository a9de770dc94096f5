"""Values of all steps as one: each op that is lifted, and those that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from programs import random_inputs

from fusec.frontend.torch import capture
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.passes.loops.lift import Lifter

T = 5
Step = Callable[[Any, Any, int], Any]

LIFTED: dict[str, Step] = {
    "slices": lambda x, y, t: x[t],
    "slices along another axis, backwards": lambda x, y, t: x[:, T - 1 - t],
    "every other": lambda x, y, t: x[:2, :, t],
    "maps of other ranks": lambda x, y, t: x[t] * torch.sigmoid(x[0, t]) + y[0],
    "with axes put in": lambda x, y, t: x[t, :, None] - x[t, None, :] * y[:, 0],
    "broadcast": lambda x, y, t: x[t, 0].expand(3, T).contiguous() + y.sum(),
    "reduced": lambda x, y, t: (x[:, t] * y).amax(1),
    "rows of a product": lambda x, y, t: x[:, t] @ y,
    "equations": lambda x, y, t: torch.einsum("ij,jk->ki", x[:, t], y),
    "slices of what steps have": lambda x, y, t: (x[t] * y)[1:, ::2].flip(0),
    "constants": lambda x, y, t: 2 * x[t].t().flatten()[:T] if t < 0 else 3 - x[t] / 2,
}


def captured(step: Step) -> tuple[Graph, Any]:
    """The steps' values, as a function gives them."""

    def f(x: Any, y: Any) -> Any:
        return tuple(step(x, y, t) for t in range(T))

    graph = capture(f, (torch.zeros(T, T, T), torch.zeros(T, T)), {}).graph
    return graph, graph.outputs


@pytest.mark.parametrize("name", list(LIFTED))
def test_lifted(name: str) -> None:
    graph, parts = captured(LIFTED[name])
    lifter = Lifter(graph)
    lifted = lifter.lift(parts)
    assert lifted is not None
    assert lifted.at is not None
    whole = graph.with_ops((*graph.ops, *lifter.ops), (lifted.value,))
    apart = graph.with_ops(graph.ops, parts)
    arrays = random_inputs(graph)
    (found,) = interpret(whole, arrays, float64=True)
    wanted = np.stack(interpret(apart, arrays, float64=True), lifted.at)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize(
    "step",
    [
        lambda x, y, t: x[t] if t else y,
        lambda x, y, t: x[t * t % T],
        lambda x, y, t: x[t] + t,
        lambda x, y, t: y @ x[t],
        lambda x, y, t: x[t].cumsum(0),
        lambda x, y, t: x[t].exp() if t else x[t].sin(),
    ],
)
def test_not_lifted(step: Step) -> None:
    graph, parts = captured(step)
    assert Lifter(graph).lift(parts) is None


def test_what_all_steps_have_needs_no_axis() -> None:
    graph, parts = captured(lambda x, y, t: y)
    lifted = Lifter(graph).lift((parts[0],) * T)
    assert lifted is not None
    assert (lifted.value, lifted.at) == (parts[0], None)


def test_steps_of_a_long_loop_are_not_followed_to_its_start() -> None:
    """Each of them is computed alike, and from the one before."""

    def f(x: Any) -> Any:
        values = []
        for _ in range(1500):
            x = torch.sin(x)
            values.append(x)
        return tuple(values[-T:])

    graph = capture(f, (torch.zeros(3),), {}).graph
    assert Lifter(graph).lift(graph.outputs) is None
