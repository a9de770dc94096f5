"""``associative_scan``: which functions of two elements become scans, and that all give what eager gives."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan

import fusec
from fusec.ir.print import print_graph

SHAPES = [((100, 8), 0), ((8, 100), 1), ((3, 17, 5), 1), ((2,), 0)]


def scan(function: Any, xs: Any, dim: int = 0, *, reverse: bool = False) -> Any:
    return associative_scan(function, xs, dim=dim, reverse=reverse, combine_mode="generic")


def state(p: Any, q: Any) -> Any:
    return p[0] * q[0], q[0] * p[1] + q[1]


def state_reordered(p: Any, q: Any) -> Any:
    return {"f": q["f"] * p["f"], "y": q["y"] + p["y"] * q["f"]}


def check(function: Callable[..., Any], *args: torch.Tensor, ops: set[str] | None = None) -> None:
    """As eager does, with these scans in the graph, and nothing else that computes; None: not as a scan."""
    found, wanted = fusec.jit(function, fallback="error")(*args), function(*args)
    exact = function(*(x.double() if x.is_floating_point() else x for x in args))
    results = zip(*(x if isinstance(x, tuple) else (x,) for x in (found, wanted, exact)), strict=True)
    for got, eager, right in results:
        assert (got.dtype, got.shape, got.stride()) == (eager.dtype, eager.shape, eager.stride())
        tolerance = 2e-2 if got.dtype.itemsize == 2 else 1e-5
        torch.testing.assert_close(got.double(), right.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    text = print_graph(fusec.trace(function, *args))
    scans = set(re.findall(r"= (cumsum|cumprod|cummax|cummin|logcumsumexp|recurrence)\(", text))
    assert scans == (ops or set())
    assert not scans or "concat" not in text


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_sums_and_recurrences(shape: tuple[int, ...], dim: int, reverse: bool) -> None:
    torch.manual_seed(0)
    x, f = torch.randn(shape), torch.rand(shape)
    check(lambda x: scan(torch.add, x, dim, reverse=reverse), x, ops={"cumsum"})
    check(lambda f, x: scan(state, (f, x), dim, reverse=reverse)[1], f, x, ops={"recurrence"})

    def both(f: torch.Tensor, x: torch.Tensor) -> Any:
        made = scan(state_reordered, {"f": f, "y": x}, dim, reverse=reverse)
        return made["y"], made["f"]

    check(both, f, x, ops={"recurrence", "cumprod"})


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda a, b: b * a, "cumprod"),
        (torch.maximum, "cummax"),
        (lambda a, b: torch.minimum(b, a), "cummin"),
        (torch.logaddexp, "logcumsumexp"),
    ],
    ids=["product", "maximum", "minimum", "log-sum-exp"],
)
def test_other_scans(function: Any, op: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(33, 7)
    x[3, 2], x[4, 3], x[9, 3] = torch.nan, torch.inf, -torch.inf
    check(lambda x: scan(function, x), x, ops={op})


def test_dtypes() -> None:
    torch.manual_seed(0)
    check(lambda x: scan(torch.add, x), torch.randint(-100, 100, (70, 3), dtype=torch.int8), ops={"cumsum"})
    check(lambda x: scan(torch.mul, x), torch.randint(-3, 4, (20, 3)), ops={"cumprod"})
    check(lambda x: scan(torch.add, x), torch.randn(33, 7).bfloat16(), ops={"cumsum"})
    check(lambda x: scan(torch.logical_or, x), torch.rand(9, 3) > 0.6)


def test_the_first_factor_is_not_multiplied() -> None:
    f, x = torch.rand(10, 3), torch.randn(10, 3)
    f[0], x[0] = torch.inf, -0.0
    check(lambda f, x: scan(state, (f, x))[1], f, x, ops={"recurrence"})
    found = fusec.jit(lambda f, x: scan(state, (f, x))[1])(f, x)
    assert torch.signbit(found[0]).all()


@pytest.mark.parametrize(
    "function",
    [
        lambda p, q: (p[0] * q[0], p[0] * q[1] + p[1]),  # the earlier one's factor
        lambda p, q: (p[0] * q[0], q[0] * p[1] + q[0]),  # adds the factor
        lambda p, q: (p[0] + q[0], q[0] * p[1] + q[1]),  # factors that are added
        lambda p, q: (p[0] * q[0], torch.add(q[0] * p[1], q[1], alpha=2)),
        lambda p, q: (p[1] * q[1], q[0] * p[1] + q[1]),
    ],
)
def test_what_looks_like_a_recurrence(function: Any) -> None:
    torch.manual_seed(0)
    check(lambda f, x: scan(function, (f, x)), torch.rand(9, 3), torch.randn(9, 3))


def test_functions_that_read_other_tensors() -> None:
    torch.manual_seed(0)
    x, two = torch.randn(9, 3), torch.tensor(2.0)
    check(lambda x: scan(lambda a, b: a + b * two / 2, x), x)
    check(lambda x, w: scan(lambda a, b: a + b * w, x), x, torch.ones(()))


def test_one_element() -> None:
    check(lambda x: scan(torch.add, x) + 1, torch.randn(1, 5))


def test_gradients() -> None:
    torch.manual_seed(0)
    given = torch.rand(9, 3), torch.randn(9, 3)
    gradients = []
    for wrap in (lambda f: f, fusec.jit):
        f, x = (t.clone().requires_grad_() for t in given)
        y = wrap(lambda f, x: scan(state, (f, x))[1] + scan(torch.add, x))(f, x)
        y.square().sum().backward()
        gradients.append((f.grad, x.grad))
    for eager, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, eager)
