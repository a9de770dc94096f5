# SPDX-License-Identifier: Apache-2.0
"""Linux's permission to use AMX's tile registers, which a process has to ask for once."""

from __future__ import annotations

import ctypes
import platform
from functools import cache

_ARCH_PRCTL = 158
_REQUEST, _TILE_DATA = 0x1023, 18
"""ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA (Linux, Documentation/arch/x86/xstate.rst)."""


@cache
def allow_tiles() -> bool:
    """Asks for the registers, for all threads of the process; False where they are refused or there are none."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    system_call = ctypes.CDLL(None).syscall
    system_call.restype = ctypes.c_long
    arguments = map(ctypes.c_long, (_ARCH_PRCTL, _REQUEST, _TILE_DATA))
    return bool(system_call(*arguments) == 0)
