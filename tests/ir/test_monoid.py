"""Monoids: what they start from changes nothing, and their graph op combines partial results to the whole."""

from __future__ import annotations

import numpy as np
import pytest

from fusec.ir.attributes import ReduceAttributes
from fusec.ir.monoid import MONOIDS, Monoid, monoid_of
from fusec.ir.ops import OPS
from fusec.ir.types import DTYPES, DType

EACH = [
    pytest.param(monoid, dtype, id=f"{monoid.name}-{dtype}")
    for monoid in MONOIDS.values()
    for dtype in DTYPES.values()
    if dtype.kind in monoid.kinds and dtype.kind != "complex"
]


def values(dtype: DType, count: int) -> np.ndarray:
    """Numbers of a dtype, its ends among them."""
    found = np.random.default_rng(0).integers(0, 2 if dtype.kind == "bool" else 100, count).astype(dtype.numpy)
    if dtype.is_integer:
        found[:2] = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    elif dtype.is_float:
        found[:2] = -np.inf, np.inf
    return found


@pytest.mark.parametrize(("monoid", "dtype"), EACH)
def test_identity(monoid: Monoid, dtype: DType) -> None:
    x = values(dtype, 20)
    identity = np.full_like(x, monoid.identity(dtype))
    np.testing.assert_array_equal(monoid.ufunc(identity, x), x)


@pytest.mark.parametrize(("monoid", "dtype"), EACH)
def test_partial_results(monoid: Monoid, dtype: DType) -> None:
    reduce, combine = OPS[f"reduce_{monoid.name}"], OPS[monoid.combine]
    x = np.random.default_rng(0).integers(0, 2 if dtype.kind == "bool" else 3, (2, 5)).astype(dtype.numpy)
    (whole,) = reduce.reference([x], ReduceAttributes((0, 1)))
    (partial,) = reduce.reference([x], ReduceAttributes((1,)))
    (combined,) = combine.reference(list(partial), OPS["add"].attributes())
    np.testing.assert_array_equal(combined, whole)


def test_reductions_have_one() -> None:
    for op in OPS.values():
        if op.kind in ("reduce", "scan"):
            assert op.reduction is monoid_of(op.reduction.name)
