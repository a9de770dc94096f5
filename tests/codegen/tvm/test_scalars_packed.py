"""Weights of 4 bits that plain code unpacks: their kernels read them packed, and side by side."""

from __future__ import annotations

from typing import Any

import pytest

import fusec
from fusec.runtime.program import Call

torch = pytest.importorskip("torch")

N, K, GROUP = 48, 192, 32


def _weights() -> tuple[Any, Any, Any]:
    draws = torch.Generator().manual_seed(0)
    digits = torch.randint(0, 16, (N, K), dtype=torch.uint8, generator=draws)
    packed = digits[:, 0::2] | (digits[:, 1::2] << 4)
    return packed, torch.rand(N, K // GROUP, generator=draws), torch.randn(16, generator=draws)


PACKED, SCALES, TABLE = _weights()


def _opened() -> Any:
    return torch.stack([PACKED & 15, PACKED >> 4], -1).reshape(N, K)


def int4(x: Any, scales: Any = SCALES, table: Any = TABLE) -> Any:
    digits = (_opened().to(torch.int8) - 8).reshape(N, K // GROUP, GROUP)
    return x @ (digits.to(x.dtype) * scales[..., None]).reshape(N, K).T


def nf4(x: Any, scales: Any = SCALES, table: Any = TABLE) -> Any:
    return x @ (table[_opened().int()].reshape(N, K // GROUP, GROUP) * scales[..., None]).reshape(N, K).T


def halves(x: Any, scales: Any = SCALES, table: Any = TABLE) -> Any:
    """One half of the columns in the lower digits, the other in the upper ones."""
    digits = torch.cat([PACKED & 15, PACKED >> 4], -1).to(x.dtype) - 8
    return x @ digits.T


@pytest.mark.sweep(1)
@pytest.mark.parametrize("function", [int4, nf4, halves], ids=lambda f: f.__name__)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("freeze", [False, True])
def test_packed_weights(function: Any, rows: int, freeze: bool) -> None:
    x = torch.randn(rows, K, generator=torch.Generator().manual_seed(rows))
    fast = fusec.jit(function, fallback="error", freeze=freeze)
    exact = function(x.double(), SCALES.double(), TABLE.double())
    assert float((fast(x).double() - exact).abs().max() / exact.abs().max()) < 1e-6


@pytest.mark.parametrize("function", [int4, nf4], ids=lambda f: f.__name__)
@pytest.mark.parametrize("rows", [1, 5])
def test_they_are_one_kernel_that_reads_neighbours(function: Any, rows: int) -> None:
    """No weight is unpacked to memory, no index into the table is checked, and no lane reads a byte by itself."""
    lowered = fusec.lower(fusec.trace(function, torch.randn(rows, K)), "cpu:x86-64-v4")
    (kernel,) = lowered.kernels
    assert not any(isinstance(step, Call) for step in lowered.program.steps)
    (packed,) = [b for b in kernel.kernel.parameters if b.dtype.name == "u8"]
    loads = [line for line in kernel.source.splitlines() if f"= {packed.name}[" in line]
    assert loads
    assert all("T.Ramp(" in line for line in loads)
