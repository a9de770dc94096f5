# SPDX-License-Identifier: Apache-2.0
"""What the body of a ``for`` loop leaves behind in Python: nothing, where a capture may run it more often than a call.

A loop over the positions that ``nonzero`` finds is captured with all candidates. That is the same as a loop over those
that are there where no later step, and nothing after the loop, sees that a step has run. This looks at the code for
local variables and jumps, and at what the variables hold before and after for containers.
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

_TORCH = str(torch.__file__).rpartition("/")[0]

_PLAIN = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    range,
    slice,
    type(None),
    torch.Tensor,
    torch.dtype,
    torch.device,
    torch.Size,
)
_CODE = (ModuleType, FunctionType, BuiltinFunctionType, MethodType, type)

_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_REFUSED = frozenset(
    {
        *("RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE", "SEND"),
        *("STORE_ATTR", "DELETE_ATTR", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"),
    }
)
_ACCESS = re.compile("(LOAD|STORE|DELETE)_FAST")
_MOST_DEEP = 3
"""Containers in containers that are compared; what lies deeper counts as changed."""


class LoopBody:
    """The body of the loop that a frame begins, and what its variables hold."""

    def __init__(self, frame: FrameType, stored: frozenset[str]) -> None:
        self._frame = frame
        self._stored = stored
        self._before = self._seen()

    def _seen(self) -> dict[str, Any]:
        return {n: _contents(v, _MOST_DEEP) for n, v in self._frame.f_locals.items() if n not in self._stored}

    def check(self, refused: Callable[[str], Exception]) -> None:
        """Raises where the loop, which has ended, has changed what a variable holds."""
        if self._seen() != self._before:
            raise refused("a loop over chosen positions changes what a variable holds")


def loop_body(frame: FrameType | None) -> LoopBody | None:
    """The body of the loop that is begun in the frame below PyTorch's own; None where it may leave something behind."""
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, __file__.rpartition("/")[0])):
        frame = frame.f_back
    if frame is None or sys.version_info[:2] not in _KNOWN:
        return None
    stored = _stored(frame.f_code, frame.f_lasti)
    return LoopBody(frame, stored) if stored is not None else None


_KNOWN = ((3, 10), (3, 11), (3, 12), (3, 13), (3, 14))


def _contents(value: Any, depth: int) -> Any:
    """What tells whether a value was changed or replaced."""
    if isinstance(value, (*_PLAIN, *_CODE, torch.nn.Module)):
        return id(value)
    if not depth:
        return object()
    if isinstance(value, Mapping):
        return id(value), [(id(k), _contents(v, depth - 1)) for k, v in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return id(value), [_contents(v, depth - 1) for v in value]
    fields = getattr(value, "__dict__", None)
    return (id(value), _contents(fields, depth - 1)) if isinstance(fields, dict) else object()


@lru_cache(maxsize=256)
def _stored(code: CodeType, begin: int) -> frozenset[str] | None:
    """The local variables that the body of the loop begun at an offset sets, all of them for one step alone.

    None where it jumps out of the loop, or sets what a later step or the code behind it may read.
    """
    ops = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL", "RESUME")]
    at = {i.offset: n for n, i in enumerate(ops)}
    start = at.get(begin)
    if start is None or ops[start].opname != "GET_ITER":
        return None
    head = start + 1
    if head >= len(ops) or ops[head].opname != "FOR_ITER":
        return None
    end = _target(ops, at, head)
    if end is None or not _always_jumps(ops[end - 1].opname):
        return None  # the last step, or the first one, falls out of the loop
    body = range(head + 1, end)
    names: set[str] = set()
    for n in body:
        op = ops[n]
        if op.opname in _REFUSED:
            return None
        target = _target(ops, at, n)
        if target is not None and target != head and target not in body:
            return None
        names.update(name for kind, name in _accesses(op) if kind != "LOAD")
    alive = _live(ops, at)[head]
    return frozenset(names) if not names & alive else None


def _accesses(op: dis.Instruction) -> list[tuple[str, str]]:
    """What an instruction does to local variables, in order; one of later versions of Python does two things."""
    names = op.argval if isinstance(op.argval, tuple) else (op.argval,)
    return list(zip(_ACCESS.findall(op.opname), names, strict=False))


def _target(ops: list[dis.Instruction], at: Mapping[int, int], n: int) -> int | None:
    """Where an instruction may jump to."""
    if ops[n].opcode not in dis.hasjrel and ops[n].opcode not in dis.hasjabs:
        return None
    offset = ops[n].argval
    return min((k for o, k in at.items() if o >= offset), default=None)


def _live(ops: list[dis.Instruction], at: Mapping[int, int]) -> list[frozenset[str]]:
    """The local variables that may be read after each point before they are set again."""
    alive = [frozenset[str]()] * (len(ops) + 1)
    changed = True
    while changed:
        changed = False
        for n in reversed(range(len(ops))):
            op, target = ops[n], _target(ops, at, n)
            after = alive[n + 1] if op.opname not in _ENDS and not _always_jumps(op.opname) else frozenset[str]()
            after = after | (alive[target] if target is not None else frozenset())
            for kind, name in reversed(_accesses(op)):
                after = after | {name} if kind == "LOAD" else after - {name}
            if after != alive[n]:
                alive[n], changed = after, True
    return alive


def _always_jumps(name: str) -> bool:
    return name.startswith("JUMP_") and "IF" not in name
