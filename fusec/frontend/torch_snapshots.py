"""Tensors that a traced run can reach, put back where the run gave them other memory (``p.data = q``).

That assignment passes PyTorch's dispatcher by, so it changes the real tensor, and what it gives it is a fake one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fusec.frontend.torch_modes import why_not_plain

_Layout = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], Any, bool]


class TensorSnapshots:
    """Plain tensors as they are when this is made."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._snapshots = tuple((t, t.data, _layout(t)) for t in tensors if not why_not_plain(t))

    def put_back(self) -> Sequence[torch.Tensor]:
        """Gives the tensors that changed what they had, outside of a trace; these are returned."""
        changed = []
        for tensor, data, before in self._snapshots:
            now = _layout(tensor)
            if now == before:
                continue
            if now[:-1] != before[:-1]:
                tensor.data = data
            if now[-1] != before[-1]:
                tensor.requires_grad_(before[-1])
            changed.append(tensor)
        return changed


def _layout(tensor: torch.Tensor) -> _Layout:
    address = tensor.untyped_storage()._cdata
    return address, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.requires_grad
