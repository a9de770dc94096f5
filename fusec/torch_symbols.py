# SPDX-License-Identifier: Apache-2.0
"""The symbolic sizes of an FX graph, as Dynamo noted them on its inputs, and the ranges that one program may serve.

A size among the graph's inputs is an extent of a tensor among them, or made of such: it is read from the shapes, so
that the graph is a function of its tensors alone, and sizes among its results are worked out from the shapes too.
Dynamo's guards hold at each call, so nothing is asked about the extents but which the samples show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.utils._sympy import functions

from fusec.errors import DimensionError
from fusec.frontend.generalise import MOST_SYMBOLS
from fusec.ir.index import Index, Symbol, add, floordiv, maximum, minimum, mod, mul, symbol, symbols_of
from fusec.ir.indexing import evaluate, substitute
from fusec.ir.types import Dim, contiguous_strides
from fusec.runtime.arrays import Layout
from fusec.runtime.code import Scope, make_function, spell, variable_of
from fusec.runtime.dynamic import LEAST, ROOM, Opening, reach, symbols_in

Extents = Mapping[str, int]


@dataclass(frozen=True)
class Sizes:
    """How the inputs and results of a graph hang on its symbols.

    symbols: each with the range that Dynamo knows, as far as it has ends. read_at: the tensor (among the tensors of the
    inputs) and the axis that each symbol is read from. taken: the positions of inputs that are no sizes. tensors: which
    of those are tensors. numbers: the sizes among the inputs, by position. shapes, strides: of each tensor. results:
    the sizes among the results, by position.
    """

    symbols: tuple[Symbol, ...]
    read_at: Mapping[str, tuple[int, int]]
    taken: tuple[int, ...]
    tensors: tuple[int, ...]
    numbers: Mapping[int, Index]
    shapes: tuple[tuple[Dim, ...], ...]
    strides: tuple[tuple[Dim, ...], ...]
    results: Mapping[int, Index]

    def values(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """Each symbol's value where the tensors have these shapes."""
        return {name: shapes[tensor][axis] for name, (tensor, axis) in self.read_at.items()}

    def openings(self, seen: Sequence[Sequence[Layout]]) -> Iterator[Opening]:
        """The ranges to try one program for, after such calls: of all symbols, then of those that changed.

        Each reaches some times the largest extent seen, and, if that can't be, as far as that extent.
        """
        values = [self.values([layout.type.static_shape for layout in row]) for row in seen]
        changed = tuple(s for s in self.symbols if len({row[s.name] for row in values}) > 1)
        tried: list[Opening] = []
        for opened in (self.symbols, changed):
            for room in (ROOM, 1):
                opening = self._opening(opened, values, room)
                if len(opened) <= MOST_SYMBOLS and opening not in tried and self._fits(opening, seen[-1], values[-1]):
                    tried.append(opening)
                    yield opening

    def _opening(self, opened: Sequence[Symbol], values: Sequence[Extents], room: int) -> Opening:
        ranges: dict[str, Index] = dict(values[-1])
        for s in opened:
            most_seen = max(row[s.name] for row in values)
            low, high = max(s.lo or 0, LEAST), reach(most_seen, room)
            if isinstance(s.hi, int):
                high = max(min(high, s.hi), most_seen)
            if values[-1][s.name] >= low and high > low:
                ranges[s.name] = symbol(s.name, low, high)
        shapes = [tuple(_at(n, ranges) for n in shape) for shape in self.shapes]
        strides = [tuple(_at(n, ranges) for n in row) for row in self.strides]
        steps = {k: row for k, row in enumerate(strides) if row != contiguous_strides(shapes[k])}
        return Opening(tuple(shapes), steps)

    def _fits(self, opening: Opening, layouts: Sequence[Layout], now: Extents) -> bool:
        """Whether anything is symbolic, and the tensors of this call lie as Dynamo noted."""
        if not symbols_in(opening.shapes):
            return False
        for k, (layout, shape) in enumerate(zip(layouts, opening.shapes, strict=True)):
            strides = opening.steps.get(k, contiguous_strides(shape))
            if layout.type.static_shape != tuple(evaluate(n, now) for n in shape):
                return False
            if layout.strides != tuple(evaluate(n, now) for n in strides):
                return False
        return True


def sizes_of(module: fx.GraphModule) -> Sizes | None:
    """The symbolic sizes of a graph; None where it has none. DimensionError where shapes do not tell all of them."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    noted = [_noted(node) for node in placeholders]
    if not any(_is_symbolic(value) for value in noted):
        return None
    reader = _Reader()
    tensors = [value for value in noted if isinstance(value, torch.Tensor)]
    for number, tensor in enumerate(tensors):
        reader.tensor(number, tensor)
    sizes = {k: value for k, value in enumerate(noted) if isinstance(value, torch.SymInt)}
    taken = [k for k in range(len(noted)) if k not in sizes]
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    (given,) = output.args
    results = dict(enumerate(given)) if isinstance(given, tuple | list) else {}
    returned = {k: _noted(node) for k, node in results.items() if isinstance(node, fx.Node)}
    if any(isinstance(v, torch.SymFloat | torch.SymBool) for v in (*noted, *returned.values(), _noted(given))):
        raise DimensionError("a number that changes is no extent")
    if isinstance(_noted(given), torch.SymInt):
        raise DimensionError("its only result is a size")
    return Sizes(
        tuple(reader.symbols.values()),
        reader.read_at,
        tuple(taken),
        tuple(number for number, k in enumerate(taken) if isinstance(noted[k], torch.Tensor)),
        {k: reader.read(value) for k, value in sizes.items()},
        tuple(tuple(map(reader.read, t.shape)) for t in tensors),
        tuple(tuple(map(reader.read, t.stride())) for t in tensors),
        {k: reader.read(value) for k, value in returned.items() if isinstance(value, torch.SymInt)},
    )


def _noted(node: Any) -> Any:
    """What Dynamo or AOTAutograd noted as a node's result."""
    meta = getattr(node, "meta", {})
    return meta.get("example_value", meta.get("val"))


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in value.shape)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


class _Reader:
    """Turns PyTorch's expressions into ours."""

    def __init__(self) -> None:
        self.symbols: dict[Any, Symbol] = {}
        self.read_at: dict[str, tuple[int, int]] = {}

    def tensor(self, number: int, tensor: torch.Tensor) -> None:
        """Notes the symbols that are extents of a tensor by themselves."""
        for axis, extent in enumerate(tensor.shape):
            if isinstance(extent, torch.SymInt) and isinstance(extent.node.expr, sympy.Symbol):
                known = extent.node.expr
                if known not in self.symbols:
                    made = symbol(str(known), *_ends(extent, known))
                    self.symbols[known] = made
                    self.read_at[made.name] = (number, axis)

    def read(self, extent: int | torch.SymInt) -> Index:
        return self.index(extent.node.expr) if isinstance(extent, torch.SymInt) else extent

    def index(self, expr: Any) -> Index:
        """DimensionError for an expression that shapes do not tell."""
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if isinstance(expr, sympy.Symbol):
            if expr not in self.symbols:
                raise DimensionError(f"the size {expr} is no extent of an array among the inputs")
            return self.symbols[expr]
        if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
            return _joined(mul, [self.index(expr.base)] * int(expr.exp))
        for kind, join in _KINDS:
            if isinstance(expr, kind):
                return _joined(join, [self.index(part) for part in expr.args])
        raise DimensionError(f"the size {expr} is no sum, product or quotient of extents")


_KINDS: tuple[tuple[Any, Callable[[Index, Index], Index]], ...] = (
    (sympy.Add, add),
    (sympy.Mul, mul),
    (functions.FloorDiv, floordiv),
    (functions.CleanDiv, floordiv),
    (functions.Mod, mod),
    (functions.PythonMod, mod),
    (functions.Max, maximum),
    (functions.Min, minimum),
)


def _joined(join: Callable[[Index, Index], Index], parts: Sequence[Index]) -> Index:
    result = parts[0]
    for part in parts[1:]:
        result = join(result, part)
    return result


def _ends(extent: torch.SymInt, known: Any) -> tuple[int, int | None]:
    """What Dynamo knows of a symbol's range."""
    found = extent.node.shape_env.var_to_range.get(known)
    lower, upper = (found.lower, found.upper) if found is not None else (LEAST, None)
    low = int(lower) if isinstance(lower, int | sympy.Integer) else LEAST
    return low, int(upper) if isinstance(upper, int | sympy.Integer) else None


def _at(extent: Dim, ranges: Mapping[str, Index]) -> Dim:
    return substitute(extent, {s: ranges[s.name] for s in symbols_of(extent)})


# Calls


class SizedGraph:
    """An FX graph as a function of those of its inputs that are no sizes, without the sizes among its results.

    arguments: from the inputs that are no sizes to all of them. without: a result less its sizes. together: a whole
    result, from that and the inputs that are no sizes.
    """

    def __init__(self, module: fx.GraphModule, sizes: Sizes) -> None:
        self.module = module
        self.sizes = sizes
        self.arguments = self._write("arguments", (), [f"return ({''.join(f'{part}, ' for part in self._inputs())})"])
        output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
        (given,) = output.args
        self.without: Callable[[Any], Any] = _same
        self.together: Callable[..., Any] | None = None
        if sizes.results:
            rest = [k for k in range(len(given)) if k not in sizes.results]
            self.without = lambda result: tuple(result[k] for k in rest)
            read_at = {k: f"result[{number}]" for number, k in enumerate(rest)}
            parts = [read_at[k] if k in read_at else spell(sizes.results[k]) for k in range(len(given))]
            self.together = self._write("together", ("result",), [f"return ({''.join(f'{p}, ' for p in parts)})"])

    def __call__(self, *taken: Any) -> Any:
        return self.without(self.module(*self.arguments(*taken)))

    def _inputs(self) -> list[str]:
        count = len(self.sizes.taken) + len(self.sizes.numbers)
        names = {position: f"a{number}" for number, position in enumerate(self.sizes.taken)}
        return [names[k] if k in names else spell(self.sizes.numbers[k]) for k in range(count)]

    def _write(self, name: str, first: tuple[str, ...], lines: Sequence[str]) -> Callable[..., Any]:
        """A function of the inputs that are no sizes, with the symbols' values at hand."""
        parameters = [f"a{number}" for number in range(len(self.sizes.taken))]
        tensors = [parameters[number] for number in self.sizes.tensors]
        reads = [
            f"{variable_of(s)} = {tensors[tensor]}.shape[{axis}]"
            for s in self.sizes.symbols
            for tensor, axis in [self.sizes.read_at[s.name]]
        ]
        return make_function(name, [*first, *parameters], [*reads, *lines], Scope())


def _same(result: Any) -> Any:
    return result
