# SPDX-License-Identifier: Apache-2.0
"""Inputs that a graph of Dynamo's writes, and that may share their memory with others.

AOTAutograd makes a graph functional: what it writes is copied into the inputs after the call. That is right where the
memory of such an input is apart from all others'. Dynamo asks at no call whether it is, so each call is asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Span = tuple[int, int, bool]
"""The first byte of a tensor, the one after its last, and whether it is written."""


class WhereApart:
    """A function of tensors of which some are written: ``compiled`` where their memory is apart from all others'.

    Else what ``otherwise`` makes, at the first such call. ``examples`` are inputs like those of each call, real or
    fake; where their sizes are numbers, those of each call are the same, as Dynamo's guards ask.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        written: Sequence[int],
        examples: Sequence[Any],
        otherwise: Callable[[], Callable[..., Any]],
    ) -> None:
        self._compiled, self._written, self._make = compiled, frozenset(written), otherwise
        self._otherwise: Callable[..., Any] | None = None
        self._seen: tuple[int, ...] = ()
        self._sizes: list[tuple[int, int]] | None = None
        tensors = [(place, x) for place, x in enumerate(examples) if isinstance(x, torch.Tensor)]
        if all(type(n) is int for _, x in tensors for n in (*x.shape, *x.stride())):
            self._sizes = [(place, size) for place, x in tensors if (size := _bytes(x))]

    def __call__(self, *args: Any) -> Any:
        if self._are_apart(args):
            return self._compiled(*args)
        if self._otherwise is None:
            self._otherwise = self._make()
        return self._otherwise(*args)

    def _are_apart(self, args: Sequence[Any]) -> bool:
        sizes = self._sizes
        if sizes is None:
            tensors = [(place, x) for place, x in enumerate(args) if isinstance(x, torch.Tensor)]
            sizes = [(place, size) for place, x in tensors if (size := _bytes(x))]
        try:
            starts = tuple([args[place].data_ptr() for place, _ in sizes])
        except RuntimeError:  # a tensor without memory of its own: fake, or made of others
            return True
        if starts == self._seen and self._sizes is not None:
            return True
        apart = are_apart([(start, start + n, p in self._written) for start, (p, n) in zip(starts, sizes)])
        if apart:
            self._seen = starts
        return apart


def examples_are_apart(examples: Sequence[Any], written: Sequence[int]) -> bool:
    """Whether the inputs of these places share no memory with others; of fake inputs too, whose storages tell."""
    spans: dict[int, list[Span]] = {}
    for place, x in enumerate(examples):
        if isinstance(x, torch.Tensor) and (size := _bytes(x)):
            start = int(x.storage_offset()) * x.element_size()
            spans.setdefault(x.untyped_storage()._cdata, []).append((start, start + size, place in written))
    return all(map(are_apart, spans.values()))


def are_apart(spans: list[Span]) -> bool:
    """Whether no span that is written meets another one."""
    end = written_end = -1
    for start, stop, written in sorted(spans):
        if start < (end if written else written_end):
            return False
        end = max(end, stop)
        if written:
            written_end = max(written_end, stop)
    return True


def _bytes(tensor: torch.Tensor) -> int:
    """From the first element to the last, whatever lies between; 0 for what has no elements or is not strided."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return 0
    last = sum((int(n) - 1) * int(step) for n, step in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()
