# SPDX-License-Identifier: Apache-2.0
"""Shape arithmetic of the type rules; a dimension is an integer or an index expression."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from fusec.errors import TypeRuleError
from fusec.ir.types import Dim, TensorType


def shape_text(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def broadcast_shapes(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The common shape by NumPy's rule, aligned at the right. TypeRuleError where two extents differ and none is 1."""
    result: list[Dim] = []
    for extents in zip_longest(*(reversed(s) for s in shapes), fillvalue=1):
        wide = [d for d in dict.fromkeys(extents) if d != 1]
        if len(wide) > 1:
            listed = " and ".join(map(shape_text, shapes))
            symbolic = any(not isinstance(d, int) for d in wide)
            advice = "they can't be shown to be equal; give them one symbol" if symbolic else "reshape one of them"
            raise TypeRuleError(
                f"shapes {listed} do not broadcast: {wide[0]} against {wide[1]} at axis {-1 - len(result)}, {advice}"
            )
        result.append(wide[0] if wide else 1)
    return tuple(reversed(result))


def without_axes(t: TensorType, axes: Sequence[int]) -> tuple[Dim, ...]:
    """The shape with the axes dropped."""
    return tuple(d for i, d in enumerate(t.shape) if i not in axes)
