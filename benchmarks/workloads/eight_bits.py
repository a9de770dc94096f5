"""Products of 8 bits on a GPU, in plain code: scales for a tensor or for each row, epilogues, results of 8 bits."""

from __future__ import annotations

import math
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


BLOCK = 128


def of_blocks(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    """Scales of 128 of K for each row of activations, of 128 by 128 for weights."""
    m, k = a.shape
    left = (a.float().view(m, k // BLOCK, BLOCK) * scale_a[..., None]).view(m, k)
    right = b.float() * scale_b.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return (left @ right.T).to(BF16)


def swiglu_of_blocks(a: Any, gate: Any, up: Any, scale_a: Any, scale_g: Any, scale_u: Any) -> Any:
    (m, k), n = a.shape, gate.shape[0]
    left = (a.float().view(m, k // BLOCK, BLOCK) * scale_a[..., None]).view(m, k)
    weights = [
        (w.float().view(n // BLOCK, BLOCK, k // BLOCK, BLOCK) * s[:, None, :, None]).view(n, k)
        for w, s in ((gate, scale_g), (up, scale_u))
    ]
    return (F.silu(left @ weights[0].T) * (left @ weights[1].T)).to(BF16)


def attention(q: Any, k: Any, v: Any, scale_q: Any, scale_k: Any, scale_v: Any) -> Any:
    scores = (q.float() @ k.float().mT) * (scale_q * scale_k / math.sqrt(q.shape[-1]))
    return (torch.softmax(scores, -1) @ v.float() * scale_v).to(BF16)


def causal_attention(q: Any, k: Any, v: Any, scale_q: Any, scale_k: Any, scale_v: Any) -> Any:
    scores = (q.float() @ k.float().mT) * (scale_q * scale_k / math.sqrt(q.shape[-1]))
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return (torch.softmax(scores.masked_fill(~seen, -math.inf), -1) @ v.float() * scale_v).to(BF16)


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


def block_scales(m: int, k: int) -> Any:
    return torch.rand(m, k // BLOCK, device="cuda") / 50


def heads(*shape: int) -> Any:
    return torch.randn(shape, device="cuda").to(E4)


def library_attention(is_causal: bool) -> Function:
    """On bf16, as the library has no attention of 8 bits."""

    def attended(q: Any, k: Any, v: Any, *scales: Any) -> Any:
        return F.scaled_dot_product_attention(q.to(BF16), k.to(BF16), v.to(BF16), is_causal=is_causal)

    return attended


def attention_works(make: Callable[..., Any]) -> list[Any]:
    """Heads of 128, 8192 keys; ``make`` as for :func:`works`."""
    b, h, n, d = 1, 16, 8192, 128
    pairs = {attention: n * n, causal_attention: n * (n + 1) // 2}
    names = {attention: "full", causal_attention: "causal"}
    return [
        make(
            f"fp8 attention {names[f]} {b}×{h}×{n}×{d}",
            f,
            lambda: (*(heads(b, h, n, d) for _ in range(3)), *(torch.rand((), device="cuda") for _ in range(3))),
            4.0 * b * h * d * count,
            library_attention(f is causal_attention),
        )
        for f, count in pairs.items()
    ]


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
            f"fp8, block scales {shape}",
            of_blocks,
            lambda: (*operands(), block_scales(m, k), block_scales(n // BLOCK, k)),
            flops,
            None,
        ),
        make(
            f"fp8, block scales, SwiGLU {shape}",
            swiglu_of_blocks,
            lambda: (
                *(floats(r, k) for r in (m, n, n)),
                block_scales(m, k),
                *(block_scales(n // BLOCK, k) for _ in range(2)),
            ),
            2 * flops,
            None,
        ),
        *attention_works(make),
        make(
            f"int8, row scales {shape}",
            scaled,
            lambda: (integers(m), integers(n), *rows(m, n)),
            flops,
            compiled(library_bytes, dynamic=False),
        ),
    ]
