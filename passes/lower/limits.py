"""What a block computes beyond the limits of its iterators."""

from __future__ import annotations

from fusec.ir.types import bool_
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Apply, Const, IndexValue, ScalarExpr


def zero_beyond(element: ScalarExpr, *domain: Iter) -> ScalarExpr:
    """What is computed from zeros beyond the limits may be no zero, as a matmul's operand must be there."""
    for i in domain:
        if i.limit is not None:
            inside = Apply("lt", (IndexValue(i.var), IndexValue(i.limit)), bool_)
            element = Apply("select", (inside, element, Const(0.0, element.dtype)), element.dtype)
    return element
