# SPDX-License-Identifier: Apache-2.0
"""Exponentials of a row's elements below its maximum, in kernels whose every element is stored in 16 bits.

Their sum may be stored in f32. It needs no exact function: terms that count are near exp(0), where two roundings of
``x log2(e)``, in two parts, are off by less than the sum's own.
"""

from __future__ import annotations

from fusec.ir.types import f32
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Map, Reduce, Statement, Store, statements
from fusec.tile.scalar import Apply, Buffer, Load, ScalarExpr, walk

_KEEP = frozenset({"maximum", "select", "isinf", "copy"})
"""What may be done to a maximum so that it is still one of what was seen, or 0."""


def below_maximum(kernel: Kernel) -> frozenset[ScalarExpr]:
    """The nodes ``exp(x - m)`` of f32, with ``m`` the maximum of a row so far and ``x`` what it was taken of."""
    code = [s for s in statements(kernel.body) if isinstance(s, Map | Reduce | Store)]
    if any(isinstance(s, Store) and len(s.domain) > 1 and s.target.dtype.bits > 16 for s in code):
        return frozenset()
    taken = _maxima(code)
    if not taken:
        return frozenset()
    found = set[ScalarExpr]()
    for s in code:
        for node in walk(s.value):
            match node:
                case Apply("exp", (Apply("sub", (x, Load() as least)),), dtype) if dtype is f32:
                    of_row = isinstance(x, Load) and x.buffer in taken
                    if least.buffer in taken and (of_row or x in taken[least.buffer]):
                        found.add(node)
    return frozenset(found)


def _maxima(code: list[Map | Reduce | Store]) -> dict[Buffer, set[ScalarExpr]]:
    """Buffers that hold maxima of rows alone, each with the values they were taken of."""
    writes: dict[Buffer, list[Map | Reduce | Store]] = {}
    for s in code:
        writes.setdefault(s.target, []).append(s)
    kept = set(writes)
    while wrong := {b for b in kept if not all(_is_maximum(s, kept) for s in writes[b])}:
        kept -= wrong
    taken: dict[Buffer, set[ScalarExpr]] = {b: set() for b in kept}
    grown = True
    while grown:
        before = sum(map(len, taken.values()))
        for b in kept:
            for s in writes[b]:
                if isinstance(s, Reduce):
                    taken[b].add(s.value)
                else:
                    taken[b].update(*(taken[n.buffer] for n in walk(s.value) if isinstance(n, Load)))
        grown = sum(map(len, taken.values())) > before
    return {b: values for b, values in taken.items() if values}


def _is_maximum(s: Statement, kept: set[Buffer]) -> bool:
    """Whether what a statement writes is a maximum of a row, given that ``kept`` hold such, or a number."""
    if not isinstance(s, Map | Reduce) or len(s.index) != 1 or s.target.space != "tile":
        return False
    if isinstance(s, Reduce):
        return s.op == "max"
    nodes = list(walk(s.value))
    plain = all(n.op in _KEEP for n in nodes if isinstance(n, Apply))
    return plain and all(n.buffer in kept for n in nodes if isinstance(n, Load))
