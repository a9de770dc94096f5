"""What workloads of PyTorch modules share."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.session import Array

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The memory format with channels last of an image or a weight of so many dimensions."""


class ConvNormAct(nn.Module):
    """A convolution, batch norm with its running statistics, and an activation."""

    def __init__(self, channels: int, columns: int, size: int, stride: int = 1, *, act: Any = F.relu, **more: Any):
        super().__init__()
        padding = more.pop("padding", size // 2)
        self.conv = nn.Conv2d(channels, columns, size, stride, padding, bias=False, **more)
        self.norm, self.act = nn.BatchNorm2d(columns), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


def in_format(x: Any, last: bool = True) -> Any:
    """A module or an image, copied: with its channels last, or contiguous."""
    dims = {p.dim() for p in x.parameters()} if isinstance(x, nn.Module) else {x.dim()}
    form = LAST.get(5 if 5 in dims else 4) if last else torch.contiguous_format
    if isinstance(x, nn.Module):
        return copy.deepcopy(x).to(memory_format=form)
    return x.contiguous(memory_format=form) if x.dim() in LAST else x


def exact(module: nn.Module, *args: Any) -> Array:
    """The result in float64, the first of several. args: also lists and tuples of tensors."""

    def wide(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.double() if value.is_floating_point() else value
        return type(value)(map(wide, value))

    result = copy.deepcopy(module).double()(*map(wide, args))
    first: Tensor = result[0] if isinstance(result, tuple) else result
    return first.numpy()
