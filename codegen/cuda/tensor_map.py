"""Tensor maps: which blocks of a tensor Hopper's bulk copies move, and how they lie in shared memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from fusec.codegen.cuda.driver import check, load_driver

BYTES = 128
"""Size and alignment that a CUtensorMap takes here (the driver asks for 64 bytes' alignment)."""

_TYPES = {"u8": 0, "i8": 0, "bool": 0, "u16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5, "f16": 6, "f32": 7, "f64": 8}
_TYPES |= {"bf16": 9, "i16": 1}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTION_256 = 3


@dataclass(frozen=True)
class TensorMap:
    """A parameter's memory as a tensor of at most five axes, outermost first; ``box`` is moved at a time.

    strides: in elements, the last 1, the others a multiple of 16 bytes. swizzle: bytes of the rows that shared memory
    permutes (0, 32, 64, 128). Reads outside ``shape`` give zeros, writes there don't happen.
    """

    parameter: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128


class EncodedMap:
    """A CUtensorMap for a tensor at an address, in memory aligned as the driver asks."""

    def __init__(self, map: TensorMap, address: int, itemsize: int) -> None:
        self._memory = ctypes.create_string_buffer(2 * BYTES)
        self.address = -(-ctypes.addressof(self._memory) // BYTES) * BYTES
        rank = len(map.shape)
        sizes = (ctypes.c_uint64 * rank)(*reversed(map.shape))
        strides = (ctypes.c_uint64 * max(rank - 1, 1))(*(s * itemsize for s in reversed(map.strides[:-1])))
        box = (ctypes.c_uint32 * rank)(*reversed(map.box))
        steps = (ctypes.c_uint32 * rank)(*[1] * rank)
        status = load_driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(self.address),
            _TYPES[map.dtype],
            rank,
            ctypes.c_void_p(address),
            sizes,
            strides,
            box,
            steps,
            0,
            _SWIZZLES[map.swizzle],
            _PROMOTION_256,
            0,
        )
        check(status, f"a tensor map of {map.dtype}{list(map.shape)} in boxes of {list(map.box)}")
