"""GPT-2 (124M) in plain PyTorch that writes text word by word, compiled by fusec.

Keys and values of earlier tokens are kept in memory that is allocated once, as in gpt-fast: a token writes its own
place and looks at all places up to it. So every step has the same shapes, and one compiled program serves them all.
The weights are random: what is shown is time.

Against eager and torch.compile, after a prompt of 512 tokens:
    python examples/gpt2.py
A small model, few tokens, no torch.compile:
    python examples/gpt2.py --small
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusec


@dataclass(frozen=True)
class Config:
    """Sizes of the network; those of GPT-2 small unless told otherwise."""

    width: int = 768
    heads: int = 12
    layers: int = 12
    words: int = 50257
    places: int = 1024


class Cache(nn.Module):
    """Keys and values of one layer, [1, heads, places, width / heads] each."""

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        super().__init__()
        shape = (1, config.heads, config.places, config.width // config.heads)
        self.keys: Tensor
        self.values: Tensor
        self.register_buffer("keys", torch.zeros(shape, dtype=dtype), persistent=False)
        self.register_buffer("values", torch.zeros(shape, dtype=dtype), persistent=False)

    def forward(self, places: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the keys and values of these places; all of the cache."""
        self.keys.index_copy_(2, places, keys)
        self.values.index_copy_(2, places, values)
        return self.keys, self.values


class Layer(nn.Module):
    """Causal self-attention and a two-layer perceptron, each added to its input."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.cache: Cache

    def forward(self, x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).split(width, dim=2)
        q, k, v = (t.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        keys, values = self.cache(places, k, v)
        seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class GPT2(nn.Module):
    """The next token's logits [1, words]. ids: int64 [1, tokens]; places: int64 [tokens], where they stand."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.words, config.width)
        self.places = nn.Embedding(config.places, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.register_buffer("seen", torch.ones(config.places, config.places, dtype=torch.bool).tril(), False)

    def clear(self) -> None:
        """Fresh memory for keys and values, of the weights' dtype."""
        for layer in self.layers:
            layer.cache = Cache(self.config, self.words.weight.dtype)

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        mask = self.get_buffer("seen")[None, None, places]
        x = self.words(ids) + self.places(places)
        for layer in self.layers:
            x = layer(x, places, mask)
        return F.linear(self.norm(x[:, -1]), self.words.weight)


def load(config: Config, dtype: torch.dtype = torch.float32) -> GPT2:
    """The network with random weights as GPT-2's are drawn, and an empty cache."""
    torch.manual_seed(0)
    model = GPT2(config)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    model = model.to(dtype).eval().requires_grad_(False)
    model.clear()
    return model


def write(step: Callable[[Tensor, Tensor], Tensor], prompt: Tensor, count: int) -> tuple[list[int], list[float]]:
    """``count`` tokens after the prompt [1, tokens], the likeliest each time, and the seconds that each took."""
    written: list[int] = []
    seconds = []
    ids, places = prompt, torch.arange(prompt.shape[1])
    for _ in range(count):
        start = time.perf_counter()
        word = step(ids, places).argmax(-1, keepdim=True)
        seconds.append(time.perf_counter() - start)
        written.append(int(word))
        ids, places = word, places[-1:] + 1
    return written, seconds


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> dict[str, list[int]]:
    """Writes tokens with each peer and shows their times; what each wrote."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a small model, few tokens, no torch.compile")
    small = parser.parse_args(arguments).small
    config = Config(width=64, heads=4, layers=2, words=500, places=64) if small else Config()
    length, count = (16, 8) if small else (512, 32)
    model = load(config)
    prompt = torch.randint(0, config.words, (1, length))
    peers: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"eager": model, "fusec": fusec.jit(model)}
    if not small and shutil.which("g++"):
        peers["torch.compile"] = torch.compile(model)
    texts = {}
    for name, peer in peers.items():
        write(peer, prompt, 3)
        texts[name], seconds = write(peer, prompt, count)
        print(f"{name}: prompt {seconds[0] * 1e3:.1f} ms, then {statistics.median(seconds[1:]) * 1e3:.2f} ms a token")
    return texts


if __name__ == "__main__":
    main()
