"""CuPy functions traced without a device: NumPy arrays stand for CuPy's, whose layouts alone are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
from fusec.errors import UnsupportedOpError  # noqa: E402
from fusec.frontend.capture import Capture  # noqa: E402
from fusec.frontend.cupy import CupyScope  # noqa: E402
from fusec.frontend.numpy import Flavour, capture_as, is_array  # noqa: E402
from fusec.ir.interpret import interpret  # noqa: E402

exp = cp.exp
where = cp.where
table = np.arange(6.0)


def captured(f: Callable[..., Any], *args: Any) -> Capture:
    flavour = Flavour("cupy", is_array, CupyScope, lambda array: array)
    return capture_as(flavour, f, args, {}, "error")


def softmax(x: Any) -> Any:
    e = cp.exp(x - cp.max(x, axis=1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def mixed(x: Any) -> Any:
    return where(x > 0, exp(x), cp.zeros_like(x)) @ cp.transpose(x).astype(cp.float32) + cp.pi


def solved(x: Any) -> Any:
    return cp.linalg.norm(cp.asarray(x), axis=1)


@pytest.mark.parametrize("function", [softmax, mixed, solved])
def test_traced_as_numpy(function: Callable[..., Any]) -> None:
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    found = captured(function, x)
    assert found.library == "cupy"
    (result,) = interpret(found.graph, [x])
    numpy_version = {**globals(), "cp": np, "where": np.where, "exp": np.exp}
    plain = type(function)(function.__code__, numpy_version)
    np.testing.assert_allclose(result, plain(x), rtol=1e-5)


def test_what_numpy_does_not_have_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match=r"cupy\.asnumpy is CuPy's alone"):
        captured(lambda x: cp.asnumpy(x), np.ones(3))


def test_a_numpy_array_among_cupys_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="table is a NumPy array"):
        captured(lambda x: x + table, np.ones(6))
