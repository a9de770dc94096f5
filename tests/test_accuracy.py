from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fusec
from fusec.accuracy import Error, error_of
from fusec.ir.types import bf16, c64, f32, i64

torch = pytest.importorskip("torch")


def _f32(*values: float) -> Any:
    return np.array(values, np.float32)


def test_the_largest_error_and_that_of_the_scale() -> None:
    exact = np.array([8.0, 0.5, -2.0])
    assert error_of(_f32(8.0, 0.5, -2.0), exact, f32) == Error(0.0, 0.0, 0.0)
    error = error_of(_f32(8.0 + 2**-20, 0.5, -2.0), exact, f32)
    assert (error.largest, error.relative, error.ulps) == (2**-20, 2**-23, 1.0)


def test_ulps_are_of_each_element() -> None:
    error = error_of(_f32(8.0, 0.5 + 2**-20), np.array([8.0, 0.5]), f32)
    assert error.ulps == 2**4
    small = error_of(np.array([1.0 + 2**-7], ml_dtypes.bfloat16), np.array([1.0]), bf16)
    assert small.ulps == 1.0
    assert error_of(_f32(2**-149), np.array([0.0]), f32).ulps == 1.0
    assert error_of(np.array([1 + 2**-23j], np.complex64), np.array([1.0 + 0j]), c64).largest > 0


def test_what_is_not_finite_is_counted_apart() -> None:
    exact = np.array([np.nan, np.inf, np.inf, 1.0, 1.0])
    error = error_of(_f32(np.nan, np.inf, -np.inf, np.nan, 1.0), exact, f32)
    assert error == Error(0.0, 0.0, 0.0, 2)
    assert error_of(_f32(1.0), np.array([1.0, 2.0]), f32).misplaced == 1


def test_integers_differ_by_numbers() -> None:
    assert error_of(np.array([1, 5]), np.array([1, 3]), i64) == Error(2.0, None, None)


def _row(text: str, name: str = "") -> list[str]:
    """The cells of a result, the first one by default."""
    lines = text[text.index("errors against float64") :].splitlines()
    return next(line for line in lines if line.strip().startswith(f"%{name}")).split()


def test_explain_tells_the_errors_of_rounded_products() -> None:
    a, b = torch.randn(24, 64), torch.randn(64, 32)

    def function(a: Any, b: Any) -> Any:
        return a @ b

    exact = a.double() @ b.double()
    half = a.bfloat16().double() @ b.bfloat16().double()
    row = _row(fusec.explain(fusec.jit(function, precision="bf16"), a, b, errors=True))
    assert float(row[3]) == pytest.approx(float((half - exact).abs().max()), rel=0.01)
    assert float(row[4]) == pytest.approx(float((half - exact).abs().max() / exact.abs().max()), rel=0.06)
    assert float(row[6]) == pytest.approx(float((function(a, b) - exact).abs().max()), rel=0.01)
    assert "errors against float64" not in fusec.explain(function, a, b)


def test_what_a_call_changes_is_changed_back() -> None:
    norm = torch.nn.BatchNorm1d(6)
    total, x = torch.zeros(6), torch.randn(9, 6)

    def function(x: Any, total: Any) -> Any:
        y = norm(x)
        total += y.sum(0)
        return y, y.argmax(0)

    with torch.no_grad():
        text = fusec.explain(fusec.jit(function), x, total, errors=True)
    assert "errors against float64" in text
    assert torch.equal(total, torch.zeros(6))
    assert torch.equal(norm.running_mean, torch.zeros(6))
    assert int(norm.num_batches_tracked) == 0
    assert _row(text, "argmax")[2:] == ["0", "-", "-", "0", "-", "-"]
    assert "-" not in _row(text, "y")


def test_random_numbers_are_the_same_for_all() -> None:
    x = torch.randn(64, 8)
    state = torch.get_rng_state()

    def function(x: Any) -> Any:
        return torch.nn.functional.dropout(x, 0.5)

    with torch.no_grad():
        text = fusec.explain(function, x, errors=True)
    assert float(_row(text)[4]) < 1e-6
    assert float(_row(text)[7]) < 1e-6
    assert torch.equal(torch.get_rng_state(), state)


def test_a_call_that_needs_a_gradient_is_told_of_its_forward() -> None:
    w, x = torch.randn(5, 5, requires_grad=True), torch.randn(4, 5)

    @fusec.jit
    def function(x: Any) -> Any:
        return torch.tanh(x @ w)

    for _ in range(2):
        text = fusec.explain(function, x, errors=True)
        assert "of a forward alone, errors against float64" in text
        assert float(_row(text)[4]) < 1e-6
        function(x).sum().backward()


def test_numpy() -> None:
    def function(a: Any) -> Any:
        y = np.exp(a)
        a += 1
        return y

    a = np.ones((3, 4), np.float32)
    text = fusec.explain(function, a, errors=True)
    assert float(_row(text, "y")[3]) < 1e-6
    assert (a == 1).all()


def test_what_is_not_held_against_float64_says_so() -> None:
    x = torch.randn(4)
    compiled = fusec.compile(torch.sin, x)
    assert "errors of a function compiled ahead are not told" in fusec.explain(compiled, errors=True)

    def changes(x: Any, found: Any) -> Any:
        found["y"] = x.sin()
        return x.cos()

    assert "can't be told" in fusec.explain(fusec.jit(changes), x, {}, errors=True)
