# SPDX-License-Identifier: Apache-2.0
"""Values of the steps of a loop that are computed alike, as one value with an axis for the step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusec.errors import TypeRuleError
from fusec.ir.attributes import (
    NO_ATTRIBUTES,
    Attributes,
    CastAttributes,
    ConcatAttributes,
    ConstantAttributes,
    EinsumAttributes,
    PermuteAttributes,
    ReduceAttributes,
    ShapeAttributes,
    SliceAttributes,
)
from fusec.ir.builder import unused_name
from fusec.ir.graph import Graph
from fusec.ir.index import product
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.types import Dim, DType
from fusec.location import Location

Parts = tuple[Value, ...]

_MAPS = frozenset({"relu", "sigmoid", "silu", "softplus", "gelu"})
"""Composites that are computed element by element."""


MOST_DEPTH = 64
"""Ops between a step's value and what is sliced for it: steps of another loop, of which each needs the one before, are
not followed to that loop's start."""


@dataclass(frozen=True)
class Lifted:
    """All steps' values as one. ``at``: the axis of the step; None where the value is the same for all of them."""

    value: Value
    at: int | None


@dataclass(frozen=True)
class _Chained:
    """A recurrence: where each of its results is, all of them as one, and what they start from, beside the first."""

    places: dict[Value, int]
    whole: Lifted
    start: Value


class Lifter:
    """Makes one value of the values of all steps, op by op, and remembers what it made.

    ``ops`` are those made so far, whose operands may be any values of the graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.producers = graph.producers()
        self.ops: list[Op] = []
        self.known: dict[Parts, Lifted | None] = {}
        self.chains: dict[Value, _Chained] = {}
        """The recurrence of each of its results."""
        self.follows: set[Parts] = set()
        """Parts that are made of results of recurrences."""
        self._depth = 0
        self._names = {v.name for v in graph.inputs} | {r.name for op in graph.ops for r in op.results}

    def add_chain(self, results: Parts, whole: Lifted, start: Value, *, reverse: bool) -> None:
        """Says what the results of a recurrence are as one; ``reverse``: the last of them comes first there."""
        places = {v: t for t, v in enumerate(reversed(results) if reverse else results)}
        places.setdefault(start, len(results) if reverse else -1)
        self.chains.update(dict.fromkeys(results, _Chained(places, whole, start)))

    def lift(self, parts: Parts) -> Lifted | None:
        """The parts as one value; None where they are not computed alike."""
        if all(v is parts[0] for v in parts):
            return Lifted(parts[0], None)
        if parts not in self.known:
            if self._depth == MOST_DEPTH:
                return None
            self._depth += 1
            self.known[parts] = self._lift(parts)
            self._depth -= 1
        return self.known[parts]

    def forget(self, mark: int) -> None:
        """Drops all ops made since there were so many, and what was found not to be computed alike."""
        gone = {op.result for op in self.ops[mark:]}
        del self.ops[mark:]
        self.known = {p: x for p, x in self.known.items() if x is not None and x.value not in gone}

    def emit(
        self,
        name: str,
        *operands: Value,
        like: Value,
        attributes: Attributes = NO_ATTRIBUTES,
        location: Location | None = None,
    ) -> Value:
        """Appends an op and returns its only result, named after ``like``."""
        definition = OPS[name]
        (made,) = definition.infer(tuple(v.type for v in operands), attributes)
        result = Value(made, unused_name(f"{like.name.removesuffix('_steps')}_steps", self._names))
        self.ops.append(Op(definition, operands, attributes, (result,), location))
        return result

    def reshape(self, value: Value, shape: tuple[Dim, ...]) -> Value:
        """The value in another shape."""
        if value.type.shape == shape:
            return value
        return self.emit("reshape", value, like=value, attributes=ShapeAttributes(shape))

    def cast(self, value: Value, dtype: DType) -> Value:
        """The value in another dtype."""
        if value.type.dtype == dtype:
            return value
        return self.emit("cast", value, like=value, attributes=CastAttributes(dtype))

    def aligned(self, lifted: Lifted, rank: int, at: int) -> Value:
        """The value as an operand of steps' values of a rank, with the axis of the step at ``at``; 1 where all steps
        have the same."""
        value, now = lifted.value, lifted.at
        if now is None:
            shape: tuple[Dim, ...] = (*(1 for _ in range(rank - value.type.rank)), *value.type.shape)
            return value if not value.type.rank else self.reshape(value, (*shape[:at], 1, *shape[at:]))
        pad = rank + 1 - value.type.rank
        value, now = self.reshape(value, (*(1 for _ in range(pad)), *value.type.shape)), now + pad
        return self.moved(value, now, at)

    def moved(self, value: Value, now: int, at: int) -> Value:
        """The value with one of its axes moved."""
        if now == at:
            return value
        others = [a for a in range(value.type.rank) if a != now]
        order = (*others[:at], now, *others[at:])
        return self.emit("permute", value, like=value, attributes=PermuteAttributes(order))

    def _lift(self, parts: Parts) -> Lifted | None:
        chained = self._chained(parts)
        if chained is not None:
            self.follows.add(parts)
            return chained
        if any(v.type != parts[0].type for v in parts):
            return None
        ops = [op for v in parts if (op := self.producers.get(v)) is not None]
        first = ops[0] if ops else None
        if first is None or len(ops) < len(parts) or any(op.name != first.name for op in ops):
            return None
        if first.name == "slice":
            return self._slices(ops)
        if any(op.attributes != first.attributes for op in ops) or len(first.results) != 1:
            return None
        if isinstance(first.attributes, ConstantAttributes):
            return Lifted(first.result, None)
        if not self._lifts(first):
            return None
        operands: list[Lifted] = []
        for of_each in zip(*(op.operands for op in ops), strict=True):
            lifted = self.lift(of_each)
            if lifted is None:
                return None
            operands.append(lifted)
            if of_each in self.follows:
                self.follows.add(parts)
        if all(x.at is None for x in operands):
            return Lifted(first.result, None)
        mark = len(self.ops)
        try:
            return self._op(first, operands)
        except TypeRuleError:
            del self.ops[mark:]
            return None

    def _lifts(self, op: Op) -> bool:
        if op.definition.kind == "elementwise" or op.name in _MAPS:
            return True
        if op.name in ("reshape", "broadcast", "einsum", "linear", "matmul"):
            return True
        return op.definition.kind == "reduce"

    def _chained(self, parts: Parts) -> Lifted | None:
        """Results of a recurrence, evenly apart; the value before the first may be among them."""
        chain = next((found for v in parts[:2] if (found := self.chains.get(v)) is not None), None)
        if chain is None:
            return None
        places = [chain.places.get(v) for v in parts]
        numbers = [n for n in places if n is not None]
        if len(numbers) < len(parts):
            return None
        step = numbers[1] - numbers[0]
        if step == 0 or numbers != list(range(numbers[0], numbers[0] + step * len(parts), step)):
            return None
        before = chain.places[chain.start]
        if before not in numbers:
            return self._picked(chain.whole, numbers[0], step, len(numbers))
        return self._picked(self._with_start(chain, before), numbers[0] + (before < 0), step, len(numbers))

    def _with_start(self, chain: _Chained, place: int) -> Lifted:
        """All results, and what they start from at the side where they begin."""
        value, at = chain.whole.value, chain.whole.at
        assert at is not None
        first = self.aligned(Lifted(chain.start, None), value.type.rank - 1, at)
        shape = tuple(1 if a == at else n for a, n in enumerate(value.type.shape))
        if first.type.shape != shape:
            first = self.emit("broadcast", first, like=chain.start, attributes=ShapeAttributes(shape))
        both = (first, value) if place < 0 else (value, first)
        return Lifted(self.emit("concat", *both, like=value, attributes=ConcatAttributes(at)), at)

    def _picked(self, x: Lifted, first: int, step: int, count: int) -> Lifted:
        """So many positions of a value along the axis of the step."""
        assert x.at is not None
        shape, last = x.value.type.shape, first + step * (count - 1)
        if (first, step) == (0, 1) and shape[x.at] == count:
            return x
        stop = last + 1 if step > 0 else last - 1
        ends = SliceAttributes.of_axes(shape, {x.at: (first, stop)})
        steps = tuple(step if a == x.at else 1 for a in range(len(shape)))
        return Lifted(self.emit("slice", x.value, like=x.value, attributes=replace(ends, steps=steps)), x.at)

    def _slices(self, ops: list[Op]) -> Lifted | None:
        """The same slice of each step's value; or of one value, one position each, evenly apart along an axis."""
        cuts = [op.expect(SliceAttributes) for op in ops]
        whose = self.lift(tuple(op.operands[0] for op in ops))
        if whose is None:
            return None
        if all(c == cuts[0] for c in cuts):
            return self._sliced(ops[0], whose)
        source = whose.value
        apart = [a for a, (x, y) in enumerate(zip(cuts[0].starts, cuts[1].starts, strict=True)) if x != y]
        if whose.at is not None or len(apart) != 1:
            return None
        axis = apart[0]
        if ops[0].result.type.shape[axis] != 1 or len({_but(c, axis) for c in cuts}) > 1:
            return None
        numbers = [n for c in cuts if isinstance(n := c.starts[axis], int)]
        step = numbers[1] - numbers[0] if len(numbers) == len(cuts) else 0
        if step == 0 or numbers != list(range(numbers[0], numbers[0] + step * len(ops), step)):
            return None
        stop = numbers[-1] + (1 if step > 0 else -1)
        values = ((numbers[0], cuts[0].starts), (stop, cuts[0].stops), (step, cuts[0].steps))
        starts, stops, steps = (tuple(n if a == axis else x for a, x in enumerate(given)) for n, given in values)
        whole = source
        if stops != source.type.shape or any(starts) or any(n != 1 for n in steps):
            attributes = SliceAttributes(starts, stops, tuple(n for n in steps if isinstance(n, int)))
            whole = self.emit("slice", source, like=source, attributes=attributes, location=ops[0].location)
        shape = whole.type.shape
        return Lifted(self.reshape(whole, (*shape[: axis + 1], 1, *shape[axis + 1 :])), axis)

    def _sliced(self, op: Op, x: Lifted) -> Lifted:
        if x.at is None:
            return Lifted(op.result, None)
        cut, at = op.expect(SliceAttributes), x.at
        values = ((0, cut.starts), (x.value.type.shape[at], cut.stops))
        starts, stops = ((*given[:at], n, *given[at:]) for n, given in values)
        attributes = SliceAttributes(starts, stops, (*cut.steps[:at], 1, *cut.steps[at:]))
        return Lifted(self.emit("slice", x.value, like=op.result, attributes=attributes, location=op.location), at)

    def _op(self, op: Op, operands: list[Lifted]) -> Lifted:
        if op.definition.kind == "elementwise" or op.name in _MAPS:
            return self._map(op, operands)
        if op.name == "reshape":
            return self._reshape(op, operands[0])
        if op.name == "broadcast":
            rank, at = op.result.type.rank, self._place(op, operands)
            shape = op.result.type.shape
            value = self.aligned(operands[0], rank, at)
            whole = (*shape[:at], value.type.shape[at], *shape[at:])
            return Lifted(self.emit("broadcast", value, like=op.result, attributes=ShapeAttributes(whole)), at)
        if op.name == "einsum":
            return self._einsum(op, operands)
        if op.definition.kind == "reduce":
            return self._reduce(op, operands[0])
        return self._matmul(op, operands)

    def _place(self, op: Op, operands: list[Lifted]) -> int:
        """Where the axis of the step is in a map's result: where an operand of as many axes has it."""
        rank = op.result.type.rank
        places = [(x.value.type.rank, x.at) for x in operands if x.at is not None]
        full = [at for n, at in places if n == rank + 1]
        return full[0] if full else min(places)[1] if rank == 0 else 0

    def _map(self, op: Op, operands: list[Lifted]) -> Lifted:
        at = self._place(op, operands)
        values = [self.aligned(x, op.result.type.rank, at) for x in operands]
        made = self.emit(op.name, *values, like=op.result, attributes=op.attributes, location=op.location)
        return Lifted(made, at)

    def _reshape(self, op: Op, x: Lifted) -> Lifted:
        """The axis of the step stays before as many elements as it was, or goes to the front."""
        assert x.at is not None
        now, shape, n = x.value.type.shape, op.result.type.shape, x.value.type.shape[x.at]
        before = product(now[: x.at])
        places = [j for j in range(len(shape) + 1) if product(shape[:j]) == before]
        if before == 1 or not places:
            value = self.moved(x.value, x.at, 0)
            return Lifted(self.reshape(value, (n, *shape)), 0)
        at = places[0]
        return Lifted(self.reshape(x.value, (*shape[:at], n, *shape[at:])), at)

    def _reduce(self, op: Op, x: Lifted) -> Lifted:
        assert x.at is not None
        attributes = op.expect(ReduceAttributes)
        axes = tuple(a + (a >= x.at) for a in attributes.axes)
        at = x.at - sum(a < x.at for a in axes)
        attributes = replace(attributes, axes=axes)
        return Lifted(self.emit(op.name, x.value, like=op.result, attributes=attributes, location=op.location), at)

    def _einsum(self, op: Op, operands: list[Lifted]) -> Lifted:
        inputs, _, result = op.expect(EinsumAttributes).equation.partition("->")
        letter = next(c for c in "tTsSuUvVwW" + "abcdefghijklmnopqrxyz" if c not in inputs)
        terms = inputs.split(",")
        spelled = [
            s if x.at is None else f"{s[: x.at]}{letter}{s[x.at :]}" for s, x in zip(terms, operands, strict=True)
        ]
        attributes = EinsumAttributes(f"{','.join(spelled)}->{letter}{result}")
        values = (x.value for x in operands)
        return Lifted(self.emit("einsum", *values, like=op.result, attributes=attributes, location=op.location), 0)

    def _matmul(self, op: Op, operands: list[Lifted]) -> Lifted:
        """Rows of all steps times a matrix that is the same for all of them."""
        rows, *others = operands
        if rows.at is None or any(x.at is not None for x in others) or rows.value.type.rank < 3:
            raise TypeRuleError("only the rows of a product may differ from step to step")
        if others[0].value.type.rank != 2:
            raise TypeRuleError("a matrix for each batch")
        at = rows.at if rows.at < rows.value.type.rank - 1 else 0
        value = self.moved(rows.value, rows.at, at)
        values = (value, *(x.value for x in others))
        return Lifted(self.emit(op.name, *values, like=op.result, attributes=op.attributes, location=op.location), at)


def _but(cut: SliceAttributes, axis: int) -> tuple[object, ...]:
    """What a slice takes of all other axes, and its steps."""
    ends = zip(cut.starts, cut.stops, strict=True)
    return (cut.steps, *(pair for a, pair in enumerate(ends) if a != axis))
