"""Plain x86-64: neither fused multiply-add nor conversions of f16 nor vectors of more than 128 bits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tile_harness import buffer, iters, kernel, load, op, sym

import fusec
from fusec.codegen.tvm.build import compile_kernels
from fusec.ir.types import f16, f32
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Store

torch = pytest.importorskip("torch")

TARGET = "cpu:x86-64"
N = 1 << 16


def convert(source, dtype):
    """A kernel that copies an array into one of another type."""
    a, out, i = buffer("a", source, (N,)), buffer("out", dtype, (N,)), sym("i", N)
    k = kernel("k", (a, out), (Store(iters((i, N)), out, (i,), op("cast", load(a, i), dtype=dtype)),))
    return compile_kernels([k], cpu_target(TARGET)).function("k")


def test_every_number_of_f16_is_read():
    x = np.arange(N, dtype=np.uint16).view(np.float16)
    y = np.empty(N, np.float32)
    convert(f16, f32)(x.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(y, x.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


def test_f16_is_rounded_to_nearest_even():
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (halves[:-1] + halves[1:]) / 2
    near = np.concatenate([halves, middle, np.nextafter(middle, 0), np.nextafter(middle, np.float32(np.inf))])
    special = np.array([65519.0, 65520.0, 65535.9, 65536.0, 1e38, np.inf, np.nan, 1e-45, 2.9e-8, 3.1e-8], np.float32)
    for block in np.array_split(np.concatenate([near, -near, special, -special]), 4):
        x = np.resize(block, N)
        y = np.empty(N, np.float16)
        convert(f32, f16)(x.ctypes.data, y.ctypes.data)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(y, x.astype(np.float16))
        np.testing.assert_array_equal(np.signbit(y[~np.isnan(x)]), np.signbit(x[~np.isnan(x)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_a_layer(dtype):
    """A product with its epilogue, a row kernel, a map and a transposition."""
    torch.manual_seed(0)
    first, second = (torch.nn.Linear(24, 24, dtype=dtype).requires_grad_(False) for _ in range(2))
    x = torch.randn(13, 24, dtype=dtype)

    def layer(x):
        y = torch.nn.functional.gelu(first(x), approximate="tanh")
        return torch.softmax(second(y) + x, -1), (torch.sin(x) * y).T.contiguous()

    compiled = fusec.compile(layer, x, target=TARGET, fallback="error", cache=False)
    module: Any = compiled.complete[0].executable.module
    text = module.assembly()
    assert not re.search(r"[yz]mm|\tvf?m|vcvt", text)
    exact = [r.double() for r in layer(x)]
    wide = layer_in_double(first, second, x)
    for got, eager, reference in zip(compiled(x), exact, wide, strict=True):
        least = torch.finfo(dtype).eps * 4
        error, allowed = (got.double() - reference).abs().max(), (eager - reference).abs().max()
        assert error <= 2 * allowed + least * reference.abs().max()


def layer_in_double(first, second, x):
    def linear(layer, x):
        return x @ layer.weight.double().T + layer.bias.double()

    y = torch.nn.functional.gelu(linear(first, x.double()), approximate="tanh")
    return torch.softmax(linear(second, y) + x.double(), -1), (torch.sin(x.double()) * y).T
