from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fusec
from fusec.quantizing.layers import (
    Fp8Linear,
    Int4WeightLinear,
    Int8Linear,
    Int8WeightLinear,
    LowPrecisionConv2d,
    byte_rows,
)


def _linear(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(64, 24, bias=bias)


def _convolution() -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(4, 8, 3, stride=2, padding=1)


def _input(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)) + 0.5


def _convolved(scheme: str) -> nn.Module:
    return LowPrecisionConv2d(_convolution(), scheme, -4.0, 5.0)


MADE: dict[str, tuple[Any, nn.Module, tuple[int, ...], float]] = {
    "int8": (_linear(), Int8Linear(_linear(), -4.0, 5.0), (2, 5, 64), 0.02),
    "int8 without a bias": (_linear(False), Int8Linear(_linear(False), -4.0, 5.0), (5, 64), 0.02),
    "int8 of one row": (_linear(), Int8Linear(_linear(), -4.0, 5.0), (64,), 0.02),
    "fp8": (_linear(), Fp8Linear(_linear(), -4.0, 5.0), (5, 64), 0.06),
    "int8 weights": (_linear(), Int8WeightLinear(_linear()), (5, 64), 0.01),
    "int4 weights": (_linear(), Int4WeightLinear(_linear(), 32), (5, 64), 0.12),
    "convolution in int8": (_convolution(), _convolved("int8"), (2, 4, 9, 9), 0.03),
    "convolution in fp8": (_convolution(), _convolved("fp8"), (2, 4, 9, 9), 0.08),
    "convolution, int8 weights": (_convolution(), _convolved("int8-weights"), (2, 4, 9, 9), 0.01),
}


@pytest.mark.parametrize("name", MADE)
def test_a_layer_is_what_it_was_but_for_rounding(name: str) -> None:
    layer, smaller, shape, tolerance = MADE[name]
    x = _input(*shape)
    with torch.no_grad():
        found, wanted = smaller(x), layer(x)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        assert 1e-5 < float((found - wanted).norm() / wanted.norm()) < tolerance
        assert not list(smaller.parameters())
        torch.testing.assert_close(fusec.jit(smaller, fallback="error")(x), found, rtol=1e-4, atol=1e-4)


def test_zeros_give_the_bias_whatever_the_zero_point() -> None:
    layer = _linear()
    with torch.no_grad():
        torch.testing.assert_close(Int8Linear(layer, -1.0, 3.0)(torch.zeros(2, 64)), layer(torch.zeros(2, 64)))


def test_rows_of_bytes() -> None:
    digits, scales = byte_rows(torch.tensor([[1.0, -2.0], [0.0, 0.0], [127.0, 1.0]]))
    assert digits.tolist() == [[64, -127], [0, 0], [127, 1]]
    assert float(scales[0]) == pytest.approx(2 / 127)


def test_four_bits_are_two_to_a_byte() -> None:
    layer = Int4WeightLinear(_linear(), 32)
    assert (layer.packed.dtype, layer.packed.shape, layer.scales.shape) == (torch.uint8, (24, 32), (24, 2))
