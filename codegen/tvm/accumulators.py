# SPDX-License-Identifier: Apache-2.0
"""What a reduction adds up in: its operation on vectors, and the registers that loops update."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.casts import register_type
from fusec.codegen.tvm.math import exp, log1p
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.vector import Code
from fusec.ir.monoid import ReduceOp, monoid_of
from fusec.ir.types import DType


@dataclass(frozen=True, eq=False)
class Monoid:
    """A reduction's operation in registers; a bool is a byte here."""

    op: ReduceOp
    dtype: DType
    loose: bool = False

    @property
    def type(self) -> str:
        found = register_type(self.dtype)
        return "int8" if found == "bool" else found

    def identity(self, lanes: int) -> Value:
        return tir.constant(self.start(), self.type, lanes)

    def start(self) -> int | float:
        found = monoid_of(self.op).identity(self.dtype)
        return int(found) if isinstance(found, bool) else found

    def combine(self, code: Code, a: Value, b: Value) -> Value:
        """``b`` is the running result: what waits for it is kept short."""
        match self.op:
            case "sum":
                return code.add(a, b)
            case "prod":
                return code.mul(a, b)
            case "max" | "min" if self.loose:
                chosen = code.compare("gt" if self.op == "max" else "lt", a, b)
                return code.select(chosen, a, b)
            case "max":
                return code.greater(a, b)
            case "min":
                return code.lesser(a, b)
            case "any":
                return code.bitwise("bitwise_or", a, b)
            case "all":
                return code.bitwise("bitwise_and", a, b)
            case "logaddexp":
                return _log_of_sum(code, a, b)


def _log_of_sum(code: Code, a: Value, b: Value) -> Value:
    """``log(exp(a) + exp(b))``. Of two infinities alike it is that infinity: their distance counts as 0."""
    apart = code.select(code.compare("eq", a, b), code.constant(a, 0.0), code.neg(code.abs(code.sub(a, b))))
    return code.add(code.greater(a, b), log1p(code, exp(code, apart)))


class Registers:
    """Vector variables that loops update."""

    def __init__(self, code: Code, monoid: Monoid, lanes: int, count: int) -> None:
        self.monoid, self.lanes = monoid, lanes
        self.buffers: list[Node] = []
        for _ in range(count):
            buffer, allocate = tir.registers(code.fresh("acc"), monoid.type, lanes)
            self.buffers.append(buffer)
            code.append(allocate)

    def read(self, number: int) -> Value:
        zero = tir.integer(0)
        return Value(tirx.BufferLoad(self.buffers[number], [zero]), self.monoid.type, self.lanes)

    def write(self, code: Code, number: int, value: Value) -> None:
        code.append(tirx.BufferStore(self.buffers[number], tir.widen(value, self.lanes).node, [tir.integer(0)]))

    def clear(self, code: Code) -> None:
        for i in range(len(self.buffers)):
            self.write(code, i, self.monoid.identity(self.lanes))

    def update(self, code: Code, number: int, value: Value) -> None:
        old = code.let(self.read(number), "old")
        self.write(code, number, self.monoid.combine(code, tir.widen(value, self.lanes), old))


def across(code: Code, monoid: Monoid, value: Value) -> Value:
    """All lanes of a vector combined, by halves."""
    while value.lanes > 1:
        half = value.lanes // 2
        low, high = code.let(tir.part(value, 0, half)), code.let(tir.part(value, half, half))
        value = monoid.combine(code, low, high)
    return value
