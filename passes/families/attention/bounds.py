# SPDX-License-Identifier: Apache-2.0
"""Which keys a mask made of data leaves (documents, lengths, padding): bounds that a kernel finds as it runs.

What such a mask empties only the data know. Each block of queries looks at all keys once and visits those from the
first to the last that may count for one of its queries. A key ``k`` with ``g(k)`` may count
- under ``f(query) == g(k)``, where ``g(k)`` lies between the least and the greatest ``f`` of the block's queries;
- under ``g(k) < f(query)``, where it is less than the greatest, and so on;
- under a condition on keys alone, where that holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from fusec.ir.index import Symbol
from fusec.ir.types import bool_
from fusec.passes.lower.mask import Live
from fusec.tile.scalar import Apply, ScalarExpr, reads_memory, symbols_in

Extreme = Literal["min", "max"]

_NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
MIRRORED = {"eq": "eq", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_BOUNDS: dict[str, tuple[tuple[str, Extreme], ...]] = {
    "eq": (("ge", "min"), ("le", "max")),
    "lt": (("lt", "max"),),
    "le": (("le", "max"),),
    "gt": (("gt", "min"),),
    "ge": (("ge", "min"),),
}


@dataclass(frozen=True)
class KeyTest:
    """A key may count where ``compare(key, extreme of query over the block's queries)`` is true.

    Without a ``query``, where ``key`` itself is.
    """

    key: ScalarExpr
    compare: str = ""
    extreme: Extreme = "min"
    query: ScalarExpr | None = None


def key_tests(conditions: Sequence[Live], query: Symbol, key: Symbol, head: Symbol | None = None) -> list[KeyTest]:
    """What data say of keys; none where a masked score may count after all, or no condition takes sides apart.

    ``head``: where a block has queries of several, that of a query is a part of its position.
    """
    of_query = {query} if head is None else {query, head}
    if not all(c.exact for c in conditions):
        return []
    atoms = [atom for c in conditions for atom in _atoms(c.condition, c.wanted)]
    return [test for e, wanted in atoms for test in _tests(e, wanted, of_query, key)]


def _atoms(e: ScalarExpr, wanted: bool) -> Iterator[tuple[ScalarExpr, bool]]:
    """Conditions all of which must be as wanted."""
    match e:
        case Apply("logical_and" | "bitwise_and", (a, b), dtype) if wanted and dtype is bool_:
            yield from (*_atoms(a, True), *_atoms(b, True))
        case Apply("logical_or" | "bitwise_or", (a, b), dtype) if not wanted and dtype is bool_:
            yield from (*_atoms(a, False), *_atoms(b, False))
        case Apply("logical_not" | "bitwise_not", (a,), dtype) if dtype is bool_ and a.dtype is bool_:
            yield from _atoms(a, not wanted)
        case Apply("cast" | "copy", (a,), dtype) if dtype is bool_ and a.dtype is bool_:
            yield from _atoms(a, wanted)
        case _:
            yield e, wanted


def _tests(e: ScalarExpr, wanted: bool, query: Set[Symbol], key: Symbol) -> list[KeyTest]:
    if not reads_memory(e):
        return []  # index arithmetic has told already
    found = symbols_in(e)
    if key in found and found.isdisjoint(query):
        return [KeyTest(e if wanted else _negated(e))]
    if not isinstance(e, Apply) or len(e.args) != 2 or any(not a.dtype.is_integer for a in e.args):
        return []
    name = e.op if wanted else _NEGATED.get(e.op, "")
    a, b = e.args
    if key not in symbols_in(a):
        a, b, name = b, a, MIRRORED.get(name, "")
    if not query.isdisjoint(symbols_in(a)) or key not in symbols_in(a) or key in symbols_in(b):
        return []
    return [KeyTest(a, compare, extreme, b) for compare, extreme in _BOUNDS.get(name, ())]


def _negated(e: ScalarExpr) -> ScalarExpr:
    if isinstance(e, Apply) and e.op in _NEGATED and all(a.dtype.is_integer for a in e.args):
        return Apply(_NEGATED[e.op], e.args, bool_)
    return Apply("logical_not", (e,), bool_)
