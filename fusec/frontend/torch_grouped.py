# SPDX-License-Identifier: Apache-2.0
"""Rows in groups, as PyTorch's operators with derivatives: products with a matrix for each group, sorts and reads.

No host learns where a group ends, and nothing is added by an index: where rows go is a permutation, whose inverse is
known, so that each gradient is read where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fusec.frontend.torch_operators import define


@cache
def _library() -> Any:
    """Makes the operators known to PyTorch, once."""
    grouped = "grouped_dot(Tensor rows, Tensor[] matrices, Tensor ends, bool transposed) -> Tensor"
    return define(
        (grouped, _grouped_dot, _grouped_dot_fake),
        ("grouped_outer(Tensor lhs, Tensor rhs, Tensor ends) -> Tensor", _grouped_outer, _grouped_outer_fake),
        ("take_rows(Tensor x, Tensor order) -> Tensor", _take_rows, _take_rows_fake),
    )


def _op(name: str) -> Any:
    return getattr(_library()[0], name)


def _apply(function: Any, *args: Any) -> Any:
    return function.apply(*args)


def _parts(matrices: Sequence[Tensor]) -> Sequence[Tensor]:
    return matrices[0].unbind(0) if matrices[0].dim() == 3 else matrices


def _grouped_dot(rows: Tensor, matrices: Sequence[Tensor], ends: Tensor, transposed: bool) -> Tensor:
    parts = _parts(matrices)
    result = rows.new_zeros(rows.shape[0], parts[0].shape[0 if transposed else 1])
    start = 0
    for matrix, stop in zip(parts, ends.tolist(), strict=True):
        result[start:stop] = rows[start:stop] @ (matrix.t() if transposed else matrix)
        start = max(start, stop)
    return result


def _grouped_dot_fake(rows: Tensor, matrices: Sequence[Tensor], ends: Tensor, transposed: bool) -> Tensor:
    return rows.new_empty(rows.shape[0], matrices[0].shape[-2 if transposed else -1])


def _grouped_outer(lhs: Tensor, rhs: Tensor, ends: Tensor) -> Tensor:
    result = lhs.new_zeros(ends.shape[0], lhs.shape[1], rhs.shape[1])
    start = 0
    for group, stop in enumerate(ends.tolist()):
        result[group] = lhs[start:stop].t() @ rhs[start:stop]
        start = max(start, stop)
    return result


def _grouped_outer_fake(lhs: Tensor, rhs: Tensor, ends: Tensor) -> Tensor:
    return lhs.new_empty(ends.shape[0], lhs.shape[1], rhs.shape[1])


def _take_rows(x: Tensor, order: Tensor) -> Tensor:
    return x.index_select(0, order)


def _take_rows_fake(x: Tensor, order: Tensor) -> Tensor:
    return x.new_empty(order.shape[0], *x.shape[1:])


class _Products(torch.autograd.Function):
    """Rows [m, k] times the matrix of their group, [k, n] or, ``transposed``, [n, k]; rows behind the last give 0."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ends: Tensor, transposed: bool, *matrices: Tensor) -> Tensor:
        ctx.save_for_backward(rows, ends, *matrices)
        ctx.transposed = transposed
        made: Tensor = _op("grouped_dot")(rows, list(matrices), ends, transposed)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        rows, ends, *matrices = ctx.saved_tensors
        of_rows = _apply(_Products, gradient, ends, not ctx.transposed, *matrices) if ctx.needs_input_grad[0] else None
        of_matrices: Sequence[Tensor | None] = [None] * len(matrices)
        if any(ctx.needs_input_grad[3:]):
            pair = (gradient, rows) if ctx.transposed else (rows, gradient)
            sums = _apply(_Outers, *pair, ends)
            of_matrices = [sums] if matrices[0].dim() == 3 else sums.unbind(0)
        return of_rows, None, None, *of_matrices


class _Outers(torch.autograd.Function):
    """Of each group the sum of outer products of its rows, [groups, p, q]."""

    @staticmethod
    def forward(ctx: Any, lhs: Tensor, rhs: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(lhs, rhs, ends)
        made: Tensor = _op("grouped_outer")(lhs, rhs, ends)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        lhs, rhs, ends = ctx.saved_tensors
        return _apply(_Products, rhs, ends, True, gradient), _apply(_Products, lhs, ends, False, gradient), None


class _Permuted(torch.autograd.Function):
    """``x[order]`` of a permutation; ``places`` is its inverse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(order, places)
        made: Tensor = _op("take_rows")(x, order)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        order, places = ctx.saved_tensors
        return _apply(_Permuted, gradients[0], places, order), None, None


class _Spread(torch.autograd.Function):
    """``y[k] = x[order[k] // inner % len(x)]``: a permutation of rows of ``x``, each of them several times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, places: Tensor, inner: int) -> Tensor:
        ctx.save_for_backward(order, places)
        ctx.inner, ctx.shape = inner, x.shape
        made: Tensor = _op("take_rows")(x, order // inner % x.shape[0])
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        order, places = ctx.saved_tensors
        given = _apply(_Permuted, gradients[0], places, order)
        each = given.reshape(-1, ctx.shape[0], ctx.inner, *ctx.shape[1:])
        return _summed(_summed(each, 2), 0).reshape(ctx.shape), None, None, None


class _OfGroup(torch.autograd.Function):
    """``table[number]``: what each group has one of, for each row; rows that have none have the last one's."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, number: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(number, ends)
        ctx.shape = table.shape
        made: Tensor = _op("take_rows")(table, number.clamp(max=table.shape[0] - 1))
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        number, ends = ctx.saved_tensors
        rows = gradients[0].reshape(number.shape[0], -1)
        return _apply(_Outers, rows.new_ones(rows.shape[0], 1), rows, ends).reshape(ctx.shape), None, None


def rows_in_order(*conditions: Tensor, repeats: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sorts the elements of conditions, of which at most one holds at each, by which that is; the others come last.

    Gives the order, its inverse, behind which row each group ends, and each sorted row's number. With ``repeats`` so
    many may hold at each, and each element is so many rows, one after another.
    """
    groups = len(conditions)
    number = _numbers(conditions) if repeats == 1 else _several(conditions, repeats)
    number = number.clamp(0, groups)
    in_order, order = torch.sort(number)
    every = torch.arange(number.shape[0], device=number.device)
    places = torch.empty_like(order).index_put((order,), every)
    numbers = torch.arange(groups, device=number.device)
    ends = (number[None] <= numbers[:, None]).sum(1).to(torch.int32)
    return order, places, ends, in_order


def _numbers(conditions: Sequence[Tensor]) -> Tensor:
    """Which condition holds at each element."""
    first = conditions[0].reshape(-1)
    number = torch.full((first.shape[0],), len(conditions), dtype=torch.int64, device=first.device)
    for group, condition in enumerate(conditions):
        number = torch.where(condition.reshape(-1) != 0, group, number)
    return number


def _several(conditions: Sequence[Tensor], repeats: int) -> Tensor:
    """Which conditions hold at each element, ``repeats`` numbers one after another."""
    hold = torch.stack([condition.reshape(-1) != 0 for condition in conditions], 1)
    found, number = torch.topk(hold.to(torch.int32), min(repeats, len(conditions)), 1)
    number = torch.where(found != 0, number, len(conditions))
    more = repeats - number.shape[1]
    if more > 0:
        number = torch.cat([number, number.new_full((number.shape[0], more), len(conditions))], 1)
    return number.reshape(-1)


def products(rows: Tensor, ends: Tensor, transposed: bool, *matrices: Tensor) -> Tensor:
    """Rows [m, k] in groups times their group's matrix, of one array [groups, ...] or several: [k, n], or
    ``transposed`` [n, k]."""
    made: Tensor = _apply(_Products, rows, ends, transposed, *matrices)
    return made


def of_groups(table: Tensor, order: Sequence[Tensor], rank: int) -> Tensor:
    """What each group has one of, ``table[group]``, for each sorted row, as an array of ``rank`` axes."""
    found: Tensor = _apply(_OfGroup, table, order[3], order[2])
    return found.reshape(found.shape[0], *(1 for _ in range(rank - found.dim())), *found.shape[1:])


def sorted_rows(
    x: Tensor, order: Sequence[Tensor], groups: int, shape: Sequence[int], axis: int, coordinates: Sequence[int]
) -> Tensor:
    """The elements of ``x``, its axes from ``axis`` on indexed by the coordinates of a condition's elements, sorted.

    ``shape``: the condition's. Rows without a group are 0, and so are their gradients.
    """
    count = len(coordinates)
    x = x.movedim(tuple(range(axis, axis + count)), tuple(range(count)))
    for at, coordinate in enumerate(coordinates):
        x = x.narrow(at, 0, shape[coordinate])
    rest = x.shape[count:]
    if count == 1:
        inner = 1
        for extent in shape[coordinates[0] + 1 :]:
            inner *= extent
        rows = _apply(_Spread, x, order[0], order[1], inner)
    else:
        ascending = sorted(range(count), key=lambda at: coordinates[at])
        x = x.permute(*ascending, *range(count, x.dim()))
        for coordinate in range(len(shape)):
            if coordinate not in coordinates:
                x = x.unsqueeze(coordinate)
        rows = _apply(_Permuted, x.expand(*shape, *rest).reshape(-1, *rest), order[0], order[1])
    made: Tensor = _own(rows, order[3], groups).movedim(0, axis)
    return made


def summed_rows(rows: Tensor, order: Sequence[Tensor], groups: int, shape: Sequence[int], coordinate: int) -> Tensor:
    """The sums of sorted rows for each position of one coordinate of the condition's elements, which ``shape`` has."""
    given = _apply(_Permuted, _own(rows, order[3], groups), order[1], order[0])
    each = given.reshape(*shape, *rows.shape[1:])
    for axis in range(len(shape)):
        each = each if axis == coordinate else _summed(each, axis)
    total: Tensor = each.reshape(shape[coordinate], *rows.shape[1:])
    return total


_FEW = 8
"""Terms up to which a sum is written as additions, which are elementwise."""


def _summed(x: Tensor, axis: int) -> Tensor:
    """The sum along an axis, which stays."""
    first, *others = x.chunk(x.shape[axis], axis) if x.shape[axis] <= _FEW else (x.sum(axis, keepdim=True),)
    for other in others:
        first = first + other
    return first


def _own(rows: Any, number: Tensor, groups: int) -> Any:
    """The rows that have a group, 0 for others."""
    has = (number < groups).reshape(-1, *(1 for _ in rows.shape[1:]))
    return torch.where(has, rows, 0)
