# SPDX-License-Identifier: Apache-2.0
"""The rows of a scan kernel, taken chunk by chunk: what CPUs and GPUs share.

A row is the scanned axis. Chunks follow each other in the scan's direction, and hand on a carry. Where rows are few
they are cut into parts: one kernel reduces each part, the other starts each part from what those before it gave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fusec.errors import LoweringError
from fusec.ir.attributes import ScanAttributes
from fusec.ir.index import Index, Symbol, add, floordiv, minimum, mod, mul, product, sub, symbol
from fusec.ir.indexing import ceildiv, delinearize, last, most, pow2, substitute
from fusec.ir.monoid import MONOIDS, ReduceOp
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim, DType, contiguous_strides, f32, i32
from fusec.passes.families.row.cpu import is_map, merge_axes, reduced_is_innermost
from fusec.passes.groups.partition import Group, made_pointwise, pointwise, positions_of, set_positions
from fusec.passes.lower.context import LoweringContext, element_flops, expect_index, position_at, prefer_index
from fusec.tile.nodes import Alloc, Iter, Loop, Map, Reduce, Scan, Statement, Store
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr, reindex

SQUAD = 64
"""Parts that say together what they give: a part of a row of 4096 else reads 2048 numbers on average. 2**24 f32 on an
H200: 46 µs, without squads 78."""

HELD_FLOPS = 4
"""A value that is scanned and read again is kept where computing it again costs more than this."""


@dataclass(frozen=True)
class Cut:
    """How rows are taken: ``beside`` neighbouring rows in one tile (0: one, and the tile has one axis), ``chunk``
    positions of them at a time, ``parts`` of a row by themselves.

    across: neighbours in memory are of neighbouring rows, which lie on the tile's last axis. flat: rows side by side
    are taken of all other axes as one, else of the last of them. relay: a part is one chunk, of one kernel, which waits
    for what the parts before its own give, by so many ``threads``.
    """

    chunk: int
    beside: int = 0
    across: bool = False
    flat: bool = False
    parts: int = 1
    relay: bool = False
    threads: int = 1


def scans_of(context: LoweringContext) -> list[Op]:
    """The group's scans, in order."""
    return [op for op in context.body.ops if op.definition.kind == "scan"]


def attributes_of(context: LoweringContext) -> ScanAttributes:
    """What all scans of a group have in common."""
    return scans_of(context)[0].expect(ScanAttributes)


def runs_across(context: LoweringContext) -> bool:
    """Whether neighbours in memory are of neighbouring rows."""
    op, axis = scans_of(context)[0], attributes_of(context).axis
    shape = op.operands[0].type.shape
    retained = tuple(a for a in range(len(shape)) if a != axis)
    return not reduced_is_innermost(context, op, shape, retained)


def in_order(context: LoweringContext) -> bool:
    """Whether positions are taken one after another: the group's scans are recurrences."""
    return any(op.name == "recurrence" for op in scans_of(context))


def independent(context: LoweringContext) -> bool:
    """Whether no scan needs another one's result, and none runs in order: rows can then be cut into parts."""
    if in_order(context):
        return False
    made: set[Value] = set()
    for op in context.body.ops:
        reads = not made.isdisjoint(op.operands)
        if op.definition.kind == "scan" and reads:
            return False
        if op.definition.kind == "scan" or reads:
            made.update(op.results)
    return True


def relays(context: LoweringContext) -> bool:
    """Whether a GPU's parts can hand on what they give in a word of memory, with a mark: numbers of 32 bits."""
    if attributes_of(context).signed_zero:
        return False
    dtypes = {op.result.type.dtype.accumulator for op in scans_of(context)}
    return dtypes <= {f32, i32} and all(op.definition.reduction.name in MONOIDS for op in scans_of(context))


class ScanRows:
    """Statements over a chunk of the rows.

    ``outer``: the rows, or blocks of rows, that points of the grid or a loop take; ``r`` and ``c`` count them.
    ``wide``: the dtype in which a scan of a dtype adds up. ``backwards``: points of the grid take the last parts first.
    """

    def __init__(
        self, context: LoweringContext, cut: Cut, wide: Callable[[ReduceOp, DType], DType], *, backwards: bool = False
    ) -> None:
        self.context, self.cut, self.wide = context, cut, wide
        self.scans, self.attributes = scans_of(context), attributes_of(context)
        self.shape = self.scans[0].operands[0].type.shape
        axis = self.attributes.axis
        retained = tuple(a for a in range(len(self.shape)) if a != axis)
        split = len(retained) if not cut.beside else 0 if cut.flat else len(retained) - 1
        outer, inner = (tuple(self.shape[a] for a in axes) for axes in (retained[:split], retained[split:]))
        self.rows, self.width, self.length = product(outer), product(inner), self.shape[axis]
        self.blocks = ceildiv(self.width, cut.beside) if cut.beside else 1
        self.r, self.c = symbol("r", 0, last(self.rows)), symbol("c", 0, last(self.blocks))
        self.q = symbol("p", 0, cut.parts - 1)
        self.p: Index = sub(cut.parts - 1, self.q) if backwards else self.q
        self.part = ceildiv(ceildiv(self.length, cut.parts), cut.chunk) * cut.chunk if cut.parts > 1 else self.length
        whole, e = symbol("w", 0, last(self.width)), symbol("e", 0, last(self.length))
        self.e, lane, j = e, symbol("l", 0, max(cut.beside, 1) - 1), symbol("j", 0, cut.chunk - 1)
        limit = None if not cut.beside or self.width % cut.beside == 0 else sub(self.width, mul(self.c, cut.beside))
        self.lane = Iter(lane, cut.beside, limit) if cut.beside else None
        self.shift: dict[Symbol, Index] = {whole: add(mul(self.c, cut.beside), lane)}
        index = (*(delinearize(self.r, outer) if outer else ()), *(delinearize(whole, inner) if inner else ()))
        self.point = merge_axes(len(self.shape), retained, index, (axis,), (e,))
        self.group = _group_of(context, self.scans)
        self.t = symbol("t", 0, last(self.length))
        self._set_chunk(j)
        self.carries: dict[Op, Buffer] = {}

    def _set_chunk(self, j: Symbol) -> None:
        """Where a chunk begins, and how much of it there is."""
        chunk = self.cut.chunk
        start: Index = mul(self.p, self.part) if self.cut.parts > 1 else 0
        stop: Index = minimum(add(start, self.part), self.length) if self.cut.parts > 1 else self.length
        self.bounds = (start, stop)
        self.once = self.cut.parts == 1 and most(self.length) <= chunk
        begin: Index = 0 if self.once else start if self.cut.relay else self.t
        if not self.once and not self.cut.relay and self.attributes.reverse:
            begin = add(start, sub(mul(sub(ceildiv(sub(stop, start), chunk), 1), chunk), sub(self.t, start)))
        even = isinstance(self.length, int) and self.length % chunk == 0
        even = even and (self.cut.parts == 1 or self.length == self.part * self.cut.parts)
        self.along = Iter(j, chunk, None if even else sub(stop, begin))
        self.shift[self.e] = add(begin, j)

    # The tile

    @property
    def domain(self) -> tuple[Iter, ...]:
        """A chunk's points."""
        if self.lane is None:
            return (self.along,)
        return (self.along, self.lane) if self.cut.across else (self.lane, self.along)

    @property
    def index(self) -> tuple[Index, ...]:
        """Subscripts of a buffer that holds a chunk."""
        return tuple(i.var for i in self.domain)

    @property
    def row_domain(self) -> tuple[Iter, ...]:
        """One point for each row."""
        return (Iter(symbol("one", 0, 0), 1),) if self.lane is None else (self.lane,)

    @property
    def row_index(self) -> tuple[Index, ...]:
        """Subscripts of a buffer that holds a number for each row."""
        return (0,) if self.lane is None else (self.lane.var,)

    def tile(self, name: str, dtype: DType) -> Buffer:
        """Scratch for a chunk."""
        shape = tuple(i.extent for i in self.domain)
        return Buffer(name, dtype, shape, contiguous_strides(shape), "tile")

    def of_rows(self, name: str, dtype: DType) -> Buffer:
        """Scratch with a number for each row."""
        return Buffer(name, dtype, (max(self.cut.beside, 1),), (1,), "tile")

    def element(self, value: Value, index: tuple[Index, ...] | None = None) -> ScalarExpr:
        """A value at a point of the chunk."""
        return reindex(self.context.inliner.at(value, self.point if index is None else index), self.shift)

    # Statements

    def carry(self, op: Op) -> list[Statement]:
        """Sets up a scan's carry: nothing so far."""
        dtype, monoid = self.wide(op.definition.reduction.name, op.result.type.dtype), op.definition.reduction
        signed = self.attributes.signed_zero and monoid.name == "sum"
        first: ScalarExpr = Const(-0.0 if signed else monoid.identity(dtype), dtype)
        if op.name == "recurrence":  # no term is lost to a larger sum, as in a running sum
            dtype = op.result.type.dtype.accumulator
            first = self.element(op.operands[2], tuple(substitute(i, {self.e: 0}) for i in self.point))
        self.carries[op] = carry = self.of_rows(self.context.unique("carry"), dtype)
        return [Alloc(carry), Map(self.row_domain, carry, self.row_index, first)]

    def chunks(self, body: list[Statement]) -> list[Statement]:
        """The statements of all chunks of a row, or of a part."""
        if self.once:
            return body
        return [Loop(self.t, *self.bounds, self.cut.chunk, tuple(body))]

    def scanned(self) -> list[Statement]:
        """The statements of one chunk: scans and what is stored."""
        code: list[Statement] = []
        for op in self.scans:
            code += self._hold(op.operands[0])
            made = self.tile(self.context.name_of(op.result), op.result.type.dtype.accumulator)
            factor = self.element(op.operands[1]) if op.name == "recurrence" else None
            code += [Alloc(made), self.scan(op, made, self.element(op.operands[0]), factor)]
            if not self.attributes.last:
                self._leaf(op.result, made)
        ends = self._ends()
        return [*code, *(self._store(value) for value in self.context.body.outputs if value not in ends)]

    def relayed(self, totals: dict[Op, Buffer], gathered: dict[Op, Buffer]) -> list[Statement]:
        """The statements of a part that is one chunk: it says what it gives, and goes on with what those before it
        gave: those of its own squad, and what each squad before gave in all, which its last part says."""
        code, made = list[Statement](), dict[Op, Buffer]()
        for op in self.scans:
            code += self._hold(op.operands[0])
            made[op] = self.tile(self.context.name_of(op.result), self.carries[op].dtype)
            code += [Alloc(made[op]), self.scan(op, made[op], self.element(op.operands[0]))]
        code += [self.leave(op, totals[op], posts=True) for op in self.scans]
        for op in self.scans:
            before, waiting = self._awaited(op, totals[op], gathered.get(op))
            both = (Load(before, self.row_index), Load(made[op], self.index))
            combined = Apply(op.definition.reduction.combine, both, before.dtype)
            code += [*waiting, Map(self.domain, made[op], self.index, combined)]
            self._leaf(op.result, made[op])
        return [*code, *(self._store(value) for value in self.context.body.outputs)]

    def ended(self) -> list[Statement]:
        """Stores results of which there is the last one alone."""
        first = tuple(substitute(i, {self.e: 0}) for i in self.point)
        index = tuple(substitute(i, self.shift) for i in first)
        carries = ((value, Load(self.carries[op], self.row_index)) for value, op in self._ends().items())
        return [Store(self.row_domain, self.context.buffers[v], index, carry) for v, carry in carries]

    def _ends(self) -> dict[Value, Op]:
        return {op.result: op for op in self.scans} if self.attributes.last else {}

    def scan(self, op: Op, made: Buffer, element: ScalarExpr, factor: ScalarExpr | None = None) -> Scan:
        """A scan of a chunk into scratch."""
        carry, name = Load(self.carries[op], self.row_index), op.definition.reduction.name
        down = self.attributes.reverse
        return Scan(self.domain, self.along.var, made, self.index, name, element, carry, down, factor)

    def reduced(self, op: Op) -> list[Statement]:
        """Adds a chunk to a scan's carry."""
        element, name = self.element(op.operands[0]), op.definition.reduction.name
        dtype = self.carries[op].dtype
        if element.dtype.bits < dtype.bits:  # every term counts in all its digits, as in a scan
            element = Apply("cast", (element,), dtype)
        if name in MONOIDS:
            return [Reduce(self.domain, self.carries[op], self.row_index, name, element, fresh=False)]
        made = self.tile(self.context.unique("passed"), self.carries[op].dtype)
        return [Alloc(made), self.scan(op, made, element)]

    def _hold(self, value: Value) -> list[Statement]:
        """Keeps a scan's operand that is read again and is dear to compute."""
        users = [op for op in self.context.body.ops if value in op.operands]
        made = self.context.producers.get(value)
        if made is None or made.definition.kind != "elementwise" or value in self.context.inliner.leaves:
            return []
        element = self.element(value)
        again = len(users) > 1 or value in self.context.body.outputs
        if not again or element_flops(element) <= HELD_FLOPS:
            return []
        held = self.tile(self.context.name_of(value), value.type.dtype.accumulator)
        at = self._position(value)
        self.context.inliner.add_leaf(value, prefer_index(at, Load(held, self.index)))
        return [Alloc(held), Map(self.domain, held, self.index, element)]

    def _leaf(self, value: Value, made: Buffer) -> None:
        at = self._position(value)
        self.context.inliner.add_leaf(value, expect_index(value, at, Load(made, self.index)))

    def _position(self, value: Value) -> tuple[Index, ...]:
        position = self.group.position.get(value)
        if position is None:
            raise LoweringError(f"{value} does not lie over the rows of its kernel")
        return position_at(position, self.group, self.point)

    def _store(self, value: Value) -> Store:
        at = self._position(value)
        index = tuple(substitute(i, self.shift) for i in at)
        return Store(self.domain, self.context.buffers[value], index, self.element(value, at))

    # Parts

    def totals(self) -> dict[Op, Buffer]:
        """Memory for what each part of a row gives, with a mark behind it where one kernel does all."""
        marked = (2,) if self.cut.relay else ()
        shape: tuple[Dim, ...] = (self.cut.parts, self.rows, self.width, *marked)
        strides, unique = contiguous_strides(shape), self.context.unique
        return {op: Buffer(unique("totals"), b.dtype, shape, strides) for op, b in self.carries.items()}

    @property
    def squads(self) -> int:
        """Of parts that relay, so many of which also say what they give together; 1 for none."""
        return -(-self.cut.parts // SQUAD) if self.cut.relay and self.cut.parts > 2 * SQUAD else 1

    def gathered(self) -> dict[Op, Buffer]:
        """Memory for what squads of parts give together."""
        if self.squads == 1:
            return {}
        shape: tuple[Dim, ...] = (self.squads, self.rows, self.width, 2)
        strides, unique = contiguous_strides(shape), self.context.unique
        return {op: Buffer(unique("gathered"), b.dtype, shape, strides) for op, b in self.carries.items()}

    def leave(self, op: Op, totals: Buffer, *, posts: bool = False) -> Statement:
        """Stores what a part gives."""
        value = Load(self.carries[op], self.row_index)
        return Store(self.row_domain, totals, self._at_part(self.p), value, posts=posts)

    def start(self, op: Op, totals: Buffer) -> list[Statement]:
        """Combines what the parts before this one give to its carry."""
        name, carry = op.definition.reduction.name, self.carries[op]
        domain, q, total = self._before(totals)
        if name in MONOIDS:
            return [Reduce(domain, carry, self.row_index, name, total, fresh=False)]
        shape = tuple(i.extent for i in domain)
        made = Buffer(self.context.unique("before"), carry.dtype, shape, contiguous_strides(shape), "tile")
        index = tuple(i.var for i in domain)
        return [Alloc(made), Scan(domain, q, made, index, name, total, Load(carry, self.row_index))]

    def _awaited(self, op: Op, totals: Buffer, gathered: Buffer | None) -> tuple[Buffer, list[Statement]]:
        """What all parts before this one gave, and the statements that wait for it."""
        name, combine, dtype = op.definition.reduction.name, op.definition.reduction.combine, self.carries[op].dtype
        before = self.of_rows(self.context.unique("before"), dtype)
        at, own = self.row_index, Load(before, self.row_index)
        if gathered is None:
            domain, _, total = self._before(totals)
            return before, [Alloc(before), Reduce(domain, before, at, name, total, awaits=True)]
        squad, inside = floordiv(self.q, SQUAD), mod(self.q, SQUAD)
        domain, q = self._over(SQUAD, inside)
        word = Load(totals, self._at_part(self._numbered(add(mul(squad, SQUAD), q))))
        code: list[Statement] = [Alloc(before), Reduce(domain, before, at, name, word, awaits=True)]
        once = Iter(symbol("once", 0, 0), 1, sub(inside, SQUAD - 2))
        whole = Apply(combine, (own, Load(self.carries[op], at)), dtype)
        code.append(Store((once, *self.row_domain), gathered, self._at_part(squad), whole, posts=True))
        squads = self.of_rows(self.context.unique("squads"), dtype)
        domain, q = self._over(pow2(self.squads), squad)
        word = Load(gathered, self._at_part(q))
        code += [Alloc(squads), Reduce(domain, squads, at, name, word, awaits=True)]
        code.append(Map(self.row_domain, before, at, Apply(combine, (Load(squads, at), own), dtype)))
        return before, code

    def _numbered(self, order: Index) -> Index:
        """A part by its place in the scan's direction."""
        return sub(self.cut.parts - 1, order) if self.attributes.reverse else order

    def _over(self, extent: int, limit: Index) -> tuple[tuple[Iter, ...], Symbol]:
        """A domain of a row's first parts, or squads of them, and its iterator.

        No two threads wait for one number: what one has seen the other may not have.
        """
        extent = max(extent, self.cut.threads)
        q = symbol("q", 0, extent - 1)
        before = Iter(q, extent, limit)
        domain = (before,) if self.lane is None else (before, self.lane) if self.cut.across else (self.lane, before)
        return domain, q

    def _before(self, totals: Buffer) -> tuple[tuple[Iter, ...], Symbol, Load]:
        """The parts before this one as a domain, the iterator over them, and what one of them gives."""
        domain, q = self._over(pow2(self.cut.parts), self._numbered(self.p))
        return domain, q, Load(totals, self._at_part(self._numbered(q)))

    def _at_part(self, part: Index) -> tuple[Index, ...]:
        inside: Index = 0 if self.lane is None else add(mul(self.c, self.cut.beside), self.lane.var)
        return (part, self.r, inside, 0) if self.cut.relay else (part, self.r, inside)


def _group_of(context: LoweringContext, scans: list[Op]) -> Group:
    """The positions of a scan group's values over the domain."""
    group = Group("scan", scans[0].operands[0].type.shape)
    for op in scans:
        for value in made_pointwise(op):
            group.position[value] = group.identity
    set_positions(group, [v for op in scans for v in pointwise(op)], context.producers, is_map)
    positions_of(context.body, group)
    return group
