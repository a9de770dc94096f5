# SPDX-License-Identifier: Apache-2.0
"""What a recording's nodes tell of rows that data chooses: see :class:`fusec.frontend.capture.ChosenRows`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import fx

from fusec.frontend.capture import ChosenRows
from fusec.frontend.torch_memory import Handle
from fusec.frontend.torch_row_sets import RowSet, RowSets
from fusec.ir.builder import Builder
from fusec.ir.nodes import Value


class Tracing(Protocol):
    """What is needed of a trace."""

    builder: Builder

    def handle(self, tensor: torch.Tensor) -> Handle: ...

    def value(self, tensor: torch.Tensor) -> Value: ...

    def _as_fake(self, tensor: torch.Tensor) -> torch.Tensor: ...


class NotedRows:
    """Notes on each node of a recording which rows it gives, its shape, and where its memory is."""

    def __init__(self, trace: Tracing, sets: RowSets) -> None:
        self._trace, self._rows = trace, sets
        self._sets: dict[RowSet, tuple[int, str]] = {}

    def note(self, tensor: torch.Tensor, node: fx.Node, nodes: Mapping[int, tuple[torch.Tensor, fx.Node]]) -> None:
        """Notes what a tensor that a node gives is."""
        node.meta["memory"] = id(self._trace.handle(tensor).memory)
        node.meta["shape"] = tuple(tensor.shape)
        rows = self._rows.rows(tensor)
        if rows is None:
            return
        found = self._sets.get(rows.of)
        if found is None:
            condition = nodes[id(self._trace._as_fake(rows.of.given))][1]
            found = self._sets[rows.of] = (len(self._sets), condition.name)
        node.meta["rows"] = (found[0], rows.axis, rows.coordinate)

    def finish(self) -> ChosenRows | None:
        """What is known of the sets; None where there are none."""
        if not self._sets:
            return None
        masks = self._trace.builder.finish([self._trace.value(each.mask) for each in self._sets])
        return ChosenRows(tuple((name, each.shape) for each, (_, name) in self._sets.items()), masks)
