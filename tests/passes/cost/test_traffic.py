"""Bytes that loop nests fetch from beyond a cache."""

from __future__ import annotations

from fusec.ir.index import Index, symbol, symbols_of
from fusec.ir.types import f32
from fusec.passes.cost.traffic import Nest, Repeat, Touch, flows
from fusec.tile.nodes import Iter
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
    def nest(*, non_temporal: bool) -> Nest:
        inside = (Touch(A, 1000, frozenset({P}), non_temporal), Touch(B, 1000, frozenset()))
        return (Repeat(Q, 10, (Repeat(P, 10, inside),)),)

    kept = flows(nest(non_temporal=True), 1000, hinted=True)
    assert (kept[A].fetched, kept[B].fetched) == (100_000, 1000)
    plain = flows(nest(non_temporal=True), 1000)
    assert plain == flows(nest(non_temporal=False), 1000) | {A: plain[A]}
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


def touch(*places: Index, side_by_side: int = 250) -> list[Touch]:
    """250 elements from each of these places on, so many of them without a gap."""
    rest = Iter(symbol("gap", 0, 250 // side_by_side - 1), 250 // side_by_side)
    domain = (rest, Iter(symbol("e", 0, side_by_side - 1), side_by_side))
    elements = 3 * side_by_side * domain[0].var + domain[1].var
    return [Touch(A, 1000, frozenset(symbols_of(p)), index=(p + elements,), domain=domain) for p in places]


def test_other_places_of_a_buffer_are_other_bytes() -> None:
    """The first panel before a loop over the others, as products whose stores come a block later have it."""
    panels: Nest = (*touch(0), Repeat(P, 9, touch(250 + 250 * P)))
    found = flows(panels, 5000)[A]
    assert (found.footprint, found.fetched) == (10000, 10000)
    twice = flows((Repeat(Q, 2, panels),), 5000)[A]
    assert (twice.footprint, twice.first, twice.again, twice.between) == (10000, 10000, 5000, 10000)


def test_halves_that_lie_within_each_other_are_counted_both() -> None:
    """Columns of K in two parts: the first of each panel, then the second of each."""
    halves = [Repeat(P, 5, touch(500 * P + 250 * k, side_by_side=50)) for k in (0, 1)]
    assert flows(halves, 50000)[A].fetched == 10000


def test_touches_nearer_than_what_lies_side_by_side_are_one() -> None:
    assert flows(touch(0, 1), 5000)[A].fetched == 1000


def test_what_was_touched_some_repetitions_before_is_found_again() -> None:
    """Rows that are read a row ahead, and then used."""
    ahead, now = touch(250 * P + 250, 250 * P)
    found = flows((Repeat(P, 9, (ahead, now)),), 5000)[A]
    assert (found.footprint, found.again) == (9000, 0)
    far = flows((Repeat(P, 9, (ahead, Touch(B, 8000, frozenset()), now)),), 5000)[A]
    assert (far.footprint, far.again) == (9000, 9000 / 2)


def test_a_loop_that_starts_where_another_ends_touches_other_bytes() -> None:
    first, rest = (Repeat(P, n, touch(250 * P), start) for n, start in ((4, 0), (6, 4)))
    assert flows((first, *touch(0), rest), 50000)[A].fetched == 10000
    assert flows((first, *touch(0), first), 50000)[A].fetched == 4000
