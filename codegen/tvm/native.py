# SPDX-License-Identifier: Apache-2.0
"""Shared objects of kernels without any part of TVM: opened and called through ctypes.

What a machine that only runs compiled functions uses. A call takes about two microseconds more than one by TVM's
function-call library, which is used where it is installed. A kernel has TVM's calling convention, a plain C one:
``int f(void *self, const struct {int32_t kind, zero; int64_t value;} *arguments, int32_t count, result)``.
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from functools import cache
from typing import Any

_SYMBOL = "__tvm_ffi_"
"""What stands before a kernel's name in a shared object."""

_INT = 1
"""The kind of an argument that is an integer (``kTVMFFIInt``)."""

_SIGNATURE = (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)
_RELEASING = ctypes.CFUNCTYPE(*_SIGNATURE)
_HOLDING = ctypes.PYFUNCTYPE(*_SIGNATURE)


class SharedObject:
    """A module of kernels. Its functions keep it open."""

    def __init__(self, path: str) -> None:
        """OSError where the system's loader refuses the file."""
        system = _system()
        handle = system.dlopen(os.fsencode(path), os.RTLD_LAZY | os.RTLD_LOCAL)  # ctypes itself would open it with NOW
        if not handle:
            raise OSError((system.dlerror() or b"it can't be opened").decode(errors="replace"))
        self._library = ctypes.CDLL(path, handle=handle)
        weakref.finalize(self, system.dlclose, handle).atexit = False

    def get_function(self, name: str) -> NativeFunction:
        """AttributeError if there is no such kernel."""
        return NativeFunction(self, getattr(self._library, _SYMBOL + name))


class NativeFunction:
    """A kernel, called with integers. Other Python threads run meanwhile where ``release_gil`` is set."""

    def __init__(self, module: SharedObject, symbol: Any) -> None:
        self._module = module
        self.address = ctypes.cast(symbol, ctypes.c_void_p).value or 0
        self.release_gil = True

    @property
    def release_gil(self) -> bool:
        return isinstance(self._run, _RELEASING)

    @release_gil.setter
    def release_gil(self, value: bool) -> None:
        self._run: Any = (_RELEASING if value else _HOLDING)(self.address)

    def __call__(self, *values: int) -> None:
        words = [_INT] * (2 * len(values))
        words[1::2] = values
        if self._run(None, struct.pack(f"={len(words)}q", *words), len(values), _RESULT):
            raise RuntimeError("a kernel has failed")


_RESULT = bytes(16)
"""Kernels give nothing, and write that here."""


@cache
def _system() -> Any:
    library = ctypes.CDLL(None)
    library.dlopen.restype = ctypes.c_void_p
    library.dlopen.argtypes = (ctypes.c_char_p, ctypes.c_int)
    library.dlclose.argtypes = (ctypes.c_void_p,)
    library.dlerror.restype = ctypes.c_char_p
    return library
