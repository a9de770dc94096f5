# SPDX-License-Identifier: Apache-2.0
"""Makes graphs op by op."""

from __future__ import annotations

from collections.abc import Sequence

from fusec.errors import FusecError, TypeRuleError
from fusec.ir.attributes import NO_ATTRIBUTES, Attributes, ConstantAttributes, Scalar
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Port, Value
from fusec.ir.ops import OPS
from fusec.ir.types import DType, TensorType
from fusec.location import Location


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
        self._producers: dict[Value, Op] = {}

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
        self._producers.update(dict.fromkeys(results, self._ops[-1]))
        return results

    def producer(self, value: Value) -> Op | None:
        """The op that makes a value; None for an input."""
        return self._producers.get(value)

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


def unused_name(base: str, taken: set[str]) -> str:
    """``base``, or with a number where another value has it; it is taken from then on."""
    name, number = base, 1
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return name
