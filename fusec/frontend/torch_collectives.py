# SPDX-License-Identifier: Apache-2.0
"""Functional collectives of ``torch.distributed``: their results are waited for where they are first read.

A collective gives a tensor of another class, which waits at its first use. In a capture it is that class around a
stand-in, so that the wait becomes a call of the graph at the same position.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload


def _waiting_class() -> type[torch.Tensor] | None:
    module = sys.modules.get("torch.distributed._functional_collectives")
    return getattr(module, "AsyncCollectiveTensor", None)


def is_waiting(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a collective's result that waits at its first use."""
    kind = _waiting_class()
    return kind is not None and type(tensor) is kind


def wrapping(func: OpOverload) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What wraps a collective's result, where a call does that as an operation of its own; else None."""
    kind = _waiting_class()
    name = func.overloadpacket.__name__
    return kind if func.namespace == "_c10d_functional" and name == "_wrap_tensor_autograd" else None


def waited(tensor: Any) -> torch.Tensor:
    """The tensor inside, after a wait that is traced."""
    made = torch.ops._c10d_functional.wait_tensor(tensor.elem)
    tensor.completed = True
    assert isinstance(made, torch.Tensor)
    return made
