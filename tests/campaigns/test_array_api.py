"""The namespace that the array API's tests are given, and what counts as worse than NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.campaigns import jitted_numpy as xp
from tests.campaigns.array_api import worse

X = np.arange(6.0).reshape(2, 3)
CALLS: list[Any] = [
    lambda m: m.add(X, 2),
    lambda m: m.concat([X, X], axis=1),
    lambda m: m.sum(X, axis=0, keepdims=True),
    lambda m: m.linalg.matmul(X, X.T),
    lambda m: m.unique_values(X),
    lambda m: m.broadcast_to(X[0], (2, 3)),
]


@pytest.mark.parametrize("call", CALLS)
def test_functions_are_numpys_jitted(call: Any) -> None:
    before = sum(xp.CALLS.values())
    made, wanted = call(xp), call(np)
    assert sum(xp.CALLS.values()) == before + 1
    assert type(made) is type(wanted)
    assert made.dtype == wanted.dtype
    np.testing.assert_array_equal(made, wanted)


def test_dtypes_and_constants_are_numpys() -> None:
    assert (xp.float32, xp.pi, xp.__array_api_version__) == (np.float32, np.pi, np.__array_api_version__)


def test_only_what_numpy_does_not_fail_is_worse() -> None:
    numpys = {"a": "", "b": "AssertionError", "c": ""}
    assert worse(numpys, {"a": "", "b": "AssertionError", "c": "TypeError"}) == {"c": "TypeError"}
