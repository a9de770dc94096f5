# SPDX-License-Identifier: Apache-2.0
"""A PyTorch function run with integers that are followed: what they are to PyTorch's own functions is their value.

Numbers that these give, such as extents, are noted or followed in turn: see :mod:`fusec.frontend.readings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fusec.frontend.capture import of_library
from fusec.frontend.readings import Readings, reading
from fusec.frontend.symbolic_int import SymbolicInt, value_of


class TorchInt(SymbolicInt, torch.SymInt):
    """A followed integer that PyTorch's functions take, though none of them sees it: :class:`ByValue`."""


class ByValue(TorchFunctionMode):
    """While entered, functions of PyTorch get the values of integers that are followed.

    What they make of them shows in the graphs of samples, and is compared there. Numbers that they give are read.
    """

    def __init__(self, readings: Readings) -> None:
        super().__init__()
        self._readings = readings

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            result = func(*value_of(tuple(args)), **value_of(dict(kwargs or {})))
        except Exception as error:  # the function may handle it, and elsewhere in the range there may be none
            self._readings.refuse(f"{error}")
            below = error.__traceback__.tb_next if error.__traceback__ is not None else None
            if below is None:  # PyTorch itself raised it
                of_library(error)
            raise
        return self._readings.given(result)


@contextmanager
def reading_tensors() -> Iterator[None]:
    """While entered, the user's function runs, and the numbers that PyTorch gives it are read as was requested."""
    with reading() as readings:
        if readings is None:
            yield
            return
        with ByValue(readings):
            yield
