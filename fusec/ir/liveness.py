# SPDX-License-Identifier: Apache-2.0
"""Which ops of a graph are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fusec.ir.nodes import Op, Value


def live_ops(ops: Sequence[Op], outputs: Iterable[Value], stays: Callable[[Op], bool] | None = None) -> tuple[Op, ...]:
    """The ops that the outputs depend on, in their order; and those that ``stays`` is true of, with what they read."""
    needed, live = set(outputs), list[Op]()
    for op in reversed(ops):
        if not needed.isdisjoint(op.results) or (stays is not None and stays(op)):
            live.append(op)
            needed.update(op.operands)
    return tuple(reversed(live))
