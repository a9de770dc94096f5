# SPDX-License-Identifier: Apache-2.0
"""Kernels one after another behind one native call.

A module brings an interpreter in LLVM IR (``launcher.py``). It reads a table, which says for each launch the
function and where each of its addresses comes from, and calls the functions with what the call was given. So a program
needs no code of its own, and any program can use any module.

A table holds 64-bit integers: the most arguments of a launch, the number of launches, how many parallel loops the last
call had; then for each launch the C function, its first argument (``TVMFFIFunctionCall`` and a function object; or the
kernel itself and 0), the number of arguments, and for each argument which of the call's values it is and what to add,
in bytes. Value 0 is the table's own address, so that fixed addresses are sums too. Above the number's low 32 bits
stands how many bytes after the value the address lies in memory; 0 where the value is the address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

CHAIN = "fusec_chain_2"
"""Name of a module's function that runs a table: its address, then the values. The number is that of the table's form:
a module that was saved with another does not read it."""

Launches = Sequence[tuple[str, Sequence[tuple[int, int, int]]]]
"""Kernels, and for each argument the number of one of the call's values (0: nothing), how many bytes after it the
address lies in memory (0: the value is the address), and what to add to it."""


def write_table(launches: Launches, entries: Mapping[str, tuple[int, int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The table of launches. ``entries``: of each kernel the C function's address, and its first argument. Kernels must
    outlive the table."""
    words = sum(3 + 2 * len(arguments) for _, arguments in launches)
    table = np.empty(3 + words, np.int64)
    start = int(table.ctypes.data)
    made = [max((len(arguments) for _, arguments in launches), default=0), len(launches), 0]
    for kernel, arguments in launches:
        made += [*entries[kernel], len(arguments)]
        for number, field, offset in arguments:
            made += [number | field << 32, offset if number else offset - start]
    table[:] = made
    return table


def through_tvm(kernel: Any) -> tuple[int, int]:
    """What calls one of TVM's function objects."""
    return _call_address(), kernel.__chandle__()


@cache
def _call_address() -> int:
    import tvm_ffi

    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    return ctypes.cast(library.TVMFFIFunctionCall, ctypes.c_void_p).value or 0
