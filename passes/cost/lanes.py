# SPDX-License-Identifier: Apache-2.0
"""What groups of ops take a GPU's lanes: instructions, those of the unit for exponentials, and bytes of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from fusec.ir.graph import Graph
from fusec.ir.index import Symbol
from fusec.ir.nodes import Op, Value
from fusec.tile.scalar import Apply, Buffer, Const, ScalarExpr, loads, symbols_in, walk


@dataclass(frozen=True)
class LaneWork:
    """Instructions of a lane, and operations of the unit for exponentials among them."""

    instructions: float
    specials: float


INSTRUCTIONS: Mapping[str, float] = {
    "exp": 10,
    "exp2": 3,
    "expm1": 20,
    "log": 18,
    "log2": 16,
    "log10": 20,
    "log1p": 25,
    "sin": 25,
    "cos": 25,
    "tanh": 2,
    "erf": 25,
    "pow": 45,
    "div": 8,
    "sqrt": 7,
    "rsqrt": 3,
    "cast": 1.5,
    "copy": 0,
    "floordiv": 12,
    "remainder": 14,
    "fmod": 30,
}
"""Of one result in f32. An op that is not named takes one. Rows of bf16 with a norm and gelu were found to take 22 an
element (decision 11)."""

SCANNED = 12.0
"""Of an element that a block scans: within a thread, among the threads of a warp, and among warps."""

SPECIALS = frozenset(
    ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "div", "sqrt", "rsqrt")
)
"""Ops that take the unit for exponentials and reciprocals once."""

_SELECTS = frozenset(("select", "lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_not"))


def group_work(body: Graph) -> LaneWork:
    """Of all results of a group's elementwise ops, and of the elements that it reduces; where extents are symbolic, of
    the most that there can be."""
    instructions = specials = 0.0
    for op in body.ops:
        if op.definition.kind == "elementwise":
            instructions += INSTRUCTIONS.get(op.name, 1.0) * op.result.type.most
            specials += op.result.type.most * (op.name in SPECIALS)
        elif op.definition.kind == "reduce":
            instructions += op.operands[0].type.most
        elif op.definition.kind == "scan":
            instructions += (2.0 if op.name == "recurrence" else SCANNED) * op.operands[0].type.most
    return LaneWork(instructions, specials)


def score_work(score: ScalarExpr, key: Symbol, raw: Buffer) -> LaneWork:
    """Of a score that is made of the dot in ``raw``, for each key.

    Masks are left out: few blocks of keys have them. What all keys share is computed before the loop, and one factor is
    a part of the exponential's."""
    found = [n for n in walk(score) if isinstance(n, Apply) and n.op not in _SELECTS]
    found = [n for n in found if key in symbols_in(n) or any(x.buffer is raw for x in loads(n))]
    scales = sum(n.op in ("mul", "div") and any(isinstance(a, Const) for a in n.args) for n in found)
    found = [n for n in found if n.op not in ("cast", "copy")]
    instructions = sum(_of(n) for n in found) - min(scales, 1)
    return LaneWork(max(instructions, 0.0), sum(n.op in SPECIALS and not _by_constant(n) for n in found))


_QUOTIENT = 2.5
"""Instructions of a quotient that may be some units in the last place off: a reciprocal and a multiplication."""


def points_work(values: Sequence[ScalarExpr], raws: Set[Buffer], axes: tuple[Symbol, Symbol]) -> LaneWork:
    """Of values at a point of a score space, over the products in ``raws``: what depends on one of them, or on both
    axes of the space. What values have in common is computed once."""
    found = {n for v in values for n in walk(v) if isinstance(n, Apply) and n.op not in _SELECTS}
    found = {n for n in found if n.op not in ("cast", "copy")}
    found = {n for n in found if symbols_in(n).issuperset(axes) or any(x.buffer in raws for x in loads(n))}
    specials = sum(n.op in SPECIALS and not _by_constant(n) for n in found)
    return LaneWork(sum(min(_of(n), _QUOTIENT) if n.op == "div" else _of(n) for n in found), specials)


def _of(node: Apply) -> float:
    return 1.0 if _by_constant(node) or node.op == "exp2" else INSTRUCTIONS.get(node.op, 1.0)


def _by_constant(node: Apply) -> bool:
    """A division by a constant is a multiplication."""
    return node.op == "div" and isinstance(node.args[1], Const)


def bytes_read(body: Graph) -> float:
    """What a group must read of its inputs once: of what is gathered, sliced or indexed, what comes of it."""
    users: dict[Value, list[Op]] = {}
    for op in body.ops:
        for value in op.operands:
            users.setdefault(value, []).append(op)
    return sum(_touched(v, users, frozenset(body.outputs)) * v.type.dtype.itemsize for v in body.inputs)


def _touched(value: Value, users: Mapping[Value, list[Op]], outputs: frozenset[Value]) -> float:
    """Elements of a value that its users read."""
    most = float(value.type.most)
    if value in outputs:
        return most
    total = 0.0
    for op in users.get(value, ()):
        gathers = op.name in ("gather", "gather_elements") and op.operands[0] is value
        picks = gathers or op.definition.kind == "view"
        total += _touched(op.result, users, outputs) if picks else most
    return min(most, total)
