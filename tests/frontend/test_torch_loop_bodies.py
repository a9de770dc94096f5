# SPDX-License-Identifier: Apache-2.0
"""Which loops leave nothing behind in Python, by their code and by what their variables hold."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fusec.frontend.torch_loop_bodies import LoopBody, loop_body

SEEN: list[bool] = []
"""Of the last loop over :class:`Items`: whether its code leaves nothing, and whether a variable's contents changed."""


class Items:
    """Tells what is found of the loop over it."""

    def __iter__(self) -> Iterator[int]:
        body = loop_body(sys._getframe(1))
        SEEN[:] = [body is not None, False]
        return self._steps(body)

    def _steps(self, body: LoopBody | None) -> Iterator[int]:
        yield from range(3)
        changed = False
        if body is not None:
            try:
                body.check(ValueError)
            except ValueError:
                changed = True
        SEEN[:] = body is not None, changed


def plain(items: Items, put: Callable[[Any], None]) -> None:
    for n in items:
        if n == 1:
            continue
        twice = n * 2
        with pytest.raises(ZeroDivisionError):
            put(twice // 0)
        put(twice)


def nested(items: Items, put: Callable[[Any], None]) -> None:
    for n in items:
        for m in range(n):
            twice = m * 2
            put(twice)


def set_again(items: Items, put: Callable[[Any], None]) -> None:
    for n in items:
        found = n
    found = 3
    put(found)


def carried(items: Items, put: Callable[[Any], None]) -> None:
    total = 0
    for n in items:
        total += n
    put(1)


def read_behind(items: Items, put: Callable[[Any], None]) -> None:
    last = 0
    for n in items:
        last = n
    put(last)


def read_sometimes(items: Items, put: Callable[[Any], None]) -> None:
    flag = True
    for n in items:
        if n:
            flag = False
        put(flag)


def left_early(items: Items, put: Callable[[Any], None]) -> None:
    for n in items:
        if n:
            break
        put(n)


def left_at_once(items: Items, put: Callable[[Any], None]) -> int:
    for n in items:
        put(n)
        break
    return 1


def returned(items: Items, put: Callable[[Any], None]) -> int:
    for n in items:
        if n:
            return n
    return 0


def of_a_closure(items: Items, put: Callable[[Any], None]) -> None:
    total = 0

    def read() -> int:
        return total

    for n in items:
        total = n
    put(read())


def attribute(items: Items, put: Callable[[Any], None]) -> None:
    for n in items:
        put.found = n  # type: ignore[attr-defined]


def appended(items: Items, put: Callable[[Any], None]) -> None:
    seen: list[int] = []
    for n in items:
        seen.append(n)


def by_key(items: Items, put: Callable[[Any], None]) -> None:
    seen: dict[str, list[int]] = {"a": [0]}
    for n in items:
        seen["a"][0] = n


def counted_in_a_cell(items: Items, put: Callable[[Any], None]) -> None:
    total = 0

    def count() -> None:
        nonlocal total
        total += 1000

    for _ in items:
        count()


def comprehended(items: Items, put: Callable[[Any], None]) -> None:
    put([n for n in items])  # noqa: C416 - a comprehension is what is looked at


def numbered(items: Items, put: Callable[[Any], None]) -> None:
    for k, n in enumerate(items):
        put(k + n)


@pytest.mark.parametrize("f", [plain, nested, set_again], ids=lambda f: f.__name__)
def test_loops_that_leave_nothing(f: Callable[..., Any]) -> None:
    f(Items(), lambda found: None)
    assert SEEN == [True, False]


@pytest.mark.parametrize(
    "f",
    [
        *(carried, read_behind, read_sometimes, left_early, left_at_once, returned, of_a_closure, attribute),
        *(comprehended, numbered),
    ],
    ids=lambda f: f.__name__,
)
def test_code_that_may_leave_something(f: Callable[..., Any]) -> None:
    f(Items(), lambda found: None)
    assert SEEN == [False, False]


@pytest.mark.parametrize("f", [appended, by_key, counted_in_a_cell], ids=lambda f: f.__name__)
def test_containers_that_change(f: Callable[..., Any]) -> None:
    f(Items(), lambda found: None)
    assert SEEN == [True, True]
