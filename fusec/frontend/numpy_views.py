# SPDX-License-Identifier: Apache-2.0
"""Views of arrays in memory, with the base that NumPy's own views have."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class _Interface:
    """Carries NumPy's array interface, and keeps the memory's owner alive."""

    def __init__(self, interface: dict[str, Any], owner: Array) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def view(base: Array, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
    """An array in the memory of ``base``, ``offset`` bytes after its first element. Strides are in bytes."""
    if base.flags.c_contiguous and offset >= 0:
        try:
            return np.ndarray(shape, dtype, base, offset, strides)
        except (ValueError, TypeError, BufferError):  # it reaches out of base (which may be a view), or bfloat16
            pass
    made = _within_owner(base, dtype, shape, strides, offset)
    return made if made is not None else _by_interface(base, dtype, shape, strides, offset)


def _within_owner(
    base: Array, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> Array | None:
    """The view taken of the array that owns the memory; None where that is not dense, or alone is read-only."""
    owner = base.base if type(base.base) is np.ndarray else base
    dense = owner if owner.flags.c_contiguous else owner.T
    if not dense.flags.c_contiguous or (base.flags.writeable and not owner.flags.writeable):
        return None
    start = base.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    try:
        made: Array = np.ndarray(shape, dtype, dense, start + offset, strides)
    except (ValueError, TypeError, BufferError):
        return None
    if not base.flags.writeable:
        made.flags.writeable = False
    return made


def _by_interface(
    base: Array, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> Array:
    interface = {
        "version": 3,
        "data": (base.ctypes.data + offset, not base.flags.writeable),
        "shape": shape,
        "strides": strides,
        "typestr": f"|V{dtype.itemsize}",
    }
    return np.asarray(_Interface(interface, base)).view(dtype)
