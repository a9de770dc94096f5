"""A matrix times every window of columns of another, written with ``as_strided`` and ``@``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

import fusec
from benchmarks.harness import Peer
from benchmarks.report import FUSEC, Row
from benchmarks.session import Case, Faster, Session

SIZES = ((10, 20, 1000, 20), (64, 128, 20000, 32))
"""Rows of ``a``, columns of ``a``, columns of ``b``, columns of a window."""


def windows_of_matmul(width: int) -> Callable[[Any, Any], Any]:
    """a [m, k] times each window of ``width`` columns of b [k, n]: [n - width + 1, m, width]."""

    def windows_product(a: Any, b: Any) -> Any:
        down, right = b.strides
        windows = as_strided(b, (b.shape[1] - width + 1, b.shape[0], width), (right, down, right))
        return a @ windows

    return windows_product


def rows(session: Session) -> Iterator[Row]:
    for m, k, n, width in SIZES:
        yield session.time(case(m, k, n, width))


def case(m: int, k: int, n: int, width: int) -> Case:
    random = np.random.default_rng(0)
    a = random.standard_normal((m, k), np.float32)
    b = random.standard_normal((k, n), np.float32)
    function = windows_of_matmul(width)
    flops, written = 2.0 * m * k * n, 4.0 * (n - width + 1) * m * width
    return Case(
        f"sliding windows f32 {m}×{k}×{n} w{width}",
        {"NumPy": Peer(function, (a, b)), FUSEC: Peer(fusec.jit(function), (a, b))},
        [Faster(2.5, ("NumPy",))],
        function,
        (a, b),
        exact=lambda: function(a.astype(np.float64), b.astype(np.float64)),
        checked=("NumPy", FUSEC),
        flops=flops,
        nbytes=4.0 * (m * k + k * n) + written,
        notes=(f"limit: the matmul once, {flops / 1e6:.1f} Mflop, and {written / 1e6:.1f} MB written",),
    )
