# SPDX-License-Identifier: Apache-2.0
"""Gradients of loops over experts whose rows data chooses: one forward, one backward, and what runs as written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusec

T, D, H, E, K = 12, 8, 6, 4, 2
Function = Callable[..., Tensor]


def body(h: Tensor, w: Tensor, v: Tensor, e: int | Tensor) -> Tensor:
    return F.silu(h @ w[e].T) @ v[e].T


def by_where(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, slot = torch.where(index == e)
        out.index_add_(0, tok, body(x[tok], w, v, e) * p[tok, slot, None])
    return out


def by_first(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """One expert for each row; what was there is the second term."""
    out = x.clone()
    for e in range(E):
        tok = torch.where(index[:, 0] == e)[0]
        out[tok] = body(x[tok], w, v, e) * p[tok, :1] + out[tok]
    return out


def by_any(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """A row that has an expert twice has it once."""
    out = torch.zeros_like(x)
    for e in range(E):
        mask = (index == e).any(-1)
        out[mask] += body(x[mask], w, v, e)
    return out


def by_hits(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """transformers 4's loop."""
    out = torch.zeros_like(x)
    mask = F.one_hot(index, num_classes=E).permute(2, 1, 0)
    for e in (mask.sum(dim=(-1, -2)) > 0).nonzero():
        slot, tok = torch.where(mask[e].squeeze(0))
        h = x[None, tok].reshape(-1, D)
        h = (F.silu(F.linear(h, w[e].squeeze(0))) @ v[e].squeeze(0).T) * p[tok, slot, None]
        out.index_add_(0, tok, h.to(x.dtype))
    return out


def by_hits_of_more(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """transformers 5's loop."""
    out = torch.zeros_like(x)
    with torch.no_grad():
        mask = F.one_hot(index, num_classes=E + 1).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    for e in hit:
        e = e[0]
        if e == E:
            continue
        slot, tok = torch.where(mask[e])
        out.index_add_(0, tok, body(x[tok], w, v, e) * p[tok, slot, None])
    return out


def with_biases(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Of each expert a bias; written to in place; matrices that are arrays of their own."""
    out, apart = torch.zeros_like(x), [w[e] * 2 for e in range(E)]
    for e, (a, b) in enumerate(zip(apart, v.unbind(0))):
        tok, slot = torch.where(index == e)
        h = F.linear(x[tok], a, b[0])
        h.mul_(p[tok, slot, None])
        out.index_add_(0, tok, F.silu(h) @ b.mT)
    return out


LOOPS = [by_where, by_first, by_any, by_hits, by_hits_of_more, with_biases]


def arguments(index: Tensor | None = None, rows: int = T, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    x, scores = torch.randn(rows, D, generator=g), torch.randn(rows, E, generator=g)
    p, chosen = torch.topk(scores.softmax(-1), K)
    w, v = torch.randn(E, H, D, generator=g), torch.randn(E, D, H, generator=g)
    made = (x, chosen if index is None else index, p, w, v)
    return [t.to(dtype) if t.is_floating_point() else t for t in made]


def gradients(f: Function, given: list[Tensor]) -> list[Tensor | None]:
    """The result, and the gradients of all that has some."""
    own = [t.clone().requires_grad_() if t.is_floating_point() else t for t in given]
    result = f(*own)
    g = torch.Generator().manual_seed(1)
    result.backward(torch.randn(result.shape, generator=g).to(result.dtype))
    return [result.detach(), *(t.grad for t in own if t.is_floating_point())]


def follows(f: Function, given: list[Tensor], **tolerances: Any) -> None:
    """Compiled, forward and backward, with eager's results; warnings that it runs as written are errors."""
    jitted = fusec.jit(f)
    for _ in range(2):
        for ours, theirs in zip(gradients(jitted, given), gradients(f, given), strict=True):
            assert (ours is None) == (theirs is None)
            torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerances)
    told = fusec.explain(jitted, *(t.requires_grad_() if t.is_floating_point() else t for t in given))
    assert "forward and backward" in told
    assert "runs as written" not in told
    for t in given:
        t.requires_grad_(False)


@pytest.mark.parametrize("f", LOOPS, ids=lambda f: f.__name__)
def test_loops_have_a_backward(f: Function) -> None:
    follows(f, arguments(), rtol=1e-4, atol=1e-5)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("f", [by_where, by_any, by_hits], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "index",
    [
        torch.full((T, K), 2),
        torch.tensor([[0, 0], [1, 1]] * (T // 2)),
        torch.tensor([[0, 3], [3, 1], [1, 0]] * (T // 3)),
    ],
    ids=["all the same", "twice the same", "one without a row"],
)
def test_rows_of_any_number(f: Function, index: Tensor) -> None:
    follows(f, arguments(index), rtol=1e-4, atol=1e-5)


def test_rows_without_an_expert_have_no_gradient() -> None:
    """Their values, which may be no numbers, reach nothing."""
    given = arguments(torch.tensor([[0, 7], [-3, 1], [5, 6]] * (T // 3)))
    given[0][2::3] = float("nan")
    follows(by_where, given, rtol=1e-4, atol=1e-5)


def test_one_row() -> None:
    follows(by_where, arguments(rows=1), rtol=1e-4, atol=1e-5)


def test_half_types() -> None:
    follows(by_where, arguments(dtype=torch.bfloat16), rtol=0.05, atol=0.05)


def test_one_set_of_rows() -> None:
    def f(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
        mask, out = p[:, 0] > 0.4, x * 2
        out[mask] += F.silu(x[mask] @ w[0].T) @ v[0].T
        return out

    follows(f, arguments(), rtol=1e-4, atol=1e-5)


def test_a_layer_after_another() -> None:
    def f(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return by_where(by_where(x, index, p, w, v).tanh(), index, p, w * 0.5, v) + body(x, w, v, 0)

    follows(f, arguments(), rtol=1e-4, atol=1e-4)


def test_second_derivatives_are_eagers() -> None:
    def both(f: Function) -> list[Tensor]:
        x, index, p, w, v = arguments()
        w.requires_grad_()
        x.requires_grad_()
        (first,) = torch.autograd.grad(f(x, index, p, w, v).square().sum(), x, create_graph=True)
        return [first.detach(), *torch.autograd.grad(first.square().sum(), (x, w))]

    for ours, theirs in zip(both(fusec.jit(by_where)), both(by_where), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def written_between(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    out, y = torch.zeros_like(x), x.clone()
    for e in range(E):
        tok, _ = torch.where(index == e)
        out.index_add_(0, tok, body(y[tok], w, v, e))
        y.mul_(1.5)
    return out + y


def read_between(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    out, total = torch.zeros_like(x), torch.zeros(())
    for e in range(E):
        tok, _ = torch.where(index == e)
        out.index_add_(0, tok, body(x[tok], w, v, e))
        total = total + out.sum()
    return out * total


def of_itself(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Rows come from what the loop writes, by a view that is one and the same."""
    out = x.clone()
    seen = out.view(T, D)
    for e in range(E):
        tok, _ = torch.where(index == e)
        out.index_add_(0, tok, body(seen[tok], w, v, e))
    return out


def without_gradients_inside(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, slot = torch.where(index == e)
        with torch.no_grad():
            h = body(x[tok], w, v, e)
        out.index_add_(0, tok, h * p[tok, slot, None])
    return out + x + w.sum() + v.sum()


def other_numbers(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Conditions of which two may hold for a row."""
    out = torch.zeros_like(x)
    for e in range(E):
        tok, _ = torch.where(index >= e)
        out.index_add_(0, tok, body(x[tok], w, v, e))
    return out + p.sum()


@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
@pytest.mark.parametrize(
    "f",
    [written_between, read_between, of_itself, without_gradients_inside, other_numbers],
    ids=lambda f: f.__name__,
)
def test_what_is_not_alike_runs_as_written(f: Function) -> None:
    given = arguments()
    jitted = fusec.jit(f)
    for ours, theirs in zip(gradients(jitted, given), gradients(f, given), strict=True):
        torch.testing.assert_close(ours, theirs)
