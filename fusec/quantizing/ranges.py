# SPDX-License-Identifier: Apache-2.0
"""The range of activations that eight bits stand for, from what was seen of them.

minmax: all of it. percentile: without the outermost values. mse: what makes the least squared error. entropy: what
keeps the distribution, by the least Kullback-Leibler divergence (Migacz, "8-bit inference with TensorRT", 2017).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

Method = Literal["minmax", "percentile", "entropy", "mse"]
BINS = 2048
LEVELS = 256
OUTERMOST = 1e-4
"""The share of values that ``percentile`` leaves out, half of it at either end."""

_SHARES = np.linspace(0.2, 1.0, 81)
"""Of the whole range, that ``mse`` and ``entropy`` choose among."""

Array = np.ndarray[Any, Any]


@dataclass
class Seen:
    """What passed through one place: the least and the greatest value, and how often each part of the range between."""

    low: float = np.inf
    high: float = -np.inf
    counts: Array = field(default_factory=lambda: np.zeros(BINS))
    any: bool = False

    def widen(self, x: torch.Tensor) -> None:
        """Takes a batch into the range."""
        if x.numel():
            low, high = torch.aminmax(x.detach().float())
            self.low, self.high = float(np.minimum(self.low, float(low))), float(np.maximum(self.high, float(high)))
            self.any = True

    def count(self, x: torch.Tensor) -> None:
        """Counts a batch's values but zeros, which any range tells exactly, once the range is known."""
        if self.is_finite and self.high > self.low:
            values = x.detach().float().cpu()
            found = torch.histc(values[values != 0], BINS, self.low, self.high)
            self.counts += found.double().numpy()

    @property
    def is_finite(self) -> bool:
        """Whether something was seen, and no NaN or infinity."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    @property
    def centres(self) -> Array:
        edges = np.linspace(self.low, self.high, BINS + 1)
        return np.asarray((edges[1:] + edges[:-1]) / 2)


def chosen_range(seen: Seen, method: Method) -> tuple[float, float]:
    """The least and the greatest value that are told apart; 0 is among them, so that padding and zeros are exact."""
    if not seen.is_finite:
        return 0.0, 0.0
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    if method == "minmax" or not seen.counts.any():
        return low, high
    if method == "percentile":
        share = np.cumsum(seen.counts) / seen.counts.sum()
        inside = seen.centres[(share >= OUTERMOST / 2) & (share <= 1 - OUTERMOST / 2)]
        return (min(float(inside[0]), 0.0), max(float(inside[-1]), 0.0)) if len(inside) else (low, high)
    cost = _squared_error if method == "mse" else _divergence
    best = min(_SHARES, key=lambda share: cost(seen, low * share, high * share))
    return low * float(best), high * float(best)


def _squared_error(seen: Seen, low: float, high: float) -> float:
    """Of values rounded to the levels of the range, over all that were counted."""
    step = (high - low) / (LEVELS - 1)
    x = seen.centres
    rounded = np.clip(np.round((x - low) / step), 0, LEVELS - 1) * step + low
    return float((seen.counts * (x - rounded) ** 2).sum())


def _divergence(seen: Seen, low: float, high: float) -> float:
    """Of the counts, with what is outside moved to the ends, from what the levels can tell of them."""
    x = seen.centres
    inside = (x >= low) & (x <= high)
    wanted = seen.counts[inside].copy()
    if not len(wanted):
        return np.inf
    wanted[0] += seen.counts[x < low].sum()
    wanted[-1] += seen.counts[x > high].sum()
    level = np.minimum(((x[inside] - low) / (high - low) * LEVELS).astype(np.int64), LEVELS - 1)
    own = np.where(seen.counts[inside] > 0, 1.0, 0.0)
    totals, filled = (np.bincount(level, weights, LEVELS) for weights in (seen.counts[inside], own))
    told = np.where(own > 0, totals[level] / np.maximum(filled[level], 1), 0.0)
    p, q = wanted / wanted.sum(), told / max(told.sum(), 1e-30)
    some = p > 0
    return float((p[some] * np.log(p[some] / np.maximum(q[some], 1e-12))).sum())
