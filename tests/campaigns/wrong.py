"""Results that are not as written, for tests that a campaign sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def jit(change: Callable[..., Any]) -> Callable[..., Any]:
    """What takes the place of ``fusec.jit``: as written, but for a change to the results."""

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: tuple(change(x) for x in function(*arguments))

    return made


def everywhere(worse: float) -> Callable[[torch.Tensor], Any]:
    return lambda x: x + worse * x.abs().max()


RESULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "one number": lambda x: x + 1e-5 * (x == x.max()),
    "NaN": lambda x: x.where(x < x.max(), torch.nan),
    "infinity": lambda x: x.where(x < x.max(), torch.inf),
    "a dtype": lambda x: x.double(),
    "a shape": lambda x: x[:, :1],
}
