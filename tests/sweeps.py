"""Which cases of a sweep run by default: ones that cover each pair of its parameters' values.

A test marked ``sweep`` runs on all combinations of its parameters with ``--all-cases``, as the nightly workflow does.
Without, it runs on a few combinations that hold each pair of values of two parameters. A default run leaves out
combinations of three values and more, never a value nor a pair.

``sweep(1)`` is for parameters that the code under test treats apart: a default run holds each value.

A test, or one value of a parameter, marked ``nightly`` runs with ``--all-cases`` alone: it takes seconds, and what it
checks others check in parts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from itertools import combinations

import pytest
from _pytest.mark.structures import ParameterSet

Assignment = frozenset[tuple[str, Hashable]]
"""Parameters, and what stands for their values."""


def covering(cases: Sequence[Mapping[str, Hashable]], strength: int = 2) -> list[int]:
    """Numbers of cases that together hold every combination of values of ``strength`` parameters that the cases hold.

    cases: of each the parameters, and what stands for their values. Greedy: the case with most that is missing
    is next, of several the first.
    """
    return covering_sets([_held(case, strength) for case in cases])


def covering_sets(held: Sequence[Set[Hashable]]) -> list[int]:
    """Numbers of sets that together hold all that any of them holds: the greedy choice of :func:`covering`."""
    missing = set[Hashable]().union(*held)
    chosen = []
    while missing:
        best = max(range(len(held)), key=lambda n: (len(held[n] & missing), -n))
        missing -= held[best]
        chosen.append(best)
    return sorted(chosen)


def _held(case: Mapping[str, Hashable], strength: int) -> set[Assignment]:
    return {frozenset(pairs) for pairs in combinations(sorted(case.items()), min(strength, len(case)))}


def _values(case: pytest.Function) -> dict[str, Hashable]:
    """What stands for the value of each decorator, whose parameters vary together, and of each fixture's parameter.

    A value is the same object in all combinations. (pytest's own numbers of values count the cases.)
    """
    given = {name: id(value) for name, value in case.callspec.params.items()}
    found: dict[str, Hashable] = {}
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        found[", ".join(names)] = tuple(given.pop(name) for name in names)
    return found | given


def by_night(values: Iterable[str], *seldom: str) -> list[str | ParameterSet]:
    """The values of a parameter, the seldom ones marked ``nightly``."""
    named = list(values)
    assert {*seldom} <= {*named}, {*seldom} - {*named}
    return [pytest.param(value, marks=pytest.mark.nightly) if value in seldom else value for value in named]


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The cases of sweeps that a default run leaves out, and what is marked ``nightly``."""
    sweeps: dict[str, list[pytest.Function]] = {}
    result = [item for item in items if item.get_closest_marker("nightly") is not None]
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sweep") is not None:
            sweeps.setdefault(item.nodeid.removesuffix(f"[{item.callspec.id}]"), []).append(item)
    for cases in sweeps.values():
        marker = cases[0].get_closest_marker("sweep")
        assert marker is not None
        kept = set(covering([_values(case) for case in cases], *marker.args))
        result += [case for n, case in enumerate(cases) if n not in kept]
    return result
