# SPDX-License-Identifier: Apache-2.0
"""Long sums of products in two levels, so that rounding errors do not grow with the length of one chain.

A chain of ``n`` additions has an error that grows as the square root of ``n``; sums of blocks, added up, have the
square root of the block and of the number of blocks (Higham, *Accuracy and Stability of Numerical Algorithms*, 4.2).
Libraries add in blocks of some hundreds, and a result may be at most twice as far from the truth as theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusec.ir.index import Index, Symbol, add, minimum, mul, sub, symbol
from fusec.ir.indexing import linearize
from fusec.passes.schedule.sums import LONG_BLOCK, SUM_BLOCK, block_depth, even_block
from fusec.tile.nodes import Dot, Iter, Loop, Statement
from fusec.tile.scalar import Load, reindex


def in_blocks(dot: Dot, block: int = SUM_BLOCK) -> list[Statement]:
    """The dot with its sum in blocks; itself where it is not much longer than one."""
    depth = dot.k.extent
    block = block_depth(depth, LONG_BLOCK if dot.registers.along else block)
    if block == depth:
        return [dot]
    inside = symbol(f"{dot.k.var.name}s", 0, block - 1)
    start = symbol(f"{dot.k.var.name}0", 0, depth - 1)
    whole = depth // block * block
    first = _part(dot, Iter(inside, block, dot.k.limit), inside) if dot.fresh else None
    begin = block if dot.fresh else 0
    end = depth if dot.k.limit is None else minimum(depth, dot.k.limit)
    limit = None if whole == depth and dot.k.limit is None else sub(end, start)
    rest = replace(_part(dot, Iter(inside, block, limit), add(start, inside)), fresh=False)
    loop = Loop(start, begin, end, block, (rest,))
    return [loop] if first is None else [first, loop]


def in_blocks_of_runs(dot: Dot, outer: Sequence[int], run: int) -> Statement:
    """The same for a dot with an operand in runs of so many positions along K that lie side by side, ``outer`` times:
    run by run, block by block, so that a block's addresses are evenly spaced. It adds to what the accumulator holds."""
    block, name = even_block(run), dot.k.var.name
    start, inside = symbol(f"{name}0", 0, run // block - 1), symbol(f"{name}s", 0, block - 1)
    parts = [symbol(f"{name}r{axis}", 0, extent - 1) for axis, extent in enumerate(outer)]
    where = add(mul(linearize(parts, outer), run), add(mul(start, block), inside))
    found: Statement = replace(_part(dot, Iter(inside, block), where), fresh=False)
    for s, extent in reversed((*zip(parts, outer, strict=True), (start, run // block))):
        found = Loop(s, 0, extent, 1, (found,))
    return found


def _part(dot: Dot, k: Iter, index: Index) -> Dot:
    table: dict[Symbol, Index] = {dot.k.var: index}
    a, b = reindex(dot.a, table), reindex(dot.b, table)
    assert isinstance(a, Load)
    assert isinstance(b, Load)
    return replace(dot, k=k, a=a, b=b)
