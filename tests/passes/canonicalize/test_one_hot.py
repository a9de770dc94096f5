"""Sums along rows that are 0 but at one position are what stands there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rewriting import becomes

from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.canonicalize import canonicalize
from fusec.torch_compile import gathering

GRAPH = """
graph @g(%t: i64[5, 1], %w: f32[5, 1]) {
  %i = iota() {axis=1} : i64[5, 7]
  %e = eq(%i, %t) : bool[5, 7]
  %h = select(%e, f32(-1.0), f32(0.0)) : f32[5, 7]
  %m = mul(%h, %w) : f32[5, 7]
  %y = reduce_sum(%m) {axes=[1]} : f32[5]
  return %y
}
"""


def test_one_hot_with_a_factor() -> None:
    becomes(
        canonicalize,
        GRAPH,
        """
        graph @g(%t: i64[5, 1], %w: f32[5, 1]) {
          %y_ge = ge(%t, i64(0)) : bool[5, 1]
          %y_lt = lt(%t, i64(7)) : bool[5, 1]
          %y_logical_and = logical_and(%y_ge, %y_lt) : bool[5, 1]
          %y_select = select(%y_logical_and, f32(-1.0), f32(0.0)) : f32[5, 1]
          %y_mul = mul(f32(0.0), %w) : f32[5, 1]
          %y_mul_1 = mul(%y_select, %w) : f32[5, 1]
          %y_add = add(%y_mul_1, %y_mul) : f32[5, 1]
          %y = reshape(%y_add) : f32[5]
          return %y
        }
        """,
    )


def test_positions_out_of_the_row_and_values_that_are_not_finite() -> None:
    t = np.array([[0], [6], [7], [-1], [3]])
    w = np.array([[2.0], [np.inf], [1.5], [np.nan], [-3.0]], np.float32)
    graph = parse(GRAPH)
    with np.errstate(invalid="ignore"):
        before, after = interpret(graph, [t, w]), interpret(canonicalize(graph), [t, w])
    np.testing.assert_array_equal(before[0], after[0])
    assert np.isnan(after[0]).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize(
    "line",
    [
        "%h = select(%e, %x, f32(0.0)) : f32[5, 7]",  # what stands there differs along the row
        "%h = select(%e, f32(-1.0), f32(0.5)) : f32[5, 7]",
    ],
)
def test_what_stays_a_sum(line: str) -> None:
    text = GRAPH.replace("%h = select(%e, f32(-1.0), f32(0.0)) : f32[5, 7]", line).replace(
        "%w: ", "%x: f32[5, 7], %w: "
    )
    assert str(canonicalize(parse(text))).count("reduce_sum") == 1


def test_other_axes_stay_sums() -> None:
    text = GRAPH.replace("%y = reduce_sum(%m) {axes=[1]} : f32[5]", "%y = reduce_sum(%m) {axes=[0]} : f32[7]")
    assert str(canonicalize(parse(text))).count("reduce_sum") == 1


def test_the_gradient_of_a_loss_reads_its_scores_once() -> None:
    """The softmax's gradient is one pass of maps over rows whose maximum and sum were kept."""

    def loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, t)

    x = torch.randn(6, 33, requires_grad=True)
    t = torch.tensor([0, 32, 5, -100, 7, 7])
    ours = x.detach().clone().requires_grad_()
    loss(x, t).backward()
    with gathering() as graphs:
        torch.compile(loss, backend="fusec")(ours, t).backward()
    torch.testing.assert_close(ours.grad, x.grad)
    backward = next(graph for graph in graphs if graph.kind == "backward")
    assert " row " not in backward.report()
