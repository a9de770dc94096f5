# SPDX-License-Identifier: Apache-2.0
"""A row kernel on a GPU for rows that no block holds: they are read chunk after chunk, once for each step in need.

Reductions that need no other's result share the first pass over a row, and so do those that can be put right
afterwards (:mod:`fusec.passes.families.row.online`); what needs their results takes another pass. Where neighbours in
memory lie in different rows, a block takes several rows side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusec.ir.index import Index, Symbol, add, minimum, sub, symbol
from fusec.ir.indexing import last, most, substitute
from fusec.ir.nodes import Op, Value
from fusec.ir.types import DType, bool_, f32, i64
from fusec.passes.families.row.online import Online, online_sum
from fusec.passes.families.row.picks import Picks
from fusec.passes.families.row.rows import Rows
from fusec.passes.families.row.schedule.gpu import GpuRowSchedule
from fusec.passes.lower.blocks import ROW_BLOCKS
from fusec.passes.lower.context import LoweredGroup, LoweringContext, prefer_index
from fusec.tile.nodes import Alloc, Grid, Iter, Loop, Map, Reduce, Statement, Store
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, loads, reindex, rewrite, symbols_in

MOST_HELD = 4
"""Numbers of each row that are held in registers over a loop: a batch norm has three, and a convolution's bias."""


def lower_wide_row(context: LoweringContext, schedule: GpuRowSchedule) -> LoweredGroup:
    """Rows are read in chunks of ``schedule.columns`` elements."""
    return _WideRows(context, schedule).lower()


@dataclass(frozen=True)
class _Pass:
    """Reductions made in one pass over a row. ``online`` are those that need one of ``plain`` for their own sum;
    ``picks``: those of one element, which need no pass, and are made after it."""

    plain: tuple[Op, ...]
    online: tuple[Online, ...]
    picks: tuple[Op, ...]


@dataclass
class _Parts:
    """Statements before, in (those that come last apart) and after the loop over a row."""

    before: list[Statement]
    body: list[Statement]
    last: list[Statement]
    after: list[Statement]


class _WideRows(Rows):
    def __init__(self, context: LoweringContext, schedule: GpuRowSchedule) -> None:
        super().__init__(context, schedule)
        chunk = schedule.columns
        self.start = symbol("c", 0, last(self.length))
        self.shift[self.j] = add(self.start, self.column.var)
        limit = None if self.length % chunk == 0 else sub(self.length, self.start)
        self.column = Iter(self.column.var, chunk, limit)
        self.picks = Picks(self)
        self.made_by = {op.result: op for op in self.anchors}
        self.settled: set[Op] = set()
        self.running: dict[Op, tuple[Buffer, Buffer, Buffer]] = {}
        self._needs: dict[Value, frozenset[Op]] = {}

    def lower(self) -> LoweredGroup:
        passes = self._passes()
        waiting = list(self.context.body.outputs)
        code = [*self.picks.before, *self._once_a_row()]
        for step in passes:
            if not step.plain:
                code += self._pick(step.picks)
                continue
            code += self._one_pass(step, waiting)
        rest: list[Statement] = [self.store(v) for v in waiting if self.is_whole(v)]
        if rest:
            code.append(self._loop(rest))
        code += [self.store(v) for v in waiting if not self.is_whole(v)]
        grid = Grid((Iter.over(self.g, self.blocks),), tuple(code))
        return self.context.finish("row", (grid,), self.schedule.describe(), ROW_BLOCKS)

    @property
    def along(self) -> frozenset[Symbol]:
        return frozenset({self.column.var, self.start})

    def _loop(self, body: list[Statement], unroll: int = 1) -> Loop:
        """Over a row, in steps of ``unroll`` chunks, whose statements stand one chunk after another."""
        chunk = self.schedule.columns
        unroll = min(unroll, -(-most(self.length) // chunk))
        body += [self._later(s, k * chunk, chunk * unroll) for k in range(1, unroll) for s in tuple(body)]
        return Loop(self.start, 0, self.length, chunk * unroll, tuple(body))

    def _later(self, s: Statement, by: int, step: int) -> Statement:
        """A sum's or a store's statement for the chunk that lies so many elements further on in a step."""
        assert isinstance(s, Reduce | Store)
        shift: dict[Symbol, Index] = {self.start: add(self.start, by)}
        limit = None if self.length % step == 0 else sub(sub(self.length, self.start), by)
        own = self.column.var
        domain = tuple(replace(i, limit=limit) if i.var is own else i for i in s.domain)
        index = tuple(substitute(i, shift) for i in s.index)
        return replace(s, domain=domain, index=index, value=reindex(s.value, shift))

    def _once_a_row(self) -> list[Statement]:
        """What is computed of a row's arguments, and is the same at all its positions: not again for each chunk."""
        ops, shape = self.context.body.ops, self.anchors[0].operands[0].type.shape
        maps = [op for op in ops if op.definition.kind == "elementwise"]
        spread = {v for op in maps if op.result.type.shape == shape for v in op.operands if v.type.shape != shape}
        code: list[Statement] = []
        for value in (op.result for op in maps):
            at = self.index_of(value) if value in spread and value.type.rank else ()
            if not at or value.type.dtype is not f32 or self.needs(value):
                continue
            element = self.element(value, at)
            read = any(e.buffer.space == "parameter" for e in loads(element))
            if read and symbols_in(element).isdisjoint((self.column.var, self.start)):
                held = self._of_rows(value)
                code += self._set(held, element)
                self.context.inliner.add_leaf(value, prefer_index(at, self._at(held)))
        return code

    # Which reduction is made in which pass

    def _passes(self) -> list[_Pass]:
        level: dict[Op, int] = {}
        online: dict[Op, Online] = {}
        for op in self.anchors:
            level[op] = max((level[n] for n in self.needs(op.operands[0])), default=-1)
            if op in self.picks.ops:
                continue
            level[op] += 1
            found = online_sum(op, self.context.producers, self.needs)
            if found is not None and self._is_settled(found, level):
                level[op], online[op] = level[found.parent], found
        return [
            _Pass(
                tuple(op for op in self.anchors if level[op] == k and op not in online and op not in self.picks.ops),
                tuple(online[op] for op in self.anchors if level[op] == k and op in online),
                tuple(op for op in self.anchors if level[op] == k and op in self.picks.ops),
            )
            for k in range(-1, max(level.values()) + 1)
        ]

    def _is_settled(self, found: Online, level: dict[Op, int]) -> bool:
        """Whether all that the sum reads, but for its parent, is known before the parent's pass; one base a row."""
        others = {op for v in found.others for op in self.needs(v)} - {found.parent}
        if found.parent in {op for _, v in found.factors for op in self.needs(v)}:
            return False
        return all(level[op] < level[found.parent] for op in others) and not self._varies(found.base)

    def _varies(self, value: Value) -> bool:
        """Whether a value that is subtracted changes along a row."""
        trial = self.context.fresh().inliner
        for op in self.anchors:
            trial.add_leaf(op.result, lambda index: Const(0.0, f32))
        return self.j in symbols_in(trial.at(value, self.index_of(value)))

    def needs(self, value: Value) -> frozenset[Op]:
        """The reductions whose results the value is made of."""
        if value not in self._needs:
            op = self.context.producers.get(value)
            made = self.made_by.get(value)
            parts = () if op is None or made is not None else op.operands
            own = frozenset() if made is None else frozenset((made,))
            self._needs[value] = own.union(*(self.needs(v) for v in parts))
        return self._needs[value]

    # The statements of a pass

    def _one_pass(self, step: _Pass, waiting: list[Value]) -> list[Statement]:
        """Sets the totals up, runs over the row, and settles them. Outputs that need no more are stored on the way."""
        ready = [v for v in waiting if self.is_whole(v) and self.needs(v) <= self.settled]
        parts = _Parts([], [], [], [])
        stores = [self.store(v) for v in ready]
        parents = {o.parent for o in step.online}
        for op in step.plain:
            if op not in parents:
                self._in_lanes(op, parts)
            elif op.name == "reduce_max":
                self._running_maximum(op, parts)
            else:
                self._running_sum(op, parts)
        for found in step.online:
            if found.kind == "exponentials":
                self._exponentials(found, parts)
            else:
                self._squares(found, parts)
        self.settled |= {*step.plain, *(o.anchor for o in step.online)}
        parts.after += self._pick(step.picks)
        for v in ready:
            waiting.remove(v)
        body = [*parts.body, *parts.last, *stores]
        unroll = self.schedule.unroll if all(isinstance(s, Reduce | Store) for s in body) else 1
        if unroll > 1:  # no chunk needs what is made of the one before
            body = self._held(body, parts.before)
        return [*parts.before, self._loop(body, unroll), *parts.after]

    def _pick(self, picks: tuple[Op, ...]) -> list[Statement]:
        """Reads what sums of one element are."""
        code: list[Statement] = []
        for op in picks:
            code += self._set(target := self._of_rows(op.result), self.picks.value(op))
            self.settle(op, target)
            self.settled.add(op)
        return code

    def _held(self, body: list[Statement], before: list[Statement]) -> list[Statement]:
        """The statements of a loop with what they read and compute of a row's arguments read from registers, where
        ``before`` puts it: not again for each chunk."""
        found: dict[ScalarExpr, Buffer] = {}

        def change(node: ScalarExpr) -> ScalarExpr | None:
            if not isinstance(node, Apply | Load) or not node.dtype.is_float or node.dtype.bits > 32:
                return None
            read = any(x.buffer.space == "parameter" for x in loads(node))
            if not read or not symbols_in(node).isdisjoint((self.column.var, self.start)):
                return None
            if node not in found:
                if len(found) == MOST_HELD:
                    return None
                held = found[node] = self.context.tile("held", f32, self.schedule.rows)
                before.extend(self._set(held, node))
            return self._at(found[node])

        return [replace(s, value=rewrite(s.value, change)) for s in body if isinstance(s, Reduce | Store)]

    def _in_lanes(self, op: Op, parts: _Parts) -> None:
        """A total for each position of a chunk; they are put together after the last."""
        dtype, monoid = op.result.type.dtype.accumulator, op.definition.reduction
        shape = (self.schedule.rows, self.schedule.columns)
        lanes = Buffer(self.context.name_of(op.operands[0]), dtype, shape, (shape[1], 1), "tile")
        whole = (self.row, Iter(self.column.var, shape[1]))
        parts.before += [Alloc(lanes), Map(whole, lanes, self.tile_index, Const(monoid.identity(dtype), dtype))]
        element = self.element(op.operands[0])
        parts.body.append(Reduce(self.tile, lanes, self.tile_index, monoid.name, element, fresh=False))
        total = self._of_rows(op.result)
        parts.after += [Alloc(total), Reduce(whole, total, (self.row.var,), monoid.name, Load(lanes, self.tile_index))]
        self.settle(op, total)

    def _running_maximum(self, op: Op, parts: _Parts) -> None:
        """The maximum so far, a finite reference near it, and what older exponentials are to be multiplied by."""
        element = self.element(op.operands[0])
        largest, chunk, new, reference, factor = (self._of_rows(op.result) for _ in range(5))
        parts.before += self._set(largest, Const(float("-inf"), largest.dtype))
        parts.body += [Alloc(chunk), Reduce(self.tile, chunk, (self.row.var,), "max", element)]
        parts.body += self._set(new, _apply("maximum", self._at(largest), self._at(chunk)))
        parts.body += self._set(reference, _without_infinity(self._at(new)))
        parts.body += self._set(factor, _exp(_apply("sub", self._at(largest), self._at(reference))))
        parts.body.append(self._map(largest, self._at(new)))
        parts.after += self._set(last := self._of_rows(op.result), _without_infinity(self._at(largest)))
        self.running[op] = (reference, factor, last)
        self.settle(op, largest)

    def _exponentials(self, found: Online, parts: _Parts) -> None:
        reference, factor, last = self.running[found.parent]
        total, chunk = self._of_rows(found.anchor.result), self._of_rows(found.anchor.result)
        element = _exp(_apply("sub", self.element(found.value), self._at(reference)))
        for name, value in reversed(found.factors):
            element = _apply(name, element, self.element(value, self.index_of(value)))
        parts.before += self._set(total, Const(0.0, total.dtype))
        parts.body += [Alloc(chunk), Reduce(self.tile, chunk, (self.row.var,), "sum", element)]
        older = _apply("mul", self._at(total), self._at(factor))
        parts.body.append(self._map(total, _apply("add", older, self._at(chunk))))
        moved = _exp(_apply("sub", self._at(last), self.element(found.base, self.index_of(found.base))))
        parts.after.append(self._map(total, _apply("mul", self._at(total), moved)))
        self.settle(found.anchor, total)

    def _running_sum(self, op: Op, parts: _Parts) -> None:
        """The sum less a reference, which is the mean so far, and what moving the reference adds to a sum of squares.

        The reference starts as the mean of the first chunk. It stays finite, so that infinities reach the sum.
        """
        total, part = self._of_rows(op.result), self._of_rows(op.result)
        rest, chunk, reference, moved, shift, next_reference = (self._of_rows(op.result) for _ in range(6))
        dtype = rest.dtype
        element = self.element(op.operands[0])
        start: dict[Symbol, Index] = {self.start: 0}
        count = minimum(self.length, self.schedule.columns)
        first = Iter(self.column.var, self.schedule.columns, count)
        parts.before += [Alloc(rest), Reduce((self.row, first), rest, (self.row.var,), "sum", reindex(element, start))]
        mean = _apply("div", self._at(rest), _number(count, dtype))
        parts.before += self._set(reference, _finite(mean, Const(0.0, dtype)))
        parts.before.append(self._map(rest, Const(0.0, dtype)))
        parts.before += self._set(total, Const(0.0, dtype))
        parts.body += [Alloc(part), Reduce(self.tile, part, (self.row.var,), "sum", element)]
        parts.body.append(self._map(total, _apply("add", self._at(total), self._at(part))))
        less = _apply("sub", element, self._at(reference))
        parts.body += [Alloc(chunk), Reduce(self.tile, chunk, (self.row.var,), "sum", less)]
        parts.body.append(self._map(rest, _apply("add", self._at(rest), self._at(chunk))))
        seen = _number(minimum(add(self.start, self.schedule.columns), self.length), dtype)
        mean = _apply("add", self._at(reference), _apply("div", self._at(rest), seen))
        parts.body += self._set(next_reference, _finite(mean, self._at(reference)))
        parts.body += self._set(moved, _apply("sub", self._at(next_reference), self._at(reference)))
        parts.body += self._set(shift, _moved(self._at(rest), self._at(moved), seen))
        parts.body.append(self._map(rest, _apply("sub", self._at(rest), _apply("mul", seen, self._at(moved)))))
        parts.last.append(self._map(reference, self._at(next_reference)))
        self.running[op] = (reference, shift, rest)
        self.settle(op, total)

    def _squares(self, found: Online, parts: _Parts) -> None:
        reference, shift, rest = self.running[found.parent]
        total, chunk = self._of_rows(found.anchor.result), self._of_rows(found.anchor.result)
        dtype = total.dtype
        less = _apply("sub", self.element(found.value), self._at(reference))
        parts.before += self._set(total, Const(0.0, dtype))
        square = _apply("mul", less, less)
        parts.body += [Alloc(chunk), Reduce(self.tile, chunk, (self.row.var,), "sum", square)]
        added = _apply("add", self._at(chunk), self._at(shift))
        parts.body.append(self._map(total, _apply("add", self._at(total), added)))
        base = _apply("sub", self.element(found.base, self.index_of(found.base)), self._at(reference))
        moved = _moved(self._at(rest), base, _number(self.length, dtype))
        parts.after.append(self._map(total, _apply("add", self._at(total), moved)))
        self.settle(found.anchor, total)

    def _of_rows(self, value: Value) -> Buffer:
        """Scratch with an element for each row."""
        dtype = value.type.dtype.accumulator
        return Buffer(self.context.name_of(value), dtype, (self.schedule.rows,), (1,), "tile")

    def _at(self, buffer: Buffer) -> Load:
        return Load(buffer, (self.row.var,))

    def _map(self, target: Buffer, value: ScalarExpr) -> Map:
        return Map((self.row,), target, (self.row.var,), value)

    def _set(self, target: Buffer, value: ScalarExpr) -> list[Statement]:
        return [Alloc(target), self._map(target, value)]


def _apply(name: str, a: ScalarExpr, b: ScalarExpr) -> Apply:
    return Apply(name, (a, b), a.dtype.accumulator)


def _exp(a: ScalarExpr) -> Apply:
    return Apply("exp", (a,), a.dtype.accumulator)


def _finite(a: ScalarExpr, other: ScalarExpr) -> Apply:
    """``a`` where it is finite, else ``other``."""
    return Apply("select", (Apply("isfinite", (a,), bool_), a, other), a.dtype)


def _without_infinity(a: ScalarExpr) -> Apply:
    """``a``, but 0 for infinities."""
    return Apply("select", (Apply("isinf", (a,), bool_), Const(0.0, a.dtype), a), a.dtype)


def _moved(rest: ScalarExpr, by: ScalarExpr, count: ScalarExpr) -> Apply:
    """What ``sum((x - m)²)`` gains as ``m`` moves by ``by``, where ``rest`` is ``sum(x - m)`` of ``count`` elements."""
    twice = _apply("add", rest, rest)
    return _apply("mul", by, _apply("sub", _apply("mul", count, by), twice))


def _number(index: Index, dtype: DType) -> ScalarExpr:
    if isinstance(index, int):
        return Const(float(index), dtype)
    return Apply("cast", (IndexValue(index, i64),), dtype)
