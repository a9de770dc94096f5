"""A PyTorch function run with integers that are followed: what they are to PyTorch's own functions is their value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fusec.errors import DimensionError
from fusec.frontend.followed import FollowedInt, holds_followed, value_of
from fusec.frontend.source import user_location


class TorchInt(FollowedInt, torch.SymInt):
    """A followed integer that PyTorch's functions take, though none of them sees it: :class:`ByValue`."""


class ByValue(TorchFunctionMode):
    """While entered, functions of PyTorch get the values of integers that are followed.

    What they make of them shows in the graphs of samples, and is compared there.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*value_of(tuple(args)), **value_of(dict(kwargs or {})))
        if isinstance(result, bool | int | float | str | torch.Size) and holds_followed(
            [*args, *(kwargs or {}).values()]
        ):
            raise DimensionError(f"an integer can't be symbolic: {func.__name__} makes a number of it", user_location())
        return result
