"""Random small graphs over the op set, for differential tests: the same seed gives the same graph."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from random_values import MOST_ELEMENTS, RandomValues, Shape

from fusec.ir.attributes import (
    ArgReduceAttributes,
    AxisAttributes,
    CastAttributes,
    ConcatAttributes,
    DotAttributes,
    ExternAttributes,
    GatherAttributes,
    IotaAttributes,
    NormAttributes,
    PadAttributes,
    PermuteAttributes,
    ReduceAttributes,
    ScanAttributes,
    ShapeAttributes,
    SliceAttributes,
    StridedAttributes,
    VarAttributes,
    WindowsAttributes,
)
from fusec.ir.graph import Graph
from fusec.ir.nodes import Port, Value
from fusec.ir.types import bf16, bool_, contiguous_strides, f16, f32, f64, i32, i64
from fusec.passes.outputs import input_strides
from fusec.tile.views import strided_view

"""No value of a random graph is larger."""

TAME_UNARY = ("neg", "abs", "tanh", "sin", "cos", "erf", "copy", "sigmoid", "relu", "atan")
WILD_UNARY = ("exp", "log", "sqrt", "rsqrt", "expm1", "log1p", "sinh", "asin", "silu", "softplus")
TAME_BINARY = ("add", "sub", "mul", "maximum", "minimum", "fmax", "fmin")
WILD_BINARY = ("div", "hypot", "atan2")
INTEGER_BINARY = ("add", "sub", "mul", "maximum", "minimum", "floordiv", "remainder", "bitwise_and", "bitwise_xor")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class RandomGraph(RandomValues):
    """Builds one graph."""

    def __init__(self, seed: int, ops: int | None = None) -> None:
        super().__init__(seed)
        for _ in range(ops if ops is not None else self.rng.randint(1, 14)):
            self.step()
        self.graph = self.finish()

    # steps

    def step(self) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.unary, 10),
            (self.binary, 16),
            (self.compare_and_select, 5),
            (self.hidden_sum, 2),
            (self.convert, 3),
            (self.integer, 3),
            (self.reduce, 8),
            (self.norm, 5),
            (self.view, 16),
            (self.join, 3),
            (self.pad, 2),
            (self.gather, 3),
            (self.product, 8),
            (self.attention, 3),
            (self.iota, 1),
            (self.rare, 1),
        ]
        self.rng.choices([s for s, _ in steps], [w for _, w in steps])[0]()

    def unary(self) -> None:
        x = self.floats()
        if x is not None:
            self.emit(self.rng.choice(TAME_UNARY + (WILD_UNARY if self.wild else ())), x)

    def binary(self) -> None:
        x = self.floats()
        if x is None:
            return
        y = self.partner(x)
        name = self.rng.choice(TAME_BINARY + (WILD_BINARY if self.wild else ()))
        self.emit(name, *((x, y) if self.rng.random() < 0.7 else (y, x)))

    def compare_and_select(self) -> None:
        x = self.floats()
        if x is None:
            return
        condition = self.pick(dtype=bool_, where=lambda v: self.fits(v.type.static_shape, x.type.static_shape))
        if condition is None or self.rng.random() < 0.5:
            left = self.pick(where=lambda v: v in self.exact and self.fits(v.type.static_shape, x.type.static_shape))
            if left is None or left.type.dtype == bool_:
                return
            right = self.partner(left)
            if right not in self.exact:
                return
            condition = self.emit(self.rng.choice(COMPARISONS), left, right)
        if not self.fits(condition.type.static_shape, x.type.static_shape):
            return
        y = self.partner(x)
        shapes = [v.type.static_shape for v in (condition, x, y)]
        try:
            if not self.room(np.broadcast_shapes(*shapes)):
                return
        except ValueError:
            return
        self.emit("select", condition, x, y)

    def hidden_sum(self) -> None:
        """A sum of products, some linear arithmetic and views, and a mask, perhaps of another rank, that shows it."""
        x = self.floats(lambda v: v.type.rank > 0)
        if x is None:
            return
        terms = self.emit("mul", x, self.partner(x))
        found = self.emit("reduce_sum", terms, attributes=ReduceAttributes(self.axes(terms)))
        for _ in range(self.rng.randint(0, 2)):
            match self.rng.choice(["scale", "reshape", "permute"]):
                case "scale":
                    found = self.emit("mul", found, self.builder.constant(0.5, found.type.dtype))
                case "reshape":
                    shape = self.regrouped(found.type.static_shape)
                    found = self.emit("reshape", found, attributes=ShapeAttributes(shape))
                case _:
                    order = self.rng.sample(range(found.type.rank), found.type.rank)
                    found = self.emit("permute", found, attributes=PermuteAttributes(tuple(order)))
        shape = tuple(self.rng.choice([1, n]) for n in found.type.static_shape)[self.rng.choice([0, 0, 1]) :]
        front = tuple(self.rng.choice([1, *self.extents]) for _ in range(self.rng.choice([0, 0, 1, 2])))
        if not self.room((*front, *found.type.static_shape)):
            return
        mask = self.new_input(bool_, (*front, *shape) if len(shape) == found.type.rank else shape)
        hidden = self.builder.constant(self.rng.choice([0.0, 2.5]), found.type.dtype)
        self.emit("select", mask, *((found, hidden) if self.rng.random() < 0.6 else (hidden, found)))

    def convert(self) -> None:
        x = self.floats()
        if x is not None:
            target = self.rng.choice([f32, f64] if self.wild else [f32, f32, f64, f16, bf16])
            self.emit("cast", x, attributes=CastAttributes(target))

    def integer(self) -> None:
        x = self.pick(where=lambda v: v.type.dtype.is_integer)
        if x is None or self.rng.random() < 0.3:
            x = self.new_input(self.rng.choice([i32, i64]))
        y = self.partner(x)
        made = self.emit(self.rng.choice(INTEGER_BINARY), x, y)
        if self.rng.random() < 0.5:
            self.emit("cast", made, attributes=CastAttributes(self.float))

    def axes(self, value: Value) -> tuple[int, ...]:
        count = self.rng.choices([1, 2, 3, 0], [8, 3, 1, 1])[0]
        return tuple(sorted(self.rng.sample(range(value.type.rank), min(count, value.type.rank))))

    def reduce(self) -> None:
        x = self.pick(where=lambda v: v.type.rank > 0)
        if x is None:
            return
        axes = self.axes(x)
        if x.type.dtype == bool_:
            name = self.rng.choice(["reduce_any", "reduce_all"])
        else:
            names = ["reduce_sum", "reduce_max", "reduce_min"] + (["reduce_prod"] if self.wild else [])
            name = self.rng.choice(names)
        if name in ("reduce_max", "reduce_min") and any(x.type.shape[a] == 0 for a in axes):
            return
        made = self.emit(name, x, attributes=ReduceAttributes(axes))
        if self.rng.random() < 0.6:
            kept = tuple(1 if a in axes else n for a, n in enumerate(x.type.static_shape))
            back = self.emit("reshape", made, attributes=ShapeAttributes(kept))
            if x.type.dtype.is_float and self.rng.random() < 0.7:
                self.emit(self.rng.choice(["sub", "mul", "add"]), x, back)

    def norm(self) -> None:
        x = self.floats(lambda v: v.type.rank > 0)
        if x is None:
            return
        axis = self.rng.randrange(x.type.rank)
        match self.rng.choice(["softmax", "log_softmax", "mean", "var", "layer_norm", "rms_norm"]):
            case "softmax" | "log_softmax" as name:
                self.emit(name, x, attributes=AxisAttributes(axis))
            case "mean":
                self.emit("mean", x, attributes=ReduceAttributes(self.axes(x)))
            case "var":
                self.emit("var", x, attributes=VarAttributes(self.axes(x), self.rng.choice([0.0, 1.0])))
            case name:
                first = self.rng.randrange(x.type.rank)
                kept = x.type.static_shape[first:]
                affine = [self.new_input(x.type.dtype, kept) for _ in range(self.rng.randint(0, 2))]
                if name == "rms_norm":
                    affine = affine[:1]
                attributes = NormAttributes(tuple(range(first, x.type.rank)), 1e-3)
                self.emit(name, x, *affine, attributes=attributes)

    def view(self) -> None:
        x = self.pick()
        if x is None:
            return
        shape = x.type.static_shape
        match self.rng.choice(["permute", "permute", "reshape", "reshape", "broadcast", "slice", "strided", "windows"]):
            case "permute":
                order = list(range(len(shape)))
                self.rng.shuffle(order)
                self.emit("permute", x, attributes=PermuteAttributes(tuple(order)))
            case "reshape":
                self.emit("reshape", x, attributes=ShapeAttributes(self.regrouped(shape)))
            case "broadcast":
                wide = tuple(self.rng.choice(self.extents) if n == 1 else n for n in shape)
                front = (self.rng.choice(self.extents),) if self.rng.random() < 0.4 else ()
                if self.room((*front, *wide)):
                    self.emit("broadcast", x, attributes=ShapeAttributes((*front, *wide)))
            case "slice":
                self.slice(x)
            case "strided":
                self.strided(x)
            case _:
                self.windows(x)

    def regrouped(self, shape: Shape) -> Shape:
        """Another shape of the same size: axes merged, split, or ones added and removed."""
        dims = list(shape)
        for _ in range(self.rng.randint(1, 3)):
            k = self.rng.randrange(len(dims) + 1)
            choice = self.rng.random()
            if choice < 0.4 and k + 1 < len(dims):
                dims[k : k + 2] = [dims[k] * dims[k + 1]]
            elif choice < 0.7 and k < len(dims) and dims[k] > 1:
                factors = [f for f in range(2, dims[k]) if dims[k] % f == 0]
                if factors:
                    f = self.rng.choice(factors)
                    dims[k : k + 1] = [f, dims[k] // f]
            elif choice < 0.85:
                dims.insert(k, 1)
            elif k < len(dims) and dims[k] == 1:
                del dims[k]
        return tuple(dims)

    def slice(self, x: Value) -> None:
        starts, stops, steps = [], [], []
        for n in x.type.static_shape:
            choice = self.rng.random()
            if choice < 0.4 or n == 0:
                triple = (0, n, 1)
            elif choice < 0.55:
                triple = (n - 1, -1, -self.rng.choice([1, 1, 2]))
            else:
                low = self.rng.randrange(n)
                triple = (low, self.rng.randint(low, n), self.rng.choice([1, 1, 2, 3]))
            starts.append(triple[0])
            stops.append(triple[1])
            steps.append(triple[2])
        self.emit("slice", x, attributes=SliceAttributes(tuple(starts), tuple(stops), tuple(steps)))

    def strided(self, x: Value) -> None:
        size = x.type.size
        if size == 0:
            return
        offset = self.rng.randrange(size)
        left = size - 1 - offset
        shape, strides = [], []
        for _ in range(self.rng.randint(1, 3)):
            stride = self.rng.choice([0, 1, 1, 2, 3, 7])
            n = min(self.rng.choice([n for n in self.extents if n]), left // stride + 1 if stride else 5)
            left -= (n - 1) * stride
            shape.append(n)
            strides.append(stride)
        self.emit("strided", x, attributes=StridedAttributes(tuple(shape), tuple(strides), offset))

    def windows(self, x: Value) -> None:
        axes = [a for a, n in enumerate(x.type.static_shape) if n >= 2]
        if not axes:
            return
        axis = self.rng.choice(axes)
        n = x.type.static_shape[axis]
        size = self.rng.randint(1, min(n, 6))
        if x.type.size * size <= MOST_ELEMENTS:
            self.emit("windows", x, attributes=WindowsAttributes(axis, size, self.rng.choice([1, 1, 2])))

    def join(self) -> None:
        x = self.pick(where=lambda v: v.type.rank > 0)
        if x is None:
            return
        axis = self.rng.randrange(x.type.rank)
        pieces = [x]
        for _ in range(self.rng.randint(0, 2)):
            same = self.pick(dtype=x.type.dtype, where=lambda v: self.joins(x, v, axis))
            pieces.append(same if same is not None else x)
        self.rng.shuffle(pieces)
        if sum(p.type.size for p in pieces) <= MOST_ELEMENTS:
            self.emit("concat", *pieces, attributes=ConcatAttributes(axis))

    def joins(self, a: Value, b: Value, axis: int) -> bool:
        left, right = a.type.shape, b.type.shape
        return len(left) == len(right) and all(m == n for k, (m, n) in enumerate(zip(left, right)) if k != axis)

    def pad(self) -> None:
        x = self.floats(lambda v: v.type.rank > 0)
        if x is None:
            return
        low = tuple(self.rng.choice([0, 0, 1, 3]) for _ in x.type.shape)
        high = tuple(self.rng.choice([0, 0, 1, 2]) for _ in x.type.shape)
        shape = tuple(a + n + b for a, n, b in zip(low, x.type.static_shape, high))
        if self.room(shape):
            fill = self.builder.constant(self.rng.choice([0.0, -1.0, float("-inf")]), x.type.dtype)
            self.exact.add(fill)
            self.emit("pad", x, fill, attributes=PadAttributes(low, high))

    def gather(self) -> None:
        x = self.pick(where=lambda v: v.type.rank > 0)
        if x is None:
            return
        axis = self.rng.randrange(x.type.rank)
        n = x.type.static_shape[axis]
        if n == 0:
            return
        if self.rng.random() < 0.6:
            index = self.new_input(self.rng.choice([i64, i32]), self.shape(0, 2), n)
            shape = (*x.type.static_shape[:axis], *index.type.static_shape, *x.type.static_shape[axis + 1 :])
            if self.room(shape):
                self.emit("gather", x, index, attributes=GatherAttributes(axis))
            return
        shape = tuple(self.rng.choice(self.extents) if a == axis else m for a, m in enumerate(x.type.static_shape))
        if self.room(shape):
            index = self.new_input(i64, shape, n)
            self.emit("gather_elements", x, index, attributes=GatherAttributes(axis))

    def product(self) -> None:
        x = self.floats(lambda v: v.type.rank > 0)
        if x is None:
            return
        shape = x.type.static_shape
        rank = len(shape)
        order = list(range(rank))
        self.rng.shuffle(order)
        contract = order[: self.rng.choices([1, 2, 0], [8, 1, 1])[0]]
        rest = order[len(contract) :]
        batch = rest[: self.rng.choices([0, 1, 2], [5, 3, 1])[0]]
        free = [self.rng.choice(self.extents) for _ in range(self.rng.choices([1, 0, 2], [6, 1, 2])[0])]
        roles = [("b", a) for a in batch] + [("c", a) for a in contract] + [("f", k) for k in range(len(free))]
        self.rng.shuffle(roles)
        other = tuple(free[k] if role == "f" else shape[k] for role, k in roles)
        places = {role: i for i, role in enumerate(roles)}
        size = prod(shape) // max(prod(shape[a] for a in contract), 1) * prod(free)
        if not self.room(other) or size > MOST_ELEMENTS:
            return
        y = self.pick(dtype=x.type.dtype, where=lambda v: v.type.static_shape == other) or self.new_input(
            x.type.dtype, other
        )
        rhs_contract = tuple(places["c", a] for a in contract)
        rhs_batch = tuple(places["b", a] for a in batch)
        if self.rng.random() < 0.7:
            attributes = DotAttributes(tuple(contract), rhs_contract, tuple(batch), rhs_batch)
            made = self.emit("dot", x, y, attributes=attributes)
        else:
            attributes = DotAttributes(rhs_contract, tuple(contract), rhs_batch, tuple(batch))
            made = self.emit("dot", y, x, attributes=attributes)
        if self.rng.random() < 0.4:
            self.emit("mul", made, self.builder.constant(0.25, made.type.dtype))

    def attention(self) -> None:
        heads = self.shape(0, 2)
        queries, keys = self.rng.choice([1, 5, 17, 33]), self.rng.choice([1, 3, 17, 40])
        depth, values = self.rng.choice([1, 4, 8, 15]), self.rng.choice([1, 4, 7, 16])
        if prod(heads) * queries * keys > MOST_ELEMENTS:
            return
        nb = len(heads)
        q = self.new_input(self.float, (*heads, queries, depth))
        k = self.new_input(self.float, (*heads, keys, depth))
        v = self.new_input(self.float, (*heads, keys, values))
        axes = tuple(range(nb))
        scores = self.emit("dot", q, k, attributes=DotAttributes((nb + 1,), (nb + 1,), axes, axes))
        for _ in range(self.rng.randint(0, 3)):
            scores = self.score_change(scores)
        weights = self.emit("softmax", scores, attributes=AxisAttributes(nb + 1))
        if self.rng.random() < 0.1:
            weights = self.emit("mul", weights, self.builder.constant(0.5, self.float))
        self.emit("dot", weights, v, attributes=DotAttributes((nb + 1,), (nb,), axes, axes))

    def score_change(self, scores: Value) -> Value:
        shape = scores.type.static_shape
        match self.rng.choice(["scale", "tanh", "causal", "window", "bias", "mask", "data"]):
            case "scale":
                return self.emit("mul", scores, self.builder.constant(0.3, scores.type.dtype))
            case "tanh":
                return self.emit("tanh", scores)
            case "bias":
                return self.emit("add", scores, self.new_input(scores.type.dtype, shape[-2:]))
            case "data" | "mask":
                mask = self.new_input(bool_, shape[self.rng.randint(0, len(shape) - 1) :])
            case name:
                i = self.builder.emit("iota", attributes=IotaAttributes((shape[-2], 1), 0, i64))
                j = self.builder.emit("iota", attributes=IotaAttributes((1, shape[-1]), 1, i64))
                if name == "window":
                    j = self.builder.emit("add", j, self.builder.constant(self.rng.choice([-3, 2, 9]), i64))
                mask = self.builder.emit(self.rng.choice(["le", "lt", "ge"]), j, i)
        fill = self.rng.choice([float("-inf"), -1e30 if scores.type.dtype != f16 else -6e4])
        return self.emit("select", mask, scores, self.builder.constant(fill, scores.type.dtype))

    def iota(self) -> None:
        shape = self.shape(1, 3)
        dtype = self.rng.choice([i64, i32, self.float])
        axis = self.rng.randrange(len(shape))
        self.emit("iota", attributes=IotaAttributes(shape, axis, dtype))

    def rare(self) -> None:
        x = self.floats(lambda v: v.type.rank > 0 and v.type.dtype in (f32, f64) and 0 not in v.type.shape)
        if x is None:
            return
        axis = self.rng.randrange(x.type.rank)
        match self.rng.choice(["argmax", "cumsum", "sort"]):
            case "argmax":
                if x in self.exact:
                    self.emit("argmax", x, attributes=ArgReduceAttributes(axis))
            case "cumsum":
                self.emit("cumsum", x, attributes=ScanAttributes(axis))
            case _:
                attributes = ExternAttributes("numpy.sort", f"(($0,), {{'axis': {axis}}})", (x.type,))
                self.emit("extern", x, attributes=attributes)

    # outputs

    def finish(self) -> Graph:
        outputs = [self.pool[-1]]
        for _ in range(self.rng.choice([0, 0, 0, 1, 1, 2, 3])):
            outputs.append(self.rng.choice(self.pool))
        if self.rng.random() < 0.05:
            outputs.append(outputs[0])
        self.rng.shuffle(outputs)
        graph = self.builder.finish(outputs)
        producers, strides = graph.producers(), input_strides(graph)
        views = {r for op in graph.ops if op.definition.kind in ("view", "extern") for r in op.results}
        seen: dict[Value, Port] = {}
        ports: list[Port] = []
        for value in outputs:
            if value in seen:
                ports.append(seen[value])
                continue
            view = strided_view(value, producers, strides) if value.type.size else None
            if view is not None and view.base in strides and value is not view.base:
                seen[value] = Port(strides=view.strides)
            elif value in strides:
                seen[value] = Port(strides=strides[value])
            else:
                plain = value in views or value.type.rank < 2
                seen[value] = Port(strides=self.kept_strides(value, plain))
            ports.append(seen[value])
        return self.builder.finish(outputs, ports)

    def kept_strides(self, value: Value, plain: bool) -> tuple[int, ...] | None:
        """For some outputs, dense strides with the axes in another order."""
        if plain or self.rng.random() < 0.8:
            return None
        shape = value.type.static_shape
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        packed = contiguous_strides(tuple(shape[a] for a in order))
        strides = [0] * len(shape)
        for axis, s in zip(order, packed, strict=True):
            strides[axis] = s
        return tuple(strides)


def random_graph(seed: int, ops: int | None = None) -> tuple[Graph, list[npt.NDArray[Any]]]:
    """A graph and inputs for it."""
    made = RandomGraph(seed, ops)
    return made.graph, made.data
