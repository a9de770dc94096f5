"""``as_strided`` and sliding windows, read back as views."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import stride_tricks
from numpy.lib.stride_tricks import as_strided, sliding_window_view

sys.path.insert(0, str(Path(__file__).parent))
from numpy_harness import check

from fusec.errors import UnsupportedOpError
from fusec.frontend.numpy import capture

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


@pytest.mark.parametrize(
    ("shape", "strides", "ops"),
    [
        ((3, 4), (16, 4), []),
        ((4, 3), (4, 16), ["permute"]),
        ((2, 2), (32, 8), ["slice"]),
        ((3, 3, 2), (16, 4, 4), ["windows"]),
        ((2, 3, 2, 2), (16, 4, 16, 4), ["windows", "windows"]),
        ((3, 2, 2), (16, 8, 4), ["windows"]),
        ((5, 3, 4), (0, 16, 4), ["reshape", "broadcast"]),
        ((4,), (4,), ["slice", "reshape"]),
        ((9, 4), (4, 4), ["strided"]),
        ((3,), (20,), ["strided"]),
    ],
)
def test_as_strided_is_read_back_as_views(shape: Any, strides: Any, ops: list[str]) -> None:
    def f(x: Any) -> Any:
        return as_strided(x, shape=shape, strides=strides) + 0

    captured = check(f, X)
    assert [op.name for op in captured.graph.ops if op.name != "add" and op.name != "constant"] == ops


def test_as_strided_reached_by_other_names_and_on_views() -> None:
    def f(x: Any) -> Any:
        from numpy.lib.stride_tricks import as_strided as local

        y = x * 2
        return (
            np.lib.stride_tricks.as_strided(x, (2, 2), (4, 4)) + 0,
            stride_tricks.as_strided(x.T, (4, 3), x.T.strides) + 0,
            local(y[1:], (2, 3, 2), (16, 4, 4)).sum(),
            as_strided(y.T, (3, 2), (16, 4)) + 0,
            sliding_window_view(y, (2, 2)).sum(axis=(-1, -2)),
        )

    check(f, X)


def test_as_strided_on_strided_inputs() -> None:
    def f(x: Any) -> Any:
        s0, s1 = x.strides
        return as_strided(x, (x.shape[0], x.shape[1] - 1, 2), (s0, s1, s1)) + 0

    big = np.arange(60.0).reshape(6, 10)
    check(f, np.asfortranarray(big))
    check(f, big[::2, 1:])
    check(f, big.T[1:])
    with pytest.raises(UnsupportedOpError, match="itself strided"):
        capture(lambda x: as_strided(x, (9,), (8,)), (big[:, :5],))


def test_writes_into_windows_are_refused() -> None:
    def f(x: Any) -> Any:
        y = x.copy()
        w = as_strided(y, (3, 3, 2), (16, 4, 4))
        w += 1
        return y

    with pytest.raises(UnsupportedOpError, match="overlap"):
        capture(f, (X,))
