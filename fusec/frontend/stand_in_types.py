# SPDX-License-Identifier: Apache-2.0
"""Types of what stands for a library's arrays while a function is traced."""

from __future__ import annotations

from fusec.frontend.held import State
from fusec.frontend.insides import MISSING
from fusec.frontend.raw import is_a, table_of

_STAND_INS = ("fusec.frontend.", "torch._subclasses.fake_tensor")
"""Modules of types that stand in for a library's arrays while a function is traced."""


def adds_stand_ins(now: State, then: State) -> bool:
    """Whether a dict has only got, for types of arrays that stand in for a library's while a function is traced, what
    it had for the library's own: a compiled call would find that."""
    before, after = ({id(key): part for key, part in state.items()} for state in (then, now))
    if not issubclass(then.kind, dict) or any(after.get(key, MISSING) is not part for key, part in before.items()):
        return False
    known = [part for key, part in then.items() if is_a(key, type)]
    added = [(key, part) for key, part in now.items() if id(key) not in before]
    return all(is_stand_in_type(key) and any(part is own for own in known) for key, part in added)


def is_stand_in_type(key: object) -> bool:
    """Whether a value is a type of what stands for a library's arrays while a function is traced."""
    module = table_of(key).get("__module__") if isinstance(key, type) else None
    return type(module) is str and module.startswith(_STAND_INS)
