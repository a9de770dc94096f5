# SPDX-License-Identifier: Apache-2.0
"""Every error a user can see: one class for each kind of mistake. The warnings are in :mod:`fusec.notices`.

All derive from :class:`FusecError`. A message names the user's file and line where one is known, the
operation, the shapes and dtypes, and what to do about it.
"""

from __future__ import annotations

from fusec.location import Location

MOST = 4000
"""Characters of an error's text: what it names may print as megabytes."""


def capped(text: str) -> str:
    """A text of at most some :data:`MOST` characters: the middle of a longer one is left out."""
    if len(text) <= MOST:
        return text
    return f"{text[: MOST * 3 // 4]} ... ({len(text) - MOST:,} characters left out) ... {text[-MOST // 4 :]}"


class FusecError(Exception):
    """Base of every error that fusec raises on purpose.

    ``location`` is the user's file and line, or None where the mistake has no one line.
    """

    def __init__(self, message: str, location: Location | None = None) -> None:
        self.location = location
        message = capped(message)
        super().__init__(f"{location}: {message}" if location is not None else message)


class TypeRuleError(FusecError, TypeError):
    """Operands whose shapes or dtypes do not fit the operation."""


class CaptureError(FusecError):
    """The function can't be captured as one graph."""


class DataDependentError(CaptureError):
    """Python control flow, or a shape, depends on the values of a traced tensor."""


class BranchError(DataDependentError):
    """Python control flow on the truth of one traced tensor: a call has one of two ways from there."""


class UnsupportedOpError(CaptureError):
    """An operation that fusec does not know and may not run through the library."""


class DimensionError(CaptureError):
    """A dimension was to be symbolic, and what the function does with it can't be."""


class SignatureError(FusecError, TypeError):
    """Arguments that do not fit what was compiled: rank, shape, dtype, device or count."""


class SetupError(FusecError):
    """An option, an environment variable, a device or a tool is not right. The function's code has no part in it, so
    ``fallback="eager"`` never covers it."""


class OptionError(SetupError, ValueError, TypeError):
    """An option or an environment variable with a value that it can't have."""


class TargetError(SetupError):
    """The device or toolchain named by a target is missing or can't run this code."""


class DeviceError(FusecError, RuntimeError):
    """Operands are on different devices, or a GPU's driver refused a call, or a kernel that failed has made the GPU
    unusable for this process."""


class ParseError(FusecError, ValueError):
    """IR text that is not well formed; the message gives line and column of the text."""


class VerifyError(FusecError, AssertionError):
    """IR that breaks an invariant: a bug in fusec. Names the pass and prints the op."""


class LoweringError(FusecError):
    """A group that no kernel family can express. The fusion pass must not have made it."""


class HostArraysError(CaptureError, LoweringError):
    """What a function does with arrays in host memory, no program on a GPU does for it."""


class UncompiledTypeError(CaptureError, LoweringError):
    """A dtype that the target's kernels do not compute with."""


class CodegenError(FusecError):
    """A generated kernel did not compile. ``kernel``: its name, where it is known."""

    def __init__(self, message: str, location: Location | None = None, kernel: str = "") -> None:
        self.kernel = kernel
        super().__init__(message, location)


class ArtifactError(FusecError):
    """An artefact file that is truncated, tampered with, of another format or for another machine."""


class CacheError(SetupError):
    """The on-disk cache can't be read or written."""
