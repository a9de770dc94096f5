"""Linear layers with weights of 4 bits, unpacked in plain code."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

GROUP = 128
"""Columns that share a scale."""
BLOCK = 64
"""The same of weights whose values stand in a table."""


def int4_linear(x: Any, w: Any, s: Any) -> Any:
    """Two signed numbers in a byte, the low bits first; a scale for each group of a row."""
    q = torch.stack([w & 15, w >> 4], -1).to(torch.int8) - 8
    return F.linear(x, (q.reshape(*s.shape, GROUP).to(x.dtype) * s[..., None]).reshape(w.shape[0], -1))


def nf4_linear(x: Any, w: Any, numbers: Any, s: Any) -> Any:
    """Two indices into a table of 16 in a byte, the high bits first; a scale for each block."""
    q = torch.stack([w >> 4, w & 15], -1).reshape(-1).to(torch.int32)
    return F.linear(x, (numbers[q].reshape(-1, BLOCK) * s[:, None]).reshape(w.shape[0], -1).to(x.dtype))


def int4_weights(n: int, k: int, device: str) -> tuple[Any, Any]:
    scales = torch.rand(n, k // GROUP, device=device).bfloat16() / k**0.5
    return torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device), scales


def nf4_weights(n: int, k: int, device: str) -> tuple[Any, Any, Any]:
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
    return packed, torch.linspace(-1, 1, 16, device=device), torch.rand(n * k // BLOCK, device=device) / k**0.5


def int4_bytes(n: int, k: int) -> float:
    return n * k * (0.5 + 2 / GROUP)


def nf4_bytes(n: int, k: int) -> float:
    return n * k * (0.5 + 4 / BLOCK)
