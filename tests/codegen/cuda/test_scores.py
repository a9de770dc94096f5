"""Scores made cheaper: index arithmetic, conversions, and what no key changes."""

from __future__ import annotations

from fusec.codegen.cuda.scores import as_indices, constants_of, over_places
from fusec.ir.index import add, mul, symbol
from fusec.ir.types import bool_, f32, i64
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load

ROW, KEY, HEAD = symbol("row", 0, 127), symbol("key", 0, 127), symbol("head", 0, 15)
BIG = symbol("big", 0, 2**40)
RAW = Load(Buffer("raw", f32, (), (), "tile"), ())
PLACE = Buffer("place", f32, (), (), "tile")


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
    assert over_places(e, KEY, PLACE) == Apply("add", (base, Load(PLACE, ())), f32)


def test_conversions_that_round_stay() -> None:
    e = Apply("cast", (i(add(BIG, KEY)),), f32)
    assert over_places(e, KEY, PLACE) == e


def test_constants_of_a_block() -> None:
    slope = Apply("exp2", (Apply("cast", (i(HEAD),), f32),), f32)
    distance = Apply("cast", (i(KEY - ROW),), f32)
    e = Apply("add", (RAW, Apply("mul", (slope, distance), f32)), f32)
    assert constants_of(e, {ROW, KEY}, {RAW.buffer}) == [slope]
    assert constants_of(RAW, {ROW, KEY}, {RAW.buffer}) == []
