"""Bytes that loop nests fetch from beyond a cache."""

from __future__ import annotations

from fusec.ir.index import symbol
from fusec.ir.types import f32
from fusec.passes.cost.traffic import Nest, Repeat, Touch, flows
from fusec.tile.scalar import Buffer

P, Q = symbol("i", 0, 9), symbol("j", 0, 9)
A, B = (Buffer(name, f32, (2500,), (1,)) for name in "ab")


def test_what_fits_is_fetched_once() -> None:
    nest: Nest = (Repeat(P, 10, (Touch(A, 1000, frozenset({P})), Touch(B, 500, frozenset()))),)
    found = flows(nest, 2000)
    assert (found[A].fetched, found[A].footprint) == (10000, 10000)
    assert (found[B].fetched, found[B].footprint) == (500, 500)


def test_of_what_is_larger_than_the_cache_a_share_is_fetched_again() -> None:
    nest: Nest = (Repeat(Q, 10, (Repeat(P, 10, (Touch(A, 1000, frozenset({P})),)),)),)
    assert flows(nest, 10000)[A].fetched == 10000
    half = flows(nest, 5000)[A]
    assert (half.first, half.again) == (10000, 9 * 10000 / 2)


def test_what_streams_takes_no_room_and_is_fetched_each_time() -> None:
    def nest(*, streams: bool) -> Nest:
        inside = (Touch(A, 1000, frozenset({P}), streams), Touch(B, 1000, frozenset()))
        return (Repeat(Q, 10, (Repeat(P, 10, inside),)),)

    kept = flows(nest(streams=True), 1000, hinted=True)
    assert (kept[A].fetched, kept[B].fetched) == (100_000, 1000)
    plain = flows(nest(streams=True), 1000)
    assert plain == flows(nest(streams=False), 1000) | {A: plain[A]}
    assert plain[B].fetched > 40_000


def test_between_two_statements_counts_what_lies_between() -> None:
    near: Nest = (Touch(A, 1000, frozenset()), Touch(A, 1000, frozenset()), Touch(B, 4000, frozenset()))
    far: Nest = (near[0], near[2], near[1])
    assert flows(near, 2500)[A].fetched == 1000
    assert flows(far, 2500)[A].fetched == 1500


def test_no_more_is_touched_than_there_is() -> None:
    windows: Nest = (Repeat(P, 1000, (Touch(A, 1000, frozenset({P})),)),)
    found = flows(windows, 4000)[A]
    assert found.footprint == found.fetched == 10000
