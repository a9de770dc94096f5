"""Attention for Hopper: plain PyTorch code with its inputs' shapes, and a schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any

import fixed
import torch

import fusec
from fusec.passes.families.attention.schedule.hopper import HopperAttentionSchedule
from fusec.tile.kernel import Kernel

Function = Callable[..., torch.Tensor]


def lowered(function: Function, shapes: list[tuple[int, ...]], s: HopperAttentionSchedule, dtype: Any) -> Kernel:
    arrays = [torch.empty(shape, dtype=dtype) for shape in shapes]
    return fixed.lowered(fusec.trace(function, *arrays), s, "cuda:sm_90")


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / sqrt(q.shape[-1]), -1) @ v


def library(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(k.shape[-2] - q.shape[-2])
    return torch.softmax(scores.masked_fill(~allowed, float("-inf")), -1) @ v


def soft_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    n, h = q.shape[-2], q.shape[1]
    i, j = torch.arange(n, device=q.device)[:, None], torch.arange(n, device=q.device)[None, :]
    slopes = torch.exp2(-8 * torch.arange(1, h + 1, device=q.device, dtype=torch.float32) / h).to(q.dtype)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = 30 * torch.tanh(scores / 30) - slopes[:, None, None] * (i - j).to(q.dtype)
    scores = scores.masked_fill((j > i) | (i - j >= 100), float("-inf"))
    return torch.softmax(scores, -1) @ v


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.1 + bias, -1) @ v


def finite_fill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Rows before the first key keep none, and so all: their scores are equal, and huge."""
    n, m = q.shape[-2], k.shape[-2]
    i, j = torch.arange(n, device=q.device)[:, None], torch.arange(m, device=q.device)[None, :]
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(j > i - 40, -30000.0)
    return torch.softmax(scores, -1) @ v


def scaled_after(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.relu(plain(q, k, v) * 0.5 + 0.25)


def joined_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[batch, n, heads, size] in and [batch, n, heads * size] out; heads of keys shared by groups of queries' heads."""
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, 2).transpose(1, 2) for x in (k, v))
    y = causal(q.transpose(1, 2), k, v)
    return y.transpose(1, 2).flatten(2)


def qkv(b: int, h: int, n: int, d: int, keys: int = 0, values: int = 0) -> list[tuple[int, ...]]:
    return [(b, h, n, d), (b, h, keys or n, d), (b, h, keys or n, values or d)]


PING_PONG = HopperAttentionSchedule(128, 128, 2, ping_pong=True)
LONG = HopperAttentionSchedule(128, 160, 2, ping_pong=True)
THREE = HopperAttentionSchedule(192, 128, 2, ping_pong=False)
PERSISTENT = replace(PING_PONG, persistent=True)
THREE_PERSISTENT = replace(THREE, persistent=True)
THREE_PING_PONG = replace(THREE, ping_pong=True)
ONE = HopperAttentionSchedule(64, 64, 2, ping_pong=False)

CASES: dict[str, tuple[Function, list[tuple[int, ...]], HopperAttentionSchedule]] = {
    "plain": (plain, qkv(2, 3, 512, 128), PING_PONG),
    "long blocks": (plain, qkv(1, 2, 640, 128), LONG),
    "odd length": (plain, qkv(2, 3, 333, 128), PING_PONG),
    "other keys": (plain, qkv(1, 2, 200, 64, keys=519), THREE),
    "one group": (plain, qkv(1, 2, 70, 64, keys=300), ONE),
    "three groups": (plain, qkv(2, 2, 400, 64), THREE),
    "other values": (plain, qkv(1, 2, 256, 64, values=128), PING_PONG),
    "wide heads": (plain, qkv(1, 2, 256, 256), HopperAttentionSchedule(128, 80, 1, ping_pong=True)),
    "heads of 96": (causal, qkv(1, 2, 320, 96), PING_PONG),
    "heads of 80": (plain, qkv(1, 3, 150, 80), PING_PONG),
    "causal": (causal, qkv(3, 5, 512, 128), PING_PONG),
    "the library's, causal": (library, qkv(1, 3, 333, 64), THREE),
    "causal, odd length": (causal, qkv(1, 11, 777, 64), THREE),
    "causal, long blocks": (causal, qkv(1, 2, 1000, 128), LONG),
    "causal, more keys": (causal, qkv(1, 2, 130, 64, keys=450), PING_PONG),
    "soft cap, slopes and a window": (soft_window, qkv(1, 4, 640, 128), PING_PONG),
    "bias": (biased, [*qkv(2, 2, 256, 64), (2, 1, 256, 256)], PING_PONG),
    "bias, odd length": (biased, [*qkv(1, 3, 201, 64), (3, 201, 201)], ONE),
    "finite fill": (finite_fill, qkv(1, 2, 333, 64), PING_PONG),
    "epilogue": (scaled_after, qkv(1, 2, 256, 64), PING_PONG),
    "persistent": (plain, qkv(4, 40, 300, 64), PERSISTENT),
    "three groups by ping-pong": (causal, qkv(2, 7, 1000, 64), THREE_PING_PONG),
    "persistent, three groups by ping-pong": (plain, qkv(3, 61, 500, 64), replace(THREE_PING_PONG, persistent=True)),
    "persistent, three groups": (causal, qkv(3, 60, 500, 64), THREE_PERSISTENT),
    "persistent, soft cap, slopes and a window": (soft_window, qkv(5, 16, 640, 128), PERSISTENT),
    "persistent, keys of no block": (causal, qkv(2, 90, 500, 64, keys=130), PERSISTENT),
    "persistent, other values": (plain, qkv(1, 200, 140, 128, values=64), PERSISTENT),
    "persistent, epilogue": (scaled_after, qkv(3, 70, 256, 64), THREE_PERSISTENT),
    "joined heads": (joined_heads, [(2, 384, 8, 64), (2, 384, 2, 64), (2, 384, 2, 64)], PING_PONG),
}
