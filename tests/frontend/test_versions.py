# SPDX-License-Identifier: Apache-2.0
"""Versions of dicts and classes, as this Python keeps them."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

import pytest

from fusec.frontend import versions


class Plain:
    limit: Any = 3

    def __init__(self) -> None:
        self.x: Any = 1
        self.y = 2


class Slotted:
    __slots__ = ("x",)


def version(value: Any) -> bytes:
    return versions.words_at(versions.places_of([versions.address_of_version(value)]))


pytestmark = pytest.mark.skipif(not versions.KEEPS_VERSIONS, reason="this Python keeps none")


def test_pythons_that_keep_them() -> None:
    assert sys.version_info >= (3, 13) or versions.KEEPS_VERSIONS


@pytest.mark.parametrize("make", [dict, OrderedDict])
def test_a_dict_has_another_after_each_change(make: Any) -> None:
    table = make(a=1, b=[2])
    seen = [version(table)]
    for change in (
        lambda: table.update(a=2),
        lambda: table.update(c=3),
        lambda: table.pop("c"),
        lambda: table.setdefault("d", None),
        lambda: table.__delitem__("d"),
        lambda: table.__setitem__("b", [2]),
        table.popitem,
        table.clear,
    ):
        change()
        seen.append(version(table))
        list(table.items()), table.get("a"), "b" in table, len(table), dict(table)
        assert version(table) == seen[-1]
    assert len(set(seen)) == len(seen)


def test_attributes_set_by_any_way_are_seen() -> None:
    value = Plain()
    own = value.__dict__
    for _ in range(100):  # code that runs often is specialised
        before = version(own)
        value.x = [0]
        assert version(own) != before
        before = version(own)
        assert (value.x, value.y, value.limit) == ([0], 2, 3)
        assert version(own) == before
    for change in (
        lambda: setattr(value, "z", 1),
        lambda: object.__setattr__(value, "x", 5),
        lambda: delattr(value, "z"),
        lambda: vars(value).update(x=6),
    ):
        before = version(own)
        change()
        assert version(own) != before


def test_another_dict_in_its_place_is_another_address() -> None:
    value = Plain()
    place = versions.address_of_table(value, value.__dict__)
    assert place is not None
    before = versions.words_at(versions.places_of([place]))
    kept = value.__dict__
    value.__dict__ = dict(kept)
    assert versions.words_at(versions.places_of([place])) != before
    value.__dict__ = kept
    assert versions.words_at(versions.places_of([place])) == before


def test_a_class_has_another_after_each_change_of_it_or_a_base() -> None:
    class Base(Plain):
        pass

    class Derived(Base):
        pass

    value = Derived()
    assert value.limit == 3
    seen = [version(Derived)]
    for cls, change in (
        (Derived, lambda: setattr(Derived, "limit", 4)),
        (Derived, lambda: delattr(Derived, "limit")),
        (Base, lambda: setattr(Base, "x", property(lambda self: 7))),
        (Base, lambda: delattr(Base, "x")),
    ):
        change()
        assert value.limit in (3, 4)
        assert cls.__name__
        seen.append(version(Derived))
    assert len(set(seen)) == len(seen)


def test_another_class_is_another_address() -> None:
    value = Plain()
    place = versions.places_of([versions.address_of_class(value)])
    before = versions.words_at(place)
    value.__class__ = type("Other", (Plain,), {})
    assert versions.words_at(place) != before


def test_many_words_are_those_of_each_object() -> None:
    kept: list[Any] = [1, "a", 2.5, None, Plain(), [], {}]
    places = versions.places_of([versions.address_of_class(value) for value in kept])
    assert versions.words_at(places) == b"".join(id(type(v)).to_bytes(8, sys.byteorder) for v in kept)
