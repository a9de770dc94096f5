# SPDX-License-Identifier: Apache-2.0
"""What PyTorch code finds where it branches on values, noted while it runs as written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_READ = torch.ops.aten._local_scalar_dense.default


def is_branch(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operation gives Python the truth of a tensor of bool."""
    return func is _READ and args[0].dtype is torch.bool


class NotedOutcomes(TorchDispatchMode):
    """While entered, notes what branches on tensors of bool find in this thread."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[bool] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_branch(func, args):
            self.found.append(result)
        return result
