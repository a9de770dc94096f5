# SPDX-License-Identifier: Apache-2.0
"""Chrome-trace events of compiling and of calls, for chrome://tracing and Perfetto.

Recorded while a :class:`profile` block runs, and from import to exit where FUSEC_TRACE names a file. Times are of the
system's monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fusec import config
from fusec.errors import FusecError, OptionError
from fusec.options import check_path
from fusec.os_errors import told

Event = dict[str, Any]
Pending = Callable[[bool], Event | None]
"""Gives an event whose end is known later, or None while it is not; with True it waits for the end."""

on = False
"""Whether anything is recorded. All that this module does costs nothing while it is False."""

watched = False
"""Whether calls run with a range around each kernel: while a trace is recorded, and where NVTX ranges are asked for."""

_FLUSH = 50_000
"""Events that are held before they go to the file of FUSEC_TRACE, so that a long run takes no more memory."""

_DEVICE_ROWS = 1 << 30
"""Numbers of rows that are no threads begin here; threads' numbers lie below (pid_max is at most 2^22)."""

_lock = threading.RLock()
_recorders: list[Recorder] = []


class Recorder:
    """Events of this process on their way to a file. Safe to use from many threads."""

    def __init__(self, path: Path, *, streaming: bool = False) -> None:
        self.path = path
        self.streaming = streaming
        self._events: list[Event] = []
        self._pending: list[Pending] = []
        self._rows: set[int] = set()
        self.forget()

    def forget(self) -> None:
        """Drops what was recorded: in a forked process it is the parent's to write."""
        self._events, self._pending, self._rows = [], [], set()

    def add(self, event: Event, row_name: str = "") -> None:
        """Adds an event; its row (``tid``) gets a name with its first one, by default the thread's."""
        row = event["tid"]
        if row not in self._rows:
            with _lock:
                if not self._rows:
                    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else "python"
                    self._events.append(_name_of("process_name", row, f"{name} (fusec)"))
                self._rows.add(row)
                self._events.append(_name_of("thread_name", row, row_name or threading.current_thread().name))
        self._events.append(event)
        if self.streaming and len(self._events) >= _FLUSH:
            self.flush(wait=False)

    def later(self, pending: Pending) -> None:
        """Adds an event whose end is not known yet."""
        self._pending.append(pending)

    def take(self, wait: bool) -> list[Event]:
        """The events since the last time. ``wait``: those too whose end must be waited for."""
        with _lock:
            pending, self._pending = self._pending, []
            for resolve in pending:
                event = resolve(wait)
                if event is not None:
                    self.add(event, event["cat"])
                elif not wait:
                    self._pending.append(resolve)
            events, self._events = self._events, []
        return events

    def flush(self, wait: bool) -> None:
        """Adds the events to the file. Where it can't be written that is warned about: calls must not fail for it."""
        try:
            events = self.take(wait)
            if events:
                append_events(self.path, events)
        except (OSError, FusecError, RuntimeError) as error:  # RuntimeError: at exit the GPU's driver may be gone
            config.root_logger().warning("FUSEC_TRACE: %s", error)


def _name_of(what: str, row: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": os.getpid(), "tid": row, "args": {"name": name}}


# What the compiler and the runtime say


class Span:
    """One piece of work, from entering to leaving."""

    __slots__ = ("_category", "_details", "_name", "_start")

    def __init__(self, name: str, category: str, details: dict[str, Any]) -> None:
        self._name, self._category, self._details = name, category, details

    def note(self, **details: Any) -> None:
        """Adds details that are known by now."""
        self._details.update(details)

    def __enter__(self) -> Span:
        self._start = time.perf_counter_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._details["error"] = kind.__name__
        _complete(self._name, self._category, self._start, self._details)


class _Nothing(Span):
    __slots__ = ()

    def __init__(self) -> None:
        pass

    def note(self, **details: Any) -> None:
        pass

    def __enter__(self) -> Span:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass


_NOTHING = _Nothing()


def span(name: str, category: str, **details: Any) -> Span:
    """A context manager that records a piece of work; nothing while no trace is recorded."""
    return Span(name, category, details) if on else _NOTHING


def instant(name: str, category: str, **details: Any) -> None:
    """Records that something happened."""
    if on:
        event = {"name": name, "cat": category, "ph": "i", "s": "t", "ts": time.perf_counter_ns() / 1e3}
        _add({**event, "pid": os.getpid(), "tid": threading.get_native_id(), "args": details})


def on_device(name: str, row: int, row_name: str, details: dict[str, Any], times: Callable[[bool], Any]) -> None:
    """Records work of a device on a row of its own. ``times`` gives start and end in ns, or None: see ``Pending``."""

    def resolve(wait: bool) -> Event | None:
        found = times(wait)
        if found is None:
            return None
        start, end = found
        event = {"name": name, "cat": row_name, "ph": "X", "ts": start / 1e3, "dur": (end - start) / 1e3}
        return {**event, "pid": os.getpid(), "tid": _DEVICE_ROWS + row, "args": details}

    for recorder in tuple(_recorders):
        recorder.later(resolve)


def _complete(name: str, category: str, start: int, details: dict[str, Any]) -> None:
    end = time.perf_counter_ns()
    event = {"name": name, "cat": category, "ph": "X", "ts": start / 1e3, "dur": (end - start) / 1e3}
    _add({**event, "pid": os.getpid(), "tid": threading.get_native_id(), "args": details})


def _add(event: Event) -> None:
    for recorder in tuple(_recorders):
        recorder.add(event)


# Starting and stopping


class profile:
    """``with fusec.profile("trace.json"):`` writes what fusec does in the block as a Chrome trace.

    Phases of compiling (capture, each pass, the choice of each schedule, code generation, what the caches gave) and
    calls, kernel by kernel, with your lines, bytes and operations. While it runs, kernels are launched one by one.
    On a GPU each kernel's time on the device has a row of its own; leaving the block waits for the last of them.
    The file is written anew. OptionError where it can't be.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_path("path", path)
        self._recorder = Recorder(Path(path))

    def __enter__(self) -> profile:
        try:
            self._recorder.path.write_text("")  # so that a path that can't be written is told before the work
        except OSError as error:
            raise OptionError(f"the trace can't be written: {told(error, self._recorder.path)}") from None
        _start(self._recorder)
        return self

    def __exit__(self, *_: object) -> None:
        _stop(self._recorder)
        try:
            append_events(self._recorder.path, self._recorder.take(wait=True))
        except OSError as error:
            raise OptionError(f"the trace can't be written: {told(error, self._recorder.path)}") from None


def start_from_environment() -> None:
    """Does what FUSEC_TRACE and FUSEC_NVTX ask for; nothing while they are wrong, which :func:`check_file` tells."""
    path = config.trace_file()
    if path is not None and not any(recorder.streaming for recorder in _recorders):
        with contextlib.suppress(OptionError):
            check_file(path)
            recorder = Recorder(path, streaming=True)
            _start(recorder)
            atexit.register(recorder.flush, True)
            _note_children(recorder)
            os.register_at_fork(after_in_child=_after_fork)
    _refresh()


def check_file(path: Path) -> None:
    """OptionError where FUSEC_TRACE names a file that is no trace, or that can't be written."""
    try:
        append_events(path, [])
    except (OSError, FusecError) as error:
        raise OptionError(f"FUSEC_TRACE: {error}; set it to a new file, or unset it") from None


def _start(recorder: Recorder) -> None:
    with _lock:
        _recorders.append(recorder)
        _refresh()


def _stop(recorder: Recorder) -> None:
    with _lock:
        _recorders.remove(recorder)
        _refresh()


def _refresh() -> None:
    global on, watched
    on = bool(_recorders)
    watched = on
    with contextlib.suppress(OptionError):  # told where something is compiled
        watched = on or config.nvtx()


def _after_fork() -> None:
    """A forked process records for itself, and only what goes to FUSEC_TRACE: nothing ends a block in it."""
    global _lock
    _lock = threading.RLock()
    _recorders[:] = [recorder for recorder in _recorders if recorder.streaming]
    for recorder in _recorders:
        recorder.forget()
        _note_children(recorder)
    _refresh()


def _note_children(recorder: Recorder) -> None:
    """A child of ``multiprocessing`` ends without running exit handlers; it has finalizers, which it sets up itself."""
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:

        def at_end(recorder: Recorder) -> None:
            util.Finalize(recorder, recorder.flush, args=(True,), exitpriority=0)

        util.register_after_fork(recorder, at_end)
        if sys.modules["multiprocessing.process"].parent_process() is not None:
            at_end(recorder)


# The file


def append_events(path: Path, events: Sequence[Event]) -> None:
    """Adds events to a trace, one a line; many processes may do so at once. What a killed writer left is mended.

    OSError where it can't be written, FusecError where the file is no trace.
    """
    text = ",\n".join(json.dumps(event, default=str) for event in events)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if size and file.read(2) != b"[\n":
            raise FusecError(f"{path} exists and is no trace of fusec")
        if not events and size:
            return
        end = _end_of_events(file, size)
        separator = b"[\n" if not size else b",\n" if end > 2 else b""
        file.seek(end)
        file.write(separator + text.encode() + b"\n]\n")
        file.truncate()


def _end_of_events(file: Any, size: int) -> int:
    """Where the last whole event ends; 2, after the bracket, where there is none, and 0 in an empty file."""
    start = max(0, size - (1 << 20))
    file.seek(start)
    tail: bytes = file.read()
    if not tail:
        return 0
    found = max(tail.rfind(b"}\n"), tail.rfind(b"},\n"))
    return start + found + 1 if found >= 0 else 2
