# SPDX-License-Identifier: Apache-2.0
"""What templates of matmuls compute, as statements: for the interpreter, and for backends that lack the template."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from fusec.ir.index import Index, Symbol, add
from fusec.ir.indexing import substitute
from fusec.tile.nodes import Alloc, Block, Dot, Grid, Iter, Loop, Map, Reduce, RegisterTile, Statement, Store
from fusec.tile.scalar import Apply, Const, Load, ScalarExpr, reindex
from fusec.tile.templates import (
    GemmNest,
    GemmTemplate,
    GroupedConvolution,
    HopperGemm,
    MmaGemm,
    SimtGemm,
    SkinnyGemm,
    TemplateOperand,
    TiledAxis,
)

_NO_REGISTERS = RegisterTile(0, 0)


def expand(template: GemmTemplate) -> Block:
    """The body of a matmul's kernel."""
    match template:
        case SimtGemm():
            return _gemm(template.nest, template.thread)
        case MmaGemm():
            return _gemm(template.nest, template.warp)
        case HopperGemm() | SkinnyGemm():
            return _gemm(template.nest, _NO_REGISTERS)
        case GroupedConvolution():
            return _convolution(template)
        case _:
            assert_never(template)


def _convolution(t: GroupedConvolution) -> Block:
    """One row after another: each column's sum has a left operand of its own group."""
    parts = (x if x.dtype is t.total.dtype else Apply("cast", (x,), t.total.dtype) for x in (t.image, t.weight))
    product = Apply("mul", tuple(parts), t.total.dtype)
    sums = Reduce((t.column, t.depth), t.total.buffer, (t.column.var,), "sum", product)
    return (Grid((t.row,), (Alloc(t.total.buffer), sums, *t.stores)),)


def _gemm(t: GemmNest, registers: RegisterTile) -> Block:
    """The grid in plain order, batch by row tiles by column tiles."""
    zero = Const(0.0 if t.sums[0].dtype.is_float else 0, t.sums[0].dtype)
    whole = (Iter(t.row.inner.var, t.row.inner.extent), Iter(t.column.inner.var, t.column.inner.extent))
    before: list[Statement] = []
    left, step = operand_of(t, t.left, 0)
    for right, total in zip(t.rights, t.sums, strict=True):
        before += [Alloc(total.buffer), Map(whole, total.buffer, (t.row.inner.var, t.column.inner.var), zero)]
        loaded, code = operand_of(t, right, 1)
        dot = Dot(t.row.inner, t.column.inner, t.depth.inner, total, left, loaded, False, registers, t.tf32)
        step = [*step, *code, dot]
    loop = Loop(t.step, 0, t.depth.whole.extent, t.depth.inner.extent, tuple(step))
    return (Grid((t.batch, t.row_tiles, t.column_tiles), (*before, loop, *tile_stores(t))),)


def operand_of(t: GemmNest, operand: TemplateOperand, side: int) -> tuple[Load, list[Statement]]:
    """A block of an operand on the left (0) or on the right (1), and the code of a step along K that makes it."""
    axes = (t.row, t.depth) if side == 0 else (t.depth, t.column)
    element = in_tile(operand.element, *axes)
    if operand.tile is None:
        assert isinstance(element, Load)
        return element, []
    domain = axes[0].inner, axes[1].inner
    index = domain[0].var, domain[1].var
    return Load(operand.tile, index), [Alloc(operand.tile), Map(domain, operand.tile, index, element)]


def tile_stores(t: GemmNest) -> list[Store]:
    """The stores over a tile's rows and columns."""
    return [_store_in_tile(t, s) for s in t.stores]


def _store_in_tile(t: GemmNest, s: Store) -> Store:
    shift = _to_tile(t.row, t.column)
    index = tuple(substitute(i, shift) for i in s.index)
    return replace(s, domain=(t.row.inner, t.column.inner), index=index, value=reindex(s.value, shift))


def in_tile(e: ScalarExpr, *axes: TiledAxis) -> ScalarExpr:
    """What is said over whole axes, at the positions of a tile."""
    return reindex(e, _to_tile(*axes))


def _to_tile(*axes: TiledAxis) -> dict[Symbol, Index]:
    return {a.whole.var: add(a.first, a.inner.var) for a in axes}
