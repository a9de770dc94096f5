"""Kernels one after another behind one native call.

A module brings an interpreter of some forty lines of LLVM IR. It reads a table, which says for each launch the
function and where each of its addresses comes from, and calls the functions with what the call was given. So a program
needs no code of its own, and any program can use any module.

A table holds 64-bit integers: the most arguments of a launch, the number of launches; then for each launch the C
function, its first argument (``TVMFFIFunctionCall`` and a function object), the number of arguments, and for each
argument which of the call's values it is and what to add, in bytes. Value 0 is the table's own address, so that fixed
addresses are sums too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import tvm_ffi

CHAIN = "fusec_chain"
"""Name of a module's function that runs a table: its address, then the values."""

CHAIN_IR = """
define i32 @fusec_chain_impl(ptr %self, ptr %given, i32 %count, ptr %result) {
entry:
  %table_at = getelementptr i8, ptr %given, i64 8
  %table = load ptr, ptr %table_at
  %most = load i64, ptr %table
  %launches_at = getelementptr i64, ptr %table, i64 1
  %launches = load i64, ptr %launches_at
  %frame = alloca { i64, i64 }, i64 %most, align 16
  %first = getelementptr i64, ptr %table, i64 2
  br label %launch
launch:
  %left = phi i64 [ %launches, %entry ], [ %fewer, %called ]
  %at = phi ptr [ %first, %entry ], [ %next, %called ]
  %over = icmp eq i64 %left, 0
  br i1 %over, label %done, label %head
head:
  %call = load ptr, ptr %at
  %object_at = getelementptr i64, ptr %at, i64 1
  %object = load ptr, ptr %object_at
  %arguments_at = getelementptr i64, ptr %at, i64 2
  %arguments = load i64, ptr %arguments_at
  %pairs = getelementptr i64, ptr %at, i64 3
  br label %argument
argument:
  %k = phi i64 [ 0, %head ], [ %following, %fill ]
  %filled = icmp eq i64 %k, %arguments
  br i1 %filled, label %ready, label %fill
fill:
  %pair = getelementptr { i64, i64 }, ptr %pairs, i64 %k
  %number = load i64, ptr %pair
  %offset_at = getelementptr i64, ptr %pair, i64 1
  %offset = load i64, ptr %offset_at
  %tagged = getelementptr { i64, i64 }, ptr %given, i64 %number
  %base_at = getelementptr i64, ptr %tagged, i64 1
  %base = load i64, ptr %base_at
  %value = add i64 %base, %offset
  %into = getelementptr { i64, i64 }, ptr %frame, i64 %k
  store i64 1, ptr %into
  %value_at = getelementptr i64, ptr %into, i64 1
  store i64 %value, ptr %value_at
  %following = add i64 %k, 1
  br label %argument
ready:
  %narrow = trunc i64 %arguments to i32
  %status = call i32 %call(ptr %object, ptr %frame, i32 %narrow, ptr %result)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %stop, label %called
called:
  %fewer = sub i64 %left, 1
  %next = getelementptr { i64, i64 }, ptr %pairs, i64 %arguments
  br label %launch
stop:
  ret i32 %status
done:
  ret i32 0
}
"""

Launches = Sequence[tuple[str, Sequence[tuple[int, int]]]]
"""Kernels, and for each argument the number of one of the call's values and what to add to it; number 0 is nothing."""


def write_table(launches: Launches, objects: Mapping[str, int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The table of launches of TVM's function objects, whose handles are given and which must outlive it."""
    words = sum(3 + 2 * len(arguments) for _, arguments in launches)
    table = np.empty(2 + words, np.int64)
    start = int(table.ctypes.data)
    made = [max((len(arguments) for _, arguments in launches), default=0), len(launches)]
    for kernel, arguments in launches:
        made += [_call_address(), objects[kernel], len(arguments)]
        for number, offset in arguments:
            made += [number, offset if number else offset - start]
    table[:] = made
    return table


@cache
def _call_address() -> int:
    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    return ctypes.cast(library.TVMFFIFunctionCall, ctypes.c_void_p).value or 0
