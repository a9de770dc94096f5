# SPDX-License-Identifier: Apache-2.0
"""One graph for a range of extents, from graphs captured at some of them.

The function is captured at a few extents of each named dimension. The graphs have the same ops; where an integer
in them differs, it is an expression of the names, and every one of the samples must bear that out. The graph is
then built op by op over symbols, so that the type rules prove that its shapes fit for every extent. What the
samples can't tell (a branch taken at one extent in the middle of the range alone) is asked of the frontend, see
:mod:`fusec.frontend.torch_sizes`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property

from fusec.errors import DimensionError, TypeRuleError
from fusec.ir.attributes import (
    Attributes,
    CastAttributes,
    ConstantAttributes,
    ExtentAttributes,
    ExternAttributes,
    Scalar,
)
from fusec.ir.graph import Graph
from fusec.ir.index import Expr, Index, Symbol, add, floordiv, mul
from fusec.ir.indexing import evaluate, substitute
from fusec.ir.nodes import Op, Port, Value
from fusec.ir.ops import OPS
from fusec.ir.types import Dim, DType, TensorType, f64
from fusec.location import Location

MOST_SYMBOLS = 4
"""Two samples of each symbol in every combination: more would be many captures."""

Bindings = Mapping[str, int]
Corner = tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """A graph and the extents it was captured at."""

    extents: Bindings
    graph: Graph

    def __str__(self) -> str:
        return ", ".join(f"{name} = {n}" for name, n in self.extents.items())


def sample_extents(symbols: Sequence[Symbol]) -> tuple[list[Bindings], list[Bindings]]:
    """The extents to capture at: those that tell the expressions, two a symbol, and some more that must agree.

    None of them is 1, at which much is special; :func:`generalise` takes samples at 1 too.
    """
    pairs = _pairs(symbols)
    names = [s.name for s in symbols]
    grid: list[Bindings] = [dict(zip(names, point, strict=True)) for point in itertools.product(*pairs)]
    ends = [_generic_range(s) for s in symbols]
    more = [tuple(low for low, _ in ends), tuple(high for _, high in ends)]
    for k, (low, high) in enumerate(ends):
        for value in {min(low + 1, high), max(high - 1, low)}:
            more.append(tuple(value if j == k else pair[0] for j, pair in enumerate(pairs)))
    known = {tuple(point.values()) for point in grid}
    checks: list[Bindings] = [dict(zip(names, point, strict=True)) for point in dict.fromkeys(more)]
    return grid, [point for point in checks if tuple(point.values()) not in known]


def _generic_range(s: Symbol) -> tuple[int, int]:
    assert s.lo is not None
    assert isinstance(s.hi, int)
    return max(s.lo, 2), s.hi


_LIKED = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)


def _pairs(symbols: Sequence[Symbol]) -> list[tuple[int, int]]:
    """Two extents for each symbol; no extent serves two symbols, as far as their ranges allow."""
    taken: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for s in sorted(symbols, key=lambda s: _generic_range(s)[1] - _generic_range(s)[0]):
        low, high = _generic_range(s)
        plain = itertools.islice(range(low, high + 1), 4 * MOST_SYMBOLS + 2)
        candidates = dict.fromkeys([*(n for n in _LIKED if low <= n <= high), *plain])
        free = [n for n in candidates if n not in taken] + [n for n in candidates if n in taken]
        if len(free) < 2:
            raise DimensionError(f"{s.name} has one extent above 1 in its range, {low}; give it as a number")
        pairs.append((free[0], free[1]))
        taken.update(free[:2])
    order = sorted(range(len(symbols)), key=lambda k: _generic_range(symbols[k])[1] - _generic_range(symbols[k])[0])
    pair_of = dict(zip(order, pairs, strict=True))
    return [pair_of[k] for k in range(len(symbols))]


class Fit:
    """Finds the expression of symbols that integers are, from their values at some extents.

    The first ``2 ** len(symbols)`` of these are the grid of :func:`sample_extents`.
    """

    def __init__(self, extents: Sequence[Bindings], symbols: Sequence[Symbol]) -> None:
        self.extents = extents
        self.symbols = symbols
        self._grid = 2 ** len(symbols)

    def index(self, values: Sequence[int]) -> Index | None:
        """The expression that has these values; None where no sum of products of the symbols has them."""
        if all(value == values[0] for value in values):
            return values[0]
        for candidate in self._candidates(values[: self._grid]):
            if all(evaluate(candidate, at) == v for at, v in zip(self.extents, values, strict=True)):
                return candidate
        return None

    def _candidates(self, values: Sequence[int]) -> Iterator[Index]:
        """Sums of products of symbols, divided by a number where the coefficients ask for it."""
        coefficients = self._interpolate(values)
        scale = math.lcm(*(c.denominator for c in coefficients.values()))
        total: Index = 0
        for corner, c in coefficients.items():
            term: Index = int(c * scale)
            for k in corner:
                term = mul(term, self.symbols[k])
            total = add(total, term)
        if scale == 1:
            yield total
            return
        for shift in range(1 - scale, scale) if scale <= 64 else ():
            yield floordiv(add(total, shift), scale)

    def _interpolate(self, values: Sequence[int]) -> dict[Corner, Fraction]:
        """Coefficients of the products of symbols (by their numbers) that pass through the values at the grid."""
        found: dict[Corner, Fraction] = {(): Fraction(0)}

        def fit(points: Sequence[int], k: int, corner: Corner) -> dict[Corner, Fraction]:
            if k == len(self.symbols):
                return {(): Fraction(points[0])}
            half = len(points) // 2
            name = self.symbols[k].name
            low = self.extents[0][name]
            high = self.extents[self._grid - 1][name]
            below, above = fit(points[:half], k + 1, corner), fit(points[half:], k + 1, corner)
            result: dict[Corner, Fraction] = {}
            for key in below:
                step = (above[key] - below[key]) / (high - low)
                result[key] = below[key] - step * low
                result[(k, *key)] = step
            return result

        found.update(fit(values, 0, ()))
        return {corner: c for corner, c in found.items() if c}


def generalise(samples: Sequence[Sample], symbols: Sequence[Symbol]) -> Graph:
    """The graph over symbols that all samples are instances of.

    The first ``2 ** len(symbols)`` samples are the grid of :func:`sample_extents`; the rest must agree with what
    those tell. DimensionError, with the op and the user's line, where they do not.
    """
    return _Generaliser(samples, symbols).graph()


def check_alike(first: Sample, other: Sample, symbols: Sequence[Symbol]) -> None:
    """DimensionError where two samples are of other operations: no further sample helps."""
    judge = _Generaliser([first, other], symbols)
    for row in itertools.zip_longest(first.graph.ops, other.graph.ops):
        judge.check_ops(row)


class _Generaliser:
    def __init__(self, samples: Sequence[Sample], symbols: Sequence[Symbol]) -> None:
        self.samples = samples
        self.symbols = symbols
        self.first = samples[0].graph
        self.positions = [_positions(s.graph) for s in samples]
        self.values: dict[Value, Value] = {}
        self.ops: list[Op] = []
        self.location: Location | None = None
        self.taken = {v.name for v in (*self.first.inputs, *(r for op in self.first.ops for r in op.results))}

    @cached_property
    def fit(self) -> Fit:
        return Fit([s.extents for s in self.samples], self.symbols)

    def graph(self) -> Graph:
        graphs = [s.graph for s in self.samples]
        if len({len(g.inputs) for g in graphs}) > 1 or len({len(g.outputs) for g in graphs}) > 1:
            raise self.fails("what the function reads or returns differs", 0)
        for row in zip(*(g.inputs for g in graphs), strict=True):
            self.define(row[0], self.type([v.type for v in row], f"input {row[0]}"))
        for row in itertools.zip_longest(*(g.ops for g in graphs)):
            self.op(row)
        inputs = self.ports([g.input_ports for g in graphs])
        outputs = self.ports([g.output_ports for g in graphs])
        positions = [[where[v] for v in s.graph.outputs] for s, where in zip(self.samples, self.positions, strict=True)]
        if any(position != positions[0] for position in positions):
            raise self.fails("which values are returned differs", 0)
        return Graph(
            self.first.name,
            tuple(self.values[v] for v in self.first.inputs),
            tuple(self.values[v] for v in self.first.outputs),
            tuple(self.ops),
            inputs,
            outputs,
        )

    def fails(self, what: str, sample: int) -> DimensionError:
        return DimensionError(
            f"{', '.join(s.name for s in self.symbols)} can't be symbolic: {what} "
            f"(with {self.samples[0]} and {self.samples[sample] if sample else 'other extents'})",
            self.location,
        )

    def define(self, old: Value, type: TensorType) -> Value:
        self.values[old] = Value(type, old.name)
        return self.values[old]

    # ops

    def check_ops(self, row: Sequence[Op | None]) -> tuple[Op, list[Op]]:
        """An op of the first sample, and those of all: they are of one name, and read the same values."""
        first = row[0]
        self.location = first.location if first is not None else None
        ops: list[Op] = []
        for k, op in enumerate(row):
            if first is None or op is None or op.name != first.name or len(op.operands) != len(first.operands):
                one, other = (o.name if o is not None else "nothing more" for o in (first, op))
                raise self.fails(f"the function does {one} or, by the extent, {other}", k)
            operands = [self.positions[k][v] for v in op.operands]
            if operands != [self.positions[0][v] for v in first.operands]:
                raise self.fails(f"what {op.name} reads differs", k)
            ops.append(op)
        assert first is not None
        return first, ops

    def op(self, row: Sequence[Op | None]) -> None:
        first, ops = self.check_ops(row)
        if isinstance(first.attributes, ConstantAttributes):
            self.constant(first, [op.attributes for op in ops])
            return
        attributes = self.attributes(first, [op.attributes for op in ops])
        operands_now = tuple(self.values[v] for v in first.operands)
        try:
            types = first.definition.infer(tuple(v.type for v in operands_now), attributes)
        except TypeRuleError as error:
            raise self.fails(f"{first.name}: {error}", 0) from None
        for result, type in zip(first.results, types, strict=True):
            self.check_type(first, result, type, ops)
        results = tuple(self.define(old, type) for old, type in zip(first.results, types, strict=True))
        self.ops.append(replace(first, operands=operands_now, attributes=attributes, results=results))

    def check_type(self, first: Op, result: Value, type: TensorType, ops: Sequence[Op]) -> None:
        position = first.results.index(result)
        for k, op in enumerate(ops):
            shape = tuple(evaluate(d, self.samples[k].extents) for d in type.shape)
            if shape != op.results[position].type.shape or type.dtype != op.results[position].type.dtype:
                raise self.fails(f"{first.name} gives {type} and {op.results[position].type}", k)

    def attributes(self, op: Op, found: Sequence[Attributes]) -> Attributes:
        changed: dict[str, object] = {}
        for field in fields(found[0]):
            values = [getattr(a, field.name) for a in found]
            if any(value != values[0] for value in values[1:]):
                if isinstance(found[0], ExternAttributes) and field.name != "types":
                    raise self.fails(f"the library's {found[0].target} is called with an extent as a number", 0)
                if "Dim" not in str(field.type) and "TensorType" not in str(field.type):
                    raise self.fails(f"{op.name}'s {field.name} depends on the extent: {values[0]}, {values[-1]}", 0)
                changed[field.name] = self.field(values, f"{op.name}'s {field.name}")
        return replace(found[0], **changed) if changed else found[0]

    def field(self, values: Sequence[object], what: str) -> object:
        first = values[0]
        if isinstance(first, tuple) and all(isinstance(v, tuple) and len(v) == len(first) for v in values):
            return tuple(self.field([v[k] for v in values], what) for k in range(len(first)))  # type: ignore[index]
        if all(isinstance(v, TensorType) for v in values):
            return self.type([v for v in values if isinstance(v, TensorType)], what)
        if all(type(v) is int for v in values):
            return self.index([v for v in values if isinstance(v, int)], what)
        if all(v == first for v in values):
            return first
        raise self.fails(f"{what} differs: {first} and {next(v for v in values if v != first)}", 0)

    def type(self, types: Sequence[TensorType], what: str) -> TensorType:
        first = types[0]
        if any((t.dtype, t.rank, t.device) != (first.dtype, first.rank, first.device) for t in types):
            raise self.fails(f"the type of {what} differs", 0)
        return first.with_shape(
            [self.index([n for n in dims if isinstance(n, int)], what) for dims in zip(*(t.shape for t in types))]
        )

    def ports(self, ports: Sequence[Sequence[Port]]) -> tuple[Port, ...]:
        made: list[Port] = []
        for row in zip(*ports, strict=True):
            first = row[0]
            strides: tuple[Dim, ...] | None = None
            if any(port.strides is not None for port in row):
                if any(port.strides is None for port in row):
                    raise self.fails("the strides of an input or an output are row-major at some extents only", 0)
                laid = [port.strides for port in row if port.strides is not None]
                strides = tuple(
                    self.index([n for n in steps if isinstance(n, int)], "a stride")
                    for steps in zip(*laid, strict=True)
                )
            if any(replace(port, strides=None) != replace(first, strides=None) for port in row):
                raise self.fails("what an input or an output is differs", 0)
            made.append(replace(first, strides=strides))
        return tuple(made)

    # numbers

    def index(self, values: Sequence[int], what: str) -> Index:
        """The expression of the symbols that has these values at the samples."""
        found = self.fit.index(values)
        if found is not None:
            return found
        listed = ", ".join(f"{v} with {s}" for s, v in itertools.islice(zip(self.samples, values, strict=True), 3))
        raise self.fails(f"{what} is no sum of products of the names: {listed}", 0)

    # constants

    def constant(self, op: Op, found: Sequence[Attributes]) -> None:
        """A number of the function; one that differs is an integer of the names, or one of a few functions of it."""
        constants = [a for a in found if isinstance(a, ConstantAttributes)]
        first = constants[0]
        if all(repr(c.value) == repr(first.value) and c.dtype == first.dtype for c in constants):
            self.ops.append(replace(op, results=(self.define(op.result, op.result.type),)))
            return
        for steps, inverse in _FORMULAS:
            numbers = [_inverted(c.value, inverse) for c in constants]
            if all(n is not None for n in numbers) and first.dtype.kind in ("int", "uint", "float"):
                try:
                    number = self.index([n for n in numbers if n is not None], "a number")
                except DimensionError:
                    continue
                self.number(op, number, steps, first.dtype)
                return
        self.location = op.location or next((o.location for o in self.first.ops if op.result in o.operands), None)
        raise self.fails(f"the number {first.value!r} becomes {constants[-1].value!r}", 0)

    def number(self, op: Op, number: Index, steps: Sequence[str], dtype: DType) -> None:
        """``dtype(steps(number))``, computed in f64 as Python computed it."""
        wide = dtype if not steps else f64
        value = self.emit("extent", (), ExtentAttributes((number,), wide, op.result.type.device), op)
        for step in steps:
            if step == "reciprocal":
                one = self.emit("constant", (), ConstantAttributes(1.0, wide, op.result.type.device), op)
                value = self.emit("div", (one, value), Attributes(), op)
            else:
                value = self.emit(step, (value,), Attributes(), op)
        if wide != dtype:
            value = self.emit("cast", (value,), CastAttributes(dtype), op)
        self.values[op.result] = value

    def emit(self, name: str, operands: tuple[Value, ...], attributes: Attributes, like: Op) -> Value:
        (type,) = OPS[name].infer(tuple(v.type for v in operands), attributes)
        label, count = f"{like.result.name}_{name}", 0
        while label in self.taken:
            count += 1
            label = f"{like.result.name}_{name}_{count}"
        self.taken.add(label)
        result = Value(type, label)
        self.ops.append(Op(OPS[name], operands, attributes, (result,), like.location))
        return result


def _same(x: float) -> float:
    return x


_FORMULAS: tuple[tuple[tuple[str, ...], Callable[[float], float]], ...] = (
    ((), _same),
    (("reciprocal",), lambda n: 1.0 / n),
    (("sqrt",), math.sqrt),
    (("sqrt", "reciprocal"), lambda n: 1.0 / math.sqrt(n)),
)
"""What functions make of an extent: the ops, and the same in Python."""


def _inverted(value: Scalar, formula: Callable[[float], float]) -> int | None:
    """The integer of which the value is the formula, if there is one."""
    if isinstance(value, complex | bool) or not math.isfinite(value):
        return None
    if formula is _same:
        return int(value) if value == int(value) else None
    if value <= 0:
        return None
    for guess in (round(1 / value), round(value * value), round(1 / (value * value))):
        if 0 < guess < 1 << 52 and formula(guess) == value:
            return guess
    return None


def _positions(graph: Graph) -> dict[Value, int]:
    """A number for each value: its position in the order of definition."""
    made = (*graph.inputs, *(r for op in graph.ops for r in op.results))
    return {value: position for position, value in enumerate(made)}


# a graph over other symbols


def with_symbols(graph: Graph, replacements: Mapping[Symbol, Index]) -> Graph:
    """The graph with symbols replaced, by narrower ones or by integers."""
    values: dict[Value, Value] = {}

    def dim(d: Dim) -> Dim:
        return substitute(d, replacements)

    def type_of(t: TensorType) -> TensorType:
        return t.with_shape(tuple(map(dim, t.shape)))

    def field(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(field, value))
        if isinstance(value, TensorType):
            return type_of(value)
        return dim(value) if isinstance(value, Expr) else value

    def define(value: Value) -> Value:
        values[value] = Value(type_of(value.type), value.name)
        return values[value]

    def port(p: Port) -> Port:
        return p if p.strides is None else replace(p, strides=tuple(map(dim, p.strides)))

    inputs = tuple(map(define, graph.inputs))
    ops: list[Op] = []
    for op in graph.ops:
        changed = {f.name: field(getattr(op.attributes, f.name)) for f in fields(op.attributes)}
        operands = tuple(values[v] for v in op.operands)
        results = tuple(map(define, op.results))
        ops.append(replace(op, operands=operands, attributes=replace(op.attributes, **changed), results=results))
    return Graph(
        graph.name,
        inputs,
        tuple(values[v] for v in graph.outputs),
        tuple(ops),
        tuple(map(port, graph.input_ports)),
        tuple(map(port, graph.output_ports)),
    )
