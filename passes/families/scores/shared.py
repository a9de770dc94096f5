# SPDX-License-Identifier: Apache-2.0
"""What several consumers' values have in common, to be computed once."""

from __future__ import annotations

from collections.abc import Sequence

from fusec.ir.types import f32
from fusec.tile.scalar import Apply, ScalarExpr, loads, walk


def shared_part(values: Sequence[ScalarExpr]) -> ScalarExpr | None:
    """The largest part in f32 that reads a tile and that all values have; None where there is none, or one value."""
    if len(values) < 2:
        return None
    parts = [{n for n in walk(v) if isinstance(n, Apply) and n.dtype is f32} for v in values]
    common = set.intersection(*parts)
    made = [n for n in common if any(x.buffer.space == "tile" for x in loads(n))]
    return max(made, key=_size, default=None)


def _size(e: ScalarExpr) -> tuple[int, str]:
    return sum(1 for _ in walk(e)), repr(e)
