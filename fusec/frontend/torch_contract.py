# SPDX-License-Identifier: Apache-2.0
"""ATen's matmuls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from fusec.frontend.torch_emit import Declined, Emitter, extents
from fusec.ir.attributes import (
    MOST_GROUPS,
    DotAttributes,
    EinsumAttributes,
    GatherAttributes,
    GroupedDotAttributes,
    GroupedOuterAttributes,
    PermuteAttributes,
    Scalar,
)
from fusec.ir.nodes import Value
from fusec.ir.types import f32, i8, i32, u8

Lowering = Callable[..., Value]


def _linear(e: Emitter, input: Value, weight: Value, bias: Value | None = None) -> Value:
    if weight.type.rank != 2 or (bias is not None and bias.type.rank != 1):
        raise Declined("with a weight that is not a matrix")
    return e.emit("linear", input, weight, *(() if bias is None else (bias,)))


def _matmul(e: Emitter, x: Value, other: Value) -> Value:
    return e.emit("matmul", x, other)


def _int_mm(e: Emitter, x: Value, mat2: Value) -> Value:
    """Bytes, added up in 32 bits. Those without a sign are multiplied less 128, and each column's sum is added 128
    times."""
    product = DotAttributes((1,), (0,), dtype=i32)
    if x.type.dtype is not u8:
        return e.emit("dot", x, mat2, attributes=product)
    offset = e.constant(128, i32)
    signed = e.cast(e.emit("sub", e.cast(x, i32), offset), i8)
    columns = e.reduce("reduce_sum", e.cast(mat2, i32), (0,), keep=True)
    return e.emit("add", e.emit("dot", signed, mat2, attributes=product), e.emit("mul", columns, offset))


def _scaled_mm(
    e: Emitter,
    x: Value,
    mat2: Value,
    scale_a: Value,
    scale_b: Value,
    bias: Value | None = None,
    scale_result: Value | None = None,
    out_dtype: object = None,
    use_fast_accum: bool = False,
) -> Value:
    """``x @ mat2`` in f32, times one scale for each operand, or one for each row and column; plus the bias."""
    if e.is_on_cpu(x.type):
        raise Declined("but on a GPU", final=True)
    dtype = e.out.dtype
    if scale_result is not None or not dtype.is_float:
        raise Declined("with a result of 8 bits", final=True)
    total = e.emit("dot", x, mat2, attributes=DotAttributes((1,), (0,), dtype=f32, fast=use_fast_accum))
    m, n = total.type.shape
    whole = [prod(extents(s)) == 1 for s in (scale_a, scale_b)]
    by_row = extents(scale_a) == (m, 1) and extents(scale_b) == (1, n)
    if not (all(whole) or by_row) or any(s.type.dtype is not f32 for s in (scale_a, scale_b)):
        raise Declined("but with one scale an operand, or one for each row and column", final=True)
    for scale in (scale_a, scale_b):
        total = e.emit("mul", total, scale if by_row else e.reshape(scale, ()))
    return e.with_bias(total, bias, dtype)


def _addmm(e: Emitter, x: Value, mat1: Value, mat2: Value, *, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    """``beta * x + alpha * (mat1 @ mat2)``; a row added to all is a linear layer."""
    if beta == 1 and alpha == 1 and extents(x) == extents(mat2)[1:]:
        return e.emit("linear", mat1, e.permute(mat2, (1, 0)), x)
    return _scaled_sum(e, x, e.emit("matmul", mat1, mat2), beta, alpha)


def _add_matmul(e: Emitter, x: Value, a: Value, b: Value, *, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    """baddbmm and addmv."""
    return _scaled_sum(e, x, e.emit("matmul", a, b), beta, alpha)


def _scaled_sum(e: Emitter, x: Value, result: Value, beta: Scalar, alpha: Scalar) -> Value:
    dtype = e.out.dtype
    if alpha != 1:
        result = e.emit("mul", result, e.constant(alpha, dtype))
    if beta == 0:
        return result
    if beta != 1:
        x = e.emit("mul", x, e.constant(beta, dtype))
    return e.emit("add", x, result)


def _add_summed_matmuls(
    e: Emitter, x: Value, batch1: Value, batch2: Value, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Value:
    """addbmm: the matmuls of all batches, added up."""
    result = e.emit("einsum", batch1, batch2, attributes=EinsumAttributes("bij,bjk->ik"))
    return _scaled_sum(e, x, result, beta, alpha)


def _grouped_mm(
    e: Emitter,
    x: Value,
    mat2: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: object = None,
) -> Value:
    """Rows in groups that end where ``offs`` says, or sums over these, on a GPU; a CPU's kernels take no positions that
    are data."""
    if x.type.rank == 3 and mat2.type.rank == 3 and offs is None and bias is None:
        return e.emit("matmul", x, mat2)
    columns = mat2.type.shape[-1]
    padded = not isinstance(columns, int) or columns * x.type.dtype.itemsize % 16  # to a stride of 16 bytes
    whole = x.type.is_static and mat2.type.is_static and 0 not in x.type.static_shape and not padded
    if (x.type.rank, mat2.type.rank) == (2, 2) and offs is not None and bias is None and whole:
        if e.is_on_cpu(x.type) or x.type.dtype.bits > 16:
            raise Declined("but of half types on a GPU", final=True)
        rows = e.emit("permute", x, attributes=PermuteAttributes((1, 0)))
        return e.emit("grouped_outer", rows, mat2, offs, attributes=GroupedOuterAttributes())
    if (x.type.rank, mat2.type.rank) != (2, 3) or offs is None or bias is not None or not whole:
        raise Declined("but of rows and matrices of groups", final=True)
    if e.is_on_cpu(x.type) or x.type.dtype.bits > 16 or mat2.type.static_shape[0] > MOST_GROUPS:
        raise Declined("but of half types on a GPU", final=True)
    return e.emit("grouped_dot", x, mat2, offs, attributes=GroupedDotAttributes(1))


def _grouped_dot(e: Emitter, rows: Value, matrices: Sequence[Value], ends: Value, transposed: bool) -> Value:
    """fusec's own: see :mod:`fusec.frontend.torch_grouped`."""
    apart = 0 if matrices[0].type.rank == 3 else len(matrices)
    attributes = GroupedDotAttributes(2 if transposed else 1, apart=apart)
    return e.emit("grouped_dot", rows, *matrices, ends, attributes=attributes)


def _grouped_outer(e: Emitter, lhs: Value, rhs: Value, ends: Value) -> Value:
    return e.emit("grouped_outer", lhs, rhs, ends, attributes=GroupedOuterAttributes())


def _take_rows(e: Emitter, x: Value, order: Value) -> Value:
    """Rows whose numbers are known to be in range."""
    return e.emit("gather", x, order, attributes=GatherAttributes(0))


def _einsum(e: Emitter, equation: str, tensors: Sequence[Value], *, path: Sequence[int] | None = None) -> Value:
    ranks = [t.type.rank for t in tensors]
    explicit = explicit_equation(equation, ranks)
    letters: dict[str, int] = {}
    for term, tensor in zip(explicit.split("->")[0].split(","), tensors):
        for letter, extent in zip(term, extents(tensor)):
            if letters.setdefault(letter, extent) != extent:
                raise Declined("with an axis of extent 1 that broadcasts")
    return e.emit("einsum", *tensors, attributes=EinsumAttributes(explicit))


def explicit_equation(equation: str, ranks: Sequence[int]) -> str:
    """The equation with ``->`` and without ellipses, which become letters of their own."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    used = set(equation)
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in used]
    hidden = [rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks)]
    widest = max(hidden, default=0)
    batch = "".join(spare[:widest])
    opened = [term.replace("...", batch[widest - n :]) for term, n in zip(terms, hidden)]
    if arrow:
        result = right.replace("...", batch)
    else:
        letters = "".join(left.replace("...", "").replace(",", ""))
        result = batch + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return f"{','.join(opened)}->{result}"


def _outer(e: Emitter, x: Value, vec2: Value) -> Value:
    column = e.reshape(x, (*x.type.shape, 1))
    return e.emit("mul", e.cast(column, e.out.dtype), e.cast(vec2, e.out.dtype))


def _bilinear(e: Emitter, input1: Value, input2: Value, weight: Value, bias: Value | None = None) -> Value:
    """One matmul with the weights of all outputs, then a sum of rows."""
    *batch, first = extents(input1)
    outputs, _, second = extents(weight)
    if 0 in (*batch, first, second, outputs) or not e.out.dtype.is_float:
        raise Declined("of empty tensors or of integers")
    dtype = e.out.dtype
    wide = dtype.accumulator
    rows = [e.reshape(e.cast(v, wide), (prod(batch), v.type.static_shape[-1])) for v in (input1, input2)]
    equation = EinsumAttributes("bi,kij->bkj")
    partial = e.emit("einsum", rows[0], e.cast(weight, wide), attributes=equation)
    products = e.emit("mul", partial, e.reshape(rows[1], (prod(batch), 1, second)))
    total = e.reshape(e.reduce("reduce_sum", products, (2,)), (*batch, outputs))
    return e.with_bias(total, bias, dtype)


CONTRACTIONS: dict[str, Lowering] = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "_int_mm": _int_mm,
    "_scaled_mm": _scaled_mm,
    "_grouped_mm": _grouped_mm,
    "grouped_dot": _grouped_dot,
    "grouped_outer": _grouped_outer,
    "take_rows": _take_rows,
    "mv": _matmul,
    "dot": _matmul,
    "addmm": _addmm,
    "addmv": _add_matmul,
    "baddbmm": _add_matmul,
    "addbmm": _add_summed_matmuls,
    "einsum": _einsum,
    "outer": _outer,
    "bilinear": _bilinear,
}
