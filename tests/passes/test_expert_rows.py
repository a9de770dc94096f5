# SPDX-License-Identifier: Apache-2.0
"""Loops over experts whose rows data chooses: what becomes one product, and that it gives the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fusec.errors import UnsupportedOpError
from fusec.frontend.torch import capture
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret as run_graph
from fusec.ir.verify import verify
from fusec.passes.canonicalize import canonicalize
from fusec.passes.cse import cse
from fusec.passes.dce import dce
from fusec.passes.expert_rows import group_by_expert
from fusec.passes.fold import fold

T, D, H, E, K = 10, 4, 6, 3, 2
Function = Callable[..., Any]


def by_where(x: Any, i: Any, p: Any, w: Any, v: Any) -> Any:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, slot = torch.where(i == e)
        out.index_add_(0, tok, F.silu(x[tok] @ w[e].T) @ v[e].T * p[tok, slot, None])
    return out


def by_class(x: Any, i: Any, p: Any, w: Any, v: Any) -> Any:
    out = torch.ones_like(x)
    mask = F.one_hot(i, E).permute(2, 1, 0)
    for e in range(E):
        slot, tok = torch.where(mask[e])
        out.index_add_(0, tok, (x[tok] @ w[e].T).relu() @ v[e].T * p[tok, slot, None])
    return out


def by_mask(x: Any, i: Any, p: Any, w: Any, v: Any) -> Any:
    """A number and a row of each expert's own, beside its matrices."""
    out = torch.zeros_like(x)
    for e in range(E):
        mask = (i == e).any(-1)
        own = (p * (i == e)).sum(-1)
        out[mask] += ((x[mask] @ w[e].T + w[e, :, 0]).exp() * (e + 2) @ v[e].T) * own[mask, None]
    return out


def of_some(x: Any, i: Any, p: Any, w: Any, v: Any) -> Any:
    """From the second expert on, of halves of their matrices."""
    out = torch.zeros_like(x)
    for e in range(1, E):
        tok, _slot = torch.where(i == e)
        out.index_add_(0, tok, x[tok] @ w[e, : H // 2].T @ v[e, :, : H // 2].T)
    return out


def apart(x: Any, i: Any, p: Any, w: Any, v: Any) -> Any:
    """Matrices that are computed, and so in no array."""
    out = torch.zeros_like(x)
    for e in range(E):
        tok, slot = torch.where(i == e)
        out.index_add_(0, tok, x[tok] @ w[e].T.exp() @ v[e].T * p[tok, slot, None])
    return out


def shared(x: Any, i: Any, p: Any, w: Any, v: Any) -> Any:
    """One matrix for all experts, and a norm of each row."""
    out = torch.zeros_like(x)
    for e in range(E):
        tok, _slot = torch.where(i == e)
        h = F.layer_norm(x[tok], (D,)) @ w[0].T
        out.index_add_(0, tok, h.softmax(-1) @ v[e].T)
    return out


LOOPS: list[tuple[Function, int]] = [(by_where, 2), (by_class, 2), (by_mask, 2), (of_some, 2), (apart, 2), (shared, 1)]


def arguments() -> tuple[Any, ...]:
    g = torch.Generator().manual_seed(0)
    made = [torch.randn(*shape, generator=g) for shape in ((T, D), (T, K), (E, H, D), (E, D, H))]
    return made[0], torch.randint(0, E, (T, K), generator=g), *made[1:]


def interpret(graph: Graph, args: Sequence[Any]) -> Sequence[Any]:
    """The only call is the sort."""
    return run_graph(graph, args, extern=lambda call, operands: [np.argsort(operands[0], kind="stable")])


def canonical(f: Function, *args: Any) -> Graph:
    return dce(cse(fold(canonicalize(capture(f, args, {}).graph))))


@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize(("f", "products"), LOOPS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_loop_is_products_of_groups(f: Function, products: int, gpu: bool) -> None:
    """On a GPU without a library call, and without a sum in memory."""
    before = canonical(f, *arguments())
    after = group_by_expert(before, gpu=gpu)
    verify(after)
    names = [op.name for op in after.ops]
    assert names.count("grouped_dot") == products
    assert names.count("scatter_add") == names.count("extern") == (not gpu)
    assert "scatter_add_where" not in names
    args = [t.numpy() for t in arguments()]
    np.testing.assert_allclose(interpret(after, args)[0], interpret(before, args)[0], rtol=2e-5, atol=2e-5)


def test_matrices_of_an_array_stay_there() -> None:
    graph = group_by_expert(canonical(by_where, *arguments()))
    products = [op for op in graph.ops if op.name == "grouped_dot"]
    assert [op.operands[1] for op in products] == [*graph.inputs[-2:]]


@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize("f", [by_where, by_mask], ids=lambda f: f.__name__)
@pytest.mark.parametrize("index", [[[1, 1], [0, 2]], [[7, -1], [0, 2]], [[2, 2], [2, 2]]])
def test_experts_that_are_there_twice_or_not_at_all(f: Function, index: Any, gpu: bool) -> None:
    """What a row has once by a mask is added once; a number that is no expert's adds nothing."""
    x, _, p, w, v = arguments()
    index = torch.tensor(index * (T // 2))
    before = canonical(f, x, index, p, w, v)
    args = [t.numpy() for t in (x, index, p, w, v)]
    after = group_by_expert(before, gpu=gpu)
    np.testing.assert_allclose(interpret(after, args)[0], interpret(before, args)[0], rtol=2e-5, atol=2e-5)


def steps_that_read_sums(x: Any, i: Any, p: Any, w: Any, v: Any) -> Any:
    out = x.clone()
    for e in range(E):
        tok, slot = torch.where(i == e)
        out.index_add_(0, tok, F.silu(out[tok] @ w[e].T) @ v[e].T * p[tok, slot, None])
    return out


def one_mask(x: Any, i: Any, p: Any, w: Any, v: Any) -> Any:
    out, mask = x.clone(), i[:, 0] == 1
    out[mask] += F.silu(x[mask] @ w[0].T) @ v[0].T
    return out


@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize(("f", "products"), [(steps_that_read_sums, 2 * E), (one_mask, 2)])
def test_chosen_rows_alone_are_multiplied(f: Function, products: int, gpu: bool) -> None:
    """Where steps are no loop over experts, too: each is sorted by itself."""
    before = canonical(f, *arguments())
    after = group_by_expert(before, gpu=gpu)
    verify(after)
    names = [op.name for op in after.ops]
    assert names.count("grouped_dot") == products
    assert "dot" not in names
    args = [t.numpy() for t in arguments()]
    np.testing.assert_allclose(interpret(after, args)[0], interpret(before, args)[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
def test_a_sum_without_products_is_of_all_candidates(gpu: bool) -> None:
    """On a GPU it is a map: a row has one term."""

    def f(x: Any, p: Any) -> Any:
        out, mask = torch.zeros_like(x), p[:, 0] > 0
        out[mask] += x[mask].exp()
        return out

    x, _, p, *_ = arguments()
    before = canonical(f, x, p)
    after = group_by_expert(before, gpu=gpu)
    names = {op.name for op in after.ops}
    assert names.isdisjoint({"scatter_add_where", "extern"})
    assert ("scatter_add" in names) is not gpu
    args = [x.numpy(), p.numpy()]
    np.testing.assert_allclose(interpret(after, args)[0], interpret(before, args)[0])


def overlapping(x: Any, i: Any, p: Any, w: Any, v: Any) -> Any:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, _slot = torch.where(i >= e)
        out.index_add_(0, tok, x[tok] @ w[e].T @ v[e].T)
    return out


def of_two_arrays(x: Any, i: Any, p: Any, w: Any, v: Any) -> Any:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, _slot = torch.where((i if e else i + 1) == e)
        out.index_add_(0, tok, x[tok] @ w[e].T @ v[e].T)
    return out


def out_of_order(x: Any, i: Any, p: Any, w: Any, v: Any) -> Any:
    out = torch.zeros_like(x)
    for e in (2, 0, 1):
        tok, _slot = torch.where(i == e)
        out.index_add_(0, tok, x[tok] @ w[e].T @ v[e].T)
    return out


def unlike(x: Any, i: Any, p: Any, w: Any, v: Any) -> Any:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, _slot = torch.where(i == e)
        h = x[tok] @ w[e].T
        out.index_add_(0, tok, (h.relu() if e else h.exp()) @ v[e].T)
    return out


@pytest.mark.parametrize("f", [overlapping, of_two_arrays, out_of_order, unlike], ids=lambda f: f.__name__)
def test_what_is_no_loop_over_experts_is_refused(f: Function) -> None:
    with pytest.raises(UnsupportedOpError, match="data chooses rows"):
        group_by_expert(canonical(f, *arguments()))


def test_rows_of_a_call_with_several_results() -> None:
    """Calls are not looked into: what they make may be products."""

    def f(x: Any, w: Any, v: Any) -> Any:
        out = torch.zeros_like(x)
        p, i = torch.topk(x @ w[0].T[:, :E], K)
        for e in range(E):
            tok, slot = torch.where(i == e)
            out.index_add_(0, tok, x[tok] @ w[e].T @ v[e].T * p[tok, slot, None])
        return out

    x, _, _, w, v = arguments()
    graph = group_by_expert(canonical(f, x, w, v))
    assert [op.name for op in graph.ops].count("grouped_dot") == 2
