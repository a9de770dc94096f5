"""Numbers that a half type can't hold, and zeros: PyTorch's roundings and signs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusec

HALVES = [torch.bfloat16, torch.float16]
NUMBERS = [0.1, -0.3, 3.999, -10000.0, 257, 2049, 1e-45]

ROUNDING: dict[str, Callable[[Tensor, float], Tensor]] = {
    "eq": lambda x, s: x == s,
    "ne": lambda x, s: x != s,
    "gt": lambda x, s: x > s,
    "ge": lambda x, s: x >= s,
    "lt": lambda x, s: x < s,
    "le": lambda x, s: x <= s,
    "reflected": lambda x, s: s < x,
    "where": lambda x, s: torch.where(x > 0.5, x, s),
    "masked_fill": lambda x, s: x.masked_fill(x > 0.5, s),
    "filled and compared": lambda x, s: x.masked_fill(x > 0.5, s) == s,
    "full": lambda x, s: torch.full_like(x, s) == x,
    "clamp": lambda x, s: x.clamp(min=s),
    "pad": lambda x, s: F.pad(x, (1, 2), value=s),
    "floor": lambda x, s: torch.full_like(x, s).floor() + x * 0,
    "add": lambda x, s: x + s,
    "sub": lambda x, s: x - s,
    "sub from": lambda x, s: s - x,
    "sign": lambda x, s: torch.sign(x - s),
    "fmod": lambda x, s: torch.fmod(x, s),
    "remainder": lambda x, s: x % s,
    "trunc": lambda x, s: torch.div(x, s, rounding_mode="trunc"),
    "hardshrink": lambda x, s: F.hardshrink(x, s),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ROUNDING)
def test_numbers_are_rounded_as_pytorch_rounds_them(name: str, dtype: torch.dtype) -> None:
    def all_of(x: Tensor) -> list[Tensor]:
        return [ROUNDING[name](x, s) for s in NUMBERS]

    held = torch.tensor(NUMBERS).to(dtype)
    beside = torch.nextafter(held, torch.tensor(torch.inf, dtype=dtype))
    x = torch.cat([held, beside, torch.tensor([0.0, 1.0, -7.7, torch.nan, torch.inf]).to(dtype)])
    for ours, theirs in zip(fusec.jit(all_of, fallback="error")(x), all_of(x), strict=True):
        assert torch.equal(ours.nan_to_num(77.0), theirs.nan_to_num(77.0))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("function", [F.elu, F.celu])
@pytest.mark.parametrize("alpha", [-0.3, -10000.0, torch.nan, torch.inf, 1.7])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_zeros_stay_whatever_is_below(function: Callable[..., Tensor], alpha: float, dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, -1e-4, torch.nan, torch.inf, -torch.inf]).to(dtype)
    ours, theirs = fusec.jit(lambda x: function(x, alpha), fallback="error")(x), function(x, alpha)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert torch.equal(ours.signbit()[:2], theirs.signbit()[:2])


@pytest.mark.parametrize("dtype", HALVES)
def test_rows_that_two_masks_hide_by_one_number_are_means(dtype: torch.dtype) -> None:
    """``(1 - seen) * -1e4`` and ``masked_fill(-1e4)`` are one number of the half type, whatever computes it."""
    n = 48

    def attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor) -> Tensor:
        seen = torch.arange(n)[:, None] == torch.arange(n)[None, :]
        s = q @ k.mT
        s = s * seen + (1.0 - seen.to(s.dtype)) * -1e4
        return torch.softmax(s.masked_fill(~keys, -1e4), -1) @ v

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, n, 16, generator=generator).to(dtype) for _ in range(3))
    keys = torch.arange(n) % 3 > 0
    found = fusec.jit(attend, fallback="error")(q, k, v, keys)
    torch.testing.assert_close(found[:, ~keys], v.mean(1, keepdim=True).expand(3, 16, 16), rtol=0, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_half_powers_of_zeros_and_infinities(exponent: float, dtype: torch.dtype) -> None:
    """A CPU's library takes roots but of f16, for which it calls C's ``pow``."""
    x = torch.tensor([-0.0, 0.0, -torch.inf, torch.inf, -1.0, 4.0, 0.25, torch.nan] * 4, dtype=dtype)
    got, right = fusec.jit(lambda x: x**exponent)(x), x**exponent
    torch.testing.assert_close(got, right, equal_nan=True)
    assert torch.equal(got.signbit() & ~got.isnan(), right.signbit() & ~right.isnan())


NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer norm": lambda x: F.layer_norm(x, (16,)),
    "layer norm with a weight": lambda x: F.layer_norm(x, (16,), x.new_full((16,), -1.0)),
    "batch norm": lambda x: F.batch_norm(x, x.new_ones(16), x.new_ones(16)),
    "batch norm with a weight": lambda x: F.batch_norm(x, x.new_ones(16), x.new_ones(16), x.new_full((16,), -1.0)),
    "rms norm": lambda x: F.rms_norm(x, (16,)),
    "batch norm in training": lambda x: F.batch_norm(x * 0, None, None, training=True),
    "batch norm in training, with a weight": lambda x: F.batch_norm(x * 0, None, None, -x[0].abs(), training=True),
    "instance norm": lambda x: F.instance_norm(x[None] * 0),
    "instance norm with a weight": lambda x: F.instance_norm(x[None] * 0, weight=-x[:, 0].abs()),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", NORMS)
def test_zeros_of_norms_have_the_librarys_sign(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, 0.0, -0.0, -1.0], dtype=dtype)[:, None].repeat(1, 16)
    got, right = fusec.jit(NORMS[name])(x), NORMS[name](x)
    torch.testing.assert_close(got, right)
    assert torch.equal(got.signbit(), right.signbit())


def _integers_of_rows(x: Tensor) -> list[Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return [(x / scale).round().clamp(-128, 127).to(torch.int8), scale]


def _float8_of_rows(x: Tensor) -> list[Tensor]:
    scale = 448 / x.abs().amax(-1, keepdim=True)
    return [(x * scale).clamp(-448, 448).to(torch.float8_e4m3fn).float()]


def _unsigned_of_rows(x: Tensor) -> list[Tensor]:
    high, low = x.amax(-1, True), x.amin(-1, True)
    scale = (high - low) / 255
    return [((x / scale).round() + (-low / scale).round()).clamp(0, 255).to(torch.uint8)]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("quantised", [_integers_of_rows, _float8_of_rows, _unsigned_of_rows])
def test_integers_of_quantised_rows_are_eagers(quantised: Callable[[Tensor], list[Tensor]], dtype: torch.dtype) -> None:
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)).to(dtype)
    for ours, theirs in zip(fusec.jit(quantised, fallback="error")(x), quantised(x), strict=True):
        assert torch.equal(ours, theirs)
