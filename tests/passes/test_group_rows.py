"""Loops over groups of rows: which become one product, which stay, and that both give the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracle import assert_close_to_oracle
from programs import random_inputs

from fusec.frontend.torch import capture
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.verify import verify
from fusec.passes.canonicalize import canonicalize
from fusec.passes.cse import cse
from fusec.passes.dce import dce
from fusec.passes.group_rows import group_rows

SIZES = (3, 0, 1, 7, 5)
ROWS = sum(SIZES)
X, W, D = (ROWS, 8), (5, 8, 6), (5, 6, 8)


def products(x: Any, w: Any) -> Any:
    return torch.cat([part @ w[n] for n, part in enumerate(x.split(SIZES))])


def linears(x: Any, w: Any) -> Any:
    return torch.cat([F.linear(part, w[n]) for n, part in enumerate(x.split(SIZES))])


def gated(x: Any, v: Any, w: Any, d: Any, b: Any) -> Any:
    """Of halves of the rows of an array, with a factor for each row and a bias for all of them."""
    results = []
    for n, part in enumerate(x[:ROWS].split(SIZES)):
        h = F.silu(part @ v[n]) * (part @ w[n]) * part[:, :1] + b
        results.append(2 * (h @ d[n]))
    return torch.cat(results)


def computed(x: Any, w: Any) -> Any:
    """Parts that are no slices."""
    return torch.cat([part.relu().softmax(-1) @ w[n] for n, part in enumerate(x.split(SIZES))])


def in_a_stack(x: Any, w: Any) -> Any:
    return torch.cat([x[4 * n : 4 * n + 4] @ w[n + 1] for n in range(4)])


def written(x: Any, w: Any) -> Any:
    """Into an array that all groups together fill."""
    result, start = torch.empty(ROWS, 6, dtype=x.dtype), 0
    for n, size in enumerate(SIZES):
        result[start : start + size] = x[start : start + size] @ w[n]
        start += size
    return result


def written_in_part(x: Any, w: Any) -> Any:
    result = torch.zeros(ROWS, 6, dtype=x.dtype)
    result[:5] = x[:5] @ w[0]
    result[7:] = x[7:] @ w[1]
    return result


def written_twice(x: Any, w: Any) -> Any:
    result = torch.zeros(ROWS, 6, dtype=x.dtype)
    result[:9] = x[:9] @ w[0]
    result[7:] = x[7:] @ w[1]
    return result


GROUPED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "products": (products, (X, W), 1),
    "linears": (linears, (X, D), 1),
    "gated": (gated, ((2 * ROWS, 8), W, W, D, (6,)), 3),
    "computed": (computed, (X, W), 1),
    "written": (written, (X, W), 1),
    "some of the matrices": (in_a_stack, (X, W), 1),
}


def canonical(f: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], kind: torch.dtype) -> Graph:
    graph = capture(f, tuple(torch.zeros(shape, dtype=kind) for shape in shapes), {}).graph
    return dce(cse(canonicalize(graph)))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", GROUPED)
def test_a_loop_is_one_product(name: str, kind: torch.dtype) -> None:
    f, shapes, count = GROUPED[name]
    graph = canonical(f, shapes, kind)
    made = group_rows(graph)
    verify(made)
    assert [op.name for op in made.ops].count("grouped_dot") == count
    assert not any(op.name == "dot" for op in made.ops)
    arrays = random_inputs(graph)
    exact = interpret(graph, arrays, float64=True)
    assert_close_to_oracle(interpret(made, arrays), exact, interpret(graph, arrays))


def test_sizes_are_of_all_matrices() -> None:
    for name, sizes in (("products", SIZES), ("some of the matrices", (0, 4, 4, 4, 4))):
        f, shapes, _ = GROUPED[name]
        made = group_rows(canonical(f, shapes, torch.bfloat16))
        (product,) = (op for op in made.ops if op.name == "grouped_dot")
        assert product.attributes.sizes == sizes  # type: ignore[attr-defined]
        assert product.operands == made.inputs


def read_alone(x: Any, w: Any) -> Any:
    parts = [part @ w[n] for n, part in enumerate(x.split(SIZES))]
    return torch.cat(parts), parts[3].relu()


def backwards(x: Any, w: Any) -> Any:
    return torch.cat([part @ w[4 - n] for n, part in enumerate(x.split(SIZES))])


def of_two_arrays(x: Any, w: Any, v: Any) -> Any:
    return torch.cat([part @ (w if n else v)[n] for n, part in enumerate(x.split(SIZES))])


def with_biases(x: Any, w: Any, b: Any) -> Any:
    return torch.cat([part @ w[n] + b[n] for n, part in enumerate(x.split(SIZES))])


def beside(x: Any, w: Any) -> Any:
    return torch.cat([part @ w[n] for n, part in enumerate(x.split(SIZES)) if len(part)], dim=0).sum() + torch.cat(
        [x[1:4] @ w[0], x[2:5] @ w[1]], dim=1
    )


STAY: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "a part is read alone": (read_alone, (X, W), 0),
    "matrices in another order": (backwards, (X, W), 0),
    "matrices of two arrays": (of_two_arrays, (X, W, W), 0),
    "a bias for each group": (with_biases, (X, W, (5, 6)), 0),
    "written in part": (written_in_part, (X, W), 0),
    "written twice": (written_twice, (X, W), 0),
    "along columns": (beside, (X, W), 1),
}


@pytest.mark.parametrize("name", STAY)
def test_other_loops_stay(name: str) -> None:
    f, shapes, count = STAY[name]
    graph = canonical(f, shapes, torch.bfloat16)
    made = group_rows(graph)
    assert [op.name for op in made.ops].count("grouped_dot") == count
    arrays = random_inputs(graph)
    for a, b in zip(interpret(made, arrays), interpret(graph, arrays), strict=True):
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=2e-2, atol=1e-2)


def test_other_types_stay() -> None:
    for kind in (torch.float32, torch.float64, torch.int32):
        graph = canonical(products, (X, W), kind)
        assert not any(op.name == "grouped_dot" for op in group_rows(graph).ops)
