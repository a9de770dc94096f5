# SPDX-License-Identifier: Apache-2.0
"""The graph of one NumPy capture, as it is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusec.errors import TypeRuleError, UnsupportedOpError
from fusec.frontend.counters import COUNTING
from fusec.frontend.source import user_location
from fusec.ir.attributes import NO_ATTRIBUTES, Attributes, CastAttributes, IotaAttributes, Scalar, ShapeAttributes
from fusec.ir.builder import Builder
from fusec.ir.nodes import Op, Value
from fusec.ir.types import DType
from fusec.location import Location


class ShapeRuleError(TypeRuleError, ValueError):
    """Shapes that do not fit, where NumPy raises ValueError."""


class Emitter:
    """Makes ops at the user's lines. ``site``: the line that they are made on behalf of, where it is another."""

    def __init__(self, name: str) -> None:
        self.builder = Builder(name)
        self.producers: dict[Value, Op] = {}
        self.site: Location | None = None

    def emit(self, name: str, *operands: Value, attributes: Attributes = NO_ATTRIBUTES) -> Value:
        """One op, at the user's line."""
        (result,) = self.emit_all(name, *operands, attributes=attributes)
        return result

    def emit_all(self, name: str, *operands: Value, attributes: Attributes = NO_ATTRIBUTES) -> tuple[Value, ...]:
        if (counting := COUNTING.get()) is not None:
            counting.before_call(len(self.builder))
        results = self.builder.op(name, *operands, attributes=attributes, location=self.location())
        op = self.builder.last_op
        assert op is not None
        for result in results:
            self.producers[result] = op
        return results

    def constant(self, value: Any, dtype: DType) -> Value:
        """A 0-d constant; the number is converted to the dtype as NumPy does."""
        if isinstance(value, complex | np.complexfloating) and dtype.kind not in ("complex", "bool"):
            raise self.unsupported("a cast of complex numbers that drops the imaginary part is not compiled")
        if dtype.kind == "float":
            number: Scalar = float(np.asarray(value).astype(dtype.numpy))
        elif dtype.kind == "complex":
            number = complex(np.asarray(value).astype(dtype.numpy))
        elif dtype.kind == "bool":
            number = bool(value)
        elif isinstance(value, int):
            number = int(np.asarray(value, dtype.numpy))  # OverflowError out of range, as NumPy raises
        else:
            number = int(np.asarray(value).astype(dtype.numpy))
        result = self.builder.constant(number, dtype)
        op = self.builder.last_op
        if op is not None and op.results == (result,):
            self.producers[result] = op
        return result

    def cast(self, value: Value, dtype: DType) -> Value:
        if value.type.dtype is dtype:
            return value
        if value.type.dtype.kind == "complex" and dtype.kind not in ("complex", "bool"):
            raise self.unsupported("a cast of complex numbers that drops the imaginary part is not compiled")
        return self.emit("cast", value, attributes=CastAttributes(dtype))

    def asked(self, value: Value, dtype: object) -> Value:
        """The result of a call with this ``dtype=``. Of a half type it is rounded there, as by a cast of the user's."""
        kind = value.type.dtype
        if dtype is None or not kind.is_float or kind.bits > 16:
            return value
        return self.emit("cast", value, attributes=CastAttributes(kind))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        if value.type.shape == tuple(shape):
            return value
        return self.emit("reshape", value, attributes=ShapeAttributes(tuple(shape)))

    def broadcast(self, value: Value, shape: Sequence[int]) -> Value:
        if value.type.shape == tuple(shape):
            return value
        try:
            return self.emit("broadcast", value, attributes=ShapeAttributes(tuple(shape)))
        except TypeRuleError as error:
            raise ShapeRuleError(str(error)) from None

    def iota(self, extent: int, dtype: DType, rank: int = 1, axis: int = 0) -> Value:
        """``0, 1, 2, ...`` along one axis of ``rank``, the others of extent 1."""
        shape = tuple(extent if i == axis else 1 for i in range(rank))
        return self.emit("iota", attributes=IotaAttributes(shape, axis, dtype))

    def binary(self, name: str, value: Value, number: Any) -> Value:
        """An op of a value and a number of its dtype."""
        return self.emit(name, value, self.constant(number, value.type.dtype))

    def fill_of(self, value: Value) -> Value | None:
        """The 0-d constant that every element of the value is, or None."""
        while True:
            op = self.producers.get(value)
            if op is None:
                return None
            if op.name == "constant":
                return value
            if op.definition.kind != "view":
                return None
            value = op.operands[0]

    def unsupported(self, what: str) -> UnsupportedOpError:
        return UnsupportedOpError(what, user_location())

    def location(self) -> Location | None:
        """The user's line; for what is made later on behalf of an earlier line, that one."""
        return self.site or user_location()
