"""Attention by mma.sync: plain PyTorch code with its inputs' shapes, and a schedule."""

from __future__ import annotations

from typing import Any

import fixed
import torch
from hopper_attention_cases import (
    Function,
    biased,
    causal,
    finite_fill,
    joined_heads,
    library,
    plain,
    qkv,
    scaled_after,
    soft_window,
)

import fusec
from fusec.passes.families.attention.schedule.mma import MmaAttentionSchedule
from fusec.tile.kernel import Kernel


def lowered(
    function: Function, shapes: list[tuple[int, ...]], s: MmaAttentionSchedule, dtype: Any, target: str = "cuda:sm_80"
) -> Kernel:
    return lowered_for([torch.empty(shape, dtype=dtype) for shape in shapes], function, s, target)


def lowered_for(arrays: list[torch.Tensor], function: Function, s: MmaAttentionSchedule, target: str) -> Kernel:
    """``arrays``: empty ones, with the strides that are meant."""
    return fixed.lowered(fusec.trace(function, *arrays), s, target)


PLAIN = MmaAttentionSchedule(128, 64, 4, 1)
AHEAD = MmaAttentionSchedule(128, 64, 4, 2)
LONG = MmaAttentionSchedule(128, 128, 4, 1)
SMALL = MmaAttentionSchedule(64, 64, 4, 1)
WIDE = MmaAttentionSchedule(64, 64, 4, 2)

CASES: dict[str, tuple[Function, list[tuple[int, ...]], MmaAttentionSchedule]] = {
    "plain": (plain, qkv(2, 3, 512, 128), PLAIN),
    "two buffers": (plain, qkv(2, 3, 512, 128), AHEAD),
    "odd length": (plain, qkv(2, 3, 333, 128), PLAIN),
    "odd length, two buffers": (plain, qkv(2, 3, 333, 64), AHEAD),
    "long blocks": (plain, qkv(1, 2, 640, 64), LONG),
    "other keys": (plain, qkv(1, 2, 200, 64, keys=519), SMALL),
    "few rows": (plain, qkv(1, 2, 70, 64, keys=300), SMALL),
    "other values": (plain, qkv(1, 2, 256, 64, values=128), PLAIN),
    "heads of 256": (plain, qkv(1, 2, 256, 256), WIDE),
    "heads of 192": (causal, qkv(1, 2, 256, 192), SMALL),
    "heads of 96": (causal, qkv(1, 2, 320, 96), PLAIN),
    "heads of 80": (plain, qkv(1, 3, 150, 80), AHEAD),
    "heads of 32": (causal, qkv(1, 3, 300, 32), LONG),
    "heads of 16": (plain, qkv(1, 3, 150, 16), PLAIN),
    "causal": (causal, qkv(3, 5, 512, 128), PLAIN),
    "causal, two buffers": (causal, qkv(3, 5, 512, 128), AHEAD),
    "the library's, causal": (library, qkv(1, 3, 333, 64), AHEAD),
    "causal, odd length": (causal, qkv(1, 11, 777, 64), LONG),
    "causal, more keys": (causal, qkv(1, 2, 130, 64, keys=450), PLAIN),
    "soft cap, slopes and a window": (soft_window, qkv(1, 4, 640, 128), PLAIN),
    "bias": (biased, [*qkv(2, 2, 256, 64), (2, 1, 256, 256)], PLAIN),
    "bias, odd length": (biased, [*qkv(1, 3, 201, 64), (3, 201, 201)], SMALL),
    "finite fill": (finite_fill, qkv(1, 2, 333, 64), AHEAD),
    "epilogue": (scaled_after, qkv(1, 2, 256, 64), PLAIN),
    "joined heads": (joined_heads, [(2, 384, 8, 64), (2, 384, 2, 64), (2, 384, 2, 64)], PLAIN),
}
