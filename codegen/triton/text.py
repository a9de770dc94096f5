# SPDX-License-Identifier: Apache-2.0
"""Lines of a kernel in Triton: names, what is remembered, index expressions over a statement's domain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fusec.errors import LoweringError
from fusec.ir.index import Expr, Index, Symbol, bounds
from fusec.ir.index_text import IndexSpeller
from fusec.tile.nodes import Iter


class Text(IndexSpeller):
    """Lines so far, and what they name.

    ``made`` are texts that a variable of the enclosing blocks holds; ``domain`` is that of the statement at hand, whose
    iterators are blocks, each along its own axis; ``symbols`` names the others. ``wide``: indices may pass 2^31.
    """

    def __init__(self, wide: bool) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.symbols: dict[Symbol, str] = {}
        self.taken = {"tl", "triton", "libdevice", "float", "range", "block"}
        self.wide = wide
        self.made: dict[str, str] = {}
        self.domain: tuple[Iter, ...] = ()

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def unique(self, name: str) -> str:
        base = re.sub(r"\W", "_", name)
        candidate, count = base, 0
        while candidate in self.taken:
            count += 1
            candidate = f"{base}_{count}"
        self.taken.add(candidate)
        return candidate

    def once(self, text: str, prefix: str) -> str:
        """A variable that holds ``text``, made at its first use in the enclosing blocks."""
        if text not in self.made:
            name = self.unique(prefix)
            self.line(f"{name} = {text}")
            self.made[text] = name
        return self.made[text]

    @contextmanager
    def indented(self) -> Iterator[None]:
        outer = dict(self.made)
        self.depth += 1
        yield
        self.depth -= 1
        self.made = outer

    def _forget(self, name: str) -> None:
        """Drops remembered texts that read a variable which has a new value now."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        stale = {text for text in self.made if word.search(text)}
        while stale:
            gone = {self.made.pop(text) for text in stale}
            words = [re.compile(rf"\b{re.escape(g)}\b") for g in gone]
            stale = {text for text in self.made if any(w.search(text) for w in words)}

    def mask(self, iters: tuple[Iter, ...] | None = None) -> str:
        """The condition that a point of the domain is live; empty when all are."""
        parts = [
            f"({self.axis(i.var)} < {self.index(i.limit)})"
            for i in (self.domain if iters is None else iters)
            if i.limit is not None
        ]
        return self.once(" & ".join(parts), "live") if parts else ""

    def axis(self, s: Symbol) -> str:
        """A domain iterator as a block along its own axis; a loop or grid variable as a scalar."""
        axis = next((k for k, i in enumerate(self.domain) if i.var is s), None)
        if axis is None:
            return self.symbols[s]
        extent = self.domain[axis].extent
        wide = ".to(tl.int64)" if self.wide else ""
        arange = self.once(f"tl.arange(0, {extent}){wide}", s.name)
        rank = len(self.domain)
        if rank == 1:
            return arange
        selector = ", ".join(":" if k == axis else "None" for k in range(rank))
        return f"{arange}[{selector}]"

    def symbol(self, s: Symbol) -> str:
        return self.axis(s)

    def extremum(self, a: str, b: str, *, largest: bool) -> str:
        return f"tl.{'maximum' if largest else 'minimum'}({a}, {b})"

    def quotient(self, value: Expr, divisor: Index) -> str:
        return self._divide(value, divisor, "//")

    def remainder(self, value: Expr, divisor: Index) -> str:
        return self._divide(value, divisor, "%")

    def _divide(self, value: Expr, divisor: Index, sign: str) -> str:
        """Triton divides towards zero: a value that may be negative is moved up by a multiple of the divisor first."""
        low = bounds(value)[0]
        a, b = self.index(value), self.index(divisor)
        if low is not None and low >= 0:
            return f"({a} {sign} {b})"
        if low is None or not isinstance(divisor, int):
            raise LoweringError("a division of an index that may be negative")
        up = -(low // divisor)
        moved = f"(({a} + {up * divisor}) {sign} {b})"
        return moved if sign == "%" else f"({moved} - {up})"
