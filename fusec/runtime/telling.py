# SPDX-License-Identifier: Apache-2.0
"""Warnings at the user's line, each once."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Literal

from fusec.frontend.source import user_frame
from fusec.notices import FusecWarning, InternalErrorWarning, RunsAsWritten

Cause = Literal["known", "raised", "fault", "settling", "part"]
"""Why a call runs as written. ``known``: what can't be compiled. ``raised``: an exception that the function may raise
itself. ``fault``: the same, and else a bug of ours. ``settling``: the next call may be compiled. ``part``: something
larger is captured, of which the call becomes a part."""

MOST_REASONS = 8
"""Reasons that are told of one function; a function that has ever new ones is not worth more lines."""


def warn_user(message: str, category: type[FusecWarning]) -> None:
    """Warns, and names the innermost line of the user's code that is being run."""
    frame = user_frame(sys._getframe(1))
    if frame is None:
        warnings.warn(message, category, stacklevel=2)
        return
    space = frame.f_globals
    registry = space.setdefault("__warningregistry__", {})
    module = str(space.get("__name__") or "<unknown>")
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


class Telling:
    """What the user has been told of one function, and of the methods bound from it."""

    def __init__(self, *, warn: bool = True) -> None:
        self.warn = warn
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def runs_as_written(self, name: str, reason: str) -> None:
        """Warns, once a reason. Where the user's filters make the warning an error, it is one at each call."""
        if not self.warn or reason in self._told or len(self._told) >= MOST_REASONS:
            return
        warn_user(f"{name} runs as written: {reason}", RunsAsWritten)
        with self._lock:
            self._told.add(reason)

    def internal_error(self, name: str, so: str, reason: str) -> None:
        """Warns of a bug of ours, once a reason, also where ``warn`` is off. ``so``: what follows for the function."""
        if reason in self._told:
            return
        text = f"{name}: {reason}; so {so}. Please report it, with what FUSEC_DUMP=dir writes"
        warn_user(text, InternalErrorWarning)
        with self._lock:
            self._told.add(reason)
