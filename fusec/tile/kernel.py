# SPDX-License-Identifier: Apache-2.0
"""A kernel: a body of statements, its parameters, and what a backend or a report has to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fusec.ir.index import Expr, Symbol, is_at_least, is_below
from fusec.ir.types import Dim, DType
from fusec.tile.nodes import Block, Store
from fusec.tile.scalar import Buffer, Const, IndexValue, ScalarExpr, Subscript, reindex
from fusec.tile.templates import Template

Language = Literal["tir", "triton", "cuda"]
"""What a backend writes a kernel in; ``tir``, which is TVM's, on CPUs."""


@dataclass(frozen=True)
class Move:
    """Where the elements of an output go along an axis: data tell.

    What is stored at subscript ``at`` along the axis ``along`` goes to ``to``, an integer in parameters, along ``axis``
    of an array that has ``extent`` positions there and begins at the output's address.
    """

    buffer: Buffer
    axis: int
    along: int
    at: Symbol
    to: ScalarExpr
    extent: Dim


def subscript_of(move: Move, store: Store) -> Subscript:
    """The subscript along the moved axis that a store has: an index expression where it is one."""
    to = reindex(move.to, {move.at: store.index[move.along]})
    match to:
        case IndexValue(index=index):
            return index
        case Const(value=value):
            return int(value.real)
    return to


def is_in_range(move: Move, to: Subscript) -> bool:
    """Whether a subscript is known to lie in the array that is written."""
    return isinstance(to, int | Expr) and is_at_least(to, 0) and is_below(to, move.extent)


@dataclass(frozen=True)
class BlockTraits:
    """How a GPU's blocks do their statements, for a backend whose values are blocks.

    prefetch: the loads before a block's first reduction are issued first, as none would cross its barrier.
    first_fastest: neighbouring CTAs differ in the grid's first iterator, else in its last.
    tma_stores, tma_tiles: results, and what maps read, may go through tensor descriptors, as operands of dots do.
    pipelined: loops without dots run the launch's stages of loads ahead, too.
    pairs: neighbours along a row may be widened two at a time; not where dots lay out the block.
    nan_maximum: a maximum is NaN where an element is; not where a sum of the same elements says so.
    splits: operands of f32 may be multiplied in parts of fewer bits, whose products are added up.
    """

    prefetch: bool = False
    first_fastest: bool = False
    tma_stores: bool = False
    tma_tiles: bool = False
    pipelined: bool = False
    pairs: bool = True
    nan_maximum: bool = True
    splits: bool = False


@dataclass(frozen=True)
class Kernel:
    """One kernel: its parameters in call order (outputs last), its body and what it is for.

    ``sizes`` are symbolic extents, given at each call as integers after the parameters.
    ``kind`` is the family (``map``, ``row``, ``gemm``, ``attention``, ``pack``); ``flops`` and ``bytes`` are
    what it computes and the least it must move, for the roofline. On a GPU a block has ``warps`` warps and its
    loops run ``stages`` loads ahead; both are 0 elsewhere. A thread may have ``registers`` registers, 0 for any number.
    ``final``: what the results are rounded to in the
    end, where the outputs are parts of them that another kernel adds up. ``unaligned``: the same work scheduled for
    addresses that are no multiples of 16 bytes, where this kernel can't be compiled for them. ``template``: the same
    work as a record, for a backend that has such a loop nest by hand. ``cluster``: how many of
    the device's blocks, which reach each other's shared memory, do the work of one block of the body together.
    ``moves``: outputs whose positions in their arrays are data.
    """

    name: str
    kind: str
    parameters: tuple[Buffer, ...]
    outputs: int
    body: Block
    flops: int = 0
    bytes: int = 0
    warps: int = 0
    stages: int = 0
    registers: int = 0
    sizes: tuple[Symbol, ...] = ()
    language: Language = "tir"
    final: DType | None = None
    unaligned: Kernel | None = None
    cluster: int = 1
    moves: tuple[Move, ...] = ()
    template: Template | None = None
    traits: BlockTraits = BlockTraits()

    def moves_of(self, buffer: Buffer) -> tuple[Move, ...]:
        """Those of one output."""
        return tuple(move for move in self.moves if move.buffer is buffer)
