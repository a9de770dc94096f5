"""Products of 8 bits on a GPU, in plain code: scales for a tensor or for each row, epilogues, results of 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Function = Callable[..., Any]
E4, BF16, LARGEST = torch.float8_e4m3fn, torch.bfloat16, 448.0

ROWS, DEPTH, COLUMNS = 8192, 4096, 14336


def plain(a: Any, b: Any, scale: Any) -> Any:
    """A result of f32, which takes the digits of f32."""
    return (a.float() @ b.float().T) * scale


def scaled(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    return ((a.float() @ b.float().T) * scale_a * scale_b).to(BF16)


def scaled_gelu(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any) -> Any:
    return F.gelu(((a.float() @ b.float().T) * scale_a * scale_b + bias).to(BF16), approximate="tanh")


def quantised(x: Any, scale: Any) -> Any:
    return (x / scale).clamp(-LARGEST, LARGEST).to(E4)


def swiglu(a: Any, gate: Any, up: Any, scale: Any, result: Any) -> Any:
    """Gate and up of a layer, in 8 bits again."""
    wide = a.float()
    return quantised(F.silu((wide @ gate.float().T) * scale) * ((wide @ up.float().T) * scale), result)


def quantised_rows(x: Any, b: Any, scale_b: Any) -> Any:
    """Activations by a scale of their own for each row."""
    scale = x.float().abs().amax(-1, keepdim=True) / LARGEST
    return scaled(quantised(x.float(), scale), b, scale, scale_b)


def by_library(a: Any, b: Any, *scales: Any) -> Any:
    return torch._scaled_mm(a, b.t(), *scales, out_dtype=BF16)


def library_gelu(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any) -> Any:
    return F.gelu(by_library(a, b, scale_a, scale_b) + bias.to(BF16), approximate="tanh")


def library_swiglu(a: Any, gate: Any, up: Any, scale: Any, result: Any) -> Any:
    one = torch.ones_like(scale)
    return quantised(F.silu(by_library(a, gate, scale, one)) * by_library(a, up, scale, one), result)


def library_bytes(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    return (torch._int_mm(a, b.t()).float() * scale_a * scale_b).to(BF16)


def library_rows(x: Any, b: Any, scale_b: Any) -> Any:
    scale = x.float().abs().amax(-1, keepdim=True) / LARGEST
    return by_library(quantised(x.float(), scale), b, scale, scale_b)


def floats(m: int, k: int) -> Any:
    return torch.randn(m, k, device="cuda").to(E4)


def whole() -> tuple[Any, Any]:
    return torch.full((), 0.02, device="cuda"), torch.full((), 0.5, device="cuda")


def rows(m: int, n: int) -> tuple[Any, Any]:
    return torch.rand(m, 1, device="cuda") / 50, torch.rand(1, n, device="cuda")


def works(make: Callable[..., Any]) -> list[Any]:
    """``make`` takes a name, a function, its arguments, flops and the library's own way."""
    m, k, n = ROWS, DEPTH, COLUMNS
    shape, flops = f"{m}×{k}×{n}", 2.0 * m * k * n
    operands = lambda: (floats(m, k), floats(n, k))  # noqa: E731
    integers = lambda r: torch.randint(-127, 128, (r, k), device="cuda", dtype=torch.int8)  # noqa: E731
    bias = lambda: torch.randn(n, device="cuda")  # noqa: E731
    compiled = torch.compile
    return [
        make(f"fp8, f32 result {shape}", plain, lambda: (*operands(), whole()[0]), flops, None),
        make(f"fp8, tensor scales {shape}", scaled, lambda: (*operands(), *whole()), flops, by_library),
        make(f"fp8, row scales {shape}", scaled, lambda: (*operands(), *rows(m, n)), flops, by_library),
        make(
            f"fp8, tensor scales, bias+gelu {shape}",
            scaled_gelu,
            lambda: (*operands(), *whole(), bias()),
            flops,
            compiled(library_gelu, dynamic=False),
        ),
        make(
            f"fp8, row scales, bias+gelu {shape}",
            scaled_gelu,
            lambda: (*operands(), *rows(m, n), bias()),
            flops,
            compiled(library_gelu, dynamic=False),
        ),
        make(
            f"fp8, SwiGLU to fp8 {shape}",
            swiglu,
            lambda: (floats(m, k), floats(n, k), floats(n, k), *whole()),
            2 * flops,
            compiled(library_swiglu, dynamic=False),
        ),
        make(
            f"fp8, rows quantised first {shape}",
            quantised_rows,
            lambda: (torch.randn(m, k, device="cuda", dtype=BF16), floats(n, k), rows(m, n)[1]),
            flops,
            compiled(library_rows, dynamic=False),
        ),
        make(
            f"int8, row scales {shape}",
            scaled,
            lambda: (integers(m), integers(n), *rows(m, n)),
            flops,
            compiled(library_bytes, dynamic=False),
        ),
    ]
