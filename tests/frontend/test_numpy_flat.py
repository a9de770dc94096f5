"""``x.flat`` copies what is read of it and writes what is stored in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy_parity import agree
from test_numpy_returns import A, F, program

PROGRAMS = [
    "y = x.flat[::2]; y += 1; return y, x",
    "x.flat[::2] = 7; return x",
    "x.flat = 3; return x",
    "x.flat[...] = x[0, 0]; return x",
    "x.flat[2] = 3; x.flat[4:7] = x[0, :3] * 2; return x.flat[1:4], x.flat[3]",
    "x.flat[4:7] = [4, 5, 6]; return x.flat.copy(), len(x.flat)",
    "x.flat[4:10] = [4, 5, 6]; return x",
    "x.flat[[1, 2]] = 5; return x.flat[[1, 2]]",
    "y = x.flat.base; y += 1; return y",
    "return np.sum(x.flat), x.flat == 3",
    "np.fill_diagonal(x, 5); return x",
    "x.flat = x[::-1]; return x",
    "v = x[:, ::-1]; v.flat = x; return v + 1",
    "x.flat[:6] = x[1:].flat[:6]; return x",
    "y = x + 1; y.flat[1] = 9; return y",
    "y = x.T + 1; y.flat[::3] = 9; return y",
    "return [v + 1 for v in x[:2, :2].flat]",
]


@pytest.mark.parametrize("x", [A, F, A[:, ::2], A[::-1]], ids=["rows", "columns", "part", "backwards"])
@pytest.mark.parametrize("text", PROGRAMS)
def test_flat(text: str, x: Any) -> None:
    agree(program(text), x)


def test_a_read_only_array_stays_as_it_is() -> None:
    agree(program("x.flat[1] = 2; return x"), np.broadcast_to(A[0], (2, 6)))


@pytest.mark.parametrize("x", [A, F, A[:, ::2]], ids=["rows", "columns", "part"])
def test_what_is_read_only_is_not_written(x: Any) -> None:
    import fusec

    def f(x: Any) -> Any:
        x.flat[1] = 7
        return x

    frozen = x.copy(order="K")
    frozen.flags.writeable = False
    for given in (frozen, frozen[::2]):
        with pytest.raises(ValueError, match="read-only"):
            fusec.jit(f)(given)
        np.testing.assert_array_equal(frozen, x)
