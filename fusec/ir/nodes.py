# SPDX-License-Identifier: Apache-2.0
"""What graphs are made of: values and operations.

Nodes are immutable and compared by identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from fusec.ir.attributes import Attributes
from fusec.ir.definition import OpDef
from fusec.ir.types import Dim, TensorType
from fusec.location import Location

A = TypeVar("A", bound=Attributes)

InputRole = Literal["argument", "parameter", "state", "static", "integer"]
"""argument: given at each call. parameter: an nn.Module's parameter or buffer, by reference.
state: a tensor or array found in a closure, a global or an attribute, by reference.
static: any of these of which the user says that it stays: what is packed from it is kept.
integer: a plain integer of the call, which is the extent of an input that has no elements to read."""


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

    def expect(self, record: type[A]) -> A:
        """The attributes, of an op whose definition has this record."""
        assert isinstance(self.attributes, record), f"{self.name} has {type(self.attributes).__name__}"
        return self.attributes

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


class Region(Protocol):
    """What there is to print of a graph."""

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> Sequence[Value]: ...

    @property
    def outputs(self) -> Sequence[Value]: ...

    @property
    def ops(self) -> Sequence[Op]: ...

    @property
    def input_ports(self) -> Sequence[Port]: ...

    @property
    def output_ports(self) -> Sequence[Port]: ...


class RegionAttributes(Attributes):
    """The attributes of an op that holds a graph of its own."""

    def region(self) -> tuple[str, Region, Attributes | None]:
        """The word before the graph, the graph, and the attributes that are written behind it."""
        raise NotImplementedError
