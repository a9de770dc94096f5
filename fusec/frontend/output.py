# SPDX-License-Identifier: Apache-2.0
"""What a traced run is about to print, log or write to a file: a compiled call would not, so the capture is refused.

A warning is let through: Python shows it once. So is what a library logs, and what it writes to a file of its own.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from io import BytesIO, IOBase, StringIO
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any

from fusec.errors import UnsupportedOpError
from fusec.frontend.capture import run_user
from fusec.frontend.kinds import true_value
from fusec.frontend.source import code_location, is_machinery, is_own_file, is_user_file, user_location
from fusec.frontend.state_errors import StateChangedError
from fusec.location import Location

_ON_PROCESS = frozenset(
    (
        *(os.putenv, os.unsetenv, os.chdir, os.umask, os.mkdir, os.rmdir, os.remove, os.unlink, os.rename, os.replace),
        *(sys.setrecursionlimit, sys.settrace, atexit.register, atexit.unregister),
    )
)
IN_C: frozenset[object] = frozenset((print, input, os.write)) | _ON_PROCESS
"""Functions written in C that make output, or change what the process and its files are; others are methods of streams.
"""

IN_PYTHON = frozenset(("handle", "write", "writelines"))
"""Names of functions written in Python that may."""

_ON_QUEUES = ("put", "put_nowait", "get", "get_nowait")
_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")
_LOGGING = logging.__file__
_HANDLE = logging.Handler.handle.__code__
"""Runs for each record that a handler's level lets through."""

FINALIZE: CodeType = weakref.finalize.__init__.__code__
"""Runs where a function is registered, to be called when an object dies."""


class OutputError(StateChangedError):
    """A traced run was about to print, log or write, and has not. Another run may have nothing to say."""

    def __init__(self, what: str, location: Location | None = None) -> None:
        self.counters = ()
        UnsupportedOpError.__init__(
            self, f"the function {what}, which a compiled call would not do; do so outside of it", location
        )


class Streams(dict[type, bool]):
    """Whether what is written to objects of a type leaves the process, or can't be taken back; found where it is asked
    first."""

    def __missing__(self, kind: type) -> bool:
        is_file = issubclass(kind, IOBase) and not issubclass(kind, StringIO | BytesIO)
        found = self[kind] = is_file or issubclass(kind, SimpleQueue)
        return found


def refuse_output_in_c(frame: FrameType, function: Any) -> None:
    """OutputError where one of :data:`IN_C`, or a method of a stream, that ``frame`` is about to call makes output."""
    if isinstance(function.__self__, SimpleQueue):
        if function.__name__ in _ON_QUEUES:
            raise OutputError("puts into a queue, or takes from it", user_location(frame))
    elif function in _ON_PROCESS:
        _refuse(frame, f"changes the process or its files ({function.__name__})", is_shown=False)
    elif function is os.write:
        _refuse(frame, "writes to a file", is_shown=False)
    elif function in IN_C:
        _refuse(frame, f"calls {function.__name__}()", is_shown=True)
    elif function.__name__ in ("write", "writelines"):
        _refuse_write(frame, function.__self__)


def refuse_output(frame: FrameType) -> None:
    """OutputError where code that is about to run makes output: a handler of logs, or a stream written in Python."""
    code = frame.f_code
    if code is FINALIZE:
        _refuse(frame, "registers what is called when an object dies", is_shown=False)
    elif code is _HANDLE:
        asking = frame.f_back
        while asking is not None and asking.f_code.co_filename == _LOGGING:
            asking = asking.f_back
        if asking is not None and is_user_file(asking.f_code.co_filename):
            raise OutputError("logs", user_location(frame))
    elif code.co_name != _HANDLE.co_name and code.co_argcount:
        stream = frame.f_locals.get(code.co_varnames[0])
        if any(stream is getattr(sys, name) for name in _STREAMS):
            _refuse_write(frame, stream)


def refuse_partial_prints(frame: FrameType) -> None:
    """OutputError where a name of the code stands for a partial ``print``: no run can tell that it was called."""
    code, values = frame.f_code, frame.f_locals
    namespace: Any = getattr(frame.f_globals, "original", frame.f_globals)
    found = [true_value(namespace, name) for name in code.co_names]
    if any(map(_is_partial_print, [*found, *(values.get(name) for name in code.co_freevars)])):
        raise OutputError("may call print()", code_location(code))


def _is_partial_print(value: object) -> bool:
    return type(value) is functools.partial and value.func is print


def _refuse_write(frame: FrameType, stream: object) -> None:
    standard = [getattr(sys, name) for name in _STREAMS]
    is_shown = any(stream is s or stream is getattr(s, "buffer", None) for s in standard)
    _refuse(frame, "writes to stdout or stderr" if is_shown else "writes to a file", is_shown=is_shown)


def _refuse(frame: FrameType, what: str, *, is_shown: bool) -> None:
    """``is_shown``: it is refused if a library asks for it, too."""
    asking = _asking(frame)
    if asking is not None and (is_shown or is_user_file(asking.co_filename)):
        raise OutputError(what, user_location(frame))


def _asking(frame: FrameType) -> CodeType | None:
    """The code that asks for output, past Python's own and the array libraries'; None where it may make some."""
    current: FrameType | None = frame
    found: CodeType | None = None
    while current is not None and current.f_code is not run_user.__code__:
        code = current.f_code
        if code is _HANDLE or code.co_filename == warnings.__file__:
            return None
        if found is None and is_own_file(code.co_filename):
            return None
        if found is None and not is_machinery(code.co_filename):
            found = code
        current = current.f_back
    return found


class Rearmed:
    """Keeps a profile hook in place that raises an error: Python takes it away then.

    A tracer, which Python calls next in the frame that gets the error, sets it again.
    """

    def __init__(self) -> None:
        self._undo: Callable[[], None] | None = None

    def after_error(self, frame: FrameType | None, hook: Callable[[FrameType, str, object], None]) -> None:
        """Called by the hook. ``frame`` is the one that gets its error."""
        if frame is None or self._undo is not None:
            return
        before, own = sys.gettrace(), frame.f_trace

        def undo() -> None:
            self._undo = None
            sys.settrace(before)
            frame.f_trace = own

        def again(running: FrameType, event: str, arg: object) -> Any:
            undo()
            sys.setprofile(hook)
            return own if running is frame else None

        self._undo = undo
        frame.f_trace = again
        sys.settrace(again)

    def leave(self) -> None:
        if self._undo is not None:
            self._undo()
