# SPDX-License-Identifier: Apache-2.0
"""Recurrences that a loop over time computes step by step, as one op: compile time does not grow with the steps.

``h = a[t]*h + b[t]`` is a ``recurrence`` of ``a`` and ``b``, made of the steps' values as one. What follows at each
step and is stacked, or written to its place, is computed for all steps at once, too.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

from fusec.ir.attributes import ConcatAttributes, ScanAttributes, ShapeAttributes, SliceAttributes
from fusec.ir.graph import Graph
from fusec.ir.nodes import Op, Value
from fusec.ir.types import Dim
from fusec.passes.dce import dce
from fusec.passes.loops.chains import FEWEST_STEPS, Chain, find_chains
from fusec.passes.loops.lift import Lifted, Lifter
from fusec.passes.loops.parts import Meeting, find_meetings


def roll_loops(graph: Graph) -> Graph:
    """Afterwards a chain of steps ``h = a*h + b`` whose operands are slices, or maps of them, is one op."""
    if sum(op.name in ("add", "sub") for op in graph.ops) < FEWEST_STEPS:
        return graph
    chains = find_chains(graph)
    if not chains:
        return graph
    lifter = Lifter(graph)
    replaced: dict[Value, Value] = {}
    left, found = chains, True
    while found:  # a chain may read what another one, which begins behind it, had a step before
        left, waiting, found = [], left, False
        for chain in waiting:
            made = _recurrence(lifter, chain)
            if made is None:
                left.append(chain)
                continue
            whole, reverse = made
            found = True
            lifter.add_chain(chain.results, whole, chain.start, reverse=reverse)
            for t, value in enumerate(reversed(chain.results) if reverse else chain.results):
                replaced[value] = _step(lifter, whole, t, value)
    if not replaced:
        return graph
    for meeting in find_meetings(graph, FEWEST_STEPS - 1):
        met = _met(lifter, meeting)
        if met is not None:
            replaced[meeting.op.result] = met
    ordered = _in_order(graph, lifter.ops, replaced)
    return graph if ordered is None else _last_alone(dce(ordered))


def _recurrence(lifter: Lifter, chain: Chain) -> tuple[Lifted, bool] | None:
    """All steps of a chain as one, and whether the last step comes first there: as it does in what they read."""
    mark = len(lifter.ops)
    made = _along(lifter, chain, reverse=False)
    if made is None:
        lifter.forget(mark)
        return None
    if not any(_goes_down(op) for op in lifter.ops[mark:]):
        return made, False
    lifter.forget(mark)
    made = _along(lifter, chain, reverse=True)
    if made is None:  # what another chain's steps made in the first order alone
        lifter.forget(mark)
        return None
    return made, True


def _goes_down(op: Op) -> bool:
    return isinstance(op.attributes, SliceAttributes) and any(step < 0 for step in op.attributes.steps)


def _along(lifter: Lifter, chain: Chain, *, reverse: bool) -> Lifted | None:
    result = chain.results[0]
    steps = chain.steps[::-1] if reverse else chain.steps
    factor = lifter.lift(tuple(s.factor for s in steps))
    term = lifter.lift(tuple(s.term for s in steps))
    if factor is None or term is None or factor.at is term.at is None:
        return None
    rank, shape = result.type.rank, result.type.shape
    full = [x.at for x in (term, factor) if x.at is not None and x.value.type.rank == rank + 1]
    at = full[0] if full else 0
    operands = [_broadcast(lifter, x, (*shape[:at], len(steps), *shape[at:]), at, result) for x in (term, factor)]
    if chain.subtracts:
        operands[0] = lifter.emit("neg", operands[0], like=result)
    operands.append(_broadcast(lifter, Lifted(chain.start, None), (*shape[:at], 1, *shape[at:]), at, result))
    operands = [lifter.cast(v, factor.value.type.dtype) for v in operands]
    location = lifter.producers[result].location
    made = lifter.emit("recurrence", *operands, like=result, attributes=ScanAttributes(at, reverse), location=location)
    return Lifted(lifter.cast(made, result.type.dtype), at)


def _broadcast(lifter: Lifter, x: Lifted, shape: tuple[Dim, ...], at: int, like: Value) -> Value:
    value = lifter.aligned(x, len(shape) - 1, at)
    if value.type.shape == shape:
        return value
    return lifter.emit("broadcast", value, like=like, attributes=ShapeAttributes(shape))


def _step(lifter: Lifter, whole: Lifted, t: int, value: Value) -> Value:
    """The result of one step, for who reads it alone."""
    assert whole.at is not None
    cut = SliceAttributes.of_axes(whole.value.type.shape, {whole.at: (t, t + 1)})
    return lifter.reshape(lifter.emit("slice", whole.value, like=value, attributes=cut), value.type.shape)


def _met(lifter: Lifter, meeting: Meeting) -> Value | None:
    """What the parts give together, where they follow a recurrence; the first or the last may be another value."""
    parts, axis = meeting.parts, meeting.axis
    for begin, end in ((0, len(parts)), (1, len(parts)), (0, len(parts) - 1)):
        made = _together(lifter, parts[begin:end], axis)
        if made is None:
            continue
        rest = (*parts[:begin], made, *parts[end:])
        if len(rest) == 1:
            return made
        return lifter.emit("concat", *rest, like=meeting.op.result, attributes=ConcatAttributes(axis))
    return None


def _together(lifter: Lifter, parts: tuple[Value, ...], axis: int) -> Value | None:
    inner = tuple(_without(lifter, v, axis) for v in parts)
    whole = tuple(v for v in inner if v is not None)
    stacked = len(whole) == len(parts)
    taken = whole if stacked else parts
    lifted = lifter.lift(taken)
    if lifted is None or lifted.at is None or taken not in lifter.follows:
        return None
    value = lifter.moved(lifted.value, lifted.at, axis)
    shape = parts[0].type.shape
    return lifter.reshape(value, (*shape[:axis], len(parts), *shape[axis + 1 :]))


def _without(lifter: Lifter, part: Value, axis: int) -> Value | None:
    """What a part is with one position more along an axis."""
    made = lifter.producers.get(part)
    if made is None or made.name != "reshape":
        return None
    shape = part.type.shape
    inner = made.operands[0]
    return inner if inner.type.shape == (*shape[:axis], *shape[axis + 1 :]) else None


def _in_order(graph: Graph, made: list[Op], replaced: dict[Value, Value]) -> Graph | None:
    """The graph with the new ops, each after what it reads; None where some would read each other."""
    table = {old: new for old, new in replaced.items() if old is not new}
    outputs = tuple(table.get(v, v) for v in graph.outputs)
    ops = [replace(op, operands=tuple(table.get(v, v) for v in op.operands)) for op in (*graph.ops, *made)]
    producers = {r: n for n, op in enumerate(ops) for r in op.results}
    waits = [{producers[v] for v in op.operands if v in producers} for op in ops]
    readers: list[list[int]] = [[] for _ in ops]
    for n, sources in enumerate(waits):
        for source in sources:
            readers[source].append(n)
    left = [len(sources) for sources in waits]
    ready = [n for n, count in enumerate(left) if count == 0]
    ordered: list[Op] = []
    while ready:
        n = heappop(ready)
        ordered.append(ops[n])
        for reader in readers[n]:
            left[reader] -= 1
            if left[reader] == 0:
                heappush(ready, reader)
    return None if len(ordered) < len(ops) else graph.with_ops(ordered, outputs)


def _last_alone(graph: Graph) -> Graph:
    """The graph without results of recurrences that nothing reads but the last one."""
    uses, outputs = graph.uses(), set(graph.outputs)
    ended: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in graph.ops:
        readers = uses[op.result] if op.name == "recurrence" and op.result not in outputs else []
        if readers and all(_takes_last(reader, op.expect(ScanAttributes)) for reader in readers):
            made = Value(op.operands[2].type, op.result.name)
            op = replace(op, attributes=replace(op.expect(ScanAttributes), last=True), results=(made,))
            ended.update((reader.result, made) for reader in readers)
        elif len(op.results) == 1 and op.result in ended:
            continue
        ops.append(replace(op, operands=tuple(ended.get(v, v) for v in op.operands)))
    return graph.with_ops(ops, tuple(ended.get(v, v) for v in graph.outputs)) if ended else graph


def _takes_last(reader: Op, scan: ScanAttributes) -> bool:
    """Whether an op is a slice of the last position that a scan comes to, and of all other axes."""
    if not isinstance(cut := reader.attributes, SliceAttributes) or reader.name != "slice":
        return False
    shape = reader.operands[0].type.shape
    length = shape[scan.axis]
    assert isinstance(length, int), "a loop has a number of steps"
    last = 0 if scan.reverse else length - 1
    return cut == SliceAttributes.of_axes(shape, {scan.axis: (last, last + 1)})
