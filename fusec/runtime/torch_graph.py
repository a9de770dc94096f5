# SPDX-License-Identifier: Apache-2.0
"""Runs a piece of a graph with PyTorch's own functions, on the device of its operands: what no GPU kernel computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import accumulate
from math import prod
from typing import Any, cast

import torch

from fusec.errors import UnsupportedOpError
from fusec.ir.attributes import (
    ArgReduceAttributes,
    CastAttributes,
    ConcatAttributes,
    ConstantAttributes,
    CopyAtAttributes,
    DotAttributes,
    GatherAttributes,
    GroupedDotAttributes,
    GroupedOuterAttributes,
    IotaAttributes,
    PadAttributes,
    PermuteAttributes,
    ReduceAttributes,
    ScanAttributes,
    ShapeAttributes,
    SliceAttributes,
    StridedAttributes,
    WindowsAttributes,
)
from fusec.ir.graph import Graph
from fusec.ir.monoid import Monoid, Scalar
from fusec.ir.nodes import Op, Value
from fusec.ir.ops.contract import free_axes
from fusec.ir.types import DType
from fusec.runtime.torch_arrays import torch_dtype

Tensor = torch.Tensor
Function = Callable[..., Tensor]


def graph_function(graph: Graph) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """A function from a graph's inputs to its outputs. UnsupportedOpError for an op that PyTorch has no function for.

    Shapes must be known. Results may share memory with operands.
    """
    device = next((v.type.device for v in graph.inputs), "cpu")
    steps = [(op, _function(op, device)) for op in graph.ops]
    last = {value: n for n, op in enumerate(graph.ops) for value in op.operands}
    outputs = set(graph.outputs)

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        known: dict[Value, Tensor] = dict(zip(graph.inputs, inputs, strict=True))
        with torch.no_grad():
            for n, (op, function) in enumerate(steps):
                known[op.result] = function(*(known[v] for v in op.operands))
                for value in set(op.operands) - outputs:
                    if last[value] == n:
                        del known[value]
        return [known[v] for v in graph.outputs]

    return run


def _integer_division(function: Function) -> Function:
    """An integer by 0 gives 0."""

    def run(a: Tensor, b: Tensor) -> Tensor:
        if a.is_floating_point():
            return function(a, b)
        zero = b == 0
        return torch.where(zero, torch.zeros_like(b), function(a, torch.where(zero, torch.ones_like(b), b)))

    return run


def _power(a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point() or a.is_complex():
        return torch.pow(a, b)
    result = torch.pow(a, b.clamp(min=0))
    if not a.dtype.is_signed:
        return result
    odd = torch.where(b % 2 == 0, torch.ones_like(b), -torch.ones_like(b))
    below = torch.where(a == 1, torch.ones_like(a), torch.where(a == -1, odd, torch.zeros_like(a)))
    return torch.where(b < 0, below, result)


def _shift(function: Function, *, left: bool) -> Function:
    """A shift by the width or more gives what shifting one bit at a time would."""

    def run(a: Tensor, b: Tensor) -> Tensor:
        bits = 8 * a.element_size()
        far = (b < 0) | (b >= bits) if b.dtype.is_signed else b >= bits
        rest = torch.zeros_like(a) if left or not a.dtype.is_signed else torch.where(a < 0, -1, 0).to(a.dtype)
        return torch.where(far, rest, function(a, torch.where(far, torch.zeros_like(b), b)))

    return run


def _sign(x: Tensor) -> Tensor:
    return torch.where(x != x, x, torch.sign(x))


_NAMED: dict[str, Function] = {
    "copy": torch.clone,
    "isnan": torch.isnan,
    "abs": torch.abs,
    "sign": _sign,
    "div": torch.true_divide,
    "floordiv": _integer_division(torch.floor_divide),
    "remainder": _integer_division(torch.remainder),
    "fmod": _integer_division(torch.fmod),
    "pow": _power,
    "shift_left": _shift(torch.bitwise_left_shift, left=True),
    "shift_right": _shift(torch.bitwise_right_shift, left=False),
    "select": torch.where,
}
"""Elementwise ops that PyTorch has under another name, or with another meaning; the others have its name."""


def _elementwise(name: str) -> Function | None:
    """PyTorch's function for an elementwise op."""
    return _NAMED.get(name) or getattr(torch, name, None)


def _function(op: Op, device: str) -> Function:
    named = _elementwise(op.name) if op.definition.is_scalar else None
    if named is not None:
        return named
    shape = op.result.type.static_shape
    match op.attributes:
        case CastAttributes(dtype=dtype):
            return lambda x: x.to(torch_dtype(dtype), copy=True)
        case ConstantAttributes(value=value, dtype=dtype):
            return lambda: torch.full((), value, dtype=torch_dtype(dtype), device=device)
        case IotaAttributes(axis=axis, dtype=dtype):
            return lambda: _iota(shape, axis, torch_dtype(dtype), device)
        case ReduceAttributes(axes=axes) if op.definition.kind == "reduce":
            return _reduction(op.definition.reduction, axes, op.result.type.dtype)
        case ArgReduceAttributes(axis=axis):
            return _search(op.name, axis)
        case ScanAttributes() if op.name == "recurrence":
            return _recurrence(op.attributes)
        case ScanAttributes():
            return _scan(op.name, op.attributes)
        case DotAttributes():
            return _dot(op.attributes, shape)
        case GroupedDotAttributes():
            return _grouped_dot(op.attributes, shape)
        case GroupedOuterAttributes():
            return _grouped_outer(op.attributes, shape)
        case PermuteAttributes(permutation=permutation):
            return lambda x: x.permute(permutation)
        case ShapeAttributes():
            return (lambda x: x.reshape(shape)) if op.name == "reshape" else (lambda x: x.expand(shape))
    return _mover(op, shape)


def _scan(name: str, attributes: ScanAttributes) -> Function:
    axis = attributes.axis

    def run(x: Tensor) -> Tensor:
        match name:
            case "cumsum" | "cumprod":
                return cast(Tensor, getattr(torch, name)(x, axis, dtype=x.dtype))
            case "cummax" | "cummin":
                return cast(Tensor, getattr(torch, name)(x, axis)[0])
        return cast(Tensor, getattr(torch, name)(x, axis))

    return (lambda x: run(x.flip(axis)).flip(axis)) if attributes.reverse else run


def _recurrence(attributes: ScanAttributes) -> Function:
    axis = attributes.axis

    def run(x: Tensor, factor: Tensor, start: Tensor) -> Tensor:
        before, found = start.select(axis, 0), torch.empty_like(x)
        order = range(x.shape[axis])
        for t in reversed(order) if attributes.reverse else order:
            before = factor.select(axis, t) * before + x.select(axis, t)
            found.select(axis, t).copy_(before)
        return before.unsqueeze(axis) if attributes.last else found

    return run


def _mover(op: Op, shape: tuple[int, ...]) -> Function:
    match op.attributes:
        case SliceAttributes():
            return _slice(op.attributes, shape)
        case StridedAttributes(strides=strides, offset=offset):
            return lambda x: _strided(x, shape, strides, offset)
        case WindowsAttributes(axis=axis, size=size, step=step):
            return lambda x: x.unfold(axis, size, step)
        case ConcatAttributes(axis=axis):
            return lambda *xs: torch.cat(xs, axis)
        case PadAttributes():
            return _pad(op.attributes, shape)
        case CopyAtAttributes(axes=(axis,)) if op.name == "scatter":
            return lambda x, i: torch.empty_like(x).index_copy_(axis, i.long(), x)
        case _ if op.name == "scatter_add_where":
            return lambda x, index, value, mask: x.index_add(0, index[mask], value[mask])
        case GatherAttributes(axis=axis) if op.name == "scatter_add":
            return lambda x, i, value: x.index_add(axis, i, value)
        case GatherAttributes(axis=axis) if op.name == "gather":
            return lambda x, i: x.index_select(axis, i.reshape(-1).long()).reshape(shape)
        case GatherAttributes(axis=axis):
            return lambda x, i: torch.gather(x, axis, i.long())
    raise UnsupportedOpError(f"PyTorch has no function for {op.name}")


def _iota(shape: tuple[int, ...], axis: int, dtype: torch.dtype, device: str) -> Tensor:
    line = torch.arange(shape[axis], device=device).to(dtype)
    return line.reshape([n if a == axis else 1 for a, n in enumerate(shape)]).expand(shape)


def _reduction(monoid: Monoid, axes: tuple[int, ...], result: DType) -> Function:
    if not axes:
        return torch.clone
    dtype = torch_dtype(result)
    match monoid.name:
        case "sum":
            return lambda x: torch.sum(x, axes, dtype=dtype)
        case "max":
            return lambda x: torch.amax(x, axes)
        case "min":
            return lambda x: torch.amin(x, axes)
        case "prod":
            return _along_each(lambda x, axis: torch.prod(x, axis, dtype=dtype), axes)
        case "any":
            return _along_each(torch.any, axes)
        case "all":
            return _along_each(torch.all, axes)
    return _along_each(partial(_folded, monoid.combine, monoid.identity(result)), axes)


def _along_each(one: Function, axes: tuple[int, ...]) -> Function:
    def run(x: Tensor) -> Tensor:
        for axis in reversed(axes):
            x = one(x, axis)
        return x

    return run


def _folded(combine: str, identity: Scalar, x: Tensor, axis: int) -> Tensor:
    """A reduction that PyTorch has no function for, one slice after another."""
    function = _elementwise(combine)
    if function is None:
        raise UnsupportedOpError(f"PyTorch has no function for {combine}")
    shape = [n for a, n in enumerate(x.shape) if a != axis]
    return reduce(function, x.unbind(axis), torch.full(shape, identity, dtype=x.dtype, device=x.device))


def _search(name: str, axis: int) -> Function:
    find = torch.argmax if name == "argmax" else torch.argmin
    return lambda x: find(x.to(torch.uint8) if x.dtype is torch.bool else x, axis)


def _grouped_dot(attributes: GroupedDotAttributes, shape: tuple[int, ...]) -> Function:
    one = _dot(DotAttributes((1,), (attributes.rhs_contract - 1,), dtype=attributes.dtype), (-1, shape[1]))

    def run(rows: Tensor, *operands: Tensor) -> Tensor:
        apart = attributes.apart
        matrices, ends = (operands[:apart], operands[apart:]) if apart else (operands[0], operands[1:])
        made = torch_dtype(attributes.dtype) if attributes.dtype else rows.dtype
        result = rows.new_empty(shape, dtype=made)
        in_place = made == rows.dtype and made.is_floating_point
        stops = ends[0].tolist() if ends else accumulate(attributes.sizes)
        start = 0
        for number, stop in enumerate(stops):
            if start < stop:
                matrix = matrices[number]
                if in_place:
                    right = matrix if attributes.rhs_contract == 1 else matrix.t()
                    torch.mm(rows[start:stop], right, out=result[start:stop])
                else:
                    result[start:stop] = one(rows[start:stop], matrix)
            start = max(start, stop)
        result[start:].zero_()
        return result

    return run


def _grouped_outer(attributes: GroupedOuterAttributes, shape: tuple[int, ...]) -> Function:
    one = _dot(DotAttributes((0,), (0,), dtype=attributes.dtype), shape[1:])

    def run(lhs: Tensor, rhs: Tensor, ends: Tensor) -> Tensor:
        made = torch_dtype(attributes.dtype) if attributes.dtype else lhs.dtype
        result = lhs.new_empty(shape, dtype=made)
        in_place = made == lhs.dtype and made.is_floating_point
        start = 0
        for number, stop in enumerate(ends.tolist()):
            if start >= stop:
                result[number].zero_()
            elif in_place:
                torch.mm(lhs[start:stop].t(), rhs[start:stop], out=result[number])
            else:
                result[number] = one(lhs[start:stop], rhs[start:stop])
            start = max(start, stop)
        return result

    return run


def _dot(attributes: DotAttributes, shape: tuple[int, ...]) -> Function:
    """One batched matmul; of short integers in f64, which is exact, as CUDA has none of integers."""
    lb, rb, lc, rc = attributes.lhs_batch, attributes.rhs_batch, attributes.lhs_contract, attributes.rhs_contract

    def run(a: Tensor, b: Tensor) -> Tensor:
        made = torch_dtype(attributes.dtype) if attributes.dtype else a.dtype
        wide = torch.float64 if not (made.is_floating_point or made.is_complex) and a.element_size() <= 2 else made
        rows, columns = free_axes(a.dim(), lb, lc), free_axes(b.dim(), rb, rc)
        batch, depth = [a.shape[i] for i in lb], prod(a.shape[i] for i in lc)
        left = a.to(wide).permute(*lb, *rows, *lc).reshape(*batch, prod(a.shape[i] for i in rows), depth)
        right = b.to(wide).permute(*rb, *rc, *columns).reshape(*batch, depth, prod(b.shape[i] for i in columns))
        return torch.matmul(left, right).reshape(shape).to(made)

    return run


def _slice(attributes: SliceAttributes, shape: tuple[int, ...]) -> Function:
    def run(x: Tensor) -> Tensor:
        if 0 in shape:
            return x.new_empty(shape)
        for axis, (start, step) in enumerate(zip(attributes.starts, attributes.steps, strict=True)):
            assert isinstance(start, int)
            n = shape[axis]
            if step > 0:
                x = x.narrow(axis, start, (n - 1) * step + 1)[(slice(None),) * axis + (slice(None, None, step),)]
            else:
                first = start + (n - 1) * step
                x = x.narrow(axis, first, start - first + 1).flip(axis)
                x = x[(slice(None),) * axis + (slice(None, None, -step),)]
        return x

    return run


def _strided(x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
    if 0 in shape:
        return x.new_empty(shape)
    offsets = torch.full((), offset, dtype=torch.int64, device=x.device)
    for axis, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = torch.arange(n, device=x.device) * stride
        offsets = offsets + steps.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return x.reshape(-1)[offsets]


def _pad(attributes: PadAttributes, shape: tuple[int, ...]) -> Function:
    def run(x: Tensor, fill: Tensor) -> Tensor:
        result = fill.expand(shape).clone()
        inside: Any = tuple(slice(low, low + n) for low, n in zip(attributes.low, x.shape, strict=True))
        result[inside] = x
        return result

    return run
