# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays in generated code."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Sequence
from math import prod
from typing import Any

import numpy as np

from fusec.frontend.capture import Library
from fusec.frontend.numpy_views import view
from fusec.ir.types import Dim, DType, TensorType, contiguous_strides, dtype_of, fixed
from fusec.runtime.arrays import Layout, Stopwatch, Watch
from fusec.runtime.code import Scope, spell, spell_tuple

Array = np.ndarray[Any, Any]


def _read_only_view(*args: Any) -> Array:
    """A view that repeats elements, as ``np.broadcast_to`` gives it."""
    made = view(*args)
    made.flags.writeable = False
    return made


_WORDS_TYPE = ctypes.POINTER(ctypes.c_size_t)
_WORD = ctypes.sizeof(ctypes.c_size_t)
_DATA_FIELD = object.__basicsize__


def _reads_data_field() -> bool:
    """Whether an array object starts as NumPy's C API lays it out: the object's head, then the data pointer."""
    sample = np.empty(3)
    if _WORD != 8 or _DATA_FIELD % _WORD or id(sample) % _WORD:
        return False
    field = ctypes.c_size_t.from_address(id(sample) + _DATA_FIELD).value
    return int(field) == sample.ctypes.data


_FAST_ADDRESS = _reads_data_field()


_ERRORS: Any = getattr(np._core.umath, "_extobj_contextvar", None)  # type: ignore[attr-defined]
"""What ``np.errstate`` sets; unset where nobody has."""


def heeds_errors() -> bool:
    """Whether floating-point errors are to be more than warned of (``np.errstate(all="raise")``)."""
    return any(action not in ("ignore", "warn") for action in np.geterr().values())


def _mode_test(scope: Scope) -> str:
    heeds = f"{scope.bind(heeds_errors, 'heeds_errors')}()"
    if heeds_errors() or _ERRORS is None:
        return heeds if heeds_errors() else f"not {heeds}"
    return f"({scope.bind(_ERRORS.get, 'errors')}(None) is None or not {heeds})"


def _flag_tests(array: Array, variable: str) -> list[str]:
    if array.flags.writeable:
        return [f"{variable}.flags.behaved"]  # aligned and writeable
    return [f"{variable}.flags.aligned", f"not {variable}.flags.writeable"]


class NumpyArrays:
    """See :class:`fusec.runtime.arrays.Arrays`."""

    library: Library = "numpy"

    def __init__(self) -> None:
        # Word i of memory from address 8 on; an index with a plain pointer costs 60 ns, array.ctypes.data 900 ns.
        self._words: Any = ctypes.cast(_WORD, _WORDS_TYPE)
        self._like: dict[tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...]], Array | None] = {}

    def is_array(self, value: object) -> bool:
        return isinstance(value, np.ndarray)

    def layout(self, array: Array) -> Layout:
        if type(array) is not np.ndarray:
            raise TypeError(f"an array of class {type(array).__name__} may redefine what operators do")
        if not array.dtype.isnative:
            raise TypeError(f"its dtype {array.dtype!r} has the other byte order")
        if not array.flags.aligned:
            raise TypeError("it is not aligned to its dtype")
        size = array.dtype.itemsize
        if any(s % size for s in array.strides):
            raise TypeError("its strides are not whole elements")
        kind = TensorType(dtype_of(array.dtype), array.shape)
        return Layout(kind, tuple(s // size for s in array.strides), (array.flags.writeable,))

    def mode(self) -> Hashable:
        return heeds_errors()

    def why_as_written(self) -> None:
        return None

    def needs_autograd(self, arrays: Sequence[Any]) -> bool:
        return False

    def memory(self, array: Array) -> tuple[int, int]:
        return np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)

    def check(self, scope: Scope, arrays: Sequence[Array], variables: Sequence[str]) -> str:
        kind = scope.bind(np.ndarray, "ndarray")
        tests = [_mode_test(scope)]
        for array, v in zip(arrays, variables, strict=True):
            dtype = scope.bind(array.dtype, f"dtype_{array.dtype.name}")
            tests += [
                f"type({v}) is {kind}",
                f"({v}.dtype is {dtype} or {v}.dtype == {dtype})",  # an unpickled array brings a dtype of its own
                f"{v}.shape == {array.shape}",
                f"{v}.strides == {array.strides}",
                *_flag_tests(array, v),
            ]
        return " and ".join(tests)

    def stream(self, scope: Scope, device: int) -> str:
        return "0"  # NumPy has no streams: the default one

    def check_kind(
        self, scope: Scope, array: Array, variable: str, symbolic: Sequence[bool], row_major: bool = True
    ) -> str:
        kind, dtype = scope.bind(np.ndarray, "ndarray"), scope.bind(array.dtype, f"dtype_{array.dtype.name}")
        tests = [
            f"type({variable}) is {kind}",
            f"{variable}.dtype == {dtype}",
            f"{variable}.ndim == {array.ndim}",
            *_flag_tests(array, variable),
        ]
        if row_major:
            tests.append(f"{variable}.flags.c_contiguous")
        return " and ".join(tests)

    @property
    def address_field(self) -> int | None:
        return _DATA_FIELD if _FAST_ADDRESS else None

    def address(self, scope: Scope, variable: str) -> str:
        if not _FAST_ADDRESS:
            return f"{variable}.ctypes.data"
        words = scope.bind(self._words, "words")
        return f"{words}[(id({variable}) >> 3) + {_DATA_FIELD // _WORD - 1}]"

    def address_of(self, array: Array) -> int:
        return int(array.ctypes.data)

    def allocate(self, scope: Scope, type: TensorType, strides: Sequence[Dim]) -> str:
        dtype, shape = type.dtype.numpy, type.shape
        bound = scope.bind(dtype, f"dtype_{dtype.name}")
        if tuple(strides) == contiguous_strides(shape) or 0 in shape:
            return f"{scope.bind(np.empty, 'empty')}({spell_tuple(shape)}, {bound})"
        if not all(isinstance(d, int) for d in (*shape, *strides)):
            make = scope.bind(_allocate_dense, "allocate_dense")
            return f"{make}({spell_tuple(shape)}, {bound}, {spell_tuple(strides)})"
        prototype = _prototype(type.static_shape, dtype, fixed(strides))
        if prototype is not None:
            return f"{scope.bind(np.empty_like, 'empty_like')}({scope.bind(prototype, 'prototype')})"
        make = scope.bind(_allocate_strided, "allocate_strided")
        return f"{make}({spell_tuple(shape)}, {bound}, {spell_tuple(strides)})"

    def over_block(self, scope: Scope, type: TensorType, strides: Sequence[Dim], block: str) -> str:
        return array_over(scope, type, strides, block)

    def place(self, array: Array, device: str) -> Array:
        return array

    def view(self, scope: Scope, type: TensorType, strides: Sequence[Dim], base: str, offset: Dim) -> str:
        dtype, size = type.dtype.numpy, type.dtype.itemsize
        in_bytes = spell_tuple([s * size for s in strides])
        bound = scope.bind(dtype, f"dtype_{dtype.name}")
        made = f"{base}, {bound}, {spell_tuple(type.shape)}, {in_bytes}, {spell(offset * size)}"
        repeats = 0 not in type.shape and any(s == 0 and n != 1 for n, s in zip(type.shape, strides, strict=True))
        return f"{scope.bind(_read_only_view, 'spread')}({made})" if repeats else f"{scope.bind(view, 'view')}({made})"

    def scalar(self, scope: Scope, type: TensorType, value: Any) -> str:
        constant = np.full(type.static_shape, value, type.dtype.numpy)
        return f"{scope.bind(constant, 'constant')}.copy()"

    def copy(self, scope: Scope, variable: str) -> str:
        return f"{variable}.copy()"

    def copy_into(self, scope: Scope, target: str, source: str) -> str:
        return f"{scope.bind(np.copyto, 'copyto')}({target}, {source})"

    def note_write(self, scope: Scope, variable: str) -> str:
        return ""

    def contiguous(self, scope: Scope, variable: str) -> str:
        return f"{scope.bind(_row_major, 'row_major')}({variable})"

    def stopwatch(self, device: int | None) -> Stopwatch:
        return Stopwatch()

    def profiler(self) -> None:
        return None

    def watch(self, arrays: Sequence[Array]) -> Watch | None:
        return None

    def to_bytes(self, array: Array) -> tuple[DType, tuple[int, ...], bytes]:
        return dtype_of(array.dtype), array.shape, array.tobytes()

    def from_numpy(self, array: Array, dtype: DType) -> Array:
        return array


def array_over(scope: Scope, type: TensorType, strides: Sequence[Dim], block: str) -> str:
    """An expression for a NumPy array at the start of a byte array."""
    dtype, shape = type.dtype.numpy, type.shape
    made = f"{scope.bind(np.ndarray, 'ndarray')}({spell_tuple(shape)}, "
    made += f"{scope.bind(dtype, f'dtype_{dtype.name}')}, {block}"
    if tuple(strides) == contiguous_strides(shape):
        return f"{made})"
    return f"{made}, 0, {spell_tuple([s * dtype.itemsize for s in strides])})"


def _prototype(shape: tuple[int, ...], dtype: np.dtype[Any], strides: Sequence[int]) -> Array | None:
    """An array that ``empty_like`` makes owned arrays of these strides from; None where the memory has holes."""
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    dense = contiguous_strides([shape[axis] for axis in order])
    if any(strides[axis] != step and shape[axis] != 1 for axis, step in zip(order, dense, strict=True)):
        return None
    in_bytes = tuple(s * dtype.itemsize for s in strides)
    prototype: Array = np.ndarray(shape, dtype, np.empty(prod(shape) * dtype.itemsize, np.uint8), 0, in_bytes)
    return prototype if np.empty_like(prototype).strides == in_bytes else None


def _allocate_strided(shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...]) -> Array:
    spans = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    memory = np.empty(1 + sum(map(abs, spans)), dtype)
    first = -sum(s for s in spans if s < 0)
    return np.ndarray(shape, dtype, memory, first * dtype.itemsize, tuple(s * dtype.itemsize for s in strides))


def _allocate_dense(shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...]) -> Array:
    """An array of these strides, which owns its memory where that has no holes."""
    prototype = _prototype(shape, dtype, strides)
    return np.empty_like(prototype) if prototype is not None else _allocate_strided(shape, dtype, strides)


def _row_major(value: Any) -> Array:
    return np.asarray(value, order="C")


ARRAYS = NumpyArrays()
