# SPDX-License-Identifier: Apache-2.0
"""Names and locations in graphs captured from torch: the variable that the user's line assigns to."""

from __future__ import annotations

import dis
import sys
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FrameType

from fusec.frontend.source import user_frame, user_site
from fusec.ir.builder import Builder
from fusec.ir.graph import Graph
from fusec.ir.nodes import Value
from fusec.location import Location


class Namer:
    """Notes, call by call, where the user's code stands and which name each result is to have.

    A line that runs several library operations gives its name to the last of them.
    """

    def __init__(self) -> None:
        self.wanted: dict[Value, str] = {}
        self._line: tuple[FrameType, int, FrameType] | None = None
        self._given: list[Value] = []
        self._site: tuple[str, ...] = ()
        self._frame: tuple[FrameType, int, FrameType] | None = None

    def enter(self, start: FrameType) -> Location | None:
        """Looks at the stack that made a call; the user's location."""
        location, name = user_site(start)
        self._site = (name,) if name else ()
        frame = user_frame(start)
        self._frame = None
        if frame is not None:
            callee = start
            while callee.f_back is not None and callee is not frame and callee.f_back is not frame:
                callee = callee.f_back
            self._frame = (frame, frame.f_lasti, callee)
            if not name:
                self._site = _unpacked_names(frame.f_code).get(frame.f_lasti, ())
        return location

    def give(self, values: list[Value]) -> None:
        """Names the results of the call that :meth:`enter` saw, and not those of an earlier call of the line."""
        if not self._site or self._frame is None:
            return
        if self._line is not None and all(a is b for a, b in zip(self._line, self._frame)):
            for value in self._given:
                self.wanted.pop(value, None)
        self._line, self._given = self._frame, []
        for value, name in zip(values, self._site):
            if value not in self.wanted and name != "_":
                self.wanted[value] = name
                self._given.append(value)

    def finish(self, builder: Builder, graph: Graph) -> None:
        """Gives every value its final name: the user's, else that of its op."""
        self._line = self._frame = None
        for op in sorted(graph.ops, key=lambda op: op.name == "constant"):
            for value in op.results:
                builder.rename(value, self.wanted.get(value, "c" if op.name == "constant" else op.name))


@lru_cache(maxsize=1024)
def _unpacked_names(code: CodeType) -> dict[int, tuple[str, ...]]:
    """Instruction offset of a call → the names that its result is unpacked to."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG", "NOP")]
    table: dict[int, tuple[str, ...]] = {}
    for position, (here, following) in enumerate(pairwise(instructions)):
        if following.opname != "UNPACK_SEQUENCE" or not isinstance(following.arg, int):
            continue
        names: list[str] = []
        for store in instructions[position + 2 : position + 2 + following.arg]:
            if not store.opname.startswith("STORE_"):
                break
            names += store.argval if isinstance(store.argval, tuple) else [str(store.argval)]
        table[here.offset] = tuple(names)
    return table


def caller_frame() -> FrameType:
    """The frame that called the function that calls this."""
    return sys._getframe(2)
