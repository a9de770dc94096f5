# SPDX-License-Identifier: Apache-2.0
"""Tensors that a traced run can reach, put back where the run gave them other memory (``p.data = q``) or attributes.

That assignment passes PyTorch's dispatcher by, so it changes the real tensor, and what it gives it is a fake one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fusec.frontend.held import same_parts
from fusec.frontend.raw import set_items
from fusec.frontend.torch_modes import why_not_plain

_Layout = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], Any, bool]


class TensorSnapshots:
    """Plain tensors as they are when this is made."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._snapshots = tuple((t, t.data, _layout(t), _marks(t)) for t in tensors if not why_not_plain(t))

    def put_back(self) -> Sequence[torch.Tensor]:
        """Gives the tensors that changed what they had, outside of a trace; these are returned."""
        changed = []
        for tensor, data, before, attributes in self._snapshots:
            now = _layout(tensor)
            is_marked = not same_parts(_marks(tensor), attributes, _same_mark)
            if now == before and not is_marked:
                continue
            if is_marked:
                set_items(vars(tensor), attributes)
            if now[:-1] != before[:-1]:
                tensor.data = data
            if now[-1] != before[-1]:
                tensor.requires_grad_(before[-1])
            changed.append(tensor)
        return changed


def _marks(tensor: torch.Tensor) -> list[tuple[str, Any]]:
    """The attributes of its own that a tensor was given."""
    return list(vars(tensor).items())


def _same_mark(now: tuple[str, Any], then: tuple[str, Any]) -> bool:
    return now[0] == then[0] and (now[1] is then[1] or now[0].startswith("_"))  # PyTorch's own, for its compilers


def _layout(tensor: torch.Tensor) -> _Layout:
    address = tensor.untyped_storage()._cdata
    return address, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.requires_grad
