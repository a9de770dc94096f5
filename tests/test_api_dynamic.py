"""``fusec.jit(dynamic=True)``: one program for calls that differ in extents alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusec

W = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def plans(function: Any) -> int:
    return len(function.dispatcher.plans)


def dense(x: Any) -> Any:
    return np.tanh(x @ W) / x.shape[0]


def check(function: Any, *arrays: Any) -> None:
    found, wanted = function(*arrays), function.dispatcher.function(*arrays)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


def test_the_second_extent_makes_a_program_for_all() -> None:
    function = fusec.jit(dynamic=True, fallback="error")(dense)
    for rows in (5, 9, 2, 17, 30, 64):
        check(function, random(rows, 8))
    assert plans(function) == 2
    check(function, random(1000, 8))  # far beyond: a program with a larger range
    check(function, random(333, 8))
    assert plans(function) == 3
    check(function, random(1, 8))  # 1 broadcasts, and is for itself
    assert plans(function) == 4


def test_equal_extents_share_a_symbol_and_are_checked() -> None:
    def function(x: Any, y: Any) -> Any:
        return np.exp(x) + y.T

    jitted = fusec.jit(dynamic=True, fallback="error")(function)
    for n, m in ((3, 4), (5, 7), (9, 2), (4, 4)):
        check(jitted, random(n, m), random(m, n))
    assert plans(jitted) == 2
    with pytest.raises(ValueError, match="broadcast"):
        jitted(random(5, 7), random(7, 6))


def test_functions_that_branch_by_extent_are_compiled_one_by_one() -> None:
    def function(x: Any) -> Any:
        return np.exp(x) if x.shape[0] > 6 else np.tanh(x)

    jitted = fusec.jit(dynamic=True, fallback="error")(function)
    for rows in (5, 9, 4, 12):
        check(jitted, random(rows, 8))
    assert plans(jitted) == 4


def test_other_strides_dtypes_and_statics_are_other_plans() -> None:
    jitted = fusec.jit(dynamic=True, fallback="error")(dense)
    for x in (random(5, 8), random(6, 8), random(8, 7).T, random(6, 8)[::2], random(7, 8).astype(np.float64)):
        check(jitted, x)
    assert plans(jitted) == 5
    check(jitted, random(11, 8))
    assert plans(jitted) == 5


def test_modules_and_limits_of_the_function_itself() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.places = torch.nn.Embedding(20, 8)
            self.up = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return torch.softmax(self.up(x) + self.places(torch.arange(x.shape[1])), -1)

    model = Model().eval()
    jitted = fusec.jit(dynamic=True)(model)
    with torch.no_grad():
        for b, s in ((3, 4), (4, 7), (2, 13), (5, 20), (7, 6)):
            x = torch.randn(b, s, 8)
            torch.testing.assert_close(jitted(x), model(x))
        with pytest.raises(IndexError):
            jitted(torch.randn(2, 21, 8))
    x = torch.randn(3, 6, 8, requires_grad=True)
    jitted(x).sum().backward()
    assert x.grad is not None
