# SPDX-License-Identifier: Apache-2.0
"""Layers with weights, or weights and activations, in fewer bits: plain PyTorch code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GROUPS = (128, 64, 32)
"""Columns that share a scale of weights of four bits: the first of these that divides the row."""

_FP8 = torch.float8_e4m3fn
_LARGEST_FP8 = 448.0


def byte_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Signed bytes and a scale for each row: of the first axis, ``weight = bytes * scale``."""
    rows = weight.reshape(len(weight), -1)
    scale = rows.abs().amax(1).clamp(min=1e-12) / 127
    return (rows / scale[:, None]).round().clamp(-127, 127).to(torch.int8).reshape(weight.shape), scale


class Int8Linear(nn.Module):
    """``x @ w.T + b`` of bytes: x by one scale and zero point, w by a scale for each row. Sums are int32.

    What the zero point adds to each result is part of the bias.
    """

    weight: Tensor
    scales: Tensor
    bias: Tensor

    def __init__(self, layer: nn.Linear, low: float, high: float) -> None:
        super().__init__()
        scale = max((high - low) / 255, 1e-12)
        zero = round(-128 - low / scale)
        weight, of_rows = byte_rows(layer.weight.detach().float())
        bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.detach().float()
        self.scale, self.zero = scale, zero
        self.register_buffer("weight", weight)
        self.register_buffer("scales", of_rows * scale)
        self.register_buffer("bias", bias.to(of_rows.device) - zero * weight.float().sum(1) * of_rows * scale)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] in, [..., out] out, in its dtype."""
        digits = ((input.float() / self.scale).round() + self.zero).clamp(-128, 127).to(torch.int8)
        sums = torch._int_mm(digits.reshape(-1, digits.shape[-1]), self.weight.t())
        return (sums.float() * self.scales + self.bias).reshape(*input.shape[:-1], len(self.scales)).to(input.dtype)


class Fp8Linear(nn.Module):
    """``x @ w.T + b`` of e4m3 numbers: x by one scale, w by a scale for each row. Sums are float32."""

    weight: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear, low: float, high: float) -> None:
        super().__init__()
        self.scale = max(-low, high, 1e-12) / _LARGEST_FP8
        weight = layer.weight.detach().float()
        of_rows = weight.abs().amax(1).clamp(min=1e-12) / _LARGEST_FP8
        self.register_buffer("weight", (weight / of_rows[:, None]).to(_FP8))
        self.register_buffer("scales", of_rows * self.scale)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().float())

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] in, [..., out] out, in its dtype."""
        digits = (input.float() / self.scale).clamp(-_LARGEST_FP8, _LARGEST_FP8).to(_FP8)
        y = (digits.float() @ self.weight.float().t()) * self.scales
        return (y if self.bias is None else y + self.bias).to(input.dtype)


class Int8WeightLinear(nn.Module):
    """``x @ w.T + b`` with w in bytes and a scale for each row."""

    weight: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight, scales = byte_rows(layer.weight.detach().float())
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] in, [..., out] out, in its dtype."""
        y = (input @ self.weight.to(input.dtype).t()) * self.scales.to(input.dtype)
        return y if self.bias is None else y + self.bias


class Int4WeightLinear(nn.Module):
    """``x @ w.T + b`` with w in digits of four bits, two to a byte, and a scale for each group of a row's columns."""

    packed: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear, group: int) -> None:
        super().__init__()
        rows, columns = layer.weight.shape
        weight = layer.weight.detach().float().reshape(rows, columns // group, group)
        scales = _scales_of_digits(weight)
        digits = ((weight / scales[..., None]).round().clamp(-8, 7) + 8).to(torch.uint8).reshape(rows, columns)
        self.group = group
        self.register_buffer("packed", digits[:, 0::2] | (digits[:, 1::2] << 4))
        self.register_buffer("scales", scales)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] in, [..., out] out, in its dtype."""
        digits = torch.stack([self.packed & 15, self.packed >> 4], -1).to(torch.int8) - 8
        weight = digits.reshape(*self.scales.shape, self.group).to(input.dtype) * self.scales[..., None].to(input.dtype)
        return F.linear(input, weight.reshape(len(self.packed), -1), self.bias)


def _scales_of_digits(weight: Tensor) -> Tensor:
    """Of each group, the scale with the least squared error among some below what reaches the largest weight."""
    largest = weight.abs().amax(-1).clamp(min=1e-12) / 7
    best, least = largest, torch.full_like(largest, torch.inf)
    for share in torch.linspace(0.75, 1.0, 11).tolist():
        scale = largest * share
        error = ((weight / scale[..., None]).round().clamp(-8, 7) * scale[..., None] - weight).square().sum(-1)
        best = torch.where(error < least, scale, best)
        least = torch.minimum(error, least)
    return best


class LowPrecisionConv2d(nn.Module):
    """A convolution with weights in bytes, or e4m3, and a scale for each channel; multiplied as floats.

    ``scheme`` says whether its input is rounded: to bytes by a scale and a zero point, to e4m3 by a scale, or not.
    """

    weight: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Conv2d, scheme: str, low: float, high: float) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        self.settings: dict[str, Any] = {
            "stride": layer.stride,
            "padding": layer.padding,
            "dilation": layer.dilation,
            "groups": layer.groups,
        }
        self.scheme, self.scale, self.zero = scheme, 1.0, 0
        if scheme == "fp8":
            self.scale = max(-low, high, 1e-12) / _LARGEST_FP8
            scales = weight.abs().amax((1, 2, 3)).clamp(min=1e-12) / _LARGEST_FP8
            digits = (weight / scales[:, None, None, None]).to(_FP8)
        else:
            digits, scales = byte_rows(weight)
            if scheme == "int8":
                self.scale = max((high - low) / 255, 1e-12)
                self.zero = round(-128 - low / self.scale)
        self.register_buffer("weight", digits)
        self.register_buffer("scales", (scales * self.scale)[:, None, None])
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().float()[:, None, None])

    def forward(self, input: Tensor) -> Tensor:
        """[batch, channels, rows, columns] in and out, in its dtype."""
        digits = input.float() / self.scale
        if self.scheme == "int8":
            digits = (digits.round() + self.zero).clamp(-128, 127) - self.zero
        elif self.scheme == "fp8":
            digits = digits.clamp(-_LARGEST_FP8, _LARGEST_FP8).to(_FP8).float()
        y = F.conv2d(digits, self.weight.float(), **self.settings) * self.scales
        return (y if self.bias is None else y + self.bias).to(input.dtype)
