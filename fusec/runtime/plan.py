# SPDX-License-Identifier: Apache-2.0
"""What calls of one signature do, and what making that takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from fusec.frontend.capture import Capture, Fallback, Library, Recorded
from fusec.frontend.structures import CallSpec
from fusec.runtime.arrays import Layout
from fusec.runtime.branches import Branches
from fusec.runtime.dynamic import Generality, Opening, Openings
from fusec.runtime.entry import Entry
from fusec.runtime.executable import Executable
from fusec.runtime.libraries import CaptureFunction
from fusec.runtime.telling import Telling

Compile = Callable[..., Executable]
"""From a capture to an executable, with the options of the function that is being compiled. A second argument: extents
of symbols that kernels are scheduled for."""


class GradientProgram(Protocol):
    """What runs a recorded function for calls that need a gradient: forward, and backward where that is asked for."""

    def __call__(self, *inputs: Any) -> Any:
        """The function's result."""

    def report(self) -> str:
        """What was fused into which kernels, forward and backward."""


Differentiate = Callable[[Recorded, Sequence[Any], str], GradientProgram]
"""From a recorded function, examples of its inputs and its name. FusecError where no backward is made."""

Require = Callable[[Library, Collection[str]], None]
"""SetupError where nothing can be compiled for arrays of a library on these devices, whatever the function."""


Signature = tuple[Library, CallSpec, tuple[Layout, ...], Hashable]
"""What tells calls apart: whose arrays, the structure with all static values, the arrays' layouts, a library's mode."""


def nothing_required(library: Library, devices: Collection[str]) -> None:
    pass


class PlanOptions(TypedDict, total=False):
    """What a function is compiled with.

    openings: which ranges of extents are tried. static: names of parameters that are weights. device: the GPU that the
    function is captured for, where its tensors are not there. differentiate: makes what serves calls that need a
    gradient; without, they run as written. owns: arguments that come as a list are the call's to let go. edits: whether
    a call may change containers and objects among its arguments.
    """

    fallback: Fallback
    name: str
    capture: CaptureFunction | None
    general: Generality | None
    openings: Openings
    static: frozenset[str]
    require: Require
    telling: Telling | None
    device: str | None
    differentiate: Differentiate | None
    owns: bool
    edits: bool


@dataclass(frozen=True, eq=False)
class Plan:
    """What calls of one signature do. ``executable`` is None where they run as written; then ``reason`` says why.

    ``in_code``: its code asks for a tensor's value. ``opening`` and ``structure``: what calls beside the first may have
    in place of its extents, or of its integers. ``gradient`` runs calls that need one. ``branches`` runs those that
    branch on values.
    """

    entry: Entry
    capture: Capture | None = None
    executable: Executable | None = None
    reason: str = ""
    in_code: bool = False
    signature: Signature | None = None
    opening: Opening | None = None
    structure: CallSpec | None = None
    gradient: GradientProgram | None = None
    branches: Branches | None = None

    @property
    def is_compiled(self) -> bool:
        branches = self.branches is not None and not self.branches.reason
        return self.executable is not None or self.gradient is not None or branches
