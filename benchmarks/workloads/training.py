"""What the table of training measures on a GPU: forward and backward of plain PyTorch code, and steps of networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Function = Callable[..., Any]
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Step:
    """Forward and backward of ``function(*arguments())``, whose result is a loss or gets a random gradient.

    optimizer: a step of AdamW on the function's parameters is part of the work. flops: of forward and backward, 0 where
    memory bounds them. nbytes: what has to be moved. library: the same by its fastest call.
    """

    name: str
    function: Function
    arguments: Callable[[], tuple[Any, ...]]
    flops: float = 0.0
    nbytes: float = 0.0
    optimizer: bool = False
    library: Function | None = None


def random(*shape: int, grad: bool = True) -> Any:
    return torch.randn(*shape, device="cuda", dtype=BF16).requires_grad_(grad)


def plain_attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        n = q.shape[-2]
        mask = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, -1) @ v


def library_attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def cudnn_attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.CUDNN_ATTENTION):
        return library_attention(q, k, v, causal)


def attention(n: int, heads: int, positions: int, width: int, causal: bool) -> Step:
    def plain(q: Any, k: Any, v: Any) -> Any:
        return plain_attention(q, k, v, causal)

    return Step(
        f"attention {'causal' if causal else 'full'} {n}×{heads}×{positions} D{width}",
        plain,
        lambda: tuple(random(n, heads, positions, width) for _ in range(3)),
        flops=7 * 2.0 * n * heads * positions**2 * width / (2 if causal else 1),
        library=lambda q, k, v: cudnn_attention(q, k, v, causal),
    )


def rows(kind: str, count: int, width: int) -> Step:
    """A norm or softmax: read in the forward, read twice with its gradient in the backward, written twice."""
    module: Any = {"layer norm": nn.LayerNorm, "rms norm": nn.RMSNorm}.get(kind)
    function = nn.Softmax(-1) if module is None else module(width, device="cuda", dtype=BF16)
    return Step(f"{kind} {count}×{width}", function, lambda: (random(count, width),), nbytes=5.0 * 2 * count * width)


class LinearCrossEntropy(nn.Module):
    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, words, bias=False, device="cuda", dtype=BF16)

    def forward(self, x: Any, target: Any) -> Any:
        return F.cross_entropy(self.head(x).float(), target)


def cross_entropy(count: int, width: int, words: int) -> Step:
    return Step(
        f"linear+cross entropy {count}×{width}×{words}",
        LinearCrossEntropy(width, words),
        lambda: (random(count, width), torch.randint(0, words, (count,), device="cuda")),
        flops=3 * 2.0 * count * width * words,
    )


class SwiGlu(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False, device="cuda", dtype=BF16) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False, device="cuda", dtype=BF16)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width: int, heads: int, attend: Function) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        n, positions, width = x.shape
        heads = [t.view(n, positions, self.heads, -1).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1)]
        x = x + self.out(self.attend(*heads, True).transpose(1, 2).reshape(n, positions, width))
        return x + self.narrow(F.gelu(self.wide(self.between(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 of few layers with its loss; ``attend(q, k, v, causal)`` is its attention."""

    def __init__(self, layers: int, attend: Function, width: int = 768, heads: int = 12, words: int = 50304) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(1024, width)
        self.layers = nn.Sequential(*(Layer(width, heads, attend) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Any, target: Any) -> Any:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return F.cross_entropy(self.head(self.norm(self.layers(x))).flatten(0, 1).float(), target.flatten())


def gpt2(layers: int, n: int, positions: int, kind: str, attend: Function) -> Step:
    ids = (n, positions)
    return Step(
        f"GPT-2 {layers} layers {n}×{positions} {kind}, AdamW",
        Gpt2(layers, attend).cuda().to(BF16),
        lambda: tuple(torch.randint(0, 50257, ids, device="cuda") for _ in range(2)),
        optimizer=True,
    )


class Classified(nn.Module):
    """A network of images with its loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Any, target: Any) -> Any:
        return F.cross_entropy(self.network(images).float(), target)


def resnet50(n: int) -> Step:
    import torchvision

    def arguments() -> tuple[Any, ...]:
        images = random(n, 3, 224, 224, grad=False).to(memory_format=torch.channels_last)
        return images, torch.randint(0, 1000, (n,), device="cuda")

    network = Classified(torchvision.models.resnet50()).cuda().to(BF16).to(memory_format=torch.channels_last)
    return Step(f"resnet50 {n}×224² channels last, AdamW", network, arguments, optimizer=True)


def steps() -> Iterator[tuple[str, Callable[[], Step]]]:
    """The rows by name; each is made when it is measured."""
    yield "attention causal 128", lambda: attention(4, 16, 4096, 128, True)
    yield "attention full 64", lambda: attention(4, 32, 4096, 64, False)
    for kind in ("layer norm", "rms norm", "softmax"):
        for shape in ((8192, 4096), (65536, 768)):
            yield f"{kind} {shape[1]}", lambda kind=kind, shape=shape: rows(kind, *shape)
    yield "cross entropy", lambda: cross_entropy(8192, 4096, 32000)
    mlp = 3 * 3 * 2.0 * 8192 * 4096 * 14336
    yield (
        "swiglu",
        lambda: Step("swiglu MLP 8192×4096×14336", SwiGlu(4096, 14336), lambda: (random(8192, 4096),), flops=mlp),
    )
    yield "gpt2 plain", lambda: gpt2(6, 8, 1024, "plain attention", plain_attention)
    yield "gpt2 sdpa", lambda: gpt2(6, 8, 1024, "SDPA", library_attention)
    yield "resnet50", lambda: resnet50(64)
