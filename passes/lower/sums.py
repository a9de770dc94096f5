"""Long sums of products in two levels, so that rounding errors do not grow with the length of one chain.

A chain of ``n`` additions has an error that grows as the square root of ``n``; sums of blocks, added up, have the
square root of the block and of the number of blocks (Higham, *Accuracy and Stability of Numerical Algorithms*, 4.2).
Libraries add in blocks of some hundreds, and a result may be at most twice as far from the truth as theirs.
"""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.index import Index, Symbol, add, minimum, sub, symbol
from fusec.passes.schedule.sums import LONG_BLOCK, SUM_BLOCK, block_depth, even_block
from fusec.tile.nodes import Dot, Iter, Loop, Statement
from fusec.tile.scalar import Load, reindex


def in_blocks(dot: Dot, block: int = SUM_BLOCK, run: int | None = None) -> list[Statement]:
    """The dot with its sum in blocks; itself where it is not much longer than one.

    run: places along K that lie side by side, of which no block may take two.
    """
    depth = dot.k.extent
    block = block_depth(depth, LONG_BLOCK if dot.registers.along else block) if run is None else even_block(run)
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


def _part(dot: Dot, k: Iter, index: Index) -> Dot:
    table: dict[Symbol, Index] = {dot.k.var: index}
    a, b = reindex(dot.a, table), reindex(dot.b, table)
    assert isinstance(a, Load)
    assert isinstance(b, Load)
    return replace(dot, k=k, a=a, b=b)
