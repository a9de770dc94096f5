# SPDX-License-Identifier: Apache-2.0
"""Vector instructions of elementwise code, counted on a kernel's scalar expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from math import log2

from fusec.ir.index import Expr, Index, Symbol, symbols_of
from fusec.ir.indexing import divisions_in, slope
from fusec.ir.ops import OPS
from fusec.ir.types import DType, bf16, f16
from fusec.target.cpu import CpuTarget
from fusec.tile.scalar import (
    Apply,
    Const,
    IndexValue,
    Load,
    ScalarExpr,
    depending_on,
    loads,
    offset_of,
    symbols_in,
    walk,
)

INSTRUCTIONS: Mapping[str, int] = {
    "exp": 12,
    "exp2": 13,
    "expm1": 17,
    "log": 20,
    "log2": 20,
    "log10": 22,
    "log1p": 26,
    "logaddexp": 44,
    "sin": 36,
    "cos": 36,
    "tanh": 15,
    "erf": 14,
    "div": 4,
    "sqrt": 5,
    "rsqrt": 9,
    "maximum": 2,
    "minimum": 2,
    "copy": 0,
    "sign": 4,
    "floordiv": 8,
    "remainder": 12,
    "cast": 1,
    "select": 2,
}
"""Of one vector of f32 with AVX-512, the slots that a division or root takes in the pipeline counted as instructions.
An op that is not named takes one, or is called in the C library."""

LIBRARY = 40
"""Instructions of a call of the C library, for each lane."""

IN_LIBRARY = frozenset(["fmod"])

GATHERED = 1.5
"""Instructions of a lane that is loaded by itself."""

EVERY_OTHER = 3
"""Instructions where the lanes read every other element: two vectors and a shuffle."""

DIVIDING = 32
"""Instructions that are done while a slow unit divides two vectors by each other, 16 cycles of Intel's servers."""

DIVISION = 4
"""Of an index by a constant, for the quotient or the remainder: a multiplication, shifts, another for the rest."""

SHORT: Mapping[str, int] = {"tanh": 9, "exp": 9, "erf": 18}
"""Of a polynomial to no more digits than bf16 keeps."""

ROUNDING, ROUNDING_BY_HAND = 2, 7
"""From f32 to a half type and to memory, with an instruction for it and without. That for bf16 takes subnormal numbers
for 0: kernels that don't multiply bf16 do without."""

WIDENED, WIDENING = 1.0, 2
"""More than loading it of a vector of a half type that is widened to f32, and of one in registers."""


def instructions(
    value: ScalarExpr,
    lane: Symbol,
    target: CpuTarget,
    stored: DType,
    others: Sequence[Symbol] = (),
    *,
    halves: bool = False,
    known: Set[Load] = frozenset(),
) -> float:
    """Of one vector of results along ``lane``; what does not depend on it is computed once, before the loop.

    ``others`` are the symbols of loops around: what is adjacent along one of them is read in blocks and transposed.
    ``halves``: the kernel multiplies bf16. ``known``: what has been read.
    """
    lanes = target.lanes(64 if _is_wide(value, stored) else 32)
    if isinstance(value, Load) and value.dtype is stored and stored in (bf16, f16):
        return 1.0 + _load(value, lane, lanes, others) - WIDENED
    rounding = {f16: ROUNDING, bf16: ROUNDING if halves and target.multiplies(bf16) else ROUNDING_BY_HAND}
    total = 1.0 + rounding.get(stored, 0)
    divided = 0
    moving = depending_on(value, lane)
    for node in walk(value):
        if isinstance(node, Load) and node in known:
            continue
        if id(node) in moving:
            total += _of(node, lane, lanes, others, short=stored is bf16)
            if _rounds(node) and not (node is value and node.dtype is stored):
                total += rounding[node.dtype] + WIDENING
            divided += isinstance(node, Apply) and node.op == "div" and _divides(node, moving, lane, others)
    return max(total, DIVIDING * divided) if target.roots_slowly else total


def _divides(quotient: Apply, moving: Set[int], lane: Symbol, others: Sequence[Symbol]) -> bool:
    """Whether lanes are divided. By what is the same on all of them they are multiplied, if that is known before the
    loop over them: where a block is transposed, its rows have one each."""
    divisor = quotient.args[1]
    if isinstance(divisor, Const):
        return False
    if id(divisor) in moving:
        return True
    return bool(others) and any(_is_transposed(load, lane, others) for load in loads(quotient))


def _is_transposed(load: Load, lane: Symbol, others: Sequence[Symbol]) -> bool:
    flat = offset_of(load.buffer, load.index)
    return flat is not None and slope(flat, lane) not in (0, 1, -1) and any(slope(flat, s) in (1, -1) for s in others)


def _rounds(node: ScalarExpr) -> bool:
    """Whether a number is rounded to a half type and widened again; operations of half types don't."""
    return isinstance(node, Apply) and node.op == "cast" and node.dtype in (bf16, f16) and node.args[0].dtype.bits > 16


def row_instructions(value: ScalarExpr, index: Sequence[Index], lane: Symbol) -> float:
    """Of the numbers that say where a row of lanes lies in memory: one row after the other, they are divided again."""
    indices = [*index, *(i for load in loads(value) for i in load.index)]
    found = {d for i in indices if isinstance(i, int | Expr) for d in divisions_in(i) if lane not in symbols_of(d)}
    return DIVISION * len(found)


def lanes_of(value: ScalarExpr, stored: DType, target: CpuTarget) -> int:
    """Results of one vector."""
    return target.lanes(64 if _is_wide(value, stored) else 32)


def _of(node: ScalarExpr, lane: Symbol, lanes: int, others: Sequence[Symbol], *, short: bool) -> float:
    match node:
        case Load():
            return _load(node, lane, lanes, others)
        case IndexValue():
            return 1.0
        case Apply(op="cast"):
            if isinstance(node.args[0], Load) and node.args[0].dtype in (bf16, f16):
                return 0.0
            return 1.0 if node.args[0].dtype.bits != node.dtype.bits else 0.0
        case Apply(op=op):
            if op in IN_LIBRARY:
                return LIBRARY * lanes
            if short and op in SHORT:
                return SHORT[op]
            return float(INSTRUCTIONS.get(op, max(OPS[op].flops, 1)))
    return 0.0


def _load(load: Load, lane: Symbol, lanes: int, others: Sequence[Symbol]) -> float:
    """One where the lanes are adjacent, a few where every other element is read, else one a lane; half types are
    widened."""
    widened = WIDENED if load.dtype in (bf16, f16) else 0.0
    flat: Index = 0
    for i, stride in zip(load.index, load.buffer.strides, strict=True):
        if isinstance(i, int | Expr):
            flat = flat + i * stride
        elif lane in symbols_in(i):
            return GATHERED * lanes
    step = slope(flat, lane)
    if step in (0, 1, -1):
        return 1.0 + widened
    if step == 2:
        return EVERY_OTHER + widened
    transposed = any(slope(flat, s) in (1, -1) for s in others)
    return (2 + log2(max(lanes, 2)) if transposed else GATHERED * lanes) + widened


def _is_wide(value: ScalarExpr, stored: DType) -> bool:
    """Whether doubles or 64-bit integers are computed with, or loaded."""
    found = [stored, *(n.dtype for n in walk(value) if isinstance(n, Load | Apply))]
    return any(d.bits == 64 and (d.is_float or d is stored) for d in found)
