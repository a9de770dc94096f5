# SPDX-License-Identifier: Apache-2.0
"""A call whose extents are symbolic: captured at some of them, and followed by PyTorch's symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusec.frontend.capture import Capture, Library
from fusec.frontend.structures import CallSpec
from fusec.ir.indexing import evaluate
from fusec.ir.types import contiguous_strides
from fusec.runtime.arrays import Arrays
from fusec.runtime.captures import captures
from fusec.runtime.code import Scope
from fusec.runtime.dynamic import Opening, is_open


@dataclass(frozen=True)
class OpenedCall:
    """``function`` called with the structure of ``spec``, whose arrays are like ``leaves``, of the opening's shapes.

    capture: captures it for arguments. strict: what can't be followed is no program for ranges.
    """

    function: Callable[..., Any]
    capture: Callable[[Library, tuple[Any, ...], dict[str, Any]], Capture]
    arrays: Arrays
    leaves: Sequence[Any]
    spec: CallSpec
    opening: Opening
    strict: bool

    def capture_at(self, extents: Mapping[str, int]) -> Capture:
        """The function captured where its symbols have these values."""
        made: list[Any] = []
        for number, (leaf, shape) in enumerate(zip(self.leaves, self.opening.shapes, strict=True)):
            again = next((k for k in range(number) if self.leaves[k] is leaf), None)
            if again is not None or not is_open(shape):
                made.append(leaf if again is None else made[again])
                continue
            scope = Scope()
            type = self.arrays.layout(leaf).type.with_shape([evaluate(n, extents) for n in shape])
            steps = self.opening.steps.get(number)
            strides = [evaluate(n, extents) for n in steps] if steps else contiguous_strides(type.static_shape)
            expression = self.arrays.allocate(scope, type, strides)
            made.append(eval(expression, dict(scope.objects)))
        args, kwargs = self.spec.restore(made)
        return self.capture(self.arrays.library, args, kwargs)

    def check(self, extents: Mapping[str, int], ranges: Mapping[str, tuple[int, int]]) -> None:
        """DimensionError where PyTorch's function, followed at the extents, does not do the same in the ranges."""
        from fusec.frontend.torch_sizes import check_conditions

        named = [[n if isinstance(n, int) else str(n) for n in shape] for shape in self.opening.shapes]
        types = [self.arrays.layout(leaf).type for leaf in self.leaves]
        arguments = [(shape, type.dtype, type.device) for shape, type in zip(named, types, strict=True)]
        with captures.run():
            check_conditions(self.function, arguments, self.spec.restore, extents, ranges, strict=self.strict)
