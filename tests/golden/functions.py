"""PyTorch functions of each kernel family and fusion, small, as tests have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Case = tuple[Callable[..., Any], tuple[Any, ...]]
HALF = torch.bfloat16


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor whose contents nobody reads."""
    return torch.empty(shape, dtype=dtype)


def attention(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Attention with something done to its scores."""

    def function(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(change(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5), -1) @ v

    return function


def _places(scores: Any) -> tuple[Any, Any]:
    n, m = scores.shape[-2:]
    return torch.arange(n)[:, None], torch.arange(m)[None, :]


def causal(scores: Any) -> Any:
    i, j = _places(scores)
    return scores.masked_fill(j > i, float("-inf"))


def windowed(scores: Any) -> Any:
    i, j = _places(scores)
    return (30 * torch.tanh(scores / 30)).masked_fill((j > i) | (i - j >= 64), float("-inf"))


def documents(q: Any, k: Any, v: Any, ids: Any) -> Any:
    same = ids[:, None] == ids[None, :]
    return attention(lambda s: s.masked_fill(~same, float("-inf")))(q, k, v)


def with_sink(q: Any, k: Any, v: Any, sink: Any) -> Any:
    scores = q @ k.transpose(-1, -2)
    logits = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], -1)
    return torch.softmax(logits, -1)[..., :-1] @ v


def until(q: Any, k: Any, v: Any, place: Any) -> Any:
    visible = torch.arange(k.shape[-2]) <= place
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible[None])


def norm(x: Any, weight: Any, bias: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x: Any, residual: Any, weight: Any) -> Any:
    x = x + residual
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5).to(x.dtype) * weight, x


def swiglu(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def written_place(cache: Any, key: Any, place: Any) -> Any:
    cache.index_copy_(0, place[None], key[None])
    return cache @ key


def functions() -> dict[str, Case]:
    """The functions by name, each with arguments."""
    made: dict[str, Case] = {}
    for name, dtype in (("f32", torch.float32), ("bf16", HALF), ("f16", torch.float16), ("f64", torch.float64)):
        x, w, b = empty(96, 160, dtype=dtype), empty(224, 160, dtype=dtype), empty(224, dtype=dtype)
        heads = tuple(empty(2, 4, 128, 64, dtype=dtype) for _ in range(3))
        one = (empty(2, 4, 1, 64, dtype=dtype), *heads[1:])
        wide = empty(64, 3000, dtype=dtype)
        made |= {
            f"map {name}": (lambda x: torch.tanh(x) * torch.sigmoid(x) + x.exp(), (x,)),
            f"transposed map {name}": (lambda x: x.t() * 2 + 1, (x,)),
            f"softmax {name}": (lambda x: torch.softmax(x, -1), (x,)),
            f"softmax of wide rows {name}": (lambda x: torch.softmax(x, -1), (wide,)),
            f"column sums {name}": (lambda x: x.sum(0), (wide,)),
            f"sum of all {name}": (lambda x: (x * x).sum(), (wide,)),
            f"argmax {name}": (lambda x: x.argmax(-1), (wide,)),
            f"standard deviation {name}": (lambda x: x.std(-1), (x,)),
            f"layer norm {name}": (norm, (x, empty(160, dtype=dtype), empty(160, dtype=dtype))),
            f"residual and rms norm {name}": (rms_norm, (x, x.clone(), empty(160, dtype=dtype))),
            f"linear and gelu {name}": (lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), (x, w, b)),
            f"relu before a linear layer {name}": (lambda x, w: F.linear(F.relu(x), w), (x, w)),
            f"linear layer of one row {name}": (lambda x, w: F.linear(x, w), (empty(1, 160, dtype=dtype), w)),
            f"product of a transposed matrix {name}": (lambda x, w: x.t() @ w[:96], (x, w)),
            f"batch of products {name}": (torch.bmm, (empty(6, 40, 48, dtype=dtype), empty(6, 48, 72, dtype=dtype))),
            f"products that share an operand {name}": (
                lambda x, a, b, c: (x @ a.t(), x @ b.t(), x @ c.t()),
                (x, w, w.clone(), w.clone()),
            ),
            f"swiglu {name}": (swiglu, (x, w, w.clone(), empty(160, 224, dtype=dtype))),
            f"attention {name}": (attention(lambda s: s), heads),
            f"causal attention {name}": (attention(causal), heads),
            f"windowed attention with a soft cap {name}": (attention(windowed), heads),
            f"attention of documents {name}": (documents, (*heads, empty(128, dtype=torch.int64))),
            f"attention with a sink {name}": (with_sink, (*heads, empty(4, 1, 1, dtype=dtype))),
            f"attention of one query {name}": (attention(lambda s: s), one),
            f"attention to the filled places {name}": (until, (*one, empty(dtype=torch.int64))),
            f"library's attention {name}": (
                lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                heads,
            ),
        }
    x = empty(64, 96)
    return made | {
        "int8 product": (
            lambda x, w: torch._int_mm(x, w),
            (empty(64, 96, dtype=torch.int8), empty(96, 64, dtype=torch.int8)),
        ),
        "weights of 8 bits": (
            lambda x, w, s: F.linear(x, w.to(x.dtype) * s),
            (empty(8, 256, dtype=HALF), empty(128, 256, dtype=torch.int8), empty(128, 1, dtype=HALF)),
        ),
        "integers": (
            lambda x, y: (x // 3) * y % 7 + (x >> 1),
            (empty(50, dtype=torch.int64), empty(50, dtype=torch.int64)),
        ),
        "comparison and choice": (lambda x, y: torch.where(x > y, x, -y), (x, x.clone())),
        "embedding": (lambda i, w: F.embedding(i, w) * 8, (empty(32, dtype=torch.int64), empty(1000, 64))),
        "concatenation": (lambda x, y: torch.cat([x, y], 1).relu(), (x, empty(64, 32))),
        "padding": (lambda x: F.pad(x, (1, 2, 3, 0)) * 2, (x,)),
        "windows": (lambda x, w: x.unfold(1, 8, 1) @ w, (x, empty(8))),
        "einsum": (lambda a, b: torch.einsum("bhid,bhjd->bijh", a, b), (empty(2, 4, 24, 16), empty(2, 4, 24, 16))),
        "running sum": (lambda x: x.exp().cumsum(1) * x, (x,)),
        "sort": (lambda x: torch.sort(x * 2, 1)[0] + 1, (x,)),
        "place in a cache": (written_place, (empty(64, 32), empty(32), empty(dtype=torch.int64))),
        "in place": (lambda x, y: x.add_(y).mul_(2), (x, x.clone())),
        "nothing": (lambda x: x[:0] * 2, (x,)),
        "cross entropy": (F.cross_entropy, (empty(32, 1000), empty(32, dtype=torch.int64))),
    }
