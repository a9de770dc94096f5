"""Bits that an integer is, and its range, against NumPy on chains of shifts, masks and casts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusec.codegen.cuda.bit_fields import BitField, bit_field, range_of, wraps
from fusec.ir.types import DType, i8, i16, i32, u8, u16, u32
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr

TYPES = (u8, i8, u16, i16, i32, u32)
Values = np.ndarray[Any, Any]


def source(dtype: DType) -> Load:
    return Load(Buffer("w", dtype, (4,), (1,), "tile"), (1,))


def all_of(dtype: DType) -> Values:
    info = np.iinfo(dtype.numpy)
    if dtype.bits <= 16:
        return np.arange(info.min, info.max + 1).astype(dtype.numpy)
    rng = np.random.default_rng(0)
    return np.append(rng.integers(info.min, info.max, 2000, dtype.numpy), [info.min, info.max, 0, 1]).astype(
        dtype.numpy
    )


def longer(rng: random.Random, e: ScalarExpr, x: Values) -> tuple[ScalarExpr, Values]:
    """One more operation on an expression and on its values."""
    dtype = e.dtype
    kind = rng.choice(("cast", "bitwise_and", "shift_right", "shift_left", "floordiv", "remainder"))
    if kind == "cast":
        to = rng.choice(TYPES)
        return Apply("cast", (e,), to), x.astype(to.numpy)
    if kind == "bitwise_and":
        number = ((1 << rng.randint(1, 6)) - 1) << rng.choice((0, 0, 1, 4))
    elif kind in ("floordiv", "remainder"):
        number = 1 << rng.randint(0, 4)
    else:
        number = rng.randint(0, dtype.bits - 1)
    if number > np.iinfo(dtype.numpy).max:
        return e, x
    by = np.array(number, dtype.numpy)
    operations: dict[str, Callable[[Values, Values], Values]] = {
        "bitwise_and": np.bitwise_and,
        "shift_right": np.right_shift,
        "shift_left": np.left_shift,
        "floordiv": np.floor_divide,
        "remainder": np.remainder,
    }
    return Apply(kind, (e, Const(number, dtype)), dtype), operations[kind](x, by)


def read(field: BitField, memory: Values) -> Values:
    """What the field says that an element is."""
    unsigned = memory.astype(np.int64) & ((1 << memory.dtype.itemsize * 8) - 1)
    bits = (unsigned >> (field.at - memory.dtype.itemsize * 8)) & ((1 << field.width) - 1)
    if field.signed:
        bits = np.where(bits >> (field.width - 1) & 1, bits - (1 << field.width), bits)
    return bits << field.low


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_chains(dtype: DType) -> None:
    rng, found = random.Random(str(dtype)), 0
    memory = all_of(dtype)
    for _ in range(1500):
        e: ScalarExpr = source(dtype)
        x = memory
        for _ in range(rng.randint(1, 5)):
            e, x = longer(rng, e, x)
        field, limits = bit_field(e), range_of(e)
        if field is not None:
            found += 1
            np.testing.assert_array_equal(read(field, memory), x.astype(np.int64), str(e))
        if limits is not None:
            assert limits[0] <= int(x.min())
            assert int(x.max()) <= limits[1]
    assert found > 400


def nibble(e: ScalarExpr) -> Apply:
    return Apply("bitwise_and", (e, Const(15, e.dtype)), e.dtype)


def test_wrapping_around() -> None:
    low = nibble(source(u8))
    less = Apply("sub", (low, Const(8, u8)), u8)
    assert wraps(less)
    assert range_of(less) == (0, 255)
    signed = Apply("sub", (Apply("cast", (low,), i8), Const(8, i8)), i8)
    assert not wraps(signed)
    assert range_of(signed) == (-8, 7)


def test_no_field() -> None:
    odd = Apply("bitwise_and", (source(u8), Const(0b1011, u8)), u8)
    assert bit_field(odd) is None
    assert range_of(odd) == (0, 11)
    assert bit_field(Apply("add", (source(u8), source(u8)), u8)) is None
