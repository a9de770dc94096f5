"""What the table of training measures on a GPU: forward and backward of plain PyTorch code, and steps of networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .training_networks import AutocastBert, Classified, Llama, LlamaLayer

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


def random(*shape: int, grad: bool = True, dtype: torch.dtype = BF16) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(grad)


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


def scores(q: Any, k: Any) -> Any:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def places(q: Any) -> tuple[Any, Any]:
    n = torch.arange(q.shape[-2], device=q.device)
    return n[:, None], n[None, :]


def slopes(heads: int) -> Any:
    return 2.0 ** (-8 / heads * torch.arange(1, heads + 1, device="cuda"))


def windowed(q: Any, k: Any, v: Any) -> Any:
    """ALiBi, a soft cap of 30 and a causal window of 1024."""
    i, j = places(q)
    s = 30 * torch.tanh(scores(q, k) / 30)
    s = s - (slopes(q.shape[1])[:, None, None] * (i - j)).to(s.dtype)
    return torch.softmax(s.masked_fill((j > i) | (i - j >= 1024), float("-inf")), -1) @ v


def flex_windowed(q: Any, k: Any, v: Any) -> Any:
    own = slopes(q.shape[1])

    def change(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return 30 * torch.tanh(s / 30) - own[h] * (i - j)

    return flex(q, k, v, change, lambda b, h, i, j: (i >= j) & (i - j < 1024))


def by_documents(q: Any, k: Any, v: Any, doc: Any) -> Any:
    i, j = places(q)
    seen = (doc[:, None] == doc[None, :]) & (j <= i)
    return torch.softmax(scores(q, k).masked_fill(~seen, float("-inf")), -1) @ v


def flex_by_documents(q: Any, k: Any, v: Any, doc: Any) -> Any:
    return flex(q, k, v, None, lambda b, h, i, j: (doc[i] == doc[j]) & (i >= j))


def with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.softmax(scores(q, k) + bias, -1) @ v


def flex_with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return flex(q, k, v, lambda s, b, h, i, j: s + bias[h, i, j], None)


def by_sigmoid(q: Any, k: Any, v: Any) -> Any:
    return torch.sigmoid(scores(q, k) - math.log(k.shape[-2])) @ v


def with_sinks(q: Any, k: Any, v: Any, sink: Any) -> Any:
    i, j = places(q)
    s = scores(q, k).masked_fill(j > i, float("-inf"))
    s = torch.cat([s, sink[:, None, None].expand(*s.shape[:-1], 1)], -1)
    return torch.softmax(s, -1)[..., :-1] @ v


def flex_with_sinks(q: Any, k: Any, v: Any, sink: Any) -> Any:
    out, lse = flex(q, k, v, None, lambda b, h, i, j: i >= j, True)
    return out * torch.sigmoid(lse - sink.float()[:, None])[..., None].to(out.dtype)


_flex: list[Function] = []
_masks: dict[tuple[Any, int], Any] = {}


def flex(q: Any, k: Any, v: Any, change: Function | None, mask: Function | None, lse: bool = False) -> Any:
    """FlexAttention, compiled once, its block mask made once for each row of the table."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if not _flex:
        _flex.append(torch.compile(flex_attention, dynamic=False))
    n = q.shape[-2]
    row = (None if mask is None else mask.__code__, n)
    if mask is not None and row not in _masks:
        _masks.clear()
        _masks[row] = create_block_mask(mask, None, None, n, n, device="cuda")
    return _flex[0](q, k, v, score_mod=change, block_mask=_masks.get(row), return_lse=lse)


def changed_attention(
    name: str,
    function: Function,
    shape: tuple[int, int, int, int],
    library: Function | None = None,
    more: Callable[[], tuple[Any, ...]] = tuple,
    dtype: torch.dtype = BF16,
    share: float = 1.0,
) -> Step:
    """Attention whose scores are changed; ``share`` of them count."""
    n, heads, count, width = shape
    return Step(
        f"attention {name} {n}×{heads}×{count} D{width}",
        function,
        lambda: (*(random(*shape, dtype=dtype) for _ in range(3)), *more()),
        flops=7 * 2.0 * n * heads * count**2 * width * share,
        library=library,
    )


def changed_attentions() -> Iterator[tuple[str, Callable[[], Step]]]:
    """Attention that no call of the library computes, but FlexAttention some of it."""
    few, long = (4, 16, 4096, 128), (1, 8, 16384, 128)
    narrow = (4, 16, 4096, 64)
    for shape in (few, narrow, long):
        seen = 1024 / shape[2]
        yield (
            f"attention window {shape[2]} {shape[3]}",
            lambda shape=shape, seen=seen: changed_attention(
                "ALiBi, soft cap, window", windowed, shape, flex_windowed, share=seen
            ),
        )
    documents = lambda: (torch.arange(4096, device="cuda") // 341,)  # noqa: E731
    bias = lambda: (random(16, 4096, 4096),)  # noqa: E731
    sinks = lambda: (random(16),)  # noqa: E731
    yield (
        "attention documents",
        lambda: changed_attention(
            "12 documents, causal", by_documents, few, flex_by_documents, documents, share=1 / 24
        ),
    )
    yield "attention bias", lambda: changed_attention("trained bias", with_bias, few, flex_with_bias, bias)
    yield "attention sigmoid", lambda: changed_attention("sigmoid", by_sigmoid, few)
    yield (
        "attention sinks",
        lambda: changed_attention("sinks, causal", with_sinks, few, flex_with_sinks, sinks, share=0.5),
    )
    yield (
        "attention f32",
        lambda: changed_attention(
            "causal f32",
            lambda q, k, v: plain_attention(q, k, v, True),
            (4, 16, 2048, 64),
            lambda q, k, v: library_attention(q, k, v, True),
            dtype=torch.float32,
            share=0.5,
        ),
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


def resnet50(n: int) -> Step:
    import torchvision

    def arguments() -> tuple[Any, ...]:
        images = random(n, 3, 224, 224, grad=False).to(memory_format=torch.channels_last)
        return images, torch.randint(0, 1000, (n,), device="cuda")

    network = Classified(torchvision.models.resnet50()).cuda().to(BF16).to(memory_format=torch.channels_last)
    return Step(f"resnet50 {n}×224² channels last, AdamW", network, arguments, optimizer=True)


def llama(layers: int, n: int, positions: int) -> Step:
    return Step(
        f"Llama-1B {layers} layers {n}×{positions}, AdamW",
        Llama(layers).cuda().to(BF16),
        lambda: tuple(torch.randint(0, 128256, (n, positions), device="cuda") for _ in range(2)),
        optimizer=True,
    )


def llama_layer(n: int, positions: int) -> Step:
    weights = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
    scores = positions**2 / 2 * 4096 * 2
    return Step(
        f"Llama-8B layer {n}×{positions}",
        LlamaLayer(4096, 14336, 32, 8).cuda().to(BF16),
        lambda: (random(n, positions, 4096),),
        flops=n * (6.0 * positions * weights + 7.0 * scores),
    )


def vit(n: int) -> Step:
    import torchvision

    return Step(
        f"ViT-B {n}×224², AdamW",
        Classified(torchvision.models.vit_b_16()).cuda().to(BF16),
        lambda: (random(n, 3, 224, 224, grad=False), torch.randint(0, 1000, (n,), device="cuda")),
        optimizer=True,
    )


def bert(n: int, positions: int) -> Step:
    """A fifth of the positions are padding; the loss ignores them, and what is not masked."""

    def arguments() -> tuple[Any, ...]:
        ids, target = (torch.randint(0, 30522, (n, positions), device="cuda") for _ in range(2))
        lengths = torch.linspace(positions * 3 // 5, positions, n, device="cuda").long()
        mask = (torch.arange(positions, device="cuda") < lengths[:, None]).long()
        learned = (torch.rand(n, positions, device="cuda") < 0.15) & (mask > 0)
        return ids, mask, torch.where(learned, target, -100)

    return Step(f"BERT-base {n}×{positions} autocast, AdamW", AutocastBert().cuda(), arguments, optimizer=True)


def steps() -> Iterator[tuple[str, Callable[[], Step]]]:
    """The rows by name; each is made when it is measured."""
    yield "attention causal 128", lambda: attention(4, 16, 4096, 128, True)
    yield "attention full 64", lambda: attention(4, 32, 4096, 64, False)
    yield "attention full 128", lambda: attention(4, 16, 4096, 128, False)
    yield "attention long causal", lambda: attention(1, 16, 16384, 128, True)
    yield "attention long full", lambda: attention(1, 16, 16384, 128, False)
    yield from changed_attentions()
    for kind in ("layer norm", "rms norm", "softmax"):
        for shape in ((8192, 4096), (65536, 768)):
            yield f"{kind} {shape[1]}", lambda kind=kind, shape=shape: rows(kind, *shape)
    yield "cross entropy 32000", lambda: cross_entropy(8192, 4096, 32000)
    yield "cross entropy 128256", lambda: cross_entropy(8192, 4096, 128256)
    mlp = 3 * 3 * 2.0 * 8192 * 4096 * 14336
    yield (
        "swiglu",
        lambda: Step("swiglu MLP 8192×4096×14336", SwiGlu(4096, 14336), lambda: (random(8192, 4096),), flops=mlp),
    )
    yield "gpt2 plain", lambda: gpt2(6, 8, 1024, "plain attention", plain_attention)
    yield "gpt2 sdpa", lambda: gpt2(6, 8, 1024, "SDPA", library_attention)
    yield "llama layer", lambda: llama_layer(4, 2048)
    yield "llama 1b", lambda: llama(4, 2, 2048)
    yield "vit", lambda: vit(64)
    yield "bert autocast", lambda: bert(16, 512)
    yield "resnet50", lambda: resnet50(64)
