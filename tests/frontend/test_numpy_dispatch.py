"""Ufuncs with ``out=``, ``where=``, ``casting=``, ``order=`` and ``dtype=``; what NumPy refuses is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy_parity import agree
from test_numpy_returns import A, program

X = np.arange(6.0).reshape(2, 3) + 1
K = np.arange(6).reshape(2, 3) + 1
MASK = np.array([[True, False, True], [False, True, False]])

UFUNCS: list[tuple[np.ufunc, int]] = [
    *((u, 1) for u in (np.cbrt, np.spacing, np.tanh, np.cosh, np.exp, np.negative, np.sqrt, np.isnan, np.trunc)),
    *((u, 2) for u in (np.logaddexp2, np.divide, np.add, np.nextafter, np.floor_divide, np.power, np.less, np.fmax)),
]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize(("ufunc", "count"), UFUNCS, ids=[u.__name__ for u, _ in UFUNCS])
def test_out_where_the_mask_holds(ufunc: np.ufunc, count: int, dtype: Any) -> None:
    def f(x: Any, out: Any, mask: Any) -> Any:
        return ufunc(*(x,) * count, out=out, where=mask), out * 1

    agree(f, X, np.ones((2, 3), dtype), MASK)
    agree(f, K, np.ones((2, 3), dtype), MASK)


def test_a_library_call_with_out_and_where() -> None:
    agree(lambda x, out, mask: np.bitwise_count(x, out=out, where=mask), K, np.zeros((2, 3), np.uint8), MASK)
    agree(lambda x, out, mask: np.divmod(x, 2, out=(out, None)), K, np.zeros((2, 3), int), MASK)
    agree(lambda x, out, mask: np.divmod(x, 2, out=(out, out * 2), where=mask), K, np.zeros((2, 3), int), MASK)


PROGRAMS = [
    ("return np.add(x, 1, casting='no')", X),
    ("return np.add(x, 1, casting='no')", K),
    ("return np.add(x, 1.5, casting='safe')", K),
    ("return np.add(x, np.float64(1), casting='equiv')", X.astype(np.float32)),
    ("return np.add(x, 1, dtype=np.float32), np.add(x, 1, order='F'), np.add(x, 1, order='C')", X.T),
    ("return np.add(x, 1, order='A')", X.T),
    ("return np.add(x, 1, dtype=np.int64)", X),
    ("return np.add(x, 1, dtype=np.int64, casting='unsafe')", X),
    ("return np.add(x, x, out=np.zeros(x.shape, np.float32), casting='safe')", X),
    ("return np.add(x, x, out=np.zeros(x.shape, np.int32), casting='unsafe')", X),
    ("x += 1.5; return x", K),
    ("x /= 2; return x", K),
    ("return np.multiply(x, 2, signature='dd->d')", X),
    ("return np.add.accumulate(x, 1, np.float32), np.maximum.accumulate(x, 1, np.float32)", X),
    ("return np.maximum.accumulate(np.broadcast_to(x[0], (4, 3, x.shape[1])), axis=1)", X),
    ("return np.sort(np.broadcast_to(x[0], (4, 3, x.shape[1])), axis=1)", X),
    ("return np.add.reduce(x, 1, out=np.zeros(2, np.float32)), np.add.reduce(x, 1, np.float32)", X),
    ("return np.concatenate([x, x], dtype=np.float32, casting='safe')", X),
    ("return np.concatenate([x, x], dtype=np.float32, casting='same_kind')", X),
    ("return np.einsum('ij->i', x, dtype=np.float32)", X),
    ("return np.einsum('ij->i', x, dtype=np.float32, casting='unsafe')", X),
    ("return x.astype(np.float32, casting='safe')", X),
    ("np.copyto(x, 1.5); return x", K),
    ("np.copyto(x, 1.5, casting='unsafe'); return x", K),
    ("return x.astype(np.float64, copy=False), x.astype(np.float64, order='F', copy=False)", X),
    ("return np.reshape(x.T, -1, copy=False)", X),
    ("return np.array(x, copy=False), np.array(x, copy=False, dtype=np.float32)", X),
    ("y = np.asarray(x, order='F'); y += 1; return x, y", X),
    ("y = np.asarray(x, order='F'); y += 1; return x, y", np.asfortranarray(X)),
    ("return np.array(x, order='F'), np.array(x.T, order='A'), np.array(x, dtype=int)", X),
    ("return x == None, x + 1", X),
    ("return x == 'a', x + 1", X),
    ("return x != None, x.sum() == None", X),
    ("return x + 'a'", X),
    ("x.shape = (-1,); return x * 2", X),
    ("y = x.view(); y.shape = (-1,); return y", X),
    ("y = x + 1; y.shape = (-1,); return y", X),
    ("x.flags.writeable = False; return x + 1", X),
    ("return x ** -1", K),
    ("return 2 ** (x - 3)", K),
    ("return 2 ** x, x ** np.array([1, 2, 3])", K),
    ("return x // 0, x % 0, np.divmod(x, 0)", K),
    ("x[1:] = x[:-1]; return x", A),
    ("x[1:] += x[:-1]; return x", A),
    ("np.add(x[:-1], 1, out=x[1:]); return x", A),
    ("y = x + 1; y.flags.writeable = False; y += 1; return y", X),
    ("y = np.diagonal(x); y[0] = 1; return y", X),
    ("y = np.broadcast_to(x, (2, 2, 3)); y[0] = 1; return y", X),
    ("y = np.broadcast_to(x, (2, 2, 3)); y[y > 1] = 1; return y", X),
]


@pytest.mark.parametrize(("text", "x"), PROGRAMS, ids=[text for text, _ in PROGRAMS])
def test_options(text: str, x: Any) -> None:
    agree(program(text), x)


def test_where_floating_point_errors_raise_calls_run_as_written() -> None:
    import fusec

    f = fusec.jit(lambda x: 1 / (x - 1))
    assert np.isinf(f(X)[0, 0])
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        f(X)
    with np.errstate(divide="ignore"):
        assert np.isinf(f(X)[0, 0])
    assert len(f.dispatcher.plans) == 2

    def inside(x: Any) -> Any:
        with np.errstate(divide="raise"):
            return 1 / (x - 1)

    with pytest.raises(FloatingPointError):
        fusec.jit(inside)(X)


def test_settings_of_all_code_are_made_at_each_call() -> None:
    import fusec

    def f(x: Any) -> Any:
        np.seterr(divide="ignore")
        return x + 1

    jitted, before = fusec.jit(f), np.geterr()
    try:
        for _ in range(3):
            np.seterr(divide="warn")
            np.testing.assert_array_equal(jitted(X), X + 1)
            assert np.geterr()["divide"] == "ignore"
    finally:
        np.seterr(**before)


VALUES = np.array([[0.0, 1.0], [-1.0, 0.0]], np.float32)
OF_VALUES: list[Any] = [
    lambda x: np.emath.sqrt(x) + 1,
    lambda x: np.emath.log(x - 0.5),
    lambda x: np.emath.power(x, 0.5),
    lambda x: np.emath.arccos(x * 2),
    lambda x: np.linalg.eigvals(x) * 2,
    lambda x: np.linalg.eig(x)[0],
    lambda x: np.roots(x[0]),
    lambda x: np.real_if_close(x + 1j * x),
]


@pytest.mark.parametrize("function", OF_VALUES)
def test_dtypes_that_elements_decide(function: Any) -> None:
    import fusec

    jitted = fusec.jit(function)
    for x in (np.abs(VALUES), VALUES, VALUES * 0 + 1):
        found, expected = jitted(x), function(x)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
