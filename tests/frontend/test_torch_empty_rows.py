# SPDX-License-Identifier: Apache-2.0
"""Steps of loops that are left out where data chooses no rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusec
from fusec.errors import DataDependentError
from fusec.frontend.torch import capture

T, D, H, E = 12, 8, 6, 4
Function = Callable[..., Any]


def body(x: Tensor, w: Tensor) -> Tensor:
    return F.silu(x @ w.T) @ w


def numel(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, slot = torch.where(index == e)
        if tok.numel() == 0:
            continue
        out.index_add_(0, tok, body(x[tok], w[e]) * p[tok, slot, None])
    return out


def shape(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        mask = (index == e).any(-1)
        rows = x[mask]
        if not rows.shape[0]:
            continue
        out[mask] += body(rows, w[e])
    return out


def more_than_none(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, slot = torch.where(index == e)
        if tok.size(0) > 0:
            h = body(x[tok], w[e])
            h.mul_(p[tok, slot, None])
            out.index_add_(0, tok, h)
    return out


def any_rows(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok = torch.where(index[:, 0] == e)[0]
        rows, _ = x[tok].shape
        if rows != 0:
            out.index_add_(0, tok, body(x[tok], w[e]))
    return out


def apart(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    """The loop is in a function of its own, and after another."""
    return numel(numel(x, index, p, w).tanh(), index, p, w)


def arguments(index: Tensor | None = None) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    x, scores = torch.randn(T, D, generator=g), torch.randn(T, E, generator=g)
    p, chosen = torch.topk(scores.softmax(-1), 2)
    return x, chosen if index is None else index, p, torch.randn(E, H, D, generator=g)


@pytest.mark.parametrize("f", [numel, shape, more_than_none, any_rows, apart], ids=lambda f: f.__name__)
def test_they_are_captured(f: Function) -> None:
    given = arguments()
    jitted = fusec.jit(f)
    for index in (given[1], torch.full_like(given[1], 2), torch.tensor([[0, 3]] * T)):
        torch.testing.assert_close(jitted(given[0], index, *given[2:]), f(given[0], index, *given[2:]))
    assert any(op.name == "scatter_add_where" for op in capture(f, given, {}).graph.ops)
    assert "runs as written" not in fusec.explain(jitted, *given)


def test_they_have_gradients() -> None:
    x, index, p, w = arguments(torch.tensor([[0, 3]] * T))
    found = []
    for f in (fusec.jit(numel), numel):
        own = [t.clone().requires_grad_() for t in (x, p, w)]
        f(own[0], index, *own[1:]).square().sum().backward()
        found.append([t.grad for t in own])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def counts(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out, steps = torch.zeros_like(x), 0
    for e in range(E):
        tok, _ = torch.where(index == e)
        if tok.numel() == 0:
            continue
        steps += 1
        out.index_add_(0, tok, body(x[tok], w[e]))
    return out * steps


def appends(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out, seen = torch.zeros_like(x), []
    for e in range(E):
        tok, _ = torch.where(index == e)
        if tok.numel() == 0:
            continue
        out.index_add_(0, tok, body(x[tok], w[e]))
        seen.append(e)
    return out * len(seen)


def writes_more(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, _ = torch.where(index == e)
        if tok.numel() == 0:
            continue
        out.index_add_(0, tok, body(x[tok], w[e]))
        out.add_(1.0)
    return out


def of_other_rows(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, _ = torch.where(index == e)
        other, _ = torch.where(index == (e + 1) % E)
        if tok.numel() == 0:
            continue
        out.index_add_(0, other, body(x[other], w[e]))
    return out


def breaks(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, _ = torch.where(index == e)
        if tok.numel() == 0:
            break
        out.index_add_(0, tok, body(x[tok], w[e]))
    return out


def other_number(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, _ = torch.where(index == e)
        if tok.numel() > 1:
            out.index_add_(0, tok, body(x[tok], w[e]))
    return out


def does_something_for_none(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, _ = torch.where(index == e)
        if tok.numel() == 0:
            out += 1
        else:
            out.index_add_(0, tok, body(x[tok], w[e]))
    return out


def divides(x: Tensor, index: Tensor, p: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, _ = torch.where(index == e)
        if tok.numel() == 0:
            continue
        out.index_add_(0, tok, body(x[tok], w[e]) / tok.numel())
    return out


REFUSED = [counts, appends, writes_more, of_other_rows, breaks, other_number, does_something_for_none, divides]


@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
@pytest.mark.parametrize("f", REFUSED, ids=lambda f: f.__name__)
def test_what_tells_that_a_step_ran_runs_as_written(f: Function) -> None:
    given = arguments(torch.tensor([[0, 3], [3, 0]] * (T // 2)))
    with pytest.raises(DataDependentError):
        capture(f, given, {})
    torch.testing.assert_close(fusec.jit(f)(*given), f(*given))
