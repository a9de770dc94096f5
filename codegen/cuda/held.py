# SPDX-License-Identifier: Apache-2.0
"""What several statements of a row kernel read or compute alike stays in registers."""

from __future__ import annotations

from dataclasses import replace

from fusec.codegen.cuda.numbering import Numbering, children
from fusec.ir.ops import OPS
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Alloc, Block, Grid, Iter, Map, Reduce, Statement, Store
from fusec.tile.scalar import Apply, Buffer, Load, ScalarExpr, rewrite

DEAR = 8
"""Operations from which a value is worth a register."""


def hold_in_registers(kernel: Kernel) -> Kernel:
    """The kernel with tiles for what statements on the same domain share: loads, and values that are dear to compute.

    Loads come first, all of them before anything waits for a reduction.
    """
    (grid,) = kernel.body
    if not kernel.traits.prefetch or not isinstance(grid, Grid):
        return kernel
    return replace(kernel, body=(replace(grid, body=_Holder(grid.body).block()),))


class _Holder:
    def __init__(self, body: Block) -> None:
        self.body = body
        self.numbering = Numbering()
        self.readers: dict[tuple[tuple[Iter, ...], int], set[int]] = {}
        self.made: dict[tuple[tuple[Iter, ...], int], Load] = {}
        self.taken: set[str] = set()
        for position, s in enumerate(body):
            if isinstance(s, Map | Store | Reduce) and len(s.domain) == 2:
                self._count(s.value, s.domain, position, set())

    def _count(self, e: ScalarExpr, domain: tuple[Iter, ...], position: int, seen: set[int]) -> None:
        number = self.numbering.number(e)
        if number in seen:
            return
        seen.add(number)
        self.readers.setdefault((domain, number), set()).add(position)
        chosen = isinstance(e, Apply) and e.op == "select"  # what only one side reads may lie outside its buffer
        for part in e.args[:1] if chosen and isinstance(e, Apply) else children(e):
            self._count(part, domain, position, seen)

    def block(self) -> Block:
        loads: list[Statement] = []
        rest: list[Statement] = []
        for s in self.body:
            if isinstance(s, Map | Store | Reduce) and len(s.domain) == 2:
                s = replace(s, value=self._held(s.value, s.domain, loads, rest))
            rest.append(s)
        return (*loads, *rest)

    def _held(
        self, e: ScalarExpr, domain: tuple[Iter, ...], loads: list[Statement], rest: list[Statement]
    ) -> ScalarExpr:
        def change(node: ScalarExpr) -> ScalarExpr | None:
            key = (domain, self.numbering.number(node))
            if key in self.made:
                return self.made[key]
            if len(self.readers.get(key, ())) < 2 or not _is_worth_it(node, domain):
                return None
            inner = node if isinstance(node, Load) else self._inside(node, domain, loads, rest)
            self.made[key] = self._tile(node, inner, domain, loads if isinstance(node, Load) else rest)
            return self.made[key]

        return rewrite(e, change)

    def _inside(
        self, e: ScalarExpr, domain: tuple[Iter, ...], loads: list[Statement], rest: list[Statement]
    ) -> ScalarExpr:
        assert isinstance(e, Apply)
        return Apply(e.op, tuple(self._held(a, domain, loads, rest) for a in e.args), e.dtype)

    def _tile(self, e: ScalarExpr, value: ScalarExpr, domain: tuple[Iter, ...], into: list[Statement]) -> Load:
        base = e.buffer.name if isinstance(e, Load) else e.op if isinstance(e, Apply) else "value"
        shape = tuple(i.extent for i in domain)
        tile = Buffer(f"{base}_kept", e.dtype, shape, (shape[1], 1), "tile")
        index = tuple(i.var for i in domain)
        into += [Alloc(tile), Map(domain, tile, index, value)]
        return Load(tile, index)


def _is_worth_it(e: ScalarExpr, domain: tuple[Iter, ...]) -> bool:
    match e:
        case Load():
            return e.buffer.space == "parameter" and not e.gathers and domain[-1].var in e.symbols
        case Apply():
            half = e.dtype.is_half
            return not half and e.op in OPS and OPS[e.op].flops >= DEAR
        case _:
            return False
