"""A token of a Llama in plain code: keys and values of all layers in two tensors, which each call writes in place."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

BF16 = torch.bfloat16


class Llama(nn.Module):
    """Llama-3.2-1B's shapes with random weights, for one new token of each sequence.

    ``together``: all sequences are at one position, written by ``index_copy_``; else each has its own.
    """

    def __init__(
        self, layers: int = 16, width: int = 2048, heads: int = 32, groups: int = 8, inner: int = 8192
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.depth, self.layers = heads, groups, width // heads, layers
        kv = groups * self.depth
        options = {"device": "cuda", "dtype": BF16}

        def weight(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns, **options) / columns**0.5, requires_grad=False)

        self.embedding = weight(128256, width)
        self.qkv = nn.ParameterList(weight(width + 2 * kv, width) for _ in range(layers))
        self.out = nn.ParameterList(weight(width, width) for _ in range(layers))
        self.up = nn.ParameterList(weight(2 * inner, width) for _ in range(layers))
        self.down = nn.ParameterList(weight(width, inner) for _ in range(layers))
        self.norms = nn.Parameter(torch.ones(2 * layers + 1, width, **options), requires_grad=False)

    def forward(self, tokens: Any, positions: Any, keys: Any, values: Any, together: bool) -> Any:
        x = self.embedding[tokens]
        batch, length = len(tokens), keys.shape[3]
        inverse = 500000.0 ** (-torch.arange(0, self.depth, 2, device=x.device) / self.depth)
        angles = positions[:, None] * inverse
        cos, sin = (torch.cat([f(angles)] * 2, -1)[:, None].to(x.dtype) for f in (torch.cos, torch.sin))
        visible = torch.arange(length, device=x.device) <= positions[:, None]
        for layer in range(self.layers):
            h = F.rms_norm(x, x.shape[-1:], self.norms[2 * layer])
            q, k, v = (h @ self.qkv[layer].T).split([self.heads * self.depth] + [self.groups * self.depth] * 2, -1)
            q, k = (rotated(t.view(batch, -1, self.depth), cos, sin) for t in (q, k))
            v = v.view(batch, self.groups, self.depth)
            if together:
                keys[layer].index_copy_(2, positions[:1], k[:, :, None])
                values[layer].index_copy_(2, positions[:1], v[:, :, None])
            else:
                each = torch.arange(batch, device=x.device)
                keys[layer][each, :, positions] = k
                values[layer][each, :, positions] = v
            q = q.view(batch, self.groups, -1, self.depth)
            scores = q @ keys[layer].transpose(-1, -2) / self.depth**0.5
            weights = torch.softmax(scores.masked_fill(~visible[:, None, None], float("-inf")), -1)
            x = x + (weights @ values[layer]).reshape(batch, -1) @ self.out[layer].T
            h = F.rms_norm(x, x.shape[-1:], self.norms[2 * layer + 1])
            gate, up = (h @ self.up[layer].T).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ self.down[layer].T
        return (F.rms_norm(x, x.shape[-1:], self.norms[-1]) @ self.embedding.T).argmax(-1)

    def nbytes(self, batch: int, context: int) -> float:
        """What a token must read: the weights once, and the keys and values that are visible."""
        weights = sum(p.numel() for p in self.parameters())
        return 2.0 * (weights + 2 * self.layers * batch * self.groups * context * self.depth)


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def arguments(model: Llama, batch: int, context: int, length: int) -> tuple[Any, ...]:
    shape = (model.layers, batch, model.groups, length, model.depth)
    keys, values = (torch.randn(shape, device="cuda", dtype=BF16) for _ in range(2))
    tokens = torch.randint(0, 128256, (batch,), device="cuda")
    return tokens, torch.full((batch,), context - 1, device="cuda"), keys, values
