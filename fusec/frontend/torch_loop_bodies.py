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


def step_without(frame: FrameType, of_none: bool) -> tuple[range, LoopBody] | None:
    """The offsets of the rest of a loop's step behind a condition that the frame is at, and what variables hold.

    Where the condition is ``of_none`` the code is to go on with the next step; None where it does not, or where the
    rest may leave something behind.
    """
    found = _rest(frame.f_code, frame.f_lasti, of_none) if sys.version_info[:2] in _KNOWN else None
    if found is None:
        return None
    within, stored = found
    return within, LoopBody(frame, stored)


_PASSED = ("TO_BOOL", "NOP", "NOT_TAKEN")
"""Instructions between a condition and its jump."""


@lru_cache(maxsize=256)
def _rest(code: CodeType, at_offset: int, of_none: bool) -> tuple[range, frozenset[str]] | None:
    """The rest of a step, and the local variables that the loop sets."""
    ops, at = _instructions(code)
    n = at.get(at_offset)
    if n is None:
        return None
    n += not ops[n].opname.startswith("POP_JUMP")
    while n < len(ops) and (ops[n].opname in _PASSED or ops[n].opname == "UNARY_NOT"):
        of_none ^= ops[n].opname == "UNARY_NOT"
        n += 1
    jumps = {"POP_JUMP_IF_TRUE": True, "POP_JUMP_IF_FALSE": False}
    jumps |= {name.replace("POP_JUMP", "POP_JUMP_FORWARD"): is_so for name, is_so in jumps.items()}
    jumps |= {name.replace("FORWARD", "BACKWARD"): is_so for name, is_so in jumps.items()}
    target = _target(ops, at, n) if n < len(ops) else None
    if target is None or ops[n].opname not in jumps:
        return None
    none_at = target if jumps[ops[n].opname] == of_none else n + 1
    head = _next_step(ops, at, none_at)
    end = _target(ops, at, head) if head is not None else None
    if head is None or end is None or not head < n < end or not _always_jumps(ops[end - 1].opname):
        return None
    names = _names_set(ops, at, range(n + 1, end), range(head + 1, end), head)
    if names is None or names & _live(ops, at)[head]:
        return None
    every = {name for op in ops[head + 1 : end] for kind, name in _accesses(op) if kind != "LOAD"}
    return range(ops[n].offset + 1, ops[end - 1].offset + 1), frozenset(every)


def _next_step(ops: list[dis.Instruction], at: Mapping[int, int], n: int) -> int | None:
    """The head of the loop to which the code goes from a point, without doing anything before."""
    for _ in range(len(ops)):
        if n >= len(ops) or ops[n].opname == "FOR_ITER":
            break
        if _always_jumps(ops[n].opname):
            target = _target(ops, at, n)
            if target is None:
                return None
            n = target
        elif ops[n].opname in _PASSED:
            n += 1
        else:
            return None
    return n if n < len(ops) and ops[n].opname == "FOR_ITER" else None


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
    ops, at = _instructions(code)
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
    names = _names_set(ops, at, body, body, head)
    return names if names is not None and not names & _live(ops, at)[head] else None


def _instructions(code: CodeType) -> tuple[list[dis.Instruction], dict[int, int]]:
    """The instructions of a code, and their numbers by offset."""
    ops = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL", "RESUME")]
    return ops, {i.offset: n for n, i in enumerate(ops)}


def _names_set(
    ops: list[dis.Instruction], at: Mapping[int, int], part: range, body: range, head: int
) -> frozenset[str] | None:
    """The local variables that a part of a loop's body sets; None where it sets others, or jumps out of the loop."""
    names: set[str] = set()
    for n in part:
        op = ops[n]
        if op.opname in _REFUSED:
            return None
        target = _target(ops, at, n)
        if target is not None and target != head and target not in body:
            return None
        names.update(name for kind, name in _accesses(op) if kind != "LOAD")
    return frozenset(names)


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
