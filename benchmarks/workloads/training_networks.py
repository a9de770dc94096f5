"""Networks of training's table besides GPT-2, with their losses: Llama, BERT with autocast, networks of images."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Classified(nn.Module):
    """A network of images with its loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Any, target: Any) -> Any:
        return F.cross_entropy(self.network(images).float(), target)


class LlamaLayer(nn.Module):
    def __init__(self, width: int, hidden: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        own = width // heads * groups
        self.before, self.between = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, own, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Any) -> Any:
        n, positions, width = x.shape
        y = self.before(x)
        q, k, v = (
            made(y).view(n, positions, heads, width // self.heads).transpose(1, 2)
            for made, heads in ((self.q, self.heads), (self.k, self.groups), (self.v, self.groups))
        )
        cos, sin = rotary(positions, width // self.heads, x)
        q, k = (t * cos + rotated(t) * sin for t in (q, k))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(n, positions, width))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotary(positions: int, width: int, like: Any) -> tuple[Any, Any]:
    """Cosines and sines of rotary embeddings [positions, width], in the type of ``like``."""
    steps = 500000.0 ** -(torch.arange(0, width, 2, device=like.device) / width)
    angles = torch.arange(positions, device=like.device)[:, None] * steps
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotated(x: Any) -> Any:
    left, right = x.chunk(2, -1)
    return torch.cat([-right, left], -1)


class Llama(nn.Module):
    """The first layers of Llama 3.2 1B with its vocabulary and loss."""

    def __init__(self, layers: int, width: int = 2048, words: int = 128256) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(LlamaLayer(width, 8192, 32, 8) for _ in range(layers)))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, words, bias=False)

    def forward(self, ids: Any, target: Any) -> Any:
        x = self.norm(self.layers(self.words(ids)))
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), target.flatten())


class AutocastBert(nn.Module):
    """BERT of float32 parameters that learns masked words under autocast to bf16."""

    def __init__(self) -> None:
        from transformers import BertConfig, BertForMaskedLM

        super().__init__()
        config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        self.network = BertForMaskedLM(config)
        self.cast = True

    def float(self) -> Any:
        """In float32, without autocast."""
        self.cast = False
        return super().float()

    def forward(self, ids: Any, mask: Any, target: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16, enabled=self.cast):
            logits = self.network(input_ids=ids, attention_mask=mask).logits
            return F.cross_entropy(logits.flatten(0, 1), target.flatten())
