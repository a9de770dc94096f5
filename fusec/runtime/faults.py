# SPDX-License-Identifier: Apache-2.0
"""What exceptions that end a capture or a compilation are: the user's, refusals, or bugs in fusec."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Literal

from fusec.errors import CaptureError, CodegenError, FusecError, LoweringError, TypeRuleError, VerifyError, capped
from fusec.frontend.capture import is_of_library, run_user
from fusec.runtime.telling import Cause

_BROKEN = VerifyError | LoweringError | CodegenError | TypeRuleError

Stage = Literal["call", "capture", "compile"]
"""What ended with an error: arguments that don't fit the function's parameters, the capture, or all after it."""


def cause_of(error: Exception, stage: Stage) -> Cause:
    """Why calls run as written after an error in a stage."""
    if (stage == "capture" and is_capture_fault(error)) or (stage == "compile" and is_compile_fault(error)):
        return "fault"
    return "known" if isinstance(error, FusecError) else "raised"


def reason_of(error: Exception, cause: Cause) -> str:
    """The cause in words, as the user is told."""
    if cause == "fault":
        return fault_reason(error)
    return f"{error}" if isinstance(error, FusecError) else f"capture ended with {type(error).__name__}: {error}"


def is_compile_fault(error: Exception) -> bool:
    """Whether what ended a compilation, after the capture, is a bug in fusec: no refusal and no missing tool."""
    if isinstance(error, FusecError):
        return isinstance(error, _BROKEN) and not isinstance(error, CaptureError)
    return not isinstance(error, OSError | MemoryError)


def is_capture_fault(error: Exception) -> bool:
    """Whether what ended a capture may be a bug in fusec, provided that the function as written does not raise it.

    A FusecError tells what can't be captured. Another exception is the library's or the user's where their code raised
    it, below the user's function; it is fusec's where its code did, or where fusec ran code on its own account.
    """
    if isinstance(error, FusecError):
        return isinstance(error, _BROKEN)
    if isinstance(error, MemoryError) or is_of_library(error):
        return False
    frames = list(_frames(error.__traceback__))
    below = [frame for k, frame in enumerate(frames) if any(f.f_code is run_user.__code__ for f in frames[:k])]
    return not below or _is_ours(below[-1])


def described(error: BaseException) -> str:
    """The class and text of an error, and the line of fusec that it came through last."""
    ours = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_ours(frame)]
    where = f" ({ours[-1][0].f_globals['__name__']}:{ours[-1][1]})" if ours else ""
    return f"{type(error).__name__}: {capped(str(error))}{where}"


def fault_reason(error: Exception) -> str:
    """A bug of ours as a reason why calls run as written."""
    return f"internal error of fusec: {described(error)}"


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    return (frame for frame, _ in traceback.walk_tb(trace))


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "fusec"
