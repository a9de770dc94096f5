# SPDX-License-Identifier: Apache-2.0
"""Backwards of elementwise calls whose decomposition in PyTorch hides a NaN that its kernels show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def smooth_l1_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """PyTorch's takes the sign of the difference, which is 0 of a NaN."""
    norm = 1.0 / max(x.numel(), 1) if reduction == 1 else 1.0
    apart = x - target
    inside = norm * apart * grad / beta
    return torch.where(apart <= -beta, -norm * grad, torch.where(apart >= beta, norm * grad, inside))


BACKWARDS: Mapping[str, Callable[..., Any]] = {"smooth_l1_loss_backward": smooth_l1_loss_backward}
