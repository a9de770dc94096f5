"""Convolutions in groups of few channels: windows, tiles and epilogues, each a function, its arguments and a tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import fixed
import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F

import fusec
from fusec.ir.graph import Graph
from fusec.passes.families.gemm.schedule.windows import WindowSchedule
from fusec.tile.kernel import Kernel
from fusec.tile.templates import WindowTile

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """``after(convolution)`` of images ``shape`` with channels last by a block's ``tile``; ``window``: its extents;
    ``numbers``: stride, padding, dilation."""

    shape: tuple[int, int, int, int]
    columns: int
    groups: int
    window: tuple[int, int]
    numbers: tuple[Any, Any, Any]
    tile: WindowTile
    dtype: str = "bfloat16"
    after: Callable[[Any], Any] = F.relu

    def function(self, x: Any, w: Any, b: Any) -> Any:
        """Of groups of one channel, products of windows: ``F.conv2d`` is a sum of them."""
        if self.groups < self.shape[1]:
            return self.after(F.conv2d(x, w, b, *self.numbers, self.groups))
        stride, padding, dilation = (n if isinstance(n, tuple) else (n, n) for n in self.numbers)
        seen = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
        for axis, (size, step, apart) in enumerate(zip(self.window, stride, dilation, strict=True)):
            seen = seen.unfold(2 + axis, (size - 1) * apart + 1, step)[..., ::apart]
        made = torch.einsum("nchwyx,cyx->nchw", seen, w[:, 0]) + b[:, None, None]
        return self.after(made).contiguous(memory_format=torch.channels_last)

    @cached_property
    def graph(self) -> Graph:
        _, c, h, w = self.shape
        last = fusec.TensorSpec(self.shape, self.dtype, (h * w * c, 1, w * c, c), "cuda")
        weight = fusec.TensorSpec((self.columns, c // self.groups, *self.window), self.dtype, None, "cuda")
        return fusec.trace(self.function, last, weight, fusec.TensorSpec((self.columns,), self.dtype, None, "cuda"))

    def kernel(self, target: str = "cuda:sm_90") -> Kernel:
        return fixed.lowered(self.graph, WindowSchedule(self.tile), target)

    def arrays(self, *, special: bool = False) -> list[Array]:
        """As the graph's inputs. special: some pixels are infinite or NaN."""
        rng = np.random.default_rng(0)
        kind = ml_dtypes.bfloat16 if self.dtype == "bfloat16" else np.dtype(self.dtype)
        made = [rng.standard_normal(v.type.static_shape).astype(kind) for v in self.graph.inputs]
        if special:
            x = made[0].reshape(-1)
            x[rng.integers(0, x.size, 3)] = np.array([np.inf, -np.inf, np.nan]).astype(kind)
        return made


def in_memory(x: Array) -> Array:
    """An image as it lies."""
    return x.transpose(0, 2, 3, 1) if x.ndim == 4 else x


def _silu_in_float(x: Any) -> Any:
    return F.silu(x.to(torch.float32))


CASES = {
    "depthwise": Case((2, 16, 9, 10), 16, 16, (3, 3), (1, 1, 1), WindowTile(9, 16, 16, 4)),
    "parts": Case((1, 32, 19, 21), 32, 32, (7, 7), (1, 3, 1), WindowTile(6, 8, 16, 4, 2)),
    "apart": Case((1, 24, 14, 13), 24, 24, (5, 5), (2, 2, 1), WindowTile(3, 8, 8, 2)),
    "dilated": Case((1, 16, 12, 15), 16, 16, (3, 2), (1, (2, 1), 2), WindowTile(6, 16, 16, 4, 2)),
    "uneven": Case((1, 16, 9, 15), 16, 16, (2, 5), ((1, 3), (0, 2), 1), WindowTile(8, 8, 16, 2, 2), "float16"),
    "float result": Case((1, 8, 5, 6), 8, 8, (3, 3), (1, 1, 1), WindowTile(5, 8, 8, 1), after=_silu_in_float),
    "groups of 8": Case((2, 64, 9, 10), 64, 8, (3, 3), (1, 1, 1), WindowTile(5, 10, 64, 8)),
    "groups of 16": Case((1, 64, 9, 19), 64, 4, (3, 3), (2, 1, 1), WindowTile(3, 5, 32, 4)),
    "twice the columns": Case((1, 32, 7, 9), 64, 4, (2, 3), (1, (0, 1), (1, 2)), WindowTile(2, 7, 32, 8), "float16"),
    "groups, float result": Case(
        (1, 32, 6, 6), 32, 4, (3, 3), (1, 1, 1), WindowTile(6, 6, 32, 4), after=_silu_in_float
    ),
}
