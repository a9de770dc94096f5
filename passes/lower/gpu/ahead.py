"""What a product's blocks ask the cache for while the kernel ahead still runs: where the matrices begin."""

from __future__ import annotations

from collections.abc import Mapping

from fusec.ir.graph import Op
from fusec.ir.index import Expr, Index, Symbol, minimum, symbol
from fusec.passes.lower.frame import address_step, sizes_of
from fusec.passes.lower.gpu.product import Products
from fusec.tile.nodes import Iter, Run
from fusec.tile.scalar import Load, loads, reindex

AHEAD, TOTAL = 32 << 10, 0
"""Bytes that a block asks for, and all of them together: what the memory moves in about 2 µs."""

MOST_ROWS = 256
"""Runs that it asks for; one that is shorter than a line of the cache would ask for all of it."""

_LINE = 128


def matrix_ahead(
    products: Products, op: Op, side: int, block: int, start: Index, shift: Mapping[Symbol, Index]
) -> tuple[Run, ...]:
    """The first of what a block reads of an operand: ``block`` rows or columns of the result, K from ``start`` on.

    ``shift`` gives the block's first row and column, without its own iterators. Nothing where the bytes don't lie in
    runs of whole lines.
    """
    axes = products.axes
    line, extent = ((products.i, axes.m), (products.j, axes.n))[side]
    found = loads(products.element(op, side))
    load = max(found, key=lambda x: x.buffer.most, default=None)
    if load is None or axes.k == 0 or sizes_of(products.frame.body):
        return ()
    if not all(isinstance(i, int | Expr) for i in load.index):
        return ()
    item = load.dtype.itemsize
    along, across = address_step(load, products.k), address_step(load, line)
    row = symbol("row", 0, MOST_ROWS - 1)
    if along == 1 and across is not None and across * item % 16 == 0:
        rows = Iter(row, min(block, MOST_ROWS))
        size = min(AHEAD // rows.extent, axes.k * item) // 16 * 16
        place = {line: minimum(shift[line] + row, extent - 1), products.k: start}
    elif across == 1 and along is not None and along * item % 16 == 0 and extent % block == 0:
        size = block * item // 16 * 16
        rows = Iter(row, min(MOST_ROWS, max(1, AHEAD // max(size, 1))))
        place = {line: shift[line], products.k: minimum(start + row, axes.k - 1)}
    else:
        return ()
    first = reindex(load, {**shift, **place})
    points = TOTAL // max(size * rows.extent, 1)
    return (Run(rows, first, size, points),) if size >= _LINE and points and isinstance(first, Load) else ()
