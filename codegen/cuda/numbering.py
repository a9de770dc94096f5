# SPDX-License-Identifier: Apache-2.0
"""Numbers for scalar expressions: equal ones, however often they were built, have one."""

from __future__ import annotations

from typing import assert_never

from fusec.ir.index import Expr
from fusec.tile.scalar import Apply, Const, IndexValue, Load, ScalarExpr


class Numbering:
    """``number(e)`` is the same for equal trees, found without comparing them node by node."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._by_id: dict[int, int] = {}
        self._alive: list[ScalarExpr] = []

    def number(self, e: ScalarExpr) -> int:
        known = self._by_id.get(id(e))
        if known is None:
            known = self._by_id[id(e)] = self._numbers.setdefault(self._key(e), len(self._numbers))
            self._alive.append(e)  # an id is only good while its object lives
        return known

    def _key(self, e: ScalarExpr) -> object:
        match e:
            case Const():
                return "const", repr(e.value), e.dtype
            case IndexValue():
                return "index", e.index, e.dtype
            case Load():
                return "load", e.buffer, *(i if isinstance(i, int | Expr) else ("at", self.number(i)) for i in e.index)
            case Apply():
                return e.op, *map(self.number, e.args), e.dtype
            case _:
                assert_never(e)


def children(e: ScalarExpr) -> tuple[ScalarExpr, ...]:
    """The expressions that ``e`` is made of."""
    if isinstance(e, Apply):
        return e.args
    if isinstance(e, Load):
        return tuple(i for i in e.index if not isinstance(i, int | Expr))
    return ()
