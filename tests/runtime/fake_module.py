"""Kernels made of NumPy functions, called on addresses as machine code is; and programs made by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusec.ir.nodes import Port
from fusec.ir.types import DType, TensorType, contiguous_strides, f32
from fusec.runtime.program import Program, Slot, SlotKind, Step
from fusec.tile.kernel import Kernel
from fusec.tile.scalar import Buffer

Launches = Sequence[tuple[str, Sequence[tuple[int, int, int]]]]
Array = np.ndarray[Any, Any]


def memory_at(address: int, dtype: DType, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """The array that lies at an address. Strides are in elements."""
    reach = sum((n - 1) * s for n, s in zip(shape, strides)) + 1 if 0 not in shape else 0
    raw = (ctypes.c_char * (reach * dtype.itemsize)).from_address(address)
    return np.ndarray(tuple(shape), dtype.numpy, raw, 0, tuple(s * dtype.itemsize for s in strides))


class FakeModule:
    """Each function takes the arrays of a kernel's parameters, outputs last, and writes the outputs."""

    def __init__(self, kernels: Sequence[Kernel], functions: dict[str, Callable[..., None]]) -> None:
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self._functions = functions
        self.calls: list[str] = []
        self.chains: list[list[str]] = []

    def function(self, name: str) -> Callable[..., None]:
        kernel, body = self._kernels[name], self._functions[name]

        def run(*addresses: int) -> None:
            self.calls.append(name)
            pairs = zip(kernel.parameters, addresses, strict=True)
            body(*(memory_at(at, p.dtype, p.shape, p.strides) for p, at in pairs))

        return run

    def chain(self, launches: Launches) -> tuple[Callable[..., None], int, object]:
        """As compiled modules do it, the table's address being 0."""
        functions = [(self.function(name), arguments) for name, arguments in launches]

        def run(table: int, *values: int) -> None:
            assert table == 0
            self.chains.append([name for name, _ in launches])
            for function, arguments in functions:
                function(*(_at((0, *values)[number], field) + offset for number, field, offset in arguments))

        return run, 0, None

    def to_bytes(self) -> bytes:
        return b"fake"


def _at(value: int, field: int) -> int:
    return int(ctypes.c_int64.from_address(value + field).value) if field else value


def kernel(name: str, *shapes: Sequence[int], outputs: int = 1, strides: Sequence[Sequence[int]] = ()) -> Kernel:
    laid = strides or [contiguous_strides(s) for s in shapes]
    parameters = tuple(Buffer(f"p{k}", f32, tuple(s), tuple(t)) for k, (s, t) in enumerate(zip(shapes, laid)))
    return Kernel(name, "map", parameters, outputs, ())


def slot(kind: SlotKind, shape: Sequence[int], name: str = "", **more: Any) -> Slot:
    strides = tuple(more.pop("strides", contiguous_strides(shape)))
    return Slot(name or kind, kind, TensorType(more.pop("dtype", f32), tuple(shape)), strides, **more)


def program(
    slots: Sequence[Slot],
    outputs: Sequence[int],
    kernels: Sequence[Kernel],
    steps: Sequence[Step],
    mutates: Sequence[int | None] = (),
    roles: Sequence[Any] = (),
) -> Program:
    inputs = tuple(k for k, s in enumerate(slots) if s.kind == "input")
    changed = mutates or [None] * len(outputs)
    return Program(
        "test",
        "cpu",
        tuple(slots),
        inputs,
        tuple(outputs),
        tuple(Port(role=roles[k] if roles else "argument") for k in range(len(inputs))),
        tuple(Port(mutates=m) for m in changed),
        tuple(kernels),
        tuple(steps),
    )
