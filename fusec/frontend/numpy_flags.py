# SPDX-License-Identifier: Apache-2.0
"""``x.flags`` of a traced array."""

from __future__ import annotations

from typing import Any

from fusec.frontend.numpy_trace import Traced

_SHORT = {"C": "C_CONTIGUOUS", "F": "F_CONTIGUOUS", "O": "OWNDATA", "W": "WRITEABLE", "A": "ALIGNED"}
_READ = frozenset({"c_contiguous", "f_contiguous", "contiguous", "fortran", "writeable", "aligned"})
_READ |= {"fnc", "forc", "behaved", "carray", "farray"}


class TracedFlags:
    """The flags that follow from the layout, which calls are told apart by, and ``writeable``, which may be set of an
    array that the function made."""

    __slots__ = ("_array",)

    def __init__(self, array: Traced) -> None:
        object.__setattr__(self, "_array", array)

    def __getattr__(self, name: str) -> Any:
        array: Traced = self._array
        if name == "owndata" and not array.buffer.is_input:
            return array.is_root
        if name in _READ:
            return getattr(array.meta.flags, name)
        if name.startswith("__"):
            raise AttributeError(name)
        raise array.tracer.unsupported(f"x.flags.{name} of a traced array is not compiled")

    def __setattr__(self, name: str, value: Any) -> None:
        array: Traced = self._array
        if name != "writeable" or array.buffer.is_input or value:
            raise array.tracer.unsupported(f"setting x.flags.{name} is compiled only to make a new array read-only")
        array.meta.flags.writeable = False

    def __getitem__(self, name: str) -> Any:
        return getattr(self, _SHORT.get(name, name).lower())

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, _SHORT.get(name, name).lower(), value)
