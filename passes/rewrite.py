# SPDX-License-Identifier: Apache-2.0
"""The driver of rewrite rules: one forward sweep after another, until no rule fires.

A rule looks at one op and what feeds it, and emits what replaces it. The driver alone changes the graph and
knows who else uses a value; a rule is a pure function of its :class:`Rewriter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from fusec.errors import TypeRuleError, VerifyError
from fusec.ir.attributes import (
    NO_ATTRIBUTES,
    Attributes,
    CastAttributes,
    ConstantAttributes,
    PermuteAttributes,
    ReduceAttributes,
    Scalar,
    ShapeAttributes,
)
from fusec.ir.builder import unused_name
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.types import Dim, DType
from fusec.passes.dce import dce
from fusec.runtime.program import Declined

MAX_SWEEPS = 64
"""Sweeps after which rules count as undoing each other; a real graph needs fewer than ten."""


@dataclass(frozen=True)
class Reject:
    """A rule's pattern was there but its check failed: why, and the value that failed it."""

    reason: str


Outcome = Value | Reject | None
"""What replaces the op's result, why nothing does, or None where the op is not the rule's business."""


@dataclass(frozen=True)
class Rule:
    """``equation`` is ``before ⇒ after``; ``roots`` are the names of the ops that ``rewrite`` is shown."""

    name: str
    roots: tuple[str, ...]
    equation: str
    rewrite: Callable[[Rewriter], Outcome]


def rule(*roots: str) -> Callable[[Callable[[Rewriter], Outcome]], Rule]:
    """Makes a :class:`Rule` of a function: its name is the function's, its equation the docstring's first line."""

    def make(function: Callable[[Rewriter], Outcome]) -> Rule:
        equation = (function.__doc__ or "").strip().partition("\n")[0]
        return Rule(function.__name__.replace("_", "-"), roots, equation, function)

    return make


class Sweep:
    """What one forward sweep knows: the ops made so far, who makes each value, the names taken."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: list[Op] = []
        self.producers: dict[Value, Op] = {}
        self.replaced: dict[Value, Value] = {}
        self.constants: dict[tuple[object, ...], Value] = {}
        self.names = {v.name for v in graph.inputs} | {r.name for op in graph.ops for r in op.results}
        self.fired: list[str] = []
        self.rejects: list[Declined] = []

    def resolve(self, value: Value) -> Value:
        while value in self.replaced:
            value = self.replaced[value]
        return value

    def append(self, op: Op) -> None:
        self.ops.append(op)
        for result in op.results:
            self.producers[result] = op
        if isinstance(op.attributes, ConstantAttributes):
            self.constants.setdefault(_constant_key(op.attributes), op.result)

    def unique(self, base: str) -> str:
        return unused_name(base, self.names)


def _constant_key(attributes: ConstantAttributes) -> tuple[object, ...]:
    """Tells -0.0 from 0.0 and makes NaN equal to itself."""
    return (repr(attributes.value), attributes.dtype, attributes.device)


class Rewriter:
    """One op as a rule sees it, and the ops that the rule emits in its place.

    Emitted ops carry the replaced op's location, and names derived from its result's: ``h_max`` for the
    hint ``max``. The op that makes the returned value takes the result's own name.
    """

    def __init__(self, sweep: Sweep, op: Op) -> None:
        self._sweep = sweep
        self.op = op
        self.emitted: list[Op] = []
        self._made: dict[Value, Op] = {}
        self._constants: dict[tuple[object, ...], Value] = {}

    @property
    def operands(self) -> tuple[Value, ...]:
        return self.op.operands

    def producer(self, value: Value, *names: str) -> Op | None:
        """The op that makes ``value``, if there is one and it is one of ``names`` (any, when none are given)."""
        made = self._made.get(value) or self._sweep.producers.get(value)
        return made if made is not None and (not names or made.name in names) else None

    def scalar(self, value: Value) -> Scalar | None:
        """The number that a 0-d constant holds, or None."""
        made = self.producer(value, "constant")
        return made.attributes.value if made and isinstance(made.attributes, ConstantAttributes) else None

    def emit(self, name: str, *operands: Value, attributes: Attributes = NO_ATTRIBUTES, hint: str = "") -> Value:
        """Appends an op and returns its only result. VerifyError when the operands don't fit: the rule is wrong."""
        definition = OPS[name]
        try:
            (type_,) = definition.infer(tuple(v.type for v in operands), attributes)
        except TypeRuleError as error:
            raise VerifyError(f"rewriting {self.op!r}: {name}: {error}", self.op.location) from error
        base = "c" if name == "constant" else f"{self.op.results[0].name}_{hint or name}"
        result = Value(type_, self._sweep.unique(base))
        made = Op(definition, operands, attributes, (result,), self.op.location)
        self.emitted.append(made)
        self._made[result] = made
        return result

    def constant(self, value: Scalar, like: Value) -> Value:
        """The 0-d constant with the dtype and device of ``like``; one op per number and graph."""
        return self.constant_of(ConstantAttributes(value, like.type.dtype, like.type.device))

    def constant_of(self, attributes: ConstantAttributes) -> Value:
        key = _constant_key(attributes)
        known = self._sweep.constants.get(key) or self._constants.get(key)
        if known is None:
            known = self._constants[key] = self.emit("constant", attributes=attributes)
        return known

    def cast(self, value: Value, dtype: DType, hint: str = "") -> Value:
        if value.type.dtype == dtype:
            return value
        return self.emit("cast", value, attributes=CastAttributes(dtype), hint=hint or dtype.name)

    def reshape(self, value: Value, shape: Sequence[Dim], hint: str = "") -> Value:
        if value.type.shape == tuple(shape):
            return value
        return self.emit("reshape", value, attributes=ShapeAttributes(tuple(shape)), hint=hint)

    def broadcast(self, value: Value, shape: Sequence[Dim], hint: str = "") -> Value:
        if value.type.shape == tuple(shape):
            return value
        return self.emit("broadcast", value, attributes=ShapeAttributes(tuple(shape)), hint=hint)

    def permute(self, value: Value, permutation: Sequence[int], hint: str = "") -> Value:
        if list(permutation) == list(range(value.type.rank)):
            return value
        return self.emit("permute", value, attributes=PermuteAttributes(tuple(permutation)), hint=hint)

    def reduce(self, name: str, value: Value, axes: Sequence[int], hint: str = "", dtype: DType | None = None) -> Value:
        """``name`` over ``axes``, which are dropped; made in ``dtype`` where one is given."""
        return self.emit(name, value, attributes=ReduceAttributes(tuple(axes), dtype), hint=hint)

    def keep(self, reduced: Value, of: Value, axes: Sequence[int]) -> Value:
        """A reduction of ``of`` with its axes put back as extent 1, so that it broadcasts against ``of``."""
        shape = [1 if axis in axes else extent for axis, extent in enumerate(of.type.shape)]
        part = reduced.name.removeprefix(f"{self.op.results[0].name}_")
        return self.reshape(reduced, shape, hint=f"{part}_kept")


def rewrite(
    graph: Graph,
    rules: Iterable[Rule],
    *,
    log: Callable[[Declined], None] | None = None,
    max_sweeps: int = MAX_SWEEPS,
) -> Graph:
    """Applies the rules to every op, first rule first, sweep after sweep until none fires.

    ``log`` gets the rejects that hold in the final graph. VerifyError when ``max_sweeps`` do not suffice, or
    a rule changes a type.
    """
    table: dict[str, list[Rule]] = {}
    for each in rules:
        for root in each.roots:
            table.setdefault(root, []).append(each)
    for _ in range(max_sweeps):
        sweep = Sweep(graph)
        for op in graph.ops:
            _visit(sweep, op, table)
        if not sweep.fired:
            for declined in sweep.rejects:
                if log is not None:
                    log(declined)
            return graph
        graph = dce(graph.with_ops(sweep.ops, [sweep.resolve(v) for v in graph.outputs]))
    raise VerifyError(f"rules still fire after {max_sweeps} sweeps: {', '.join(dict.fromkeys(sweep.fired))}")


def _visit(sweep: Sweep, op: Op, table: dict[str, list[Rule]]) -> None:
    operands = tuple(sweep.resolve(v) for v in op.operands)
    if operands != op.operands:
        op = replace(op, operands=operands)
    for each in table.get(op.name, ()):
        rewriter = Rewriter(sweep, op)
        outcome = each.rewrite(rewriter)
        if isinstance(outcome, Value):
            _commit(sweep, each, rewriter, outcome)
            return
        if outcome is not None:
            sweep.rejects.append(Declined(each.name, f"{op.result}: {outcome.reason}", op.location))
    sweep.append(op)


def _commit(sweep: Sweep, applied: Rule, rewriter: Rewriter, value: Value) -> None:
    op = rewriter.op
    (result,) = op.results
    if value.type != result.type:
        raise VerifyError(f"rule {applied.name} changed {op!r} from {result.type} to {value.type}")
    sweep.fired.append(applied.name)
    fresh = any(value in made.results for made in rewriter.emitted)
    if not fresh:
        sweep.replaced[result] = value
    for made in rewriter.emitted:
        if fresh:
            made = replace(
                made,
                operands=tuple(result if v is value else v for v in made.operands),
                results=tuple(result if v is value else v for v in made.results),
            )
        sweep.append(made)
