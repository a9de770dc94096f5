"""Scores made cheaper: index arithmetic, conversions, and what no key changes."""

from __future__ import annotations

from math import inf

import pytest

from fusec.codegen.cuda.scores import (
    as_indices,
    bounds_of_keys,
    compared_to_key,
    constants_of,
    folded,
    over_offsets,
    range_of,
    spread,
)
from fusec.ir.index import add, mul, symbol
from fusec.ir.types import bool_, f32, f64, i64
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load

ROW, KEY, HEAD = symbol("row", 0, 127), symbol("key", 0, 127), symbol("head", 0, 15)
BIG = symbol("big", 0, 2**40)
RAW = Load(Buffer("raw", f32, (), (), "tile"), ())
OFFSET = Buffer("offset", f32, (), (), "tile")


def i(index: object) -> IndexValue:
    return IndexValue(index)  # type: ignore[arg-type]


def test_differences_of_indices_are_indices() -> None:
    e = Apply("sub", (i(add(KEY, 5)), i(ROW)), i64)
    assert as_indices(e) == i(KEY - ROW + 5)
    assert as_indices(Apply("gt", (e, Const(0, i64)), bool_)).args[0] == i(KEY - ROW + 5)  # type: ignore[union-attr]


def test_multiples_of_indices() -> None:
    assert as_indices(Apply("mul", (i(KEY), Const(3, i64)), i64)) == i(mul(KEY, 3))
    product = Apply("mul", (i(KEY), i(ROW)), i64)
    assert as_indices(product) == product


def test_what_32_bits_do_not_hold_stays() -> None:
    e = Apply("add", (i(BIG), i(KEY)), i64)
    assert as_indices(e) == e


def test_conversions_are_split_at_the_key() -> None:
    e = Apply("cast", (i(KEY - ROW),), f32)
    base = Apply("cast", (i(mul(ROW, -1)),), f32)
    assert over_offsets(e, KEY, OFFSET) == Apply("add", (base, Load(OFFSET, ())), f32)


def test_conversions_that_round_stay() -> None:
    e = Apply("cast", (i(add(BIG, KEY)),), f32)
    assert over_offsets(e, KEY, OFFSET) == e


def test_constants_of_a_block() -> None:
    slope = Apply("exp2", (Apply("cast", (i(HEAD),), f32),), f32)
    distance = Apply("cast", (i(KEY - ROW),), f32)
    e = Apply("add", (RAW, Apply("mul", (slope, distance), f32)), f32)
    assert constants_of(e, {ROW, KEY}, {RAW.buffer}) == [slope]
    assert constants_of(RAW, {ROW, KEY}, {RAW.buffer}) == []


def f(number: float) -> Const:
    return Const(number, f32)


def times(a: object, b: object) -> Apply:
    return Apply("mul", (a, b), f32)  # type: ignore[arg-type]


def test_constant_factors_become_one() -> None:
    assert folded(times(times(RAW, f(0.5)), f(0.25))) == times(RAW, f(0.125))
    assert folded(Apply("div", (times(RAW, f(0.5)), f(4.0)), f32)) == times(RAW, f(0.125))


@pytest.mark.parametrize("factors", [(1e-30, 1e-30), (1e30, 1e30), (0.0, 2.0)])
def test_factors_whose_product_is_no_normal_number_stay(factors: tuple[float, float]) -> None:
    e = times(times(RAW, f(factors[0])), f(factors[1]))
    assert folded(e) == e


def test_factors_of_doubles_stay() -> None:
    e = Apply("mul", (Apply("mul", (RAW, Const(0.5, f64)), f64), Const(0.5, f64)), f64)
    assert folded(e) == e


def test_a_slope_is_multiplied_by_places_alone() -> None:
    slope = Apply("exp2", (Apply("cast", (i(HEAD),), f32),), f32)
    base, offset = Apply("cast", (i(mul(ROW, -1)),), f32), Load(OFFSET, ())
    e = times(slope, Apply("add", (base, offset), f32))
    wanted = Apply("add", (times(slope, base), times(slope, offset)), f32)
    assert spread(e, KEY, OFFSET, {RAW.buffer}) == wanted


def test_a_slope_that_may_be_infinite_stays() -> None:
    loaded = Load(Buffer("slopes", f32, (16,), (1,)), (HEAD,))
    e = times(loaded, Apply("add", (Apply("cast", (i(ROW),), f32), Load(OFFSET, ())), f32))
    assert spread(e, KEY, OFFSET, {RAW.buffer}) == e


@pytest.mark.parametrize(
    ("op", "left", "right", "wanted", "bound"),
    [
        ("gt", KEY - ROW, 3, "gt", ROW + 3),
        ("le", ROW - KEY, 5, "ge", ROW - 5),
        ("lt", ROW, KEY, "gt", ROW),
        ("eq", KEY, ROW + 1, "eq", ROW + 1),
    ],
)
def test_keys_are_compared_to_what_no_key_enters(
    op: str, left: object, right: object, wanted: str, bound: object
) -> None:
    e = compared_to_key(Apply(op, (i(left), i(right)), bool_), KEY)
    assert e == Apply(wanted, (i(KEY), i(bound)), bool_)
    assert bounds_of_keys(e, KEY) == [bound]


def test_multiples_of_keys_and_long_indices_stay() -> None:
    for left in (mul(KEY, 2), add(BIG, KEY)):
        e = Apply("gt", (i(left), i(ROW)), bool_)
        assert compared_to_key(e, KEY) == e
        assert bounds_of_keys(e, KEY) == []


def test_ranges() -> None:
    head = Apply("cast", (i(HEAD),), f32)
    assert range_of(Apply("exp2", (times(head, f(-0.5)),), f32)) == (0.0, 1.0)
    assert range_of(Apply("sub", (head, f(3.0)), f32)) == (-3.0, 12.0)
    assert range_of(Apply("tanh", (RAW,), f32)) == (-1.0, 1.0)
    assert range_of(Apply("exp2", (times(head, f(10.0)),), f32)) == (-inf, inf)
    assert range_of(RAW) == (-inf, inf)


def test_a_distance_has_two_ends() -> None:
    distance = Apply("abs", (i(KEY - ROW),), i64)
    found = compared_to_key(Apply("le", (distance, Const(64, i64)), bool_), KEY)
    ends = [Apply("le", (i(KEY), i(add(ROW, 64))), bool_), Apply("ge", (i(KEY), i(add(ROW, -64))), bool_)]
    assert found == Apply("logical_and", tuple(ends), bool_)
    assert set(bounds_of_keys(found, KEY)) == {add(ROW, 64), add(ROW, -64)}


def test_a_distance_that_32_bits_do_not_hold_stays() -> None:
    far = Apply("le", (Apply("abs", (i(KEY - BIG),), i64), Const(64, i64)), bool_)
    assert compared_to_key(far, KEY) == far
