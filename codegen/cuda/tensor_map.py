# SPDX-License-Identifier: Apache-2.0
"""Tensor maps: which blocks of a tensor Hopper's TMA moves, and how they lie in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.index import Index, mul
from fusec.ir.indexing import most
from fusec.ir.types import DTYPES
from fusec.runtime import launch
from fusec.runtime.launch import Parameter

_ELEMENTS = {
    "u8": 0,
    "i8": 0,
    "f8e4m3": 0,
    "f8e5m2": 0,
    "bool": 0,
    "u16": 1,
    "u32": 2,
    "i32": 3,
    "u64": 4,
    "i64": 5,
    "f16": 6,
    "f32": 7,
    "f64": 8,
}
_ELEMENTS |= {"bf16": 9, "i16": 1, "tf32": 11}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTION_256 = 3
"""CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion in cuda.h."""


@dataclass(frozen=True)
class TensorMap:
    """A parameter's memory as a tensor of at most five axes, outermost first; ``box`` is moved at a time.

    strides: in elements, the last 1, the others a multiple of 16 bytes. swizzle: bytes of the rows that shared memory
    permutes (0, 32, 64, 128). dtype ``tf32`` is f32, rounded as it is read. Reads outside ``shape`` give zeros, writes
    there don't happen. Shape and strides may depend on the kernel's sizes, but those of windows.

    Where there are ``low`` and ``high``, it is of windows: ``box`` is windows and channels, ``low`` and ``high`` are
    how far from both ends of each axis but the first and the last the first positions of windows lie, ``steps`` apart.

    count: maps in one parameter, of tensors that begin ``shape[-1]`` elements apart.
    """

    parameter: int
    dtype: str
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    count: int = 1

    def encoded(self) -> Parameter:
        """The launch's parameter: what the driver is asked to encode for an address."""
        item = DTYPES["f32" if self.dtype == "tf32" else self.dtype].itemsize
        return launch.TensorMap(
            self.parameter,
            _ELEMENTS[self.dtype],
            tuple(reversed(self.shape)),
            tuple(mul(stride, item) for stride in reversed(self.strides[:-1])),
            tuple(reversed(self.box)),
            _SWIZZLES[self.swizzle],
            _PROMOTION_256,
            low=tuple(reversed(self.low)),
            high=tuple(reversed(self.high)),
            steps=(1, *reversed(self.steps), 1) if self.low else (),
            count=self.count,
            apart=item * most(self.shape[-1]) if self.count > 1 else 0,
        )
