# SPDX-License-Identifier: Apache-2.0
"""Tensors that a ``functools.lru_cache`` gives: the same at each call, as long as they are in it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import _lru_cache_wrapper as _MEMO
from functools import partial
from typing import Any

import torch

Tie = tuple[Callable[[], Any], Callable[[], Any]]
"""Two places that must lead to one object."""


def tie_to_memo(tensor: torch.Tensor) -> Tie | None:
    """What holds while a tensor, or the tuple that it is in, is in the cache of a function; None where it is in none.

    What the function gives for arguments that it has seen is then what it gave before.
    """
    tuples = [holder for holder in gc.get_referrers(tensor) if type(holder) is tuple]
    for kept in (tensor, *tuples):
        memo = _memo_of(kept)
        if memo is not None:
            return partial(_itself, kept), partial(_found, memo, kept)
    return None


def _memo_of(value: object) -> Any:
    """The cache that refers to a value: by itself, or, where it has no bounds, through its dict."""
    for holder in gc.get_referrers(value):
        if type(holder) is _MEMO:
            return holder
        if type(holder) is dict:
            memo = next((outer for outer in gc.get_referrers(holder) if type(outer) is _MEMO), None)
            if memo is not None and _found(memo, value) is value:
                return memo
    return None


def _itself(value: object) -> object:
    return value


def _found(memo: Any, value: object) -> object:
    """The value where the cache refers to it, else None."""
    for held in gc.get_referents(memo):
        if held is value or (type(held) is dict and any(part is value for part in held.values())):
            return value
    return None
