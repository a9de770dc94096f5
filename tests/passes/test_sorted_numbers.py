"""Choices that are sorted, counted and put back by library calls: which are kernels, and that they give the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fusec.frontend.torch import capture
from fusec.ir.attributes import ExternAttributes
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.verify import verify
from fusec.passes.canonicalize import canonicalize
from fusec.passes.sorted_numbers import open_sorts

T, E, K = 9, 5, 2


def library(call: ExternAttributes, operands: Sequence[Any]) -> list[Any]:
    """The calls of the graphs here."""
    match call.target.split(".")[1]:
        case "topk":
            order = np.argsort(-operands[0], axis=-1, kind="stable")[:, :K]
            return [np.take_along_axis(operands[0], order, -1), order]
        case "sort":
            order = np.argsort(operands[0], kind="stable")
            return [operands[0][order], order]
        case "histc":
            return [np.histogram(operands[0], E, (0, E - 1))[0].astype(operands[0].dtype)]
        case "index_put":
            result = operands[0].copy()
            result[operands[1]] = operands[2]
            return [result]
    raise AssertionError(call.target)


def calls(graph: Graph) -> list[str]:
    found = [op.attributes for op in graph.ops if isinstance(op.attributes, ExternAttributes)]
    return [call.target.split(".")[1] for call in found]


def opened(f: Any, *args: torch.Tensor) -> list[str]:
    """The calls that are left."""
    before = canonicalize(capture(f, args, {}).graph)
    after = open_sorts(before)
    verify(after)
    arrays = [a.numpy() for a in args]
    for got, wanted in zip(
        interpret(after, arrays, extern=library), interpret(before, arrays, extern=library), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)
    return calls(after)


def choices(scores: torch.Tensor) -> torch.Tensor:
    return torch.topk(scores, K, -1)[1].reshape(-1)


SCORES = torch.rand(T, E, generator=torch.Generator().manual_seed(0))


def test_choices_sorted_counted_and_put_back() -> None:
    def f(scores: torch.Tensor, rows: torch.Tensor) -> Any:
        chosen, order = torch.sort(choices(scores))
        counts = torch.histc(chosen.float(), bins=E, min=0, max=E - 1)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(T * K)
        moved = torch.zeros_like(rows)
        moved[order] = rows
        return chosen, order, counts.cumsum(0, dtype=torch.int32), inverse, moved, order.argsort()

    assert opened(f, SCORES, torch.randn(T * K, 3)) == ["topk"]


def written_in_part(scores: torch.Tensor) -> Any:
    order = torch.sort(choices(scores))[1]
    return torch.zeros(2 * T * K).index_put((order,), torch.ones(T * K))


def one_for_all(scores: torch.Tensor) -> Any:
    order = torch.sort(choices(scores))[1]
    return torch.zeros(T * K, dtype=torch.int64).index_put((order,), torch.ones((), dtype=torch.int64))


@pytest.mark.parametrize("f", [written_in_part, one_for_all], ids=lambda f: f.__name__)
def test_other_writes_stay(f: Any) -> None:
    assert opened(f, SCORES) == ["topk", "index_put"]


def descending(scores: torch.Tensor) -> Any:
    return torch.sort(choices(scores), descending=True)[0]


def of_rows(scores: torch.Tensor) -> Any:
    return torch.sort(choices(scores).reshape(T, K))[0]


def changed(scores: torch.Tensor) -> Any:
    return torch.sort(choices(scores) * 1000)[0]


@pytest.mark.parametrize("f", [descending, of_rows, changed], ids=lambda f: f.__name__)
def test_other_sorts_stay(f: Any) -> None:
    graph = canonicalize(capture(f, (SCORES,), {}).graph)
    assert calls(open_sorts(graph)) == ["topk", "sort"]


@pytest.mark.parametrize(("bins", "high"), [(E, E), (E + 1, E - 1), (1, 0)])
def test_other_bins_stay(bins: int, high: int) -> None:
    def f(scores: torch.Tensor) -> Any:
        return torch.histc(choices(scores).float(), bins=bins, min=0, max=high)

    graph = canonicalize(capture(f, (SCORES,), {}).graph)
    assert calls(open_sorts(graph)) == ["topk", "histc"]


def test_fusecs_own_library_calls_are_no_sorts() -> None:
    images, weights = torch.zeros(2, 3, 16, 16).bfloat16(), torch.zeros(8, 3, 4, 4).bfloat16()
    graph = capture(torch.conv2d, (images, weights), {}).graph
    assert any(op.name == "extern" for op in graph.ops)
    assert [op.name for op in open_sorts(canonicalize(graph)).ops] == [op.name for op in canonicalize(graph).ops]
