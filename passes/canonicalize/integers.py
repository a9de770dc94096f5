# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic as quantised models write it: what is added and taken away again, and bytes with and without a
sign. Integers wrap around, so that nothing here changes a bit.
"""

from __future__ import annotations

from fusec.ir.nodes import Value
from fusec.ir.types import i8, i32, u8
from fusec.passes.fold import known
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rule

_DEPTH = 8
"""Ops above a value at which another is compared with it."""

_COMPARED = ("elementwise", "view", "reduce", "create")


@rule("sub")
def less_what_was_added(r: Rewriter) -> Outcome:
    """sub(add(x, y), y) ⇒ x, on integers"""
    total, less = r.operands
    added = r.producer(total, "add")
    if added is None or not less.type.dtype.is_integer:
        return None
    for x, y in (added.operands, added.operands[::-1]):
        if x.type.shape == r.op.result.type.shape and is_same(r, y, less):
            return x
    return None


@rule("cast")
def byte_with_an_offset(r: Rewriter) -> Outcome:
    """cast(cast(add(cast(x: i8), 128), u8), i32) ⇒ add(cast(x), 128)"""
    (byte,) = r.operands
    narrowed = r.producer(byte, "cast")
    if narrowed is None or byte.type.dtype is not u8 or r.op.result.type.dtype is not i32:
        return None
    wide = narrowed.operands[0]
    added = r.producer(wide, "add")
    if added is None or wide.type.dtype is not i32:
        return None
    made = r.producer(added.operands[0], "cast")
    signed = made is not None and made.operands[0].type.dtype is i8
    return wide if signed and known(r, added.operands[1]) == 128 else None


def is_same(r: Rewriter, a: Value, b: Value, depth: int = _DEPTH) -> bool:
    """Whether two values are computed alike from the same ones."""
    if a is b:
        return True
    first, second = r.producer(a), r.producer(b)
    if depth == 0 or first is None or second is None or a.type != b.type or first.name != second.name:
        return False
    if first.attributes != second.attributes or first.definition.kind not in _COMPARED:
        return False
    return all(is_same(r, x, y, depth - 1) for x, y in zip(first.operands, second.operands, strict=True))


INTEGER_RULES: tuple[Rule, ...] = (less_what_was_added, byte_with_an_offset)
