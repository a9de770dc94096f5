"""What the campaign of models calls: small models with random weights, each called as its page says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Made = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A module and one call of it: positional and named arguments."""


@dataclass(frozen=True)
class Model:
    """A model of a library.

    ``trains``: gradients of a training step are compared, too. ``as_written``: why calls run as written under
    ``fusec.jit``, where the reason lies in the model's own code; a substring of the reason that fusec gives.
    ``breaks``: how many graph breaks Dynamo makes. ``cuts``: nodes that PyTorch runs between compiled parts.
    ``known``: how a way and a line on what is wrong begin (``"compile: result"``), and why that stays.
    """

    make: Callable[[], Made]
    trains: bool = False
    as_written: str = ""
    breaks: int = 0
    cuts: int = 0
    known: dict[str, str] = field(default_factory=dict)


Table = dict[str, Model]
