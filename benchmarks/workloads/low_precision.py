"""Matmuls of bf16 and int8: linear layers, matmuls of few rows, and attention in bf16, written as users do."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.harness import Peer
from benchmarks.peers import torch_peers
from benchmarks.report import Row
from benchmarks.session import Case, Faster, Session
from benchmarks.traffic import read_peer
from benchmarks.workloads.attention import DEPTH, causal, exact, full
from benchmarks.workloads.linear import Up

SIZES = ((512, 768, 3072), (2048, 1024, 4096))
"""Rows, inputs, outputs."""

LAYERS = 4


def rows(session: Session) -> Iterator[Row]:
    for m, k, n in SIZES:
        yield session.time(linear(m, k, n))
    yield session.time(int8(*SIZES[-1]))
    for m in (1, 8):
        for dtype in (torch.bfloat16, torch.float32):
            yield session.time(few_rows(m, 4096, dtype))
    for heads, n, is_causal in ((12, 1024, False), (12, 1024, True), (4, 4096, True)):
        yield session.time(attention(heads, n, is_causal=is_causal))


def linear(m: int, k: int, n: int) -> Case:
    torch.manual_seed(0)
    module = Up(k, n).bfloat16().eval().requires_grad_(False)
    x = torch.randn(m, k).bfloat16()
    wide = copy.deepcopy(module).double()
    return Case(
        f"linear+bias+gelu bf16 {m}×{k}×{n}",
        {"matmul alone": Peer(F.linear, (x, module.linear.weight)), **torch_peers(module, (x,))},
        [Faster(2.5, ("eager", "compile")), Faster(1.2, ("matmul alone",))],
        module,
        (x,),
        exact=lambda: wide(x.double()).numpy(),
        flops=2.0 * m * k * n,
        multiplies="bf16",
        nbytes=2.0 * (m * k + n * k + n + m * n),
    )


class OfBytes(nn.Module):
    """A linear layer with weights and activations in int8, one scale an output."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(outputs) / (inputs * 128))
        self.register_buffer("bias", torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch._int_mm(x, self.weight.t()).float() * self.scale + self.bias


def int8(m: int, k: int, n: int) -> Case:
    torch.manual_seed(0)
    module = OfBytes(k, n)
    x = torch.randint(-128, 128, (m, k), dtype=torch.int8)
    operands = (x.double(), module.weight.double(), module.scale.double(), module.bias.double())
    return Case(
        f"linear int8 {m}×{k}×{n}",
        {"f32": Peer(F.linear, (torch.randn(m, k), torch.randn(n, k), module.bias)), **torch_peers(module, (x,))},
        [Faster(4.0, ("f32",))],
        module,
        (x,),
        exact=lambda: (F.linear(*operands[:2]) * operands[2] + operands[3]).numpy(),
        flops=2.0 * m * k * n,
        multiplies="i8",
        nbytes=1.0 * (m * k + n * k) + 4.0 * m * n,
    )


class Layers(nn.Module):
    """Layers whose weights together are larger than the caches: each is read from main memory."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.gelu(layer(x), approximate="tanh") for layer in self.layers)


def few_rows(m: int, side: int, dtype: torch.dtype) -> Case:
    """Its target is a share of the bandwidth that reading the weights once reaches."""
    torch.manual_seed(0)
    module = Layers(side, side).to(dtype).eval().requires_grad_(False)
    x = torch.randn(m, side).to(dtype)
    nbytes = LAYERS * side * side * x.element_size()
    return Case(
        f"{LAYERS} linear+bias+gelu {'bf16' if dtype is torch.bfloat16 else 'f32'} {m}×{side}×{side}",
        {**torch_peers(module, (x,)), **read_peer(nbytes)},
        [Faster(0.9, ("read",))],
        module,
        (x,),
        nbytes=float(nbytes),
    )


def attention(heads: int, n: int, *, is_causal: bool) -> Case:
    torch.manual_seed(0)
    function = causal if is_causal else full
    q, k, v = (torch.randn(1, heads, n, DEPTH).bfloat16() for _ in range(3))
    peers = torch_peers(function, (q, k, v))
    peers["SDPA"] = Peer(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal), (q, k, v))
    pairs = n * (n + 1) // 2 if is_causal else n * n
    return Case(
        f"attention bf16, plain code, {heads} heads N{n} D{DEPTH} {'causal' if is_causal else 'full'}",
        peers,
        [Faster(1.5, ("SDPA",)), *([Faster(10.0, ("compile",))] if is_causal else [])],
        function,
        (q, k, v),
        exact=lambda: exact(function, q, k, v),
        flops=4.0 * heads * pairs * DEPTH,
        multiplies="bf16",
        nbytes=2.0 * 4 * heads * n * DEPTH,
    )
