# SPDX-License-Identifier: Apache-2.0
"""ATen calls that make tensors, copy them or change their dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

import torch

from fusec.frontend.torch_emit import Declined, Emitter, Operand, torch_dtype
from fusec.ir.attributes import Scalar
from fusec.ir.nodes import Value
from fusec.ir.types import DType, f32, f64, i64

Lowering = Callable[..., Value]


def _filled(value: Scalar) -> Lowering:
    """A result full of one number; its shape and dtype are what PyTorch says."""

    def lower(e: Emitter, *_: Any, **__: Any) -> Value:
        return full(e, value)

    return lower


def full(e: Emitter, value: Operand) -> Value:
    """The call's result, full of one number or of a 0-d value."""
    filler = e.value(value, e.out.dtype)
    return e.broadcast(filler, e.out.shape)


def _empty(e: Emitter, *_: Any, **__: Any) -> Value:
    """What new memory holds is not defined: zeros. With deterministic algorithms PyTorch fills it, with NaN or the
    greatest integer."""
    c: Any = torch._C
    if not (torch.are_deterministic_algorithms_enabled() and c._get_deterministic_fill_uninitialized_memory()):
        return full(e, 0)
    kind = e.out.dtype
    return full(e, torch.iinfo(torch_dtype(kind)).max if kind.is_integer else kind.kind == "bool" or nan)


def _full(e: Emitter, size: Sequence[int], fill_value: Operand, **_: Any) -> Value:
    return full(e, fill_value)


def _full_like(e: Emitter, x: Value, fill_value: Operand, **_: Any) -> Value:
    return full(e, fill_value)


def _new_full(e: Emitter, x: Value, size: Sequence[int], fill_value: Operand, **_: Any) -> Value:
    return full(e, fill_value)


def _scalar_tensor(e: Emitter, s: Scalar, **_: Any) -> Value:
    return full(e, s)


def _copied(e: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    """clone, to, contiguous: the operand in the result's dtype, in memory of its own."""
    if x.type.device != e.out.device:
        raise Declined(f"it moves data from {x.type.device} to {e.out.device}")
    return e.emit("copy", x) if x.type.dtype == e.out.dtype else e.cast(x, e.out.dtype)


def _converted(e: Emitter, x: Value, dtype: Any) -> Value:
    """convert_element_type: what PyTorch's decompositions end a call with, so that narrowing is no user's rounding."""
    return e.emit("copy", x) if x.type.dtype == e.out.dtype else e.rounded(x, e.out.dtype)


def _overwritten(e: Emitter, x: Value, src: Value, non_blocking: bool = False) -> Value:
    """copy: ``src`` in the dtype and shape of ``x``."""
    if src.type.device != e.out.device:
        raise Declined(f"it moves data from {src.type.device} to {e.out.device}")
    return e.emit("copy", e.broadcast(e.cast(src, e.out.dtype), e.out.shape))


def _arange(e: Emitter, start: Scalar, end: Scalar | None = None, step: Scalar = 1, **_: Any) -> Value:
    first: Scalar = 0 if end is None else start
    return _progression(e, first, step, e.out.dtype)


def _progression(e: Emitter, start: Scalar, step: Scalar, dtype: DType) -> Value:
    """``start + i * step``: in the dtype itself for integers, in f64 for fractions, as PyTorch computes it."""
    whole = _is_whole(start) and _is_whole(step)
    if whole:
        start, step = int(start.real), int(step.real)
    elif not dtype.is_float:
        raise Declined("fractions in an integer range")
    work = (dtype if dtype.is_integer else i64) if whole else f64
    value = e.iota(e.out.shape, 0, work)
    if step != 1:
        value = e.emit("mul", value, e.constant(step, work))
    if start != 0:
        value = e.emit("add", value, e.constant(start, work))
    return e.cast(value, dtype)


def _is_whole(number: Scalar) -> bool:
    return not isinstance(number, complex) and number == int(number) and abs(number) < 1 << 31


def _linspace(e: Emitter, start: Operand, end: Operand, steps: int, **_: Any) -> Value:
    """From both ends to the middle, as PyTorch does, so that the last element is ``end`` itself."""
    dtype = e.out.dtype
    if isinstance(start, Value | complex) or isinstance(end, Value | complex) or dtype not in (f32, f64):
        raise Declined("with tensors as ends, or in this dtype")
    if steps == 1:
        return full(e, start)
    ends = dtype.rounded(float(end)) - dtype.rounded(float(start))
    step = dtype.rounded(ends / max(steps - 1, 1))
    index = e.iota(e.out.shape, 0, i64)
    forward = e.emit("mul", e.cast(index, dtype), e.constant(step, dtype))
    upward = e.emit("add", e.constant(float(start), dtype), forward)
    left = e.emit("sub", e.constant(steps - 1, i64), index)
    backward = e.emit("mul", e.cast(left, dtype), e.constant(step, dtype))
    downward = e.emit("sub", e.constant(float(end), dtype), backward)
    return e.emit("select", e.emit("lt", index, e.constant(steps // 2, i64)), upward, downward)


def _eye(e: Emitter, *_: Any, **__: Any) -> Value:
    rows = e.iota(e.out.shape, 0, i64)
    columns = e.iota(e.out.shape, 1, i64)
    return e.cast(e.emit("eq", rows, columns), e.out.dtype)


def _triangle(keep: str) -> Lowering:
    """tril and triu: a comparison of row and column numbers, which mask analysis can read."""

    def lower(e: Emitter, x: Value, diagonal: int = 0) -> Value:
        rows, columns = x.type.shape[-2:]
        row = e.iota((rows, columns), 0, i64)
        column = e.iota((rows, columns), 1, i64)
        if diagonal:
            row = e.emit("add", row, e.constant(diagonal, i64))
        return e.emit("select", e.emit(keep, column, row), x, e.constant(0, x.type.dtype))

    return lower


CREATIONS: dict[str, Lowering] = {
    **{name: _filled(0) for name in ("zeros", "zeros_like", "new_zeros", "_efficientzerotensor")},
    **{name: _filled(1) for name in ("ones", "ones_like", "new_ones")},
    **dict.fromkeys(("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"), _empty),
    "empty_permuted": _empty,
    "full": _full,
    "full_like": _full_like,
    "new_full": _new_full,
    "scalar_tensor": _scalar_tensor,
    **dict.fromkeys(("clone", "to", "_to_copy", "contiguous", "lift_fresh_copy", "type_as"), _copied),
    "copy": _overwritten,
    "convert_element_type": _converted,
    "arange": _arange,
    "linspace": _linspace,
    "eye": _eye,
    "tril": _triangle("le"),
    "triu": _triangle("ge"),
}
