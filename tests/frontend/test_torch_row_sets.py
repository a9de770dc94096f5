# SPDX-License-Identifier: Apache-2.0
"""Rows that data chooses: which functions are captured, that results are eager's, and what is refused."""

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
from fusec.runtime.program import Call

T, D, H, E, K = 12, 8, 6, 4, 2
Function = Callable[..., Any]


def body(h: Tensor, w: Tensor, v: Tensor, e: int | Tensor) -> Tensor:
    return F.silu(h @ w[e].T) @ v[e].T


def by_where(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, slot = torch.where(index == e)
        out.index_add_(0, tok, body(x[tok], w, v, e) * p[tok, slot, None])
    return out


def by_nonzero(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        tok, slot = (index == e).nonzero(as_tuple=True)
        out.index_put_((tok,), body(x.index_select(0, tok), w, v, e) * p[tok, slot].unsqueeze(1), accumulate=True)
    return out


def by_mask(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(E):
        mask = (index == e).any(-1)
        weight = torch.where(index == e, p, torch.zeros_like(p)).sum(-1)
        out[mask] += body(x[mask], w, v, e) * weight[mask, None]
    return out


def by_first(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """One expert for each row; what was there is the second term."""
    out = x.clone()
    for e in range(E):
        tok = torch.where(index[:, 0] == e)[0]
        out[tok] = body(x[tok], w, v, e) * p[tok, :1] + out[tok]
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


LOOPS = [by_where, by_nonzero, by_mask, by_first, by_hits, by_hits_of_more]


def arguments(index: Tensor | None = None, rows: int = T, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    x, scores = torch.randn(rows, D, generator=g), torch.randn(rows, E, generator=g)
    p, chosen = torch.topk(scores.softmax(-1), K)
    w, v = torch.randn(E, H, D, generator=g), torch.randn(E, D, H, generator=g)
    made = (x, chosen if index is None else index, p, w, v)
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in made)


def follows(f: Function, *args: Tensor) -> None:
    """A loop is captured whole, and gives what eager does."""
    graph = capture(f, args, {}).graph
    assert any(op.name == "scatter_add_where" for op in graph.ops)
    jitted = fusec.jit(f)
    torch.testing.assert_close(jitted(*args), f(*args))
    assert "runs as written" not in fusec.explain(jitted, *args)


@pytest.mark.parametrize("f", LOOPS, ids=lambda f: f.__name__)
def test_loops_are_one_program(f: Function) -> None:
    follows(f, *arguments())


@pytest.mark.sweep(1)
@pytest.mark.parametrize("f", LOOPS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "index",
    [
        torch.full((T, K), 2),
        torch.tensor([[1, 3]] * T),
        torch.tensor([[0, 0], [1, 1]] * (T // 2)),
        torch.arange(T * K).reshape(T, K) % E,
    ],
    ids=["all the same", "two of four", "twice the same", "all"],
)
def test_rows_of_any_number(f: Function, index: Tensor) -> None:
    """Experts without a row, with all of them, and one that a row has twice."""
    follows(f, *arguments(index))


@pytest.mark.parametrize("f", [by_where, by_hits, by_hits_of_more], ids=lambda f: f.__name__)
def test_one_row(f: Function) -> None:
    follows(f, *arguments(rows=1))


@pytest.mark.parametrize("f", [by_where, by_hits], ids=lambda f: f.__name__)
def test_half_types(f: Function) -> None:
    follows(f, *arguments(dtype=torch.bfloat16))


def test_an_index_outside_of_the_loop() -> None:
    """Rows whose expert the loop has not are added by nobody."""
    index = torch.tensor([[0, 7], [-3, 1], [5, 6]] * (T // 3))
    follows(by_where, *arguments(index))


def test_numbers_that_are_not_finite_stay_in_their_rows() -> None:
    x, index, p, w, v = arguments()
    x[3], x[5] = float("nan"), float("inf")
    got, wanted = fusec.jit(by_where)(x, index, p, w, v), by_where(x, index, p, w, v)
    torch.testing.assert_close(got, wanted, equal_nan=True)


def test_a_loop_over_modules() -> None:
    """Each expert has weights and biases of its own."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = torch.nn.ModuleList(
                torch.nn.Sequential(torch.nn.Linear(D, H), torch.nn.GELU(), torch.nn.Linear(H, D)) for _ in range(E)
            )

        def forward(self, x: Tensor, index: Tensor, p: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            for e, expert in enumerate(self.experts):
                tok, slot = torch.where(index == e)
                out.index_add_(0, tok, expert(x[tok]) * p[tok, slot, None])
            return out

    torch.manual_seed(0)
    layer = Layer()
    with torch.no_grad():
        follows(layer, *arguments()[:3])


def test_the_argument_that_rows_are_added_to() -> None:
    def f(out: Tensor, x: Tensor, index: Tensor, w: Tensor) -> Tensor:
        for e in range(E):
            tok, _ = torch.where(index == e)
            out.index_add_(0, tok, x[tok] @ w[e].T @ w[e])
        return out.sum(0)

    x, index, _, w, _ = arguments()
    ours, theirs = x.clone(), x.clone()
    torch.testing.assert_close(fusec.jit(f)(ours, x, index, w), f(theirs, x, index, w))
    torch.testing.assert_close(ours, theirs)


def test_positions_from_nonzero() -> None:
    def f(x: Tensor, p: Tensor) -> Tensor:
        out = x * 2
        tok = (p[:, 0] > 0.4).nonzero().squeeze(-1)
        out[tok] += F.glu(torch.cat([x, x], 1)[tok])
        return out

    x, _, p, *_ = arguments()
    follows(f, x, p)


def test_one_set_of_rows() -> None:
    """All candidates are computed where that is cheap."""

    def f(x: Tensor, p: Tensor) -> Tensor:
        out = x * 2
        mask = p[:, 0] > 0.4
        out[mask] += x[mask].exp()
        return out

    x, _, p, *_ = arguments()
    follows(f, x, p)


def test_loops_are_captured_where_running_as_written_is_an_error() -> None:
    args = arguments()
    torch.testing.assert_close(fusec.jit(by_hits, fallback="error")(*args), by_hits(*args))


@pytest.mark.parametrize("f", LOOPS, ids=lambda f: f.__name__)
def test_for_a_gpu_no_library_is_called(f: Function) -> None:
    graph = capture(f, arguments(dtype=torch.bfloat16), {}, device="cuda").graph
    program = fusec.lower(graph, "cuda:sm_90").program
    assert [step for step in program.steps if isinstance(step, Call)] == []
    assert [report.kind for report in program.reports].count("grouped") == 2


def test_ranges_for_a_gpu() -> None:
    """Ahead of time; on CPUs each number of tokens has a program of its own."""
    specs = [fusec.TensorSpec(shape, "float32") for shape in (("N", D), ("N", K), (E, H, D), (E, D, H))]

    def f(x: Tensor, s: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return by_where(x, (s > 0).long() + (s > 1), s, w, v)

    made = fusec.compile(f, *specs, dims={"N": (1, 9000)}, target="cuda:sm_90", cache=False, library="torch")
    kinds = [made.specialised({"N": n}).executable.program.reports for n in (1, 7, 9000)]
    assert all([r.kind for r in reports].count("grouped") == 2 for reports in kinds)


# What only the chosen rows tell


def counts(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    tok, _ = torch.where(index == 1)
    return x * tok.numel()


def shapes(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    tok, _ = torch.where(index == 1)
    return x * len(tok) + x[tok].shape[0]


def returned(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    return x[torch.where(index == 1)[0]]


def summed(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    return x[torch.where(index == 1)[0]].sum(0)


def normalised(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    tok, _ = torch.where(index == 1)
    return torch.zeros_like(x).index_add_(0, tok, x[tok].softmax(0))


def mixed(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    one, other = torch.where(index == 0)[0], torch.where(index == 3)[0]
    return torch.zeros_like(x).index_add_(0, one, x[other])


def written_twice(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    """Of a row that is there twice the last write counts."""
    out, tok = torch.zeros_like(x), torch.where(index == 0)[0]
    out[tok] += x[tok]
    return out


def changed_since(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    out, mask = torch.ones_like(x), p[:, 0] > 0.4
    more = out[mask] + x[mask]
    more[:, 0] *= 3
    out[mask] = more
    return out


def counted_hits(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    out, n = torch.zeros_like(x), 0
    mask = F.one_hot(index, num_classes=E).permute(2, 1, 0)
    for e in (mask.sum(dim=(-1, -2)) > 0).nonzero():
        _slot, tok = torch.where(mask[e[0]])
        out.index_add_(0, tok, x[tok])
        n += 1
    return out / n


def listed_hits(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    out, seen = torch.zeros_like(x), []
    mask = F.one_hot(index, num_classes=E).permute(2, 1, 0)
    for e in (mask.sum(dim=(-1, -2)) > 0).nonzero():
        _slot, tok = torch.where(mask[e[0]])
        out.index_add_(0, tok, x[tok])
        seen.append(1)
    return out / len(seen)


def last_hit(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    e = torch.zeros(1)
    for e in (F.one_hot(index, num_classes=E).sum((0, 1)) > 0).nonzero():  # noqa: B007 - it is read behind the loop
        pass
    return x + e


def first_hit(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    out = torch.zeros_like(x)
    mask = F.one_hot(index, num_classes=E).permute(2, 1, 0)
    for e in (mask.sum(dim=(-1, -2)) > 0).nonzero():
        _slot, tok = torch.where(mask[e[0]])
        out.index_add_(0, tok, x[tok])
        break
    return out


def written_by_hits(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    out = torch.zeros_like(x)
    for _ in (F.one_hot(index, num_classes=E).sum((0, 1)) > 0).nonzero():
        out.add_(1)
    return out


def others_by_hits(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    """Rows that do not depend on whether the loop has a step."""
    out, tok = torch.zeros_like(x), torch.where(index == 0)[0]
    for _ in (F.one_hot(index, num_classes=E).sum((0, 1)) > 0).nonzero():
        out.index_add_(0, tok, x[tok])
    return out


def left_by_an_error(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    out = torch.zeros_like(x)
    mask = F.one_hot(index, num_classes=E).permute(2, 1, 0)
    try:
        for e in (mask.sum(dim=(-1, -2)) > 0).nonzero():
            tok = torch.where(mask[e[0]])[1]
            out.index_add_(0, tok, x[tok])
            raise KeyError
    except KeyError:
        return out


def elsewhere(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    """What is read is not what is written: positions were counted on."""
    out, tok = x.clone(), torch.where(index[:, 0] == 0)[0]
    out[tok] = out[(tok + 1) % T] + x[tok]
    return out


def in_one_place(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    out, tok = x.clone(), torch.where(index[:, 0] == 0)[0]
    out[tok * 0] += x[tok]
    return out


def positions_written(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    out, tok = x.clone(), torch.where(index[:, 0] == 0)[0]
    tok.detach().mul_(0)
    out[tok] += x[tok]
    return out


def as_many_as_all(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    """Eager raises where it is not all rows that are chosen."""
    out, mask = x.clone(), index[:, 0] >= 0
    out[mask] += x[mask].reshape(T, D)
    return out


def squeezed(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    """One row has no axis then."""
    tok = (index[:, 0] == 0).nonzero().squeeze()
    return torch.zeros_like(x).index_add_(0, tok, x[tok])


def looked_up(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    """The rows that are left out have no place in the table."""
    out, mask = x.clone(), index[:, 0] < 2
    out[mask] += w[:2, 0][index[mask, 0]]
    return out


def drawn_by_hits(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    out = torch.zeros_like(x)
    mask = F.one_hot(index, num_classes=E).permute(2, 1, 0)
    torch.manual_seed(0)
    for e in (mask.sum(dim=(-1, -2)) > 0).nonzero():
        _slot, tok = torch.where(mask[e[0]])
        out.index_add_(0, tok, x[tok] * torch.rand(()))
    return out


def weights_by_hits(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    out, w = torch.zeros_like(x), w.clone()
    mask = F.one_hot(index, num_classes=E).permute(2, 1, 0)
    for e in (mask.sum(dim=(-1, -2)) > 0).nonzero():
        _slot, tok = torch.where(mask[e[0]])
        p[0, 0] += 1  # not met before the loop
        out.index_add_(0, tok, x[tok] @ w[e[0]].T @ w[e[0]])
    p[0, 0] = 0.0
    return out * p[0, 0].exp()


def rows_by_hits(x: Tensor, index: Tensor, p: Tensor, w: Tensor, v: Tensor) -> Any:
    out, first = torch.zeros_like(x), torch.where(index[:, 0] == 0)[0]
    rows = x[first]
    mask = F.one_hot(index, num_classes=E).permute(2, 1, 0)
    for e in (mask.sum(dim=(-1, -2)) > 0).nonzero():
        _slot, tok = torch.where(mask[e[0]])
        rows.mul_(2)
        out.index_add_(0, tok, x[tok])
    return out.index_add_(0, first, rows)


REFUSED = [
    *(counts, shapes, returned, summed, normalised, mixed, written_twice, changed_since, counted_hits, listed_hits),
    *(last_hit, first_hit, left_by_an_error, written_by_hits, others_by_hits, drawn_by_hits, weights_by_hits),
    *(rows_by_hits, elsewhere, in_one_place, positions_written, as_many_as_all, squeezed, looked_up),
]


@pytest.mark.parametrize("f", REFUSED, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
def test_what_the_rows_tell_is_refused(f: Function) -> None:
    args = arguments(torch.tensor([[0, 2], [2, 3]] * (T // 2)))
    with pytest.raises(DataDependentError):
        capture(f, args, {})
    torch.testing.assert_close(fusec.jit(f)(*args), f(*args))


def test_random_numbers_for_chosen_rows_are_refused() -> None:
    """Eager draws as many as there are rows."""

    def f(x: Tensor, p: Tensor) -> Tensor:
        mask = p[:, 0] > 0.4
        out = x.clone()
        out[mask] += F.dropout(x[mask], 0.5)
        return out

    x, _, p, *_ = arguments()
    with pytest.raises(DataDependentError):
        capture(f, (x, p), {})


@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
def test_experts_that_share_rows_run_as_written() -> None:
    """Nothing says that a row has one expert at most."""

    def f(x: Tensor, index: Tensor, w: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for e in range(E):
            tok, _ = torch.where(index >= e)
            out.index_add_(0, tok, x[tok] @ w[e].T @ w[e])
        return out

    x, index, _, w, _ = arguments()
    torch.testing.assert_close(fusec.jit(f)(x, index, w), f(x, index, w))
