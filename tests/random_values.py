"""What random graphs are made from: a pool of values, inputs of any layout, choices among them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from fusec.ir.attributes import Attributes
from fusec.ir.builder import Builder
from fusec.ir.nodes import Port, Value
from fusec.ir.types import DType, TensorType, bf16, bool_, f16, f32, f64

Shape = tuple[int, ...]

MOST_ELEMENTS = 6000
EXACT = ("neg", "abs", "copy", "relu", "maximum", "minimum", "fmax", "fmin", "copysign", "select")


class RandomValues:
    """The values that a graph has so far. ``wild`` allows ops that make NaN, infinity and large values, and inputs that
    hold them."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.builder = Builder(f"seed{seed}")
        self.wild = self.rng.random() < 0.3
        self.float: DType = self.rng.choices([f32, f64, bf16, f16], [16, 2, 1, 0 if self.wild else 1])[0]
        sizes = [1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33]
        self.extents = self.rng.sample(sizes, 3) + ([0] if self.rng.random() < 0.06 else [])
        self.pool: list[Value] = []
        self.exact: set[Value] = set()
        self.data: list[npt.NDArray[Any]] = []
        self.numbers = np.random.default_rng(seed)
        for _ in range(self.rng.randint(1, 3)):
            self.new_input(self.float)

    # inputs

    def shape(self, low: int = 0, high: int = 4) -> Shape:
        while True:
            made = tuple(self.rng.choice(self.extents) for _ in range(self.rng.randint(low, high)))
            if prod(made) <= MOST_ELEMENTS:
                return made

    def new_input(self, dtype: DType, shape: Shape | None = None, highest: int = 5) -> Value:
        shape = self.shape() if shape is None else shape
        type_ = TensorType(dtype, shape)
        port = Port(strides=self.input_strides(shape))
        role = self.rng.choice(["argument", "argument", "parameter"])
        value = self.builder.input(type_, port=Port(port.strides, 0, role))  # type: ignore[arg-type]
        self.data.append(self.array(type_, port.strides, highest))
        self.pool.append(value)
        self.exact.add(value)
        return value

    def input_strides(self, shape: Shape) -> tuple[int, ...] | None:
        """Mostly contiguous; else axes in another order, gaps, reversed or repeated axes."""
        if self.rng.random() < 0.75 or not shape:
            return None
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        strides, step = [0] * len(shape), self.rng.choice([1, 1, 1, 2])
        for axis in reversed(order):
            if self.rng.random() < 0.08:
                continue
            strides[axis] = step * (-1 if self.rng.random() < 0.06 else 1)
            step *= max(shape[axis], 1) + self.rng.choice([0, 0, 3])
        return tuple(strides)

    def array(self, type_: TensorType, strides: tuple[int, ...] | None, highest: int) -> npt.NDArray[Any]:
        shape = type_.static_shape
        own = tuple(1 if strides is not None and strides[a] == 0 and n else n for a, n in enumerate(shape))
        if type_.dtype.is_float:
            numbers = self.numbers.standard_normal(own)
            if self.wild and prod(own):
                special = self.numbers.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 100.0, -30.0], own)
                numbers = np.where(self.numbers.random(own) < 0.05, special, numbers)
            made = np.asarray(numbers).astype(type_.dtype.numpy)
        elif type_.dtype == bool_:
            made = np.asarray(self.numbers.random(own) > 0.3)
        else:
            made = np.asarray(self.numbers.integers(0, max(highest, 1), own)).astype(type_.dtype.numpy)
        return np.broadcast_to(made, shape)

    # choices

    def pick(self, *, dtype: DType | None = None, where: Callable[[Value], bool] = lambda v: True) -> Value | None:
        found = [v for v in self.pool if (dtype is None or v.type.dtype == dtype) and where(v)]
        if not found:
            return None
        if self.rng.random() < 0.5:
            return found[-1]
        return self.rng.choice(found)

    def floats(self, where: Callable[[Value], bool] = lambda v: True) -> Value | None:
        return self.pick(where=lambda v: v.type.dtype.is_float and where(v))

    def emit(self, name: str, *operands: Value, attributes: Attributes | None = None) -> Value:
        made = self.builder.emit(name, *operands, attributes=attributes or Attributes())
        self.pool.append(made)
        kind = self.builder.last_op.definition.kind  # type: ignore[union-attr]
        exact = kind in ("view", "data", "create") or name in EXACT or not made.type.dtype.is_float
        if exact and all(v in self.exact for v in operands):
            self.exact.add(made)
        return made

    def partner(self, x: Value) -> Value:
        """A value of the dtype of ``x`` that broadcasts with it: from the pool, a constant, or a new input."""
        shape = x.type.static_shape
        if self.rng.random() < 0.2:
            number = self.rng.choice([0.5, -1.0, 2.0, 0.0, 0.1]) if x.type.dtype.is_float else self.rng.randint(0, 3)
            value = bool(number) if x.type.dtype == bool_ else number
            made = self.builder.constant(value, x.type.dtype)
            self.exact.add(made)
            return made
        found = self.pick(dtype=x.type.dtype, where=lambda v: v is not x and self.fits(shape, v.type.static_shape))
        if found is not None and self.rng.random() < 0.8:
            return found
        kept = shape[self.rng.randint(0, len(shape)) :]
        other = tuple(1 if self.rng.random() < 0.25 else n for n in kept)
        return self.new_input(x.type.dtype, other)

    def fits(self, a: Shape, b: Shape) -> bool:
        try:
            return prod(np.broadcast_shapes(a, b)) <= MOST_ELEMENTS
        except ValueError:
            return False

    def room(self, shape: Shape) -> bool:
        return prod(shape) <= MOST_ELEMENTS
