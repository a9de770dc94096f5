# SPDX-License-Identifier: Apache-2.0
"""CuPy arrays in generated code."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any

import cupy
import numpy as np

from fusec.errors import FusecError
from fusec.frontend.capture import Library
from fusec.ir.types import Dim, DType, TensorType, contiguous_strides, dtype_of
from fusec.runtime.arrays import Layout, Stopwatch, Watch, span
from fusec.runtime.code import Scope

Array = Any
"""cupy.ndarray, which has no type annotations."""


class CupyArrays:
    """See :class:`fusec.runtime.arrays.Arrays`."""

    library: Library = "cupy"

    def is_array(self, value: object) -> bool:
        return isinstance(value, cupy.ndarray)

    def layout(self, array: Array) -> Layout:
        if type(array) is not cupy.ndarray:
            raise TypeError(f"an array of class {type(array).__name__} may redefine what operators do")
        if array.device.id != cupy.cuda.runtime.getDevice():
            raise TypeError(f"it is on device {array.device.id}, which is not the current one")
        size = array.dtype.itemsize
        if any(s % size for s in array.strides) or array.data.ptr % size:
            raise TypeError("its elements do not lie at multiples of their size")
        kind = TensorType(dtype_of(array.dtype), array.shape, f"cuda:{array.device.id}")
        return Layout(kind, tuple(s // size for s in array.strides))

    def mode(self) -> Hashable:
        return int(cupy.cuda.runtime.getDevice())

    def why_as_written(self) -> None:
        return None

    def needs_autograd(self, arrays: Sequence[Any]) -> bool:
        return False

    def memory(self, array: Array) -> tuple[int, int]:
        return _extent(array)

    def check(self, scope: Scope, arrays: Sequence[Array], variables: Sequence[str]) -> str:
        kind = scope.bind(cupy.ndarray, "ndarray")
        tests = [f"{scope.bind(cupy.cuda.runtime.getDevice, 'current_device')}() == {self.mode()}"]
        for array, v in zip(arrays, variables, strict=True):
            dtype = scope.bind(array.dtype, f"dtype_{array.dtype.name}")
            tests += [
                f"type({v}) is {kind}",
                f"({v}.dtype is {dtype} or {v}.dtype == {dtype})",
                f"{v}.shape == {array.shape}",
                f"{v}.strides == {array.strides}",
                f"{v}.data.device_id == {array.data.device_id}",
            ]
        return " and ".join(tests)

    def stream(self, scope: Scope, device: int) -> str:
        return f"{scope.bind(cupy.cuda.get_current_stream, 'current_stream')}().ptr"

    def check_kind(
        self, scope: Scope, array: Any, variable: str, symbolic: Sequence[bool], row_major: bool = True
    ) -> str:
        raise FusecError("symbolic extents are not there for CuPy's arrays")

    address_field = None

    def address(self, scope: Scope, variable: str) -> str:
        return f"{variable}.data.ptr"

    def address_of(self, array: Array) -> int:
        return int(array.data.ptr)

    def allocate(self, scope: Scope, type: TensorType, strides: Sequence[Dim]) -> str:
        dtype = scope.bind(type.dtype.numpy, f"dtype_{type.dtype.name}")
        if tuple(strides) == contiguous_strides(type.static_shape):
            return f"{scope.bind(cupy.ndarray, 'ndarray')}({type.static_shape}, {dtype})"
        make = scope.bind(_allocate_strided, "allocate_strided")
        return f"{make}({scope.bind(type, 'layout')}, {tuple(strides)})"

    def over_block(self, scope: Scope, type: TensorType, strides: Sequence[Dim], block: str) -> str:
        raise AssertionError("the pool of host memory is not for arrays on a device")

    def place(self, array: Array, device: str) -> Array:
        number = int(device.removeprefix("cuda:") or 0)
        if array.device.id == number:
            return array
        with cupy.cuda.Device(number):
            return array.copy()

    def view(self, scope: Scope, type: TensorType, strides: Sequence[Dim], base: str, offset: Dim) -> str:
        dtype = scope.bind(type.dtype.numpy, f"dtype_{type.dtype.name}")
        in_bytes = tuple(s * type.dtype.itemsize for s in strides)
        start = f"{base}.data + {offset * type.dtype.itemsize}" if offset != 0 else f"{base}.data"
        return f"{scope.bind(cupy.ndarray, 'ndarray')}({type.static_shape}, {dtype}, {start}, {in_bytes})"

    def scalar(self, scope: Scope, type: TensorType, value: Any) -> str:
        constant = cupy.full(type.static_shape, value, type.dtype.numpy)
        return f"{scope.bind(constant, 'constant')}.copy()"

    def copy(self, scope: Scope, variable: str) -> str:
        return f"{variable}.copy()"

    def copy_into(self, scope: Scope, target: str, source: str) -> str:
        return f"{scope.bind(cupy.copyto, 'copyto')}({target}, {source})"

    def note_write(self, scope: Scope, variable: str) -> str:
        return ""

    def contiguous(self, scope: Scope, variable: str) -> str:
        return f"{scope.bind(cupy.ascontiguousarray, 'contiguous')}({variable})"

    def stopwatch(self, device: int | None) -> Stopwatch:
        return Stopwatch(_mark, _seconds_between)

    def profiler(self) -> None:
        return None

    def watch(self, arrays: Sequence[Array]) -> Watch | None:
        return None

    def to_bytes(self, array: Array) -> tuple[DType, tuple[int, ...], bytes]:
        return dtype_of(array.dtype), array.shape, cupy.asnumpy(array).tobytes()

    def from_numpy(self, array: np.ndarray[Any, Any], dtype: DType) -> Array:
        return cupy.asarray(array)


def _allocate_strided(type: TensorType, strides: tuple[int, ...]) -> Array:
    item = type.dtype.itemsize
    count = span(type, strides)
    assert isinstance(count, int)
    memory = cupy.cuda.alloc(max(count, 1) * item)
    return cupy.ndarray(type.static_shape, type.dtype.numpy, memory, tuple(s * item for s in strides))


def _extent(array: Array) -> tuple[int, int]:
    """First byte address of an array's elements, and one past the last."""
    if not array.size:
        return 0, 0
    steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    start = array.data.ptr
    return start + sum(s for s in steps if s < 0), start + sum(s for s in steps if s > 0) + array.itemsize


def _mark() -> Any:
    event = cupy.cuda.Event()
    event.record()
    return event


def _seconds_between(marks: Sequence[Any]) -> list[float]:
    marks[-1].synchronize()
    return [float(cupy.cuda.get_elapsed_time(a, b)) * 1e-3 for a, b in pairwise(marks)]


ARRAYS = CupyArrays()
"""The process's adapter."""
