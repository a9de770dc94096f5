# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic on indices, as index expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fusec.ir.index import Index, add, floordiv, maximum, minimum, mod, mul, sub
from fusec.ir.indexing import needs_int64

_OF_TWO: Mapping[str, Callable[[Index, Index], Index]] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "floordiv": floordiv,
    "remainder": mod,
    "maximum": maximum,
    "minimum": minimum,
}

ARITHMETIC = frozenset((*_OF_TWO, "neg"))
"""Ops that :func:`applied` knows."""


def applied(op: str, operands: Sequence[Index]) -> Index | None:
    """What an op on integers comes to as an index expression; None where it is none, or might not fit 32 bits."""
    found: Index | None = None
    match op, operands:
        case "neg", (a,):
            found = sub(0, a)
        case "mul", (a, b) if not isinstance(a, int) and not isinstance(b, int):
            return None
        case "floordiv" | "remainder", (_, b) if not isinstance(b, int) or b <= 0:
            return None
        case _, (a, b) if op in _OF_TWO:
            found = _OF_TWO[op](a, b)
    return None if found is None or needs_int64(found) else found
