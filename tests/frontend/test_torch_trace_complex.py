"""Complex numbers: no kernel computes them, and the code around them is compiled all the same."""

from __future__ import annotations

import aliasing
import pytest
import torch


def _rotary(x):
    """Positions as Llama's own code has them."""
    angles = torch.outer(torch.arange(x.shape[1]), 1 / 10000 ** (torch.arange(0, 8, 2) / 8))
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], 4, 2))
    return torch.view_as_real(pairs * turns).flatten(2) + 1


COMPLEX = {
    "fourier": lambda x: torch.fft.fftn(x, dim=(1, 2)).real + x,
    "product": lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x + 1)) * 2,
    "rotary": _rotary,
    "sum": lambda x: torch.fft.fft(x * 2).sum(1).abs(),
    "where": lambda x: torch.where(x > 0, torch.fft.fft(x), 0).imag - x,
    "in place": lambda x: torch.fft.fft(x).mul_(2).add_(1).real,
    "rows": lambda x: torch.cat([torch.fft.fft(x), torch.fft.fft(x + 1)], 1)[:, [0, 2]],
    "number": lambda x: (x + 1j).abs() * 2,
    "given": lambda x: (x.to(torch.complex64), x + 1),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_are_the_librarys_between_kernels(name):
    aliasing.check(COMPLEX[name], torch.randn(2, 5, 8))
