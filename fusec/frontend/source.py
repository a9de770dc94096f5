# SPDX-License-Identifier: Apache-2.0
"""Where the user's code is: which files are theirs, the line being run, and the name a result is about to get."""

from __future__ import annotations

import dis
import os
import sys
import sysconfig
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FrameType

from fusec.location import Location

_FUSEC = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR")
_INSTALLED = frozenset(("site-packages", "dist-packages"))
RETURNED = ""
"""What :func:`stored_name` gives for a result that the function returns at once."""


@lru_cache(maxsize=1)
def _standard_library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({os.path.abspath(paths[key]) + os.sep for key in ("stdlib", "platstdlib")})


@lru_cache(maxsize=1)
def _site_packages() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({os.path.abspath(paths[key]) + os.sep for key in ("purelib", "platlib")})


@lru_cache(maxsize=1)
def _array_libraries() -> tuple[str, ...]:
    roots = []
    for name in ("numpy", "torch", "cupy"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            roots.append(os.path.dirname(os.path.abspath(file)) + os.sep)
    return tuple(roots)


@lru_cache(maxsize=4096)
def is_user_file(filename: str) -> bool:
    """True for a file that is not part of Python, of fusec, or of an installed package.

    A file typed at a prompt or in a notebook (``<stdin>``, ``/tmp/ipykernel_1/2.py``) is the user's.
    """
    if filename.startswith(("<frozen", "<fusec ")) or filename == "<__array_function__ internals>":
        return False
    full = os.path.abspath(filename) if not filename.startswith("<") else filename
    if not _INSTALLED.isdisjoint(full.split(os.sep)):  # of whatever environment, a user's own too
        return False
    return not full.startswith((_FUSEC, *_standard_library(), *_site_packages(), *_array_libraries()))


def is_users_module(module: object) -> bool:
    """Whether a module is the user's: from a file of theirs, or made by hand, as a notebook's is."""
    file = getattr(module, "__file__", None)
    return is_user_file(file) if type(file) is str else getattr(module, "__spec__", None) is None


@lru_cache(maxsize=4096)
def is_own_file(filename: str) -> bool:
    """True for a file of fusec's, and for code that fusec makes."""
    return filename.startswith("<fusec ") or os.path.abspath(filename).startswith(_FUSEC)


@lru_cache(maxsize=4096)
def is_machinery(filename: str) -> bool:
    """Files whose lines never help a user: Python, fusec and the array libraries, but not other packages."""
    if filename.startswith(("<frozen", "<fusec ")):
        return True
    full = os.path.abspath(filename)
    if full.startswith((_FUSEC, *_array_libraries())):
        return True
    return full.startswith(_standard_library()) and not full.startswith(_site_packages())


def user_frame(frame: FrameType | None = None) -> FrameType | None:
    """The innermost frame of the user's code, looking outwards from ``frame`` (default: the caller).

    The search ends where fusec was called. Where all code in between is from installed packages, its innermost
    frame that is not Python's, NumPy's or PyTorch's is given. None where there is none of either.
    """
    current: FrameType | None = frame or sys._getframe(1)
    nearest: FrameType | None = None
    while current is not None:
        filename = current.f_code.co_filename
        if is_user_file(filename):
            return current
        if not is_machinery(filename):
            nearest = nearest or current
        elif nearest is not None and os.path.abspath(filename).startswith(_FUSEC):
            return nearest
        current = current.f_back
    return nearest


def user_location(frame: FrameType | None = None) -> Location | None:
    """The user's file and line that is being run, or None outside any."""
    found = user_frame(frame or sys._getframe(1))
    return Location(found.f_code.co_filename, found.f_lineno) if found is not None else None


def code_location(code: CodeType) -> Location:
    """Where a function is defined."""
    return Location(code.co_filename, code.co_firstlineno)


@lru_cache(maxsize=1024)
def _stores_after(code: CodeType) -> dict[int, str]:
    """Instruction offset → the name that the next instruction stores to, or :data:`RETURNED`."""
    table: dict[int, str] = {}
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG", "NOP")]
    for here, following in pairwise(instructions):
        if following.opname.startswith(_STORES):
            name = str(following.argval[0] if isinstance(following.argval, tuple) else following.argval)
        elif following.opname == "RETURN_VALUE":
            name = RETURNED
        else:
            continue
        # a frame that is in a call may stand anywhere in the instruction's inline cache
        table.update(dict.fromkeys(range(here.offset, following.offset, 2), name))
    return table


def stored_name(frame: FrameType) -> str | None:
    """The variable that the running expression's result is assigned to next, :data:`RETURNED`, or None."""
    return _stores_after(frame.f_code).get(frame.f_lasti)


def user_site(frame: FrameType | None = None) -> tuple[Location | None, str | None]:
    """:func:`user_location`, and the user's name for the value that the line is making, if it gets one.

    A value returned by a helper is named by what its caller assigns it to.
    """
    found = user_frame(frame or sys._getframe(1))
    if found is None:
        return None, None
    location = Location(found.f_code.co_filename, found.f_lineno)
    current: FrameType | None = found
    while current is not None and is_user_file(current.f_code.co_filename):
        name = stored_name(current)
        if name != RETURNED:
            return location, name
        current = current.f_back
    return location, None
