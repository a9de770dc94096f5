"""Tensors of 8-bit floats: stored bit by bit as PyTorch does it, and nothing is computed with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
BOTH = pytest.mark.parametrize("dtype", [E4, E5], ids=str)


def every() -> torch.Tensor:
    """All numbers with 16 bits, NaN of both signs and infinities among them."""
    return (torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32) << 16).view(torch.float32)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8) if x.dtype in (E4, E5) else x


def same(f: Callable[..., Any], *args: torch.Tensor, kernels: int = 1) -> None:
    """The jitted function gives what it gives as written, by so many kernels and no library call."""
    program = fusec.lower(fusec.trace(f, *args)).program
    assert [type(step).__name__ for step in program.steps] == kernels * ["Launch"]
    found, wanted = (y if isinstance(y, tuple) else (y,) for y in (fusec.jit(f)(*args), f(*args)))
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(bits(a), bits(b)) or torch.equal(torch.nan_to_num(a.float()), torch.nan_to_num(b.float()))


@BOTH
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_casts_round_as_pytorch_does(dtype: torch.dtype, source: torch.dtype) -> None:
    x = every().to(source)
    (found,), wanted = (fusec.jit(lambda x: (x.to(dtype),))(x)), x.to(dtype)
    assert torch.equal(bits(found), bits(wanted))


@BOTH
def test_casts_of_integers_and_bools(dtype: torch.dtype) -> None:
    same(lambda x: x.to(dtype), torch.arange(-600, 600))
    same(lambda x: (x > 3).to(dtype), torch.arange(-600, 600))


@BOTH
@pytest.mark.parametrize("to", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_casts_from_8_bits(dtype: torch.dtype, to: torch.dtype) -> None:
    same(lambda x: x.to(to), torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype))


def test_rows_are_quantised_by_one_kernel() -> None:
    def quantise(x: torch.Tensor) -> Any:
        s = x.abs().amax(-1, keepdim=True) / 448
        return (x / s).to(E4), s

    x = torch.randn(37, 300)
    x[1], x[2, 5], x[3, 7] = 0, float("nan"), float("inf")
    same(quantise, x)


def test_what_is_stored_is_read_and_moved() -> None:
    x = torch.randn(7, 65).to(E4)
    same(lambda x, s: x.t().float() * s, x, torch.rand(7))
    same(lambda x: torch.cat([x.t(), x.t()], 1), x)
    same(lambda x: x.to(E5), x)


def test_what_pytorch_does_not_compute_is_its_own_error() -> None:
    x = torch.randn(7, 65).to(E4)
    with pytest.raises(NotImplementedError):
        fusec.jit(lambda x: x + x)(x)
