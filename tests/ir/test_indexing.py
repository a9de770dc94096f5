"""Whole numbers of extents."""

from __future__ import annotations

import pytest

from fusec.ir.indexing import pow2, round_up


@pytest.mark.parametrize(("n", "step", "expected"), [(0, 8, 0), (1, 8, 8), (8, 8, 8), (9, 8, 16), (5, 1, 5)])
def test_round_up(n: int, step: int, expected: int) -> None:
    assert round_up(n, step) == expected


@pytest.mark.parametrize(("n", "expected"), [(0, 1), (1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_pow2(n: int, expected: int) -> None:
    assert pow2(n) == expected
