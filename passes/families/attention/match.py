# SPDX-License-Identifier: Apache-2.0
"""Attention, derived: dot → maps → softmax over the row → dot.

The match is on structure alone. What happens to the scores between the first dot and the softmax (scale,
bias, mask, soft cap, anything pointwise) is carried along, not recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, prod

from fusec.errors import LoweringError
from fusec.ir.attributes import ConstantAttributes, DotAttributes, ReduceAttributes
from fusec.ir.graph import made_from
from fusec.ir.indexing import most
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim
from fusec.passes.families.attention.elements import AttentionParts, Elements, find_elements
from fusec.passes.groups.grow import Log, grow_consumers, grow_producers, is_cheap
from fusec.passes.groups.partition import POINTWISE, Group, Partition
from fusec.runtime.program import Declined
from fusec.tile.scalar import symbols_in
from fusec.tile.views import Subscripts, broadcast_index, fresh_index, settled, view_index

RULE = "dot(softmax(maps(dot(q, k))), v) => attention"
_REORDERING = ("permute", "reshape", "broadcast")

_MOST_DEEP = 512
"""Of a key that a GPU's block takes apart, 16 keys at a time. 128 heads of 576 that share 4096 keys took 603 µs on an
H100; two matmuls with a softmax between them take 93."""

_FEW_QUERIES = 16
"""Where keys are so many times more than queries, a kernel that makes the queries costs more than it is worth."""

_MOST_GATHERING = 1024
"""Queries that read a key, up to which the kernel picks keys out of the arrays where they lie (pages of a cache). More
are worth a kernel that puts the keys in order for the loops of tensor cores."""

_WIDE_TABLE, _TABLE_SHARE = 1 << 16, 8
"""Elements of an array that a point of the scores may not be looked up in, where it has an eighth as many as what is
found. DeBERTa's two lookups by relative position, 96×512×512, in the attention's kernel: 2.4 ms a layer on an H100."""


@dataclass(frozen=True)
class AttentionMatch:
    """The parts of an attention; ``score_ops`` make the scores of the first dot, ``ops`` become the kernel."""

    parts: AttentionParts
    score_ops: tuple[Op, ...]
    ops: frozenset[Op]


@dataclass(frozen=True)
class _Softmax:
    scores: Value
    axis: int
    ops: tuple[Op, ...]
    sink: Value | None
    guarded: bool
    row_max: Value
    row_sum: Value


def match_attentions(partition: Partition, log: Log, blocked: bool) -> None:
    """dot → maps → softmax over the row → dot, as one online loop.

    Each query is read once, so what makes the queries is computed in the prologue; keys and values are read often.
    """
    for op in partition.graph.ops:
        if op.name != "dot" or op in partition.owner:
            continue
        found = match_attention(partition, op)
        elements = _one_loop(partition, found) if isinstance(found, AttentionMatch) else None
        if blocked and isinstance(found, AttentionMatch) and _depth(found) > _MOST_DEEP:
            found = Declined(RULE, f"keys are {_depth(found)} wide: a block would hold few of them", op.location)
        elif isinstance(elements, Declined):
            found = elements
        if isinstance(found, Declined):
            if found.reason:
                log(found)
            continue
        assert isinstance(elements, Elements)
        group = Group("attention", op.result.type.shape)
        partition.add(group, found.ops)
        group.anchors.append(op)
        group.position[op.result] = group.identity
        group.roles = found.parts.group
        grow_consumers(partition, group, log)
        scores = [v for inner in found.score_ops for v in inner.operands]
        scores += [found.parts.sink] if found.parts.sink is not None else []
        grow_producers(partition, group, _near(partition) if blocked else is_cheap, scores)
        queries, keys = (found.parts.score_dot.operands[s] for s in (elements.query_side, 1 - elements.query_side))
        if blocked and _readers(found, elements) <= _MOST_GATHERING:
            values = found.parts.value_dot.operands[1 - found.parts.weights_side]
            grow_producers(partition, group, _picks_keys, [keys, values])
        if not blocked:
            grow_producers(partition, group, partial(is_own, partition), [queries])
        elif _FEW_QUERIES * queries.type.most <= keys.type.most:
            grow_producers(partition, group, lambda op: True, [queries])


def _readers(match: AttentionMatch, elements: Elements) -> int:
    """How many rows read a key."""
    own = symbols_in(elements.key) | symbols_in(elements.value)
    shape = match.parts.value_dot.result.type.shape
    axes = zip(elements.point, shape, strict=True)
    return prod(most(n) for a, (s, n) in enumerate(axes) if s not in own and a != elements.value_axis)


def _picks_keys(op: Op) -> bool:
    """Whether an op picks rows of an array (pages of a cache), or makes the numbers of those that are picked."""
    dtype = op.result.type.dtype
    return op.name == "gather" or (op.definition.kind == "elementwise" and not dtype.is_float and is_cheap(op))


def _near(partition: Partition) -> Callable[[Op], bool]:
    """Cheap ops, but for those made of what is looked up in an array of about the scores' size: a map looks it up."""

    def through(op: Op) -> bool:
        return op in partition.free or op.definition.kind in POINTWISE

    def is_wide_lookup(op: Op | None) -> bool:
        if op is None or op.name not in ("gather", "gather_elements"):
            return False
        size = max((v.type.most for v in partition.sources_of(op.operands[0])), default=0)
        return size >= _WIDE_TABLE and size * _TABLE_SHARE >= op.result.type.most

    def far(op: Op) -> bool:
        return any(is_wide_lookup(made) for _, made in made_from(partition.producers.get, op.results, through))

    return lambda op: is_cheap(op) and not far(op)


def _depth(match: AttentionMatch) -> int:
    """How wide keys are, at most."""
    dot = match.parts.score_dot
    return prod(most(dot.operands[0].type.shape[axis]) for axis in dot.expect(DotAttributes).lhs_contract)


def is_own(partition: Partition, op: Op) -> bool:
    """Whether an op that makes what a block keeps (queries) is its own: an elementwise one that ends no matmul."""
    return op.definition.kind == "elementwise" and not _ends_matmul(partition, op)


def _ends_matmul(partition: Partition, op: Op) -> bool:
    """Whether a matmul's kernel would take an op in: what is done to its result, with inputs beside it."""
    made = [v for v in op.operands if not _is_given(partition, v)]
    inner = partition.producers.get(made[0]) if len(made) == 1 else None
    if inner is None or inner in partition.owner:
        return False
    return inner.name == "dot" or (inner.definition.kind == "elementwise" and _ends_matmul(partition, inner))


def _is_given(partition: Partition, value: Value) -> bool:
    """True for an input, a view of one, and what maps make of such."""
    made = [op for s in partition.sources_of(value) if (op := partition.producers.get(s)) is not None]
    return all(op.definition.kind == "elementwise" and all(_is_given(partition, v) for v in op.operands) for op in made)


def _one_loop(partition: Partition, match: AttentionMatch) -> Elements | Declined:
    """The elements of the match, where the index maps of its parts make one loop over keys of them."""
    try:
        return find_elements(partition.inliner(match.ops), match.parts)
    except LoweringError as error:
        return Declined(RULE, str(error), match.parts.value_dot.location)


def match_attention(partition: Partition, value_dot: Op) -> AttentionMatch | Declined:
    """The attention that ends in ``value_dot``. A Declined with an empty reason when it looks nothing like one."""
    nearest = Declined(RULE, "", value_dot.location)
    for side in (0, 1):
        found = _match_side(partition, value_dot, side)
        if isinstance(found, AttentionMatch):
            return found
        if found.reason:
            nearest = found
    return nearest


def _match_side(partition: Partition, value_dot: Op, side: int) -> AttentionMatch | Declined:
    def no(reason: str) -> Declined:
        return Declined(RULE, reason, value_dot.location)

    weights = value_dot.operands[side]
    passed, normalized = _strip(partition, weights)
    divide = partition.producers.get(normalized)
    if divide is None or divide.name != "div":
        return no("")
    softmax = _match_softmax(partition, divide)
    if softmax is None:
        return no("")
    if len(value_dot.expect(DotAttributes).lhs_contract) != 1:
        return no("the second dot contracts more than one axis")
    if softmax.scores.type.shape[softmax.axis] == 1:
        return no("there is only one key")
    dots = _dots_above(partition, softmax.scores)
    if len(dots) != 1:
        return no(f"{len(dots)} dots of the scores' size feed the softmax; exactly one is needed")
    score_dot = dots[0]
    between = _between(partition, score_dot, softmax.scores)
    ops = frozenset(
        (score_dot, value_dot, divide, *between, *softmax.ops, *(p for p in passed if p not in partition.free))
    )
    statistics = () if softmax.guarded else (softmax.row_max, softmax.row_sum)
    shown: list[Value] = []
    for op in partition.graph.ops:
        if op not in ops or op is value_dot:
            continue
        if op in partition.owner:
            return no(f"{op.result} is already part of another kernel")
        others = [c for c in partition.compute_consumers(op) if c not in ops]
        if op.result in statistics and op not in partition.owner:
            shown += [op.result] if others or partition.escapes(op) else []
            continue
        if partition.escapes(op):
            return no(f"{op.result} is also an output, so it must be stored whole")
        if others:
            return no(f"{op.result} is also read by {others[0].name} ({others[0].location or 'unknown line'})")
    s = softmax
    if _feeds(partition, shown, ops):
        return no("what is computed from a row's maximum or sum is read by the attention")
    row_max, row_sum = (v if v in shown else None for v in (s.row_max, s.row_sum))
    given = value_dot, side, s.sink, s.guarded, row_max, row_sum
    parts = AttentionParts(score_dot, s.scores, s.axis, normalized, *given)
    return AttentionMatch(parts, tuple(between), ops)


def _feeds(partition: Partition, values: Sequence[Value], ops: frozenset[Op]) -> bool:
    """Whether ops besides these read a value, and one of these reads what they make."""
    waiting = [op for v in values for op in partition.compute_consumers(partition.producers[v]) if op not in ops]
    last, seen = max(map(partition.order.__getitem__, ops)), set(waiting)
    while waiting:
        op = waiting.pop()
        if op in ops:
            return True
        following = {c for c in partition.compute_consumers(op) if partition.order[c] <= last} - seen
        seen |= following
        waiting += following
    return False


def _strip(partition: Partition, value: Value) -> tuple[list[Op], Value]:
    """Walks up through views, casts and copies."""
    passed: list[Op] = []
    op = partition.producers.get(value)
    while op is not None and (op.name in _REORDERING or op.name in ("cast", "copy")):
        passed.append(op)
        value = op.operands[0]
        op = partition.producers.get(value)
    return passed, value


def _match_softmax(partition: Partition, divide: Op) -> _Softmax | None:
    """``div(exp(sub(s, max(s))), sum(exp(...)))`` over one axis.

    With a sink the maximum is ``maximum(max(s), sink)``, and the sum ``add(sum(exp(...)), exp(sub(sink, maximum)))``.
    Guarded, a maximum of -inf is replaced by 0, and a sum of 0 by 1.
    """
    exponentials, row_sum = divide.operands
    whole_sum = partition.source(row_sum)
    row_sum, guards = _unguarded(partition, row_sum, 0.0, 1.0)
    added = _producer(partition, row_sum, "add")
    row_sum = added.operands[0] if added is not None else row_sum
    sum_op = _producer(partition, _strip(partition, row_sum)[1], "reduce_sum")
    exp_op = _producer(partition, exponentials, "exp")
    if sum_op is None or exp_op is None or sum_op.operands[0] is not exponentials:
        return None
    sub_op = _producer(partition, exp_op.operands[0], "sub")
    if sub_op is None:
        return None
    scores, shift = sub_op.operands
    whole_max = partition.source(shift)
    row_max, others = _unguarded(partition, shift, -inf, 0.0)
    if bool(guards) != bool(others) or (guards and added is not None):
        return None
    sink: Value | None = None
    beside: tuple[Op, ...] = ()
    if added is not None:
        found = _match_sink(partition, added, row_max)
        if found is None:
            return None
        row_max, sink, beside = found
    max_op = _producer(partition, _strip(partition, row_max)[1], "reduce_max")
    if max_op is None or max_op.operands[0] is not scores:
        return None
    if max_op.attributes != sum_op.attributes:
        return None
    attributes = sum_op.expect(ReduceAttributes)
    if len(attributes.axes) != 1 or scores.type.shape != exponentials.type.shape:
        return None
    (axis,) = attributes.axes
    shape = scores.type.shape
    if not (_is_of_own_row(partition, row_max, shape, axis) and _is_of_own_row(partition, row_sum, shape, axis)):
        return None
    row_shape = tuple(1 if a == axis else n for a, n in enumerate(shape))
    if any(op.result.type.shape != row_shape for op in beside[:2]):
        return None
    ops = (sum_op, exp_op, sub_op, max_op, *beside, *guards, *others)
    return _Softmax(scores, axis, ops, sink, bool(guards), whole_max, whole_sum)


def _unguarded(partition: Partition, value: Value, number: float, other: float) -> tuple[Value, tuple[Op, ...]]:
    """``x`` and its guard's ops where the value is ``select(eq(x, number), other, x)``, else the value."""
    select = _producer(partition, value, "select")
    test = _producer(partition, select.operands[0], "eq") if select is not None else None
    if select is None or test is None:
        return value, ()
    x = select.operands[2]
    constants = [partition.producers.get(v) for v in (test.operands[1], select.operands[1])]
    attributes = [c.attributes if c is not None else None for c in constants]
    guards = (
        test.operands[0] is x
        and x.type == value.type
        and all(
            isinstance(a, ConstantAttributes) and a.value == n for a, n in zip(attributes, (number, other), strict=True)
        )
    )
    return (x, (select, test)) if guards else (value, ())


def _match_sink(partition: Partition, added: Op, row_max: Value) -> tuple[Value, Value, tuple[Op, ...]] | None:
    """The maximum of the scores alone, the sink, and the ops that take it into the maximum and the sum."""
    larger = _producer(partition, row_max, "maximum")
    power = _producer(partition, added.operands[1], "exp")
    less = _producer(partition, power.operands[0], "sub") if power is not None else None
    if larger is None or power is None or less is None:
        return None
    alone, sink = larger.operands
    return (alone, sink, (added, larger, power, less)) if less.operands == (sink, row_max) else None


def _is_of_own_row(partition: Partition, value: Value, shape: tuple[Dim, ...], axis: int) -> bool:
    """True when ``value``, spread over ``shape``, gives each row its own element of the reduction below it."""
    point = settled(fresh_index("s", shape))
    index: Subscripts = broadcast_index(point, value.type.shape)
    while (op := partition.producers[value]).name != "reduce_max" and op.name != "reduce_sum":
        index = view_index(op, index) if op.definition.kind == "view" else index
        value = op.operands[0]
    return index == (*point[:axis], *point[axis + 1 :])


def _producer(partition: Partition, value: Value, name: str) -> Op | None:
    op = partition.producers.get(value)
    return op if op is not None and op.name == name else None


def _dots_above(partition: Partition, scores: Value) -> list[Op]:
    """Dots of the scores' size that reach them through pointwise ops and views."""

    def through(op: Op) -> bool:
        return op.name != "dot" and (op in partition.free or op.definition.kind == "elementwise")

    made = made_from(partition.producers.get, [scores], through)
    dots = (op for value, op in made if op is not None and op.name == "dot" and value.type.count == scores.type.count)
    return list(dict.fromkeys(dots))


def _between(partition: Partition, start: Op, end: Value) -> list[Op]:
    """The compute ops on the ways from ``start`` to ``end``, in graph order."""
    reached: dict[Value, bool] = {start.result: True}

    def reaches(value: Value) -> bool:
        if value not in reached:
            op = partition.producers.get(value)
            passes = op is not None and (op in partition.free or op.definition.kind == "elementwise")
            reached[value] = False
            if passes and op is not None:
                below = [reaches(v) for v in op.operands]  # every operand is looked at: each may lie on a way
                reached[value] = any(below)
        return reached[value]

    reaches(end)
    ops = {partition.producers[v] for v, yes in reached.items() if yes and v in partition.producers}
    return sorted((op for op in ops if op not in partition.free and op is not start), key=partition.order.__getitem__)
