"""What the statements of an attention kernel do, for emitters that arrange its work themselves.

Such a kernel says: a block of queries, then loops over blocks of keys (scores, their change, the softmax online, the
product with the values), then stores. What is found here is those parts, and that nothing else is there.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol
from fusec.ir.types import bool_
from fusec.tile.fetch import Fetch, fetch_of
from fusec.tile.nodes import Alloc, Block, Dot, Grid, Iter, Kernel, Loop, Map, Reduce, Statement, Store
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr, loads, walk

_FEWEST_COLUMNS, _MOST_COLUMNS = 16, 256


@dataclass(frozen=True)
class KeyLoop:
    """Blocks of keys from ``start`` up to ``stop``. ``score``: over ``raw``, the product of queries and keys.

    ``limit``: keys of a block that there are, counted from its first; None where all are. scale: of scores, in units of
    log2. ``subtracts_first``: the maximum of a row is subtracted before that, as scores may be huge.
    """

    start: Index
    stop: Index
    limit: Index | None
    raw: Buffer
    score: ScalarExpr
    scale: float
    subtracts_first: bool


@dataclass(frozen=True)
class AttentionRoles:
    """The parts of an attention kernel.

    heads: the grid's other axes. turn: number of the block of queries. query, key, depth, value: iterators over a block
    of queries, a block of keys, and the columns of queries and of values. first_key: the loops' variable. loops: in
    order; ``whole`` is the place of the one whose blocks no mask touches (of the only one, where there is no other).
    total, result: the softmax's sums, and the weighted sums of values.
    """

    heads: tuple[Iter, ...]
    turn: Iter
    query: Iter
    key: Iter
    depth: Iter
    value: Iter
    first_key: Symbol
    queries: Load
    keys: Load
    values: Load
    loops: tuple[KeyLoop, ...]
    whole: int
    total: Buffer
    result: Buffer
    stores: tuple[Store, ...]


def attention_roles(kernel: Kernel) -> AttentionRoles:
    """The parts of a kernel of half floats. LoweringError where it does more, or heads are of another size."""
    (grid,) = kernel.body
    if not isinstance(grid, Grid):
        raise LoweringError(f"{kernel.name} does not start with a grid")
    loops = [s for s in grid.body if isinstance(s, Loop)]
    stores = tuple(s for s in grid.body if isinstance(s, Store))
    if not loops or any(not isinstance(s, Loop | Store | Alloc | Map) for s in grid.body):
        raise LoweringError(f"{kernel.name} does more than walk over keys")
    key_loops = tuple(_loop(kernel, s) for s in loops)
    scores, weighted = _dots(kernel, loops[0].body)
    total = _summed(loops[0].body, weighted.a.buffer)
    if any(isinstance(s, Map) and s.target is total and s.value != Const(0.0, total.dtype) for s in grid.body):
        raise LoweringError("logits beside those of the keys")
    queries = _half(_staged(grid.body, scores.a), scores.k)
    partial = (d.n for d in (_dots(kernel, s.body)[0] for s in loops) if d.n.limit is not None)
    key = next(partial, scores.n)
    keys, values = _half(scores.b, scores.k), _half(weighted.b, weighted.n)
    return AttentionRoles(
        grid.iters[:-1],
        grid.iters[-1],
        scores.m,
        key,
        scores.k,
        weighted.n,
        loops[0].var,
        queries,
        keys,
        values,
        key_loops,
        min(range(len(loops)), key=lambda n: _effort(key_loops[n])),
        total,
        weighted.accumulator.buffer,
        stores,
    )


def mean_of(out: Load, total: Load, *, guarded: bool) -> ScalarExpr:
    """The weighted sum of values over the sum of weights; guarded, over 1 where no key has a weight."""
    none = Apply("eq", (total, Const(0.0, total.dtype)), bool_)
    divisor = Apply("select", (none, Const(1.0, total.dtype), total), total.dtype) if guarded else total
    return Apply("div", (out, divisor), total.dtype)


def columns_of(axis: Iter) -> int:
    """Columns of an operand that there are. LoweringError for a number that tensor cores don't take."""
    n = axis.extent if axis.limit is None else axis.limit
    if not isinstance(n, int) or not _FEWEST_COLUMNS <= n <= _MOST_COLUMNS or n % 16:
        raise LoweringError(f"heads of {n} columns")
    return n


def _dots(kernel: Kernel, body: Block) -> tuple[Dot, Dot]:
    dots = [s for s in body if isinstance(s, Dot)]
    if len(dots) != 2:
        raise LoweringError(f"{kernel.name} has {len(dots)} products in a step")
    return dots[0], dots[1]


def _loop(kernel: Kernel, loop: Loop) -> KeyLoop:
    scores, weighted = _dots(kernel, loop.body)
    if not all(isinstance(s, Alloc | Map | Reduce | Dot) for s in loop.body):
        raise LoweringError(f"{kernel.name} does more in a step than attention does")
    raw = scores.accumulator
    changed = [s.value for s in loop.body if isinstance(s, Map) and s.target is raw.buffer]
    score = changed[0] if changed else raw
    if len(changed) > 1 or any(isinstance(s, Map) and _writes_operand(s, scores, weighted) for s in loop.body):
        raise LoweringError(f"{kernel.name} computes its keys or values")
    scale, first = _scale(loop.body, weighted.a.buffer, raw)
    return KeyLoop(loop.start, loop.stop, scores.n.limit, raw.buffer, score, scale, first)


def _writes_operand(s: Map, scores: Dot, weighted: Dot) -> bool:
    return s.target in (scores.b.buffer, weighted.b.buffer)


def _scale(body: Block, weights: Buffer, raw: Load) -> tuple[float, bool]:
    """The factor of scores in units of log2, and whether a row's maximum is subtracted before they are scaled."""
    for s in body:
        if isinstance(s, Map) and s.target is weights:
            for node in walk(s.value):
                if isinstance(node, Apply) and node.op == "mul" and isinstance(node.args[1], Const):
                    first = isinstance(node.args[0], Apply) and node.args[0].op == "sub" and node.args[0].args[0] == raw
                    if first or node.args[0] == raw:
                        return float(node.args[1].value.real), first
    raise LoweringError("weights that are no powers of scaled scores")


def _summed(body: Block, weights: Buffer) -> Buffer:
    """The sums of weights over keys."""
    for s in body:
        if isinstance(s, Reduce) and s.op == "sum" and any(x.buffer is weights for x in loads(s.value)):
            return s.target
    raise LoweringError("weights that are not summed")


def _staged(setup: Block, operand: Load) -> Load:
    """What a tile holds a copy of."""
    if operand.buffer.space == "parameter":
        return operand
    made: list[Statement] = [s for s in setup if isinstance(s, Map) and s.target is operand.buffer]
    if len(made) == 1 and isinstance(made[0], Map) and isinstance(made[0].value, Load):
        return made[0].value
    raise LoweringError("queries that are computed")


def _half(load: Load, columns: Iter) -> Load:
    if load.dtype.name not in ("bf16", "f16"):
        raise LoweringError(f"{load.buffer} holds {load.dtype}")
    columns_of(columns)
    return load


def fetched(operand: Load, rows: Iter, columns: Iter) -> Fetch:
    """How a bulk copy brings a block of queries, keys or values. LoweringError where none can."""
    fetch = fetch_of(operand, (rows, columns))
    if fetch is None or fetch.turned:
        raise LoweringError(f"{operand.buffer} can't be fetched by bulk copies")
    return fetch


def _effort(loop: KeyLoop) -> tuple[bool, int]:
    return loop.limit is not None, sum(1 for _ in walk(loop.score))
