# SPDX-License-Identifier: Apache-2.0
"""Types of values: dtype, shape and device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, overload

import numpy as np

from fusec.errors import LoweringError, TargetError
from fusec.ir.index import Expr, product
from fusec.ir.indexing import most

DTypeKind = Literal["float", "float8", "int", "uint", "bool", "complex"]
"""float8: numbers of 8 bits that are stored, moved and cast; no op computes with them."""

NUMBER: tuple[DTypeKind, ...] = ("float", "int", "uint", "complex")
REAL: tuple[DTypeKind, ...] = ("float", "int", "uint")
ORDERED: tuple[DTypeKind, ...] = ("float", "int", "uint", "bool")
FLOAT: tuple[DTypeKind, ...] = ("float",)
INEXACT: tuple[DTypeKind, ...] = ("float", "complex")
INTEGER: tuple[DTypeKind, ...] = ("int", "uint")
BITS: tuple[DTypeKind, ...] = ("int", "uint", "bool")
BOOL: tuple[DTypeKind, ...] = ("bool",)
ANY: tuple[DTypeKind, ...] = ("float", "float8", "int", "uint", "bool", "complex")

Dim = int | Expr
"""A dimension: a plain integer, or an index expression over symbols such as ``B``."""


@dataclass(frozen=True)
class DType:
    """An element type. ``name`` is its spelling in IR text (``f32``); ``bits`` its width in memory."""

    name: str
    kind: DTypeKind
    bits: int

    def __str__(self) -> str:
        return self.name

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_half(self) -> bool:
        """A float of 16 bits."""
        return self.is_float and self.bits == 16

    @property
    def accumulator(self) -> DType:
        """What sums of it are made in: f32 for half types."""
        return f32 if self.is_half else self

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned integer; bool is not one."""
        return self.kind in ("int", "uint")

    @cached_property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype; bfloat16 and those of 8 bits come from ml_dtypes. TargetError where that is missing."""
        return np.dtype(_from_ml_dtypes(self.long_name) if self.name in _FOREIGN else self.long_name)

    def rounded(self, value: complex) -> float:
        """What a float dtype holds of a number: the nearest one, infinity beyond the largest."""
        with np.errstate(over="ignore"):
            return float(np.float64(value.real).astype(self.numpy))

    @property
    def long_name(self) -> str:
        """The name that NumPy and PyTorch share, such as ``float32``."""
        return _NUMPY_NAMES[self.name]


_NUMPY_NAMES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool",
    "c64": "complex64",
    "c128": "complex128",
}

_FOREIGN = ("bf16", "f8e4m3", "f8e5m2")
"""Types that NumPy itself does not have."""


def _from_ml_dtypes(name: str) -> type[np.generic]:
    try:
        import ml_dtypes
    except ImportError:
        raise TargetError(f"NumPy has no {name} without ml_dtypes: pip install ml_dtypes") from None
    found: type[np.generic] = getattr(ml_dtypes, name)
    return found


f16 = DType("f16", "float", 16)
bf16 = DType("bf16", "float", 16)
f32 = DType("f32", "float", 32)
f64 = DType("f64", "float", 64)
f8e4m3 = DType("f8e4m3", "float8", 8)
f8e5m2 = DType("f8e5m2", "float8", 8)
i8 = DType("i8", "int", 8)
i16 = DType("i16", "int", 16)
i32 = DType("i32", "int", 32)
i64 = DType("i64", "int", 64)
u8 = DType("u8", "uint", 8)
u16 = DType("u16", "uint", 16)
u32 = DType("u32", "uint", 32)
u64 = DType("u64", "uint", 64)
bool_ = DType("bool", "bool", 8)
c64 = DType("c64", "complex", 64)
c128 = DType("c128", "complex", 128)

DTYPES: dict[str, DType] = {
    d.name: d for d in (f16, bf16, f32, f64, f8e4m3, f8e5m2, i8, i16, i32, i64, u8, u16, u32, u64, bool_, c64, c128)
}
_BY_LONG_NAME = {d.long_name: d for d in DTYPES.values()}


def dtype_of(name: object) -> DType:
    """The DType of a NumPy dtype, a torch dtype, or a name (``f32``, ``float32``, ``torch.float32``).

    Raises KeyError with the name when fusec has no such type.
    """
    if isinstance(name, DType):
        return name
    text = str(name) if not isinstance(name, type) else np.dtype(name).name
    text = text.removeprefix("torch.")
    found = DTYPES.get(text) or _BY_LONG_NAME.get(text)
    if found is None:
        raise KeyError(f"no dtype {name!r}; known: {', '.join(DTYPES)}")
    return found


@dataclass(frozen=True)
class TensorType:
    """dtype, shape and device (``cpu``, ``cuda:0``) of a value. Layout in memory is not part of it."""

    dtype: DType
    shape: tuple[Dim, ...]
    device: str = "cpu"

    def __str__(self) -> str:
        where = "" if self.device == "cpu" else f"@{self.device}"
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]{where}"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """True when every dimension is an integer."""
        return all(isinstance(d, int) for d in self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as integers; ValueError if a dimension is symbolic."""
        if not self.is_static:
            raise ValueError(f"{self} has symbolic dimensions; bind them first")
        return tuple(d for d in self.shape if isinstance(d, int))

    @property
    def size(self) -> int:
        """Number of elements; ValueError if a dimension is symbolic."""
        return prod(self.static_shape)

    @property
    def count(self) -> Dim:
        """Number of elements, an expression where a dimension is one."""
        return product(self.shape)

    @property
    def most(self) -> int:
        """The largest number of elements: :attr:`size` where no dimension is symbolic. ValueError without a range."""
        return most(product(self.shape))

    @property
    def most_bytes(self) -> int:
        return self.most * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def with_shape(self, shape: Sequence[Dim]) -> TensorType:
        return TensorType(self.dtype, tuple(shape), self.device)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape, self.device)


@overload
def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]: ...
@overload
def contiguous_strides(shape: Sequence[Dim]) -> tuple[Dim, ...]: ...
def contiguous_strides(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Row-major strides in elements. Like PyTorch, an extent of 0 counts as 1."""
    strides: list[Dim] = []
    step: Dim = 1
    for extent in reversed(shape):
        strides.append(step)
        step = step * (max(extent, 1) if isinstance(extent, int) else extent)
    return tuple(reversed(strides))


def fixed(dims: Sequence[Dim]) -> tuple[int, ...]:
    """The dimensions as integers. LoweringError where one is symbolic: its user knows integers only."""
    found = tuple(d for d in dims if isinstance(d, int))
    if len(found) != len(dims):
        raise LoweringError(f"a symbolic extent in [{', '.join(map(str, dims))}]")
    return found


def most_of(dims: Sequence[Dim]) -> tuple[int, ...]:
    """The largest that each dimension can be. ValueError for a symbol without a range."""
    return tuple(map(most, dims))
