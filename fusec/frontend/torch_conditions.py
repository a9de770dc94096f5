# SPDX-License-Identifier: Apache-2.0
"""What the code alone says of values of a trace: their elements, and whether one condition implies another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusec.ir.attributes import Attributes, ReduceAttributes, SliceAttributes
from fusec.ir.nodes import Op, Value
from fusec.ir.types import bool_

MOST_KNOWN = 4096
"""Elements of a value that is computed while tracing, at most."""


class Conditions:
    """Reads values by the ops that make them. made_by: the op that makes a value; None for an input."""

    def __init__(self, made_by: Callable[[Value], Op | None]) -> None:
        self._made_by = made_by

    def known(self, value: Value, depth: int = 16) -> np.ndarray[Any, Any] | None:
        """The elements of a value that the code alone says; None where data does, or where they are many."""
        made = self._made_by(value)
        if made is None or not depth or not value.type.is_static or value.type.size > MOST_KNOWN:
            return None
        if made.definition.kind not in ("create", "elementwise", "view"):
            return None
        operands = [self.known(v, depth - 1) for v in made.operands]
        if any(x is None for x in operands):
            return None
        (found,) = made.definition.reference(tuple(x for x in operands if x is not None), made.attributes)
        return np.asarray(found)

    def implies(self, condition: Value, hits: Value, candidate: int) -> bool:
        """Whether an element of a condition that holds makes that one of ``hits`` hold: this one counts them.

        ``hits`` is ``x.sum(others) > 0`` of an ``x`` without negative elements, or ``x.any(others)``; the condition is
        made of views of ``x[candidate]``.
        """
        total = self._peeled(hits, ("cast", "copy", "gt", "ne"))
        counted = self._made_by(total)
        if counted is None or not isinstance(counted.attributes, ReduceAttributes):
            return False
        axes = counted.attributes.axes
        (x,) = counted.operands
        if counted.name not in ("reduce_sum", "reduce_any", "reduce_max") or axes != tuple(range(1, x.type.rank)):
            return False
        root, views = self._through_views(x)
        own, steps = self._through_views(condition)
        if own is not root or steps[: len(views)] != views or len(steps) == len(views):
            return False
        made = self._made_by(root)
        is_count = root.type.dtype is bool_ or (
            made is not None and made.name == "cast" and made.operands[0].type.dtype is bool_
        )
        cut = steps[len(views)]
        if not is_count or not isinstance(cut, SliceAttributes):
            return False
        whole = SliceAttributes.of_axes(x.type.static_shape, {0: (candidate, candidate + 1)})
        return cut == whole

    def _peeled(self, value: Value, names: Sequence[str]) -> Value:
        """What a value is made of by ops that keep whether it is 0: comparisons are with 0."""
        made = self._made_by(value)
        while made is not None and made.name in names:
            if made.name in ("gt", "ne"):
                zero = self.known(made.operands[1])
                if zero is None or zero.any():
                    break
            value = made.operands[0]
            made = self._made_by(value)
        return value

    def _through_views(self, value: Value) -> tuple[Value, list[Attributes]]:
        """What a value shows, and the views from there on."""
        steps: list[Attributes] = []
        while True:
            value = self._peeled(value, ("copy", "ne"))
            made = self._made_by(value)
            if made is None or made.definition.kind != "view":
                return value, steps[::-1]
            steps.append(made.attributes)
            value = made.operands[0]
