"""What a call changes is looked for in the memory of its other inputs, again only where those have moved."""

from __future__ import annotations

from typing import Any

import pytest

from fusec.runtime.adapters import load_arrays
from fusec.runtime.sharing import Sharing

torch = pytest.importorskip("torch")


def sharing(*mutated: int, fixed: bool = True) -> Sharing:
    return Sharing(load_arrays("torch"), mutated, fixed=fixed)


def tensors(count: int) -> list[Any]:
    return [torch.zeros(8) for _ in range(count)]


@pytest.mark.parametrize("fixed", [True, False])
def test_apart_and_then_moved_into_another(fixed: bool) -> None:
    shares = sharing(0, 2, fixed=fixed)
    a, b, c, d = tensors(4)
    assert not shares(a, b, c, d)
    assert not shares(a, b, c, d)
    assert not shares(a, torch.zeros(8), c, d)
    assert shares(a, b, c, a[2:4])
    assert shares(a, b, b, d)
    assert shares(a, b, a, d)
    assert not shares(a, b, c, b)
    assert not shares(b, a, c, d)
    assert shares(b, a, c, b)


def test_disjoint_views_of_one_storage_count_as_shared() -> None:
    whole = torch.zeros(16)
    assert sharing(0)(whole[:8], whole[8:])


def test_nothing_shares_with_an_empty_tensor() -> None:
    whole = torch.zeros(16)
    assert not sharing(0)(whole, whole[:0])
    assert not sharing(0)(whole[:0], whole)
