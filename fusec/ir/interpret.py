# SPDX-License-Identifier: Apache-2.0
"""Runs a graph in NumPy: the oracle for every pass and every backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from fusec.errors import FusecError, SignatureError, VerifyError
from fusec.ir.attributes import Attributes, ExternAttributes
from fusec.ir.definition import Array
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.index import Expr, Symbol, bounds
from fusec.ir.indexing import evaluate
from fusec.ir.nodes import Op, Value
from fusec.ir.print import symbols_in
from fusec.ir.types import DType, TensorType, c128, f64

Extern = Callable[[ExternAttributes, Sequence[Array]], Sequence[Array]]
"""Runs a library call: its attributes and operands to its results."""


def interpret(
    graph: Graph,
    inputs: Sequence[Array],
    *,
    float64: bool = False,
    bindings: Mapping[str, int] | None = None,
    extern: Extern | None = None,
) -> list[Array]:
    """The graph's outputs for these inputs, in order; no input is changed.

    Each op is run by its reference in its own dtype. With ``float64`` every float array is float64 from the
    inputs on and casts to floats don't round, so the outputs differ from exact arithmetic by float64's error.
    Symbols take their values from the inputs' shapes and from ``bindings``. ``extern`` runs library calls.

    Raises SignatureError when the inputs do not fit, FusecError for an extern op without ``extern``.
    """
    arrays = [np.asarray(a) for a in inputs]
    values = _bind(graph, arrays, bindings or {})
    if float64:
        arrays = [_as_float64(a) for a in arrays]
    return _Interpreter(values, float64, extern).run(graph, arrays)


class _Interpreter:
    def __init__(self, symbols: Mapping[str, int], float64: bool, extern: Extern | None) -> None:
        self.symbols = symbols
        self.float64 = float64
        self.extern = extern

    def run(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        known: dict[Value, Array] = dict(zip(graph.inputs, inputs, strict=True))
        last = {value: n for n, op in enumerate(graph.ops) for value in op.operands}
        outputs = set(graph.outputs)
        for n, op in enumerate(graph.ops):
            results = self.results(op, [known[v] for v in op.operands])
            known.update(zip(op.results, results, strict=True))
            for value in set(op.operands) - outputs:
                if last[value] == n:
                    del known[value]
        return [known[v] for v in graph.outputs]

    def results(self, op: Op, operands: list[Array]) -> Sequence[Array]:
        attributes = self.concrete(op.attributes)
        if isinstance(attributes, FusedAttributes):
            return self.run(attributes.body, operands)
        if isinstance(attributes, ExternAttributes):
            if self.extern is None:
                raise FusecError(f"extern {attributes.target} needs the 'extern' function to be run", op.location)
            results = [np.asarray(a) for a in self.extern(attributes, operands)]
        else:
            results = list(op.definition.reference(operands, attributes))
        for value, array in zip(op.results, results, strict=True):
            self.check(op, value.type, array)
        return results

    def check(self, op: Op, wanted: TensorType, array: Array) -> None:
        shape = tuple(evaluate(d, self.symbols) for d in wanted.shape)
        if array.shape != shape or (not self.float64 and array.dtype != wanted.dtype.numpy):
            raise VerifyError(f"the reference of {op!r} gives {array.dtype}{list(array.shape)}, not {wanted}")

    def concrete(self, attributes: Attributes) -> Attributes:
        """The attributes with symbols bound and, for float64, with float dtypes widened."""
        if isinstance(attributes, FusedAttributes):
            return attributes
        changed: dict[str, object] = {}
        for field in fields(attributes):
            old: object = getattr(attributes, field.name)
            new = self.concrete_value(old)
            if new is not old:
                changed[field.name] = new
        return replace(attributes, **changed) if changed else attributes

    def concrete_value(self, value: object) -> object:
        match value:
            case Expr():
                return evaluate(value, self.symbols)
            case DType() if self.float64:
                return {"float": f64, "complex": c128}.get(value.kind, value)
            case tuple() if any(isinstance(item, Expr) for item in value):
                return tuple(self.concrete_value(item) for item in value)
        return value


def _as_float64(array: Array) -> Array:
    if array.dtype.kind == "c":
        return array.astype(np.complex128, copy=False)
    return array if array.dtype.kind in "biu" else array.astype(np.float64, copy=False)


def _bind(graph: Graph, arrays: Sequence[Array], given: Mapping[str, int]) -> dict[str, int]:
    """The value of each symbol. SignatureError when an input doesn't fit or a symbol stays unknown."""
    if len(arrays) != len(graph.inputs):
        raise SignatureError(f"@{graph.name} takes {len(graph.inputs)} inputs, got {len(arrays)}")
    values = dict(given)
    for value, array in zip(graph.inputs, arrays):
        if array.dtype != value.type.dtype.numpy or array.ndim != value.type.rank:
            raise SignatureError(f"input {value} must be {value.type}, got {array.dtype}{list(array.shape)}")
        for extent, size in zip(value.type.shape, array.shape):
            if isinstance(extent, Symbol):
                values.setdefault(extent.name, size)
    for s in symbols_in(graph):
        _check_symbol(graph, s, values)
    for value, array in zip(graph.inputs, arrays):
        shape = tuple(evaluate(d, values) for d in value.type.shape)
        if shape != array.shape:
            raise SignatureError(f"input {value} must be {value.type}, got shape {list(array.shape)}")
    return values


def _check_symbol(graph: Graph, s: Symbol, values: Mapping[str, int]) -> None:
    if s.name not in values:
        raise SignatureError(f"@{graph.name}: no input gives the value of {s.name}; pass it in bindings")
    value = values[s.name]
    low, high = bounds(s)
    if (low is not None and value < low) or (high is not None and value > high):
        raise SignatureError(f"@{graph.name}: {s.name} is {value}, out of its range [{low}, {high}]")
