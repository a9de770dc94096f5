"""Loops over time that are one recurrence: which, what follows at each step, and that both give the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import assert_close_to_oracle
from programs import random_inputs

import fusec
from fusec.frontend.torch import capture
from fusec.ir.attributes import ScanAttributes
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.verify import verify
from fusec.passes.loops.roll import roll_loops
from fusec.passes.regions import join_regions

T = 9
Function = Callable[..., Any]


def stacked(a: Any, b: Any, h: Any) -> Any:
    out = []
    for t in range(T):
        h = a[t] * h + b[t]
        out.append(h)
    return torch.stack(out)


def of_columns(a: Any, b: Any) -> Any:
    """Gates in the loop, along the second axis, written to their places."""
    h, out = torch.zeros(3, 8, dtype=a.dtype), torch.empty_like(a)
    for t in range(T):
        f = torch.sigmoid(a[:, t])
        h = f * h + (1 - f) * b[:, t]
        out[:, t] = h
    return out


def last_alone(a: Any, b: Any) -> Any:
    h = torch.zeros(8, dtype=a.dtype)
    for x, y in zip(a, b, strict=True):
        h = torch.addcmul(y, x, h)
    return h


def backwards(b: Any) -> Any:
    h, out = torch.ones(8, dtype=b.dtype), []
    for t in reversed(range(T)):
        h = 0.9 * h - b[t]
        out.append(h)
    return torch.stack(out[::-1], -1)


def from_the_first(a: Any, b: Any) -> Any:
    """The first state is a slice, and is the first of the results."""
    h = b[0]
    out = [h]
    for t in range(1, T + 1):
        h = h * a[t] + b[t]
        out.append(h)
    return torch.stack(out, 1)


def of_each_other(x: Any, w: Any, d: Any) -> Any:
    """Two layers in a loop, products of rows and maps after them."""
    h = k = torch.zeros(2, 4, dtype=x.dtype)
    out = []
    for t in range(T):
        h = d * h + x[t] @ w
        k = torch.sigmoid(h) * k + h
        out.append(torch.relu(k)[:, None])
    return torch.cat(out, 1), h


def of_the_one_before(a: Any, b: Any, c: Any) -> Any:
    """Reads the state that another recurrence had a step before."""
    h = k = torch.zeros(8, dtype=a.dtype)
    out = []
    for t in range(T):
        k = a[t] * k + h
        h = b[t] * h + c[t]
        out.append(k)
    return torch.stack(out)


def selective(u: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    """A state-space model's, as its reference writes it."""
    factors = torch.exp(torch.einsum("bdl,dn->bdln", delta, a))
    terms = torch.einsum("bdl,bnl,bdl->bdln", delta, b, u)
    x, out = u.new_zeros(2, 3, 5), []
    for t in range(T):
        x = factors[:, :, t] * x + terms[:, :, t]
        out.append(torch.einsum("bdn,bn->bd", x, c[:, :, t]))
    return torch.stack(out, 2), x


def summed(a: Any, b: Any, c: Any) -> Any:
    """The state has an axis more than what comes out."""
    h, out = torch.zeros(3, 8, 5, dtype=a.dtype), []
    for t in range(T):
        h = a[:, t, :, None] * h + b[:, t, None, :]
        out.append((h * c[t]).sum(-1))
    return torch.stack(out, 1)


ROLLED: dict[str, tuple[Function, tuple[tuple[int, ...], ...], int]] = {
    "stacked": (stacked, ((T, 3, 8), (T, 3, 8), (3, 8)), 1),
    "of columns": (of_columns, ((3, T, 8), (3, T, 8)), 1),
    "last alone": (last_alone, ((T, 8), (T, 8)), 1),
    "backwards": (backwards, ((T, 8),), 1),
    "from the first": (from_the_first, ((T + 1, 8), (T + 1, 8)), 1),
    "of each other": (of_each_other, ((T, 2, 8), (8, 4), (4,)), 2),
    "of the one before": (of_the_one_before, ((T, 8),) * 3, 2),
    "selective": (selective, ((2, 3, T), (2, 3, T), (3, 5), (2, 5, T), (2, 5, T)), 1),
    "summed": (summed, ((3, T, 8), (3, T, 5), (T, 8, 5)), 1),
}
"""Functions, the shapes of their arguments, and how many recurrences they are."""


def captured(f: Function, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype = torch.float32) -> Graph:
    return join_regions(capture(f, tuple(torch.zeros(shape, dtype=dtype) for shape in shapes), {}).graph)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", list(ROLLED))
def test_a_loop_is_a_recurrence(name: str, dtype: torch.dtype) -> None:
    f, shapes, count = ROLLED[name]
    graph = captured(f, shapes, dtype)
    made = roll_loops(graph)
    verify(made)
    assert [op.name for op in made.ops].count("recurrence") == count
    assert not any(op.name in ("concat", "select") and len(op.operands) > 2 for op in made.ops)
    arrays = random_inputs(graph)
    exact = interpret(graph, arrays, float64=True)
    assert_close_to_oracle(interpret(made, arrays), exact, interpret(graph, arrays))


def gated(a: Any, b: Any) -> Any:
    """The state goes through a function."""
    h, out = torch.zeros(8), []
    for t in range(T):
        h = a[t] * torch.tanh(h) + b[t]
        out.append(h)
    return torch.stack(out)


def residual(a: Any) -> Any:
    """What is added depends on the state."""
    h = a[0]
    for t in range(T):
        h = a[t] * h + torch.relu(h)
    return h


def short(a: Any, b: Any) -> Any:
    h = torch.zeros(8)
    for t in range(3):
        h = a[t] * h + b[t]
    return h


def uneven(a: Any, b: Any) -> Any:
    h = torch.zeros(8)
    for t in range(T):
        h = a[t * t % T] * h + b[t]
    return h


@pytest.mark.parametrize("f", [gated, residual, short, uneven])
def test_a_loop_that_stays(f: Function) -> None:
    graph = captured(f, ((T, 8),) * (1 if f is residual else 2))
    assert roll_loops(graph) is graph


def test_a_last_result_alone_is_all_that_is_stored() -> None:
    (scan,) = (op for op in roll_loops(captured(last_alone, ((T, 8), (T, 8)))).ops if op.name == "recurrence")
    assert scan.result.type.shape == (1, 8)


def test_a_loop_that_goes_back_flips_nothing() -> None:
    made = roll_loops(captured(backwards, ((T, 8),)))
    assert not any(op.name == "slice" for op in made.ops)
    (scan,) = (op for op in made.ops if op.name == "recurrence")
    assert scan.attributes == ScanAttributes(0, reverse=True)


def test_results_that_are_read_alone_are_views() -> None:
    def f(a: Any, b: Any) -> Any:
        h, out = torch.zeros(8), []
        for t in range(T):
            h = a[t] * h + b[t]
            out.append(h)
        return torch.stack(out[2:5]), out[4].exp(), h

    graph = captured(f, ((T, 8), (T, 8)))
    made = roll_loops(graph)
    assert [op.name for op in made.ops].count("recurrence") == 1
    arrays = random_inputs(graph)
    for ours, wanted in zip(interpret(made, arrays), interpret(graph, arrays), strict=True):
        assert (ours == wanted).all()


def test_results_have_memory_of_their_own() -> None:
    def f(a: Any, b: Any) -> Any:
        h, out = torch.zeros(8), []
        for t in range(T):
            h = a[t] * h + b[t]
            out.append(h)
        return torch.stack(out), h

    a, b = torch.rand(T, 8), torch.rand(T, 8)
    whole, last = fusec.jit(f)(a, b)
    torch.testing.assert_close((whole, last), f(a, b))
    assert whole.untyped_storage().data_ptr() != last.untyped_storage().data_ptr()


def test_passes_take_as_many_ops_for_any_number_of_steps() -> None:
    def ops(steps: int) -> int:
        def f(a: Any, b: Any) -> Any:
            h, out = torch.zeros(8), []
            for t in range(steps):
                h = torch.exp(a[t]) * h + b[t]
                out.append(h)
            return torch.stack(out)

        return len(roll_loops(captured(f, ((steps, 8), (steps, 8)))).ops)

    assert ops(10) == ops(40)
