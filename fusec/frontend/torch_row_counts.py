# SPDX-License-Identifier: Apache-2.0
"""How many rows data chooses is told to nobody while torch is traced: see :mod:`fusec.frontend.torch_row_sets`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fusec.frontend.torch_empty_rows import Count, Shape
from fusec.frontend.torch_fake import tensors_in
from fusec.frontend.torch_loop_bodies import loop_body
from fusec.frontend.torch_row_sets import Rows, RowSets

Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]


class CountsRefused(TorchFunctionMode):
    """While entered, what PyTorch tells of how many rows are chosen is refused, and loops over positions have a step
    for each candidate."""

    def __init__(self, sets: RowSets) -> None:
        super().__init__()
        self._sets = sets

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Keywords | None = None
    ) -> Any:
        named = dict(kwargs or {})
        x = args[0] if args else None
        rows = self._sets.rows(x) if isinstance(x, torch.Tensor) else None
        caller = sys._getframe(1)
        if rows is not None and func is torch.Tensor.unbind and caller.f_code is torch.Tensor.__iter__.__code__:
            return self._steps(x, rows, caller)
        self._sets.leave()
        if rows is not None and rows.of.count:
            counted = _counted(self._sets, func, tuple(args), named, rows)
            if counted is not None:
                return counted
        result = func(*args, **named)
        if _tells(result) or _name(func) in ("untyped_storage", "storage"):
            having = [t for t in tensors_in(list(args)) if self._sets.rows(t) is not None]
            if having and not _is_known(func, tuple(args), named, self._sets.rows(having[0])):
                raise self._sets.refused(f"{_name(func)} is asked")
        return result

    def _steps(self, positions: Any, rows: Rows, caller: FrameType) -> Iterator[torch.Tensor]:
        body = loop_body(caller)
        if body is None or rows.axis or rows.coordinate is None or len(rows.of.shape) > 1:
            raise self._sets.refused("a loop over them")
        return self._sets.each(tuple(positions.shape[1:]), positions, rows, body)


def _counted(sets: RowSets, func: Callable[..., Any], args: Arguments, kwargs: Keywords, rows: Rows) -> object:
    """What stands for the number of rows where a function gives that; None for other functions."""
    name = _name(func)
    x = args[0]
    with torch._C.DisableTorchFunction():
        extents = tuple(x.shape)
    if name == "numel" and 0 not in extents[: rows.axis] + extents[rows.axis + 1 :]:
        return Count(sets, rows.of, name)
    if name == "size" and len(args) + len(kwargs) == 2:
        dim = [*args[1:], kwargs.get("dim")][0]
        return Count(sets, rows.of, name) if isinstance(dim, int) and dim % x.dim() == rows.axis else None
    if name == "shape":
        count = Count(sets, rows.of, name)
        return Shape([count if axis == rows.axis else n for axis, n in enumerate(extents)], count.refuse)
    return None


def _name(func: Callable[..., Any]) -> str:
    owner = getattr(func, "__self__", None)
    name = str(getattr(func, "__name__", func))
    return str(getattr(owner, "__name__", name)) if name == "__get__" else name


def _is_known(func: Callable[..., Any], args: Arguments, kwargs: Keywords, rows: Rows | None) -> bool:
    """Whether a number that a function tells does not depend on how many rows there are."""
    if func in (torch.Tensor.dim, torch.Tensor.ndimension, torch.Tensor.element_size, torch.Tensor.get_device):
        return True
    if _name(func) in ("ndim", "itemsize", "names", "output_nr", "_version"):
        return True
    if func is torch.Tensor.size and rows is not None:
        dim = [*args[1:], kwargs.get("dim")][0]
        return isinstance(dim, int) and dim % args[0].dim() != rows.axis
    return False


def _tells(result: object) -> bool:
    """Whether there are numbers in what a function gives."""
    if isinstance(result, tuple):
        return any(map(_tells, result))
    return isinstance(result, int) and type(result) is not bool
