"""Results that are new memory in eager are so here, and those that share memory share it, whatever a rewrite finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from aliasing import check

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
A, B = X.numpy(), Y.numpy()

JOINED = {
    "cat": lambda x, y: torch.cat([x, y])[:2],
    "cat, the second": lambda x, y: torch.cat([x, y], 1)[:, 4:],
    "cat of one": lambda x, y: torch.cat([x]),
    "stack": lambda x, y: torch.stack([x, y])[0],
    "stack, unbound": lambda x, y: torch.stack([x, y], 1).unbind(1),
    "split": lambda x, y: torch.split(torch.cat([x, y]), 2),
    "chunk": lambda x, y: torch.cat([x, y], 1).chunk(2, 1),
    "hstack": lambda x, y: torch.hstack([x, y])[:, :4],
    "repeat": lambda x, y: (x.repeat(1, 1), x.repeat(2, 1)[:2], x.tile(1), x.repeat_interleave(1, 0)),
    "roll": lambda x, y: (x.roll(0), x.roll(1, 0)[:1], x.roll(2, 0)),
    "pad": lambda x, y: (F.pad(x, (0, 0)), F.pad(x, (1, 1))[:, 1:-1]),
    "where": lambda x, y: torch.where(torch.ones(2, 4, dtype=torch.bool), x, y),
    "where, an index": lambda x, y: torch.where(torch.arange(8).view(2, 4) >= 0, x, y).view(-1),
    "flips": lambda x, y: x.flip(0).flip(0),
    "indices": lambda x, y: (x[torch.tensor([0, 1])], x[torch.arange(2)], x.index_select(0, torch.arange(2))),
    "copies": lambda x, y: (x.clone(), x.to(torch.float32, copy=True), x.clone()[0], x.t().contiguous().t()),
    "numbers": lambda x, y: (x * 1, x + 0, x.neg().neg(), x**1, x / 1, x.abs().abs()),
    "sums of one": lambda x, y: (x[..., None].sum(2), x[..., None].amax(2), x[..., None].cumsum(2), x[:, None].mean(1)),
    "equal twice": lambda x, y: (x + 1, x + 1, (x + 1)[0]),
    "einsum": lambda x, y: (torch.einsum("ij->ij", x), torch.einsum("ij->ji", x)),
}  # fmt: skip


def write_first(x: Any, y: Any) -> Any:
    t = torch.zeros(2, 4)
    u = t[0]
    u += x[0]
    return t, u


def write_rows(x: Any, y: Any) -> Any:
    t = torch.zeros(2, 4)
    u, v = t.unbind(0)
    u += x[0]
    v.copy_(y[1] * 2)
    return {"u": u, "rest": [v, t.t()]}


def write_part_of_intermediate(x: Any, y: Any) -> Any:
    z = x * y
    a, b = z.chunk(2, 1)
    a.zero_()
    b[0] = 7
    return a, b


def show_strides(x: Any, y: Any) -> Any:
    z = x.t() + 1
    return z.as_strided((2, 2), (1, 2)), z, z.expand(3, 4, 2), z.diagonal()


def show_argument(x: Any, y: Any) -> Any:
    v = x[0]
    x.add_(1)
    v.mul_(2)
    return v, x.view(-1)[2:4], x, y[:, 1], x.t()


def swap(x: Any, y: Any) -> Any:
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return x[0], y[1], t[0]


def take_over(x: Any, y: Any) -> Any:
    x.copy_(y)
    return x[0], y[0]


def fill_both(x: Any, y: Any) -> Any:
    y.fill_(3)
    v = x[:, 2:]
    x.copy_(y)
    return v, y[0]


def take_what_is_made(x: Any, y: Any) -> Any:
    z = y * 2
    x.copy_(z)
    y.copy_(z)
    return x[1], y[1], z[1]


def turn_and_turn_back(x: Any, y: Any) -> Any:
    x.t_()
    x.transpose_(0, 1)
    y.squeeze_()
    y.add_(1)
    return x, x.view(-1), y[0], y


SHARED = [
    turn_and_turn_back,
    write_first,
    write_rows,
    write_part_of_intermediate,
    show_strides,
    show_argument,
    swap,
    take_over,
    fill_both,
    take_what_is_made,
]

VIEWS = {
    "the argument": lambda x, y: (x, x.detach(), x.view_as(x), x[:], x.contiguous(), x.float(), x.squeeze()),
    "itself twice": lambda x, y: (x + 1,) * 2,
    "views of one": lambda x, y: (lambda z: (z, z.view(-1), z.t(), z.clone(), z))(x + y),
    "parts without the whole": lambda x, y: (x + y).split(1),
    "a number spread": lambda x, y: ((x + y).sum().expand(4), x.sum().expand(2, 3)),
    "windows": lambda x, y: (x + y).unfold(1, 2, 1),
    "zeros": lambda x, y: (torch.zeros(3), torch.zeros(3), torch.zeros(3, 3)[0]),
    "parts of zeros": lambda x, y: (lambda z: (z, z[:2], z[1:]))(torch.zeros(3)),
    "made of indices": lambda x, y: (lambda z: (z, z[:2], z, x + z[:4]))(torch.arange(6.0) * 2 + 1),
    "rows of indices": lambda x, y: (lambda z: (z.floor() / 3, z[1], z))(torch.arange(6.0).view(2, 3).sqrt() + 1),
    "reshaped copies": lambda x, y: (x.t().reshape(-1), x.t().reshape(-1).reshape(4, 2).t()),
    "empty": lambda x, y: (x[:0], (x + y)[:, :0], x + 1),
    "views of arguments": lambda x, y: (x.as_strided((2, 2), (1, 1)), x.unfold(1, 2, 1), x.diagonal(), x[None]),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("x", [X, X.t().contiguous().t()], ids=["rows", "columns"])
def test_new_results_are_memory_of_their_own(name: str, x: torch.Tensor) -> None:
    check(JOINED[name], x, Y)


@pytest.mark.parametrize("function", SHARED, ids=lambda f: f.__name__)
def test_results_share_what_is_written(function: Any) -> None:
    check(function, X, Y)


@pytest.mark.parametrize("name", VIEWS)
def test_views_among_results(name: str) -> None:
    check(VIEWS[name], X, Y)


ARRAYS = {
    "concatenate": lambda x, y: (np.concatenate([x, y])[:2], np.append(x, y, 0)[:2], np.block([[x], [y]])[:2]),
    "array": lambda x, y: (np.array([x, y])[0], np.stack([x, y])[1], np.split(np.concatenate([x, y]), 2)),
    "copies": lambda x, y: (np.roll(x, 0), np.pad(x, 0), np.repeat(x, 1, 0), np.tile(x, 1), np.array(x), x.copy()),
    "where": lambda x, y: (np.where(np.ones((2, 4), bool), x, y), np.select([np.ones((2, 4), bool)], [x], y)),
    "views": lambda x, y: (x, x[:], x.ravel(), x.T, x.flatten(), np.broadcast_to(x, (3, 2, 4)), x[::-1][::-1]),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name: str) -> None:
    check(ARRAYS[name], A, B)


def test_arrays_share_what_is_written() -> None:
    def f(x: Any, y: Any) -> Any:
        t = np.zeros((2, 4), np.float32)
        u = t[0]
        u += x[0]
        z = x * y
        z[:, 1] = 3
        x[1] = 5
        return t, u, z[0], z.T, x[0]

    check(f, A, B)


C = torch.complex(X, Y)

SHOWN = {
    "bits": (lambda x: x.view(torch.int32).clone(), X),
    "a row of bits": (lambda x: x.view(torch.int16)[1:].clone(), X),
    "bits themselves": (lambda x: x.view(torch.int32), X),
    "parts of complex numbers": (lambda x: torch.view_as_real(x).clone(), C),
    "parts, copied": (lambda x: torch.view_as_real_copy(x), C),
    "pairs": (lambda x: torch.view_as_complex(x.view(2, 2, 2)).clone(), X),
    "a real part": (lambda x: (x.real.clone(), x.real), C),
    "an imaginary part": (lambda x: (x.imag.clone(), x.imag), C),
    "windows of a number": (lambda x: (torch.unfold_copy(x, 0, 1, 1), x.unfold(0, 1, 1)), X[0, 0].clone()),
    "bits of what was computed": (lambda x: ((x * 2).view(torch.int32)[1:].clone(), (x + 5) * 3), X),
}


@pytest.mark.parametrize("name", SHOWN)
def test_copies_of_what_a_library_s_view_shows(name: str) -> None:
    check(*SHOWN[name])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.conj().clone(),
        lambda x: x.conj() * 2,
        lambda x: x.conj().imag.clone(),
        lambda x: x @ x.mH,
        lambda x: torch.adjoint(x).contiguous(),
        lambda x: x.conj()[1:].sum(1),
    ],
)
def test_conjugates_that_are_computed_where_they_are_read(function: Any) -> None:
    """A conjugate shows the memory of the numbers themselves."""
    check(function, C, captured=False)
    check(function, C.conj(), captured=False)
