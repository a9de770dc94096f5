# SPDX-License-Identifier: Apache-2.0
"""The graph: inputs, outputs and a topologically ordered tuple of ops.

Uses are computed per sweep, never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fusec.ir.attributes import Attributes, FusedKind
from fusec.ir.nodes import Op, Port, RegionAttributes, Value
from fusec.ir.print import print_graph


@dataclass(frozen=True, eq=False)
class Graph:
    """A function over tensors in single-assignment form.

    ``input_ports`` and ``output_ports`` stand beside ``inputs`` and ``outputs``, one each.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    input_ports: tuple[Port, ...] = ()
    output_ports: tuple[Port, ...] = ()

    def __post_init__(self) -> None:
        if not self.input_ports:
            object.__setattr__(self, "input_ports", tuple(Port() for _ in self.inputs))
        if not self.output_ports:
            object.__setattr__(self, "output_ports", tuple(Port() for _ in self.outputs))

    def __str__(self) -> str:
        return print_graph(self)

    def producers(self) -> dict[Value, Op]:
        """The op that makes each value; inputs are absent."""
        return {result: op for op in self.ops for result in op.results}

    def uses(self) -> dict[Value, list[Op]]:
        """The ops that read each value, once per op, in order. Every value of the graph has an entry."""
        table: dict[Value, list[Op]] = {value: [] for value in self.inputs}
        for op in self.ops:
            for value in dict.fromkeys(op.operands):
                table[value].append(op)
            for result in op.results:
                table[result] = []
        return table

    def with_ops(self, ops: Iterable[Op], outputs: Sequence[Value] | None = None) -> Graph:
        return replace(self, ops=tuple(ops), outputs=self.outputs if outputs is None else tuple(outputs))


@dataclass(frozen=True)
class AttentionGroup(Attributes):
    """The values of a fused body that are the parts of its attention.

    product: queries by keys. scores: the softmax's argument, made of it. axis: of the scores, that is normalised.
    normalized: ``exp(scores - max) / sum``. result: the second product, whose operand number ``weights_side`` the
    normalized scores are, cast or viewed. sink: a logit beside those of a row's keys, broadcast along the axis, which
    takes its share of the weights. guarded: weights are 0, not NaN, where all scores of a row are -inf. row_max,
    row_sum: of each row the maximum and the sum of exponentials, where they are results too.
    """

    product: Value
    scores: Value
    axis: int
    normalized: Value
    result: Value
    weights_side: int
    sink: Value | None = None
    guarded: bool = False
    row_max: Value | None = None
    row_sum: Value | None = None


@dataclass(frozen=True)
class ScoresGroup(Attributes):
    """The values of a fused body that are the parts of its score space.

    products: dots that make values on the space. results: dots that consume values on it, all along one axis;
    ``sides`` says which operand of each that is, 0 or 1. sums: of values on it, along the same axis. stored: values on
    it that are results too.
    """

    products: tuple[Value, ...]
    results: tuple[Value, ...]
    sides: tuple[int, ...]
    sums: tuple[Value, ...] = ()
    stored: tuple[Value, ...] = ()


Roles = AttentionGroup | ScoresGroup
"""What the values of a fused body are, for the kinds whose kernels have parts."""


@dataclass(frozen=True)
class FusedAttributes(RegionAttributes):
    """A group of ops that is one kernel: the body's inputs stand for the operands, its outputs for the results."""

    kind: FusedKind
    body: Graph
    roles: Roles | None = None

    def region(self) -> tuple[str, Graph, Roles | None]:
        return self.kind, self.body, self.roles


ROLES: Mapping[FusedKind, type[Roles]] = {"attention": AttentionGroup, "scores": ScoresGroup}
"""The record of each kind that has one."""


def made_from(
    producer: Callable[[Value], Op | None], values: Iterable[Value], through: Callable[[Op], bool] = lambda op: True
) -> Iterator[tuple[Value, Op | None]]:
    """Each value once that these are made from, themselves among them, and the op that makes it, None for an input.

    producer: the op that makes a value. through: whether the operands of an op follow.
    """
    seen: set[Value] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        op = producer(value)
        yield value, op
        if op is not None and through(op):
            waiting += op.operands


def substitute(graph: Graph, replacements: Mapping[Value, Value]) -> Graph:
    """The graph with operands and outputs replaced; ops whose operands don't change stay the same objects."""

    def resolve(value: Value) -> Value:
        while value in replacements:
            value = replacements[value]
        return value

    ops = []
    for op in graph.ops:
        operands = tuple(resolve(v) for v in op.operands)
        ops.append(op if operands == op.operands else replace(op, operands=operands))
    return graph.with_ops(ops, [resolve(v) for v in graph.outputs])
