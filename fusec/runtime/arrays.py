# SPDX-License-Identifier: Apache-2.0
"""How generated code handles one library's arrays: their addresses, fresh results, views, copies and checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from fusec.frontend.capture import AsWritten, Library
from fusec.ir.types import Dim, DType, TensorType
from fusec.runtime.code import Scope


@dataclass(frozen=True)
class Layout:
    """What a compiled program was specialised on for one array. Strides are in elements.

    ``flags``: whatever else must be the same (``requires_grad``, alignment, ...).
    """

    type: TensorType
    strides: tuple[int, ...]
    flags: tuple[Hashable, ...] = ()


class Watch(Protocol):
    """Some arrays as they were at some time. ``key`` tells where they lie."""

    @property
    def key(self) -> Hashable: ...

    def same(self, arrays: Sequence[Any]) -> bool:
        """True when ``arrays`` lie in the same memory, and their contents have not changed."""


@dataclass(frozen=True)
class Stopwatch:
    """Marks moments: ``mark`` makes one, ``seconds`` are those between neighbours. ``ready`` is called before a row of
    marks: what comes after it is timed as it runs on the device, and not as it is launched."""

    mark: Callable[[], Any] = time.perf_counter
    seconds: Callable[[Sequence[Any]], list[float]] = lambda marks: [b - a for a, b in pairwise(marks)]
    ready: Callable[[], None] = lambda: None


class Arrays(Protocol):
    """One array library. The methods that give ``str`` write Python expressions over variables.

    Shapes and strides may hold symbols, which are variables of the code (:func:`fusec.runtime.code.variable_of`).
    """

    library: Library

    def is_array(self, value: object) -> bool:
        """True for what can be a tensor leaf of a call."""

    def layout(self, array: Any) -> Layout:
        """The layout of an array; TypeError where generated code can't work on it (why is the message)."""

    def mode(self) -> Hashable:
        """The library's global state that a plan depends on."""

    def why_as_written(self) -> AsWritten | None:
        """Why no plan serves a call now, whatever its arguments; None where one may."""

    def needs_autograd(self, arrays: Sequence[Any]) -> bool:
        """True when a gradient may be asked for through these arrays."""

    def memory(self, array: Any) -> tuple[int, int]:
        """Where the memory that an array lies in begins and ends; nothing where it has no elements."""

    def check(self, scope: Scope, arrays: Sequence[Any], variables: Sequence[str]) -> str:
        """A test that the variables hold arrays of the same layouts as ``arrays``, in the mode of now."""

    def check_kind(
        self, scope: Scope, array: Any, variable: str, symbolic: Sequence[bool], row_major: bool = True
    ) -> str:
        """A test that the variable holds an array like ``array``, save for the extents of symbolic axes.

        Its strides are row-major, or not looked at.
        """

    @property
    def address_field(self) -> int | None:
        """How many bytes after ``id(array)`` the array's address lies in memory; None where that is not known."""

    def address(self, scope: Scope, variable: str) -> str:
        """The address of the first element."""

    def stream(self, scope: Scope, device: int) -> str:
        """The library's current stream on a CUDA device, as an integer."""

    def address_of(self, array: Any) -> int:
        """The address of an array's first element."""

    def allocate(self, scope: Scope, type: TensorType, strides: Sequence[Dim]) -> str:
        """A fresh array from the library's allocator."""

    def over_block(self, scope: Scope, type: TensorType, strides: Sequence[Dim], block: str) -> str:
        """An array at the start of a pool's block, which it keeps alive."""

    def place(self, array: Any, device: str) -> Any:
        """The array on a device, with the same strides; itself where it is there."""

    def view(self, scope: Scope, type: TensorType, strides: Sequence[Dim], base: str, offset: Dim) -> str:
        """An array in the memory of ``base``, ``offset`` elements after its first element."""

    def scalar(self, scope: Scope, type: TensorType, value: Any) -> str:
        """A fresh array with one element."""

    def copy(self, scope: Scope, variable: str) -> str:
        """A fresh copy."""

    def copy_into(self, scope: Scope, target: str, source: str) -> str:
        """Copies elements, as the library's own assignment would."""

    def note_write(self, scope: Scope, variable: str) -> str:
        """Tells the library that a kernel writes into an array; empty where it need not know."""

    def contiguous(self, scope: Scope, variable: str) -> str:
        """The array itself where it is row-major, else a copy that is."""

    def stopwatch(self, device: int | None) -> Stopwatch:
        """Times steps on a CUDA device, or for None on the CPU."""

    def profiler(self) -> Any:
        """The library's module whose ``_is_profiler_enabled`` says whether its profiler is on; None where none does."""

    def watch(self, arrays: Sequence[Any]) -> Watch | None:
        """Remembers the arrays' memory and contents as of now; None where nothing tells when they change."""

    def to_bytes(self, array: Any) -> tuple[DType, tuple[int, ...], bytes]:
        """The dtype, shape and row-major contents of an array."""

    def from_numpy(self, array: np.ndarray[Any, Any], dtype: DType) -> Any:
        """The library's array with the contents of a NumPy array of ``dtype.numpy``."""


def span(type: TensorType, strides: Sequence[Dim]) -> Dim:
    """Elements from the first to one past the last, for strides that are not negative. 0 for an empty array."""
    if 0 in type.shape:
        return 0
    total: Dim = 1
    for n, s in zip(type.shape, strides, strict=True):
        total = total + (n - 1) * s
    return total


def bytes_spanned(type: TensorType, strides: Sequence[Dim]) -> Dim:
    """The same in bytes."""
    return span(type, strides) * type.dtype.itemsize
