# SPDX-License-Identifier: Apache-2.0
"""Writes of a box of an array that the program changes: into the array's own memory, or else as a new array.

An ``update`` stays one where it is a link of the chain from an input to the output that is the input's new
contents, and where whatever else reads the contents from before it is done by then. :func:`open_writes` judges that
on ops; :func:`late_readers` once more on kernels, which may have come to read and write at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from fusec.ir.attributes import (
    ConstantAttributes,
    ExtentAttributes,
    GatherAttributes,
    IotaAttributes,
    PadAttributes,
    SliceAttributes,
    UpdateAttributes,
)
from fusec.ir.graph import FusedAttributes, Graph, made_from
from fusec.ir.index import add, is_at_least, sub
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.raising import may_raise
from fusec.ir.types import Dim, TensorType, bool_, i64
from fusec.passes.indexed_writes import library_write, with_writes_at
from fusec.passes.rewrite import Outcome, Rewriter, Rule, rewrite, rule


def open_writes(graph: Graph, *, in_place: bool = True, several: bool = False, but: Set[str] = frozenset()) -> Graph:
    """Afterwards each ``update`` writes into an input's memory; the others, and those named in ``but``, are maps.

    So does a map whose result is all of an input's new contents. Without ``in_place`` there are maps only. ``several``:
    kernels can write several positions that are data, in any order.
    """
    graph = _with_whole_writes(with_writes_at(graph, several=several)) if in_place else graph
    if not any(isinstance(op.attributes, UpdateAttributes) for op in graph.ops):
        return graph
    written_in_place = {u.result for chain in _chains(graph, but) for u in chain} if in_place else set[Value]()
    return rewrite(graph, (_opening(written_in_place),))


def _with_whole_writes(graph: Graph) -> Graph:
    """Says of an input whose new contents are the result of a map that they are written there, and read there later."""
    producers = graph.producers()
    taken = {v.name for v in (*graph.inputs, *producers)}
    updates: dict[Value, Op] = {}
    for value, port in zip(graph.outputs, graph.output_ports, strict=True):
        made = producers.get(value)
        if port.mutates is None or made is None or made.definition.kind != "elementwise":
            continue
        target, name = graph.inputs[port.mutates], f"{value.name}_written"
        if target.type == value.type and graph.outputs.count(value) == 1 and name not in taken:
            attributes, result = UpdateAttributes((0,) * value.type.rank), Value(value.type, name)
            updates[value] = Op(OPS["update"], (target, value), attributes, (result,), made.location)
    if not updates:
        return graph
    written = {value: update.result for value, update in updates.items()}
    ops: list[Op] = []
    for op in graph.ops:
        ops.append(replace(op, operands=tuple(written.get(v, v) for v in op.operands)))
        ops += [updates[value] for value in op.results if value in updates]
    return graph.with_ops(ops, [written.get(v, v) for v in graph.outputs])


def late_readers(graph: Graph, *, blocked: bool = False) -> set[str]:
    """The names of updates of a graph of kernels that come too soon; ``blocked``: each element is stored by one thread.

    So they do where something still has to read what they write over, or where another write, or a library call, which
    may raise, comes before them in the code as written and after them here. So do those that do not end in an output
    that is the input's new contents: nothing says what they may write over.
    """
    producers = graph.producers()
    number = {op: k for k, op in enumerate(graph.ops)}
    chains = list(_chains(graph, frozenset(), judged=False))
    judged = {update for chain in chains for update in chain}
    updates = {op for op in graph.ops if isinstance(op.attributes, UpdateAttributes)}
    late = {op.result.name for op in updates - judged}
    for chain in chains:
        for update in chain:
            writer = producers[update.operands[1]]
            done = _ancestors(producers, (*writer.operands, update.operands[0]))
            between = graph.ops[number[writer] : number[update]]
            too_soon = any(op.definition.kind == "extern" or update.operands[0] in op.results for op in between)
            readers = [op for op in _readers(graph, producers, update) if op is writer or op not in done]
            if too_soon or any(op is not writer or not _reads_in_step(op, update, blocked) for op in readers):
                late.add(update.result.name)
    return late


def written_before_errors(graph: Graph) -> set[str]:
    """The names of updates of whole arrays that a call which may raise needs, where others are written after it.

    Written at the end as well, they leave every input as it is when the call raises: what is written after the call may
    have held something else before, which no op says. A box of an array stays written in place: all of the array would
    be copied for it.
    """
    producers = graph.producers()
    ports = zip(graph.outputs, graph.output_ports, strict=True)
    changed = [producers.get(value) for value, port in ports if port.mutates is not None]
    raising = next((k for k, op in enumerate(graph.ops) if may_raise(op)), len(graph.ops))
    before = set(graph.ops[:raising])
    if all(op is not None and op in before and isinstance(op.attributes, UpdateAttributes) for op in changed):
        return set()
    needed = {
        v for op in graph.ops if may_raise(op) for made in _ancestors(producers, op.operands) for v in made.results
    }
    return {
        op.result.name
        for op in graph.ops
        if isinstance(op.attributes, UpdateAttributes) and op.result in needed and _is_whole(op)
    }


def _is_whole(update: Op) -> bool:
    return update.operands[0].type.shape == update.operands[1].type.shape


def _chains(graph: Graph, but: Set[str], *, judged: bool = True) -> Iterator[list[Op]]:
    """For each input that is changed by updates alone: the updates, last first."""
    producers = graph.producers()
    for value, port in zip(graph.outputs, graph.output_ports, strict=True):
        if port.mutates is None or graph.outputs.count(value) > 1:
            continue
        chain: list[Op] = []
        source = value
        while (op := producers.get(source)) is not None and isinstance(op.attributes, UpdateAttributes):
            chain.append(op)
            source = op.operands[0]
        fits = source is graph.inputs[port.mutates] and source.type.dtype.kind != "complex"
        if fits and (not judged or all(_is_legal(graph, producers, op, but) for op in chain)):
            yield chain


def _is_legal(graph: Graph, producers: Mapping[Value, Op], update: Op, but: Set[str]) -> bool:
    if update.result.name in but or 0 in update.operands[1].type.shape:
        return False
    done = _ancestors(producers, update.operands)
    read_after = any(op not in done for op in _readers(graph, producers, update))
    return not read_after and not _escapes(graph, update.operands[0])


def _ancestors(producers: Mapping[Value, Op], values: Sequence[Value]) -> set[Op]:
    """The ops that must have run before these values are there."""
    return {op for _, op in made_from(producers.get, values) if op is not None}


def _readers(graph: Graph, producers: Mapping[Value, Op], update: Op) -> Iterator[Op]:
    """The ops that may read, through views, what the update writes over: of the array as any write before left it."""
    versions = {update.operands[0]}
    value = update.operands[0]
    while (op := producers.get(value)) is not None and isinstance(op.attributes, UpdateAttributes):
        value = op.operands[0]
        versions.add(value)
    seen = set(versions)
    for op in graph.ops:
        if isinstance(op.attributes, UpdateAttributes) or seen.isdisjoint(op.operands):
            continue
        if op.definition.kind == "view":
            if op.operands[0] not in versions or not _is_beside(op, update):
                seen.update(op.results)
        elif not isinstance(op.attributes, FusedAttributes) or _reads_box(op, seen, versions, update):
            yield op


def _reads_box(kernel: Op, seen: Set[Value], versions: Set[Value], update: Op) -> bool:
    """Whether a kernel reads one of the values, other than such parts of the array as lie beside what is written."""
    body = kernel.expect(FusedAttributes).body
    uses = body.uses()
    for outer, inner in zip(kernel.operands, body.inputs, strict=True):
        if outer in seen and not (outer in versions and all(_is_beside(op, update) for op in uses[inner])):
            return True
    return False


def _reads_in_step(kernel: Op, update: Op, blocked: bool) -> bool:
    """Whether a kernel that writes all of an array reads of it, for each element, that element alone.

    On a CPU it is a map of one result. A ``blocked`` target's kernels may have others, and rows that are reduced, which
    the array has no part in: the thread that stores an element has read it before.
    """
    attributes = kernel.expect(FusedAttributes)
    base, value = update.operands[:2]
    kinds, results = (("map", "row"), kernel.results) if blocked else (("map",), (value,))
    if attributes.kind not in kinds or kernel.results != results or base.type.shape != value.type.shape:
        return False
    body = attributes.body
    read = {inner for outer, inner in zip(kernel.operands, body.inputs, strict=True) if outer is base}
    for op in body.ops:
        if read.isdisjoint(op.operands):
            continue
        if op.definition.kind != "elementwise" or op.result.type.shape != base.type.shape:
            return False
        read.update(op.results)
    reached = {outer for outer, inner in zip(kernel.results, body.outputs, strict=True) if inner in read}
    return base in kernel.operands and reached <= {value}


def _is_beside(op: Op, update: Op) -> bool:
    """Whether a view shows no element that the update writes."""
    if not isinstance(op.attributes, SliceAttributes):
        return False
    attributes = update.expect(UpdateAttributes)
    ends = zip(op.attributes.starts, op.attributes.stops, op.attributes.steps, strict=True)
    written = zip(attributes.starts, update.operands[1].type.shape, strict=True)
    return any(
        step > 0 and axis not in attributes.axes and (is_at_least(first, add(start, n)) or is_at_least(start, stop))
        for axis, ((first, stop, step), (start, n)) in enumerate(zip(ends, written, strict=True))
    )


def _escapes(graph: Graph, value: Value) -> bool:
    """Whether the value, or a view of it, is an output."""
    seen = {value}
    for op in graph.ops:
        if op.definition.kind == "view" and not seen.isdisjoint(op.operands):
            seen.update(op.results)
    return not seen.isdisjoint(graph.outputs)


def _opening(written_in_place: Set[Value]) -> Rule:
    @rule("update")
    def update_as_select(r: Rewriter) -> Outcome:
        """update(x, y) ⇒ select(inside, spread(y), x)"""
        if r.op.result in written_in_place:
            return None
        base, value, *positions = r.operands
        if positions:
            return library_write(r, base, value, positions)
        if 0 in value.type.shape:
            return base
        if value.type.shape == base.type.shape:
            return value
        starts = r.op.expect(UpdateAttributes).starts
        boxes = list(enumerate(zip(starts, value.type.shape, base.type.shape, strict=True)))
        cut = [(axis, start, n, extent) for axis, (start, n, extent) in boxes if n != extent]
        tests = [test for box in cut for test in _tests(r, base.type, *box)]
        inside = tests[0]
        for test in tests[1:]:
            inside = r.emit("logical_and", inside, test)
        return r.emit("select", inside, _spread(r, value, base.type, cut), base)

    return update_as_select


Box = tuple[int, Dim, Dim, Dim]
"""An axis, the first position on it that is written, how many are, and the axis's extent."""


def _tests(r: Rewriter, base: TensorType, axis: int, start: Dim, n: Dim, extent: Dim) -> Iterator[Value]:
    index = r.emit("iota", attributes=IotaAttributes(base.shape, axis, i64, base.device))
    if start != 0:
        yield r.emit("ge", index, _number(r, start, base.device))
    if start + n != extent:
        yield r.emit("lt", index, _number(r, start + n, base.device))


def _number(r: Rewriter, number: Dim, device: str) -> Value:
    if isinstance(number, int):
        return r.constant_of(ConstantAttributes(number, i64, device))
    return r.emit("extent", attributes=ExtentAttributes((number,), i64, device))


def _spread(r: Rewriter, value: Value, base: TensorType, cut: Sequence[Box]) -> Value:
    """A value of the base's shape that has ``value`` in its place; what is elsewhere does not matter."""
    scalar = value
    while (made := r.producer(scalar, "broadcast", "reshape", "permute")) is not None:
        scalar = made.operands[0]
    if scalar.type.rank == 0:
        return r.broadcast(scalar, base.shape)
    fixed = [box for box in cut if all(isinstance(n, int) for n in box[1:])]
    for axis, start, n, extent in cut:
        if (axis, start, n, extent) in fixed:
            continue
        index = r.emit("iota", attributes=IotaAttributes((extent,), 0, i64, base.device))
        index = r.emit("sub", index, _number(r, start, base.device))
        index = r.emit("maximum", index, _number(r, 0, base.device))
        index = r.emit("minimum", index, _number(r, n - 1, base.device))
        value = r.emit("gather", value, index, attributes=GatherAttributes(axis))
    if not fixed:
        return value
    low, high = [0] * base.rank, [0] * base.rank
    for axis, start, n, extent in fixed:
        rest = sub(extent, add(start, n))
        assert isinstance(start, int)
        assert isinstance(rest, int)
        low[axis], high[axis] = start, rest
    zero = r.constant(False if value.type.dtype is bool_ else 0, value)
    return r.emit("pad", value, zero, attributes=PadAttributes(tuple(low), tuple(high)))


def updates_of(graph: Graph) -> dict[Value, Op]:
    """The updates by the values that they write: those lie in the memory of what is updated."""
    return {op.operands[1]: op for op in graph.ops if isinstance(op.attributes, UpdateAttributes)}
