"""The graph: values, operations and the builder that makes them.

Nodes are immutable and compared by identity. A graph is its inputs, its outputs and a topologically
ordered tuple of ops; uses are computed per sweep, never stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import basename
from typing import Literal

from fusec.errors import FusecError, TypeRuleError
from fusec.ir.attributes import NO_ATTRIBUTES, Attributes, ConstantAttributes, Scalar
from fusec.ir.ops import OPS, OpDef
from fusec.ir.types import Dim, DType, TensorType

InputRole = Literal["argument", "parameter", "state", "static", "integer"]
"""argument: given at each call. parameter: an nn.Module's parameter or buffer, by reference.
state: a tensor or array found in a closure, a global or an attribute, by reference.
static: any of these of which the user says that it stays: what is packed from it is kept.
integer: a plain integer of the call, which is the extent of an input that has no elements to read."""


@dataclass(frozen=True)
class Location:
    """A line of the user's source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """File name without folders, as IR text shows it."""
        return f"{basename(self.file)}:{self.line}"


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor in a graph: its type and the name it carries in IR text (without ``%``)."""

    type: TensorType
    name: str

    def __str__(self) -> str:
        return f"%{self.name}"

    def __repr__(self) -> str:
        return f"Value(%{self.name}: {self.type})"


@dataclass(frozen=True, eq=False)
class Op:
    """One operation: what it is, what it reads, its attributes, what it makes and where the user wrote it."""

    definition: OpDef
    operands: tuple[Value, ...]
    attributes: Attributes
    results: tuple[Value, ...]
    location: Location | None = None

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def result(self) -> Value:
        """The only result; ValueError where there are several."""
        (only,) = self.results
        return only

    def __repr__(self) -> str:
        return f"<{', '.join(map(str, self.results))} = {self.name}({', '.join(map(str, self.operands))})>"


@dataclass(frozen=True)
class Port:
    """How a graph's input or output lies in memory, and what it stands for.

    strides: in elements; None means row-major contiguous.
    offset: elements from the start of the storage (a fact about an input that a view of it needs).
    role, path: for an input, where its tensor comes from (``path`` such as ``self.encoder.weight``).
    mutates: for an output, the index of the input that must receive the value in place, else None.
    """

    strides: tuple[Dim, ...] | None = None
    offset: int = 0
    role: InputRole = "argument"
    path: str = ""
    mutates: int | None = None


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
        from fusec.ir.print import print_graph  # the printer reads graphs, so it lies above this module

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


class Builder:
    """Makes a graph op by op. Types are inferred and checked as each op is made, so a wrong graph can't be.

    A name given twice gets a numeric suffix (``h``, ``h_1``); no name gives ``t0``, ``t1``, ...
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._inputs: list[Value] = []
        self._ports: list[Port] = []
        self._ops: list[Op] = []
        self._taken: set[str] = set()
        self._next_suffix: dict[str, int] = {}
        self._constants: dict[tuple[str, DType, str], Value] = {}

    def __len__(self) -> int:
        """How many ops have been made."""
        return len(self._ops)

    def unique(self, name: str | None) -> str:
        """A name not yet used in this graph, as near to ``name`` as can be."""
        base = name or "t"
        candidate = base if name else f"{base}0"
        while candidate in self._taken:
            count = self._next_suffix.get(base, 0) + 1
            self._next_suffix[base] = count
            candidate = f"{base}_{count}" if name else f"{base}{count}"
        self._taken.add(candidate)
        return candidate

    def input(self, type: TensorType, name: str | None = None, port: Port | None = None) -> Value:
        value = Value(type, self.unique(name or "arg"))
        self._inputs.append(value)
        self._ports.append(port or Port())
        return value

    def op(
        self,
        name: str,
        *operands: Value,
        attributes: Attributes = NO_ATTRIBUTES,
        names: Sequence[str | None] = (),
        location: Location | None = None,
    ) -> tuple[Value, ...]:
        """Appends one op and returns its results. TypeRuleError when the operands don't fit."""
        definition = OPS[name]
        try:
            types = definition.infer(tuple(v.type for v in operands), attributes)
        except TypeRuleError as error:
            raise TypeRuleError(f"{name}: {error}", location) from None
        wanted = list(names) + [None] * (len(types) - len(names))
        results = tuple(Value(t, self.unique(n)) for t, n in zip(types, wanted, strict=True))
        self._ops.append(Op(definition, operands, attributes, results, location))
        return results

    def emit(
        self,
        name: str,
        *operands: Value,
        attributes: Attributes = NO_ATTRIBUTES,
        as_name: str | None = None,
        location: Location | None = None,
    ) -> Value:
        """:meth:`op` for an op with one result."""
        (result,) = self.op(name, *operands, attributes=attributes, names=(as_name,), location=location)
        return result

    def constant(self, value: Scalar, dtype: DType, device: str = "cpu") -> Value:
        """A 0-d constant; the same value, dtype and device give the same op."""
        key = (repr(value), dtype, device)
        if key not in self._constants:
            attributes = ConstantAttributes(value, dtype, device)
            self._constants[key] = self.emit("constant", attributes=attributes, as_name="const")
        return self._constants[key]

    def rename(self, value: Value, name: str) -> None:
        """Gives a value the name the user's source has for it, made unique."""
        object.__setattr__(value, "name", self.unique(name))

    @property
    def last_op(self) -> Op | None:
        return self._ops[-1] if self._ops else None

    def finish(self, outputs: Sequence[Value], output_ports: Sequence[Port] = ()) -> Graph:
        known = set(self._inputs) | {r for op in self._ops for r in op.results}
        for value in outputs:
            if value not in known:
                raise FusecError(f"output {value} was not made by this builder")
        return Graph(
            self.name, tuple(self._inputs), tuple(outputs), tuple(self._ops), tuple(self._ports), tuple(output_ports)
        )


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
