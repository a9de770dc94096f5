# SPDX-License-Identifier: Apache-2.0
"""From a graph of kernels to a program: slots for its values, a kernel for each group, the steps in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fusec.errors import LoweringError
from fusec.ir.attributes import NO_ATTRIBUTES, AliasAttributes, CopyAtAttributes, ExternAttributes, UpdateAttributes
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.index import add, mul
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.print import print_graph
from fusec.ir.types import Dim, TensorType, contiguous_strides
from fusec.passes.groups.fused import one_by_one
from fusec.passes.lower.context import LoweredGroup, LoweringContext, PackPlan, sizes_of
from fusec.passes.lower.orders import orders_of
from fusec.passes.lower.pieces import Pieces
from fusec.passes.lower.share import is_same_but_name, kernel_key
from fusec.passes.outputs import input_strides, made_strides, memory_of, shown_strides
from fusec.passes.writes import updates_of
from fusec.runtime.library import CHECK_INDEX
from fusec.runtime.program import Call, Declined, KernelReport, Launch, Pack, Program, Slot, SlotKind, Step
from fusec.target.gpu import is_gpu
from fusec.tile.kernel import Kernel
from fusec.tile.scalar import Buffer
from fusec.tile.views import Strides, same_layout, strided_view

LowerGroup = Callable[[LoweringContext], LoweredGroup | Pieces]
Report = Callable[[LoweredGroup, Op], KernelReport]


@dataclass
class _Assembly:
    graph: Graph
    target: str
    lower: LowerGroup
    report: Report
    slots: list[Slot] = field(default_factory=list)
    slot_of: dict[Value, int] = field(default_factory=dict)
    strides: dict[Value, Strides] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    reports: list[KernelReport] = field(default_factory=list)
    declined: list[Declined] = field(default_factory=list)
    packed: dict[tuple[object, ...], int] = field(default_factory=dict)
    names: dict[tuple[object, ...], str] = field(default_factory=dict)
    same: dict[int, tuple[Kernel, str]] = field(default_factory=dict)
    updates: dict[Value, Op] = field(default_factory=dict)
    orders: Mapping[Value, Strides] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    producers: dict[Value, Op] = field(init=False)
    on_gpu: bool = field(init=False)
    """Whether arrays are on a GPU. Where none is, all that is on the CPU stands for what will be there."""

    def __post_init__(self) -> None:
        self.producers = self.graph.producers()
        made = (*self.graph.inputs, *(value for op in self.graph.ops for value in op.results))
        self.on_gpu = any(value.type.device != "cpu" for value in made)


def assemble(
    graph: Graph, target: str, lower: LowerGroup, report: Report, declined: list[Declined] | None = None
) -> Program:
    """Lowers every group with ``lower`` and strings the kernels together.

    A group that no kernel family can express is taken apart, and what is left over runs through the reference
    interpreter, on a GPU through the library's own functions; it is listed as declined.
    """
    a = _Assembly(graph, target, lower, report, declined=list(declined or []))
    a.strides.update(input_strides(graph))
    for k, value in enumerate(graph.inputs):
        a.slot_of[value] = _add(a, Slot(value.name, "input", value.type, a.strides[value], source=k))
    owned = _owned_by_caller(graph)
    a.updates = updates_of(graph)
    a.orders = orders_of(graph) if is_gpu(target) else {}
    a.written = {a.slot_of[v] for op in a.updates.values() if (v := op.operands[0]) in a.slot_of}
    needed = _needed(graph)
    for op in graph.ops:
        if op not in needed:
            continue
        if isinstance(op.attributes, FusedAttributes):
            _fused(a, op, owned)
        elif isinstance(op.attributes, ExternAttributes):
            _extern(a, op, op.attributes)
        elif isinstance(op.attributes, UpdateAttributes):
            _updated(a, op)
        elif op.definition.kind not in ("view", "create", "alias"):
            _interpreted(a, [op], op.operands, op.results, f"no kernel family computes {op.name}")
    outputs = _output_slots(a)
    inputs = tuple(a.slot_of[v] for v in graph.inputs)
    return Program(
        graph.name,
        target,
        tuple(a.slots),
        inputs,
        outputs,
        graph.input_ports,
        graph.output_ports,
        tuple(a.kernels),
        tuple(a.steps),
        tuple(a.reports),
        tuple(a.declined),
    )


def _needed(graph: Graph) -> set[Op]:
    """The ops that run: not those that say where an update goes alone, which its kernel computes again."""
    read, found = set(graph.outputs), set[Op]()
    for op in reversed(graph.ops):
        if op.definition.kind not in ("elementwise", "view", "create") or not read.isdisjoint(op.results):
            found.add(op)
            read.update(op.operands[:2] if isinstance(op.attributes, UpdateAttributes) else op.operands)
    return found


def _output_slots(a: _Assembly) -> tuple[int, ...]:
    """The slots of the outputs: of what owns memory first, then of what shows it, each a view of its own."""
    graph, producers = a.graph, a.producers
    shown = {v: op for v in graph.outputs if (op := producers.get(memory_of(v, producers))) is not None}
    shown = {v: op for v, op in shown.items() if isinstance(op.attributes, AliasAttributes)}
    found = {k: _slot(a, v, k) for k, v in enumerate(graph.outputs) if v not in shown}
    for k, value in enumerate(graph.outputs):
        if value not in shown:
            continue
        alias = shown[value]
        attributes = alias.expect(AliasAttributes)
        a.strides[alias.result] = shown_strides(graph, attributes)
        a.slot_of[alias.result] = base = _shown_slot(a, attributes, found)
        if attributes.itself:
            found[k] = base
            continue
        view = strided_view(value, producers, a.strides)
        assert view is not None
        strides = graph.output_ports[k].strides or contiguous_strides(value.type.shape)
        root, start = _in_root(a, base)
        found[k] = _add(a, Slot(value.name, "view", value.type, strides, root, add(start, view.offset)))
    return tuple(found[k] for k in range(len(found)))


def _shown_slot(a: _Assembly, whose: AliasAttributes, outputs: Mapping[int, int]) -> int:
    """The slot of the memory that is shown: of an output that an input gets in place, the input's."""
    if whose.of == "input":
        return a.slot_of[a.graph.inputs[whose.index]]
    changed = a.graph.output_ports[whose.index].mutates
    return outputs[whose.index] if changed is None else a.slot_of[a.graph.inputs[changed]]


def _add(a: _Assembly, slot: Slot) -> int:
    a.slots.append(slot)
    return len(a.slots) - 1


def _owned_by_caller(graph: Graph) -> dict[Value, Strides]:
    """Values whose memory the caller gets, with the strides it must have."""
    producers = graph.producers()
    owned: dict[Value, Strides] = {}
    for value, port in zip(graph.outputs, graph.output_ports, strict=True):
        base = value
        op = producers.get(base)
        while op is not None and op.definition.kind == "view":
            base = op.operands[0]
            op = producers.get(base)
        if op is None:
            continue
        contiguous = contiguous_strides(base.type.shape)
        if base is value and port.strides is not None:
            owned[base] = made_strides(base, port)
        else:
            owned.setdefault(base, contiguous)
    return owned


def _slot(a: _Assembly, value: Value, output: int | None = None) -> int:
    """The slot of a value in memory; a view of one gets a view slot, an output the strides that its port says."""
    port = a.graph.output_ports[output] if output is not None else None
    wanted = None if port is None else (contiguous_strides(value.type.shape) if port.strides is None else port.strides)
    if value in a.slot_of:
        slot = a.slot_of[value]
        known = a.slots[slot]
        if wanted is None or known.kind not in ("view", "extern") or known.strides == wanted:
            return slot
        if known.kind == "extern" and not same_layout(value.type.shape, known.strides, wanted):
            return slot
        # strides differ along axes of one element
        shown = known if known.kind == "view" else replace(known, kind="view", source=slot, offset=0)
        return _add(a, replace(shown, strides=wanted))
    view = strided_view(value, a.producers, a.strides)
    if view is None or view.base not in a.slot_of:
        raise LoweringError(f"{value} is not in memory")
    base = a.slot_of[view.base]
    a.slot_of[value] = _add(
        a, Slot(value.name, "view", value.type, view.strides if wanted is None else wanted, base, view.offset)
    )
    return a.slot_of[value]


def _fused(a: _Assembly, op: Op, owned: dict[Value, Strides]) -> None:
    attributes = op.expect(FusedAttributes)
    body = attributes.body
    for result in op.results:
        a.strides[result] = _layout(a, result, owned)
    layouts = {v: _strides(a, v) for v in (*op.operands, *op.results)}
    if all(0 in r.type.shape for r in op.results):
        _make_results(a, op, owned)
        return
    if a.on_gpu and op.results[0].type.device == "cpu":  # no kernel of a GPU reaches it
        reason = "it is computed on the CPU, within a program for a GPU"
        a.declined.append(Declined(f"{attributes.kind} kernel", reason, op.location))
        _interpreted_group(a, op, body, owned, reason)
        return
    static = frozenset(v for v in op.operands if _is_static(a, v))
    try:
        lowered = a.lower(LoweringContext(op, layouts, _kernel_name(a, op), static))
    except LoweringError as error:
        pieces = one_by_one(body).ops
        if sizes_of(body) and len(pieces) <= 1:
            raise _not_symbolic(op, str(error)) from None
        a.declined.append(Declined(f"{attributes.kind} kernel", str(error), op.location))
        if len(pieces) > 1:
            for piece in pieces:
                _fused(a, piece, owned)
        else:
            _interpreted_group(a, op, body, owned, str(error))
        return
    if isinstance(lowered, Pieces):
        for piece in lowered.ops:
            if isinstance(piece.attributes, ExternAttributes):
                raw = {r: Value(r.type, f"{r.name}_raw") for r in piece.results if r in a.updates}
                _extern(a, replace(piece, results=tuple(raw.get(r, r) for r in piece.results)), piece.attributes)
                for result, source in raw.items():
                    _copied(a, source, result, piece, owned)
            else:
                _fused(a, piece, owned)
        return
    extra = {p.packed: _pack(a, p) for p in lowered.packs} | {b: _scratch(a, b, op) for b in lowered.scratch}
    _make_results(a, op, owned)
    for kernel, passed in ((lowered.kernel, lowered.arguments), *((f.kernel, f.arguments) for f in lowered.reductions)):
        arguments = tuple(extra[x] if isinstance(x, Buffer) else _slot(a, x) for x in passed)
        a.steps.append(Launch(_kernel(a, kernel), arguments, lowered.kernel.name))
    a.reports.append(a.report(lowered, op))


def _strides(a: _Assembly, value: Value) -> Strides:
    """The strides of a value in memory, or of a view of one."""
    made = a.producers.get(value)
    if value in a.strides or made is None or made.definition.kind != "view":
        return a.strides.get(value, contiguous_strides(value.type.shape))
    view = strided_view(value, a.producers, a.strides)
    if view is None:
        raise LoweringError(f"{value} is no strided view")
    return view.strides


def _is_static(a: _Assembly, value: Value) -> bool:
    """Whether what is packed from a value is kept: an input that is said to stay, and that nothing here writes."""
    slot = a.slot_of.get(value)
    if slot is None or a.slots[slot].kind != "input" or slot in a.written:
        return False
    return a.graph.input_ports[a.slots[slot].source].role == "static"


def _not_symbolic(op: Op, reason: str) -> LoweringError:
    """The error for a group that could run, with extents that are integers, through the interpreter."""
    ops = op.attributes.body.ops if isinstance(op.attributes, FusedAttributes) else (op,)
    named = ", ".join(dict.fromkeys(o.name for o in ops if o.definition.kind not in ("view", "create")))
    shapes = ", ".join(str(r.type) for r in op.results)
    return LoweringError(f"{named} of symbolic extents ({shapes}): {reason}", op.location)


def _scratch(a: _Assembly, buffer: Buffer, op: Op) -> int:
    type_ = TensorType(buffer.dtype, buffer.shape, op.results[0].type.device)
    return _add(a, Slot(buffer.name, "workspace", type_, buffer.strides))


def _kernel(a: _Assembly, kernel: Kernel) -> str:
    """Adds a kernel, unless the program has its like under another name, and returns the name to launch."""
    lowered_before = a.same.get(id(kernel.body))
    if lowered_before is not None and is_same_but_name(kernel, lowered_before[0]):
        return lowered_before[1]
    key = kernel_key(kernel)
    if key not in a.names:
        a.names[key] = kernel.name
        a.kernels.append(kernel)
    a.same[id(kernel.body)] = kernel, a.names[key]
    return a.names[key]


def _layout(a: _Assembly, result: Value, owned: dict[Value, Strides]) -> Strides:
    """The strides of a result: those of the array that it is written into, that the caller asks for, or that its
    readers do."""
    if result in a.updates:
        return a.strides[a.updates[result].operands[0]]
    return owned.get(result) or a.orders.get(result) or contiguous_strides(result.type.shape)


def _updated(a: _Assembly, op: Op) -> None:
    """What is updated, with its new contents: by now a kernel has written them."""
    base, result = op.operands[0], op.result
    a.strides[result], a.slot_of[result] = a.strides[base], a.slot_of[base]


def _slot_of_update(a: _Assembly, value: Value) -> int:
    """The slot of a value that is written into an array: a view of that array's."""
    update = a.updates[value]
    base = update.operands[0]
    offset: Dim = 0
    for start, stride in zip(update.expect(UpdateAttributes).starts, a.strides[base], strict=True):
        offset = add(offset, mul(start, stride))
    return _add(a, Slot(value.name, "view", value.type, a.strides[base], a.slot_of[base], offset))


def _make_results(a: _Assembly, op: Op, owned: dict[Value, Strides]) -> None:
    for result in op.results:
        if result in a.updates:
            a.slot_of[result] = _slot_of_update(a, result)
            continue
        kind: SlotKind = "output" if result in owned else "workspace"
        a.slot_of[result] = _add(a, Slot(result.name, kind, result.type, a.strides[result]))


def _pack(a: _Assembly, plan: PackPlan) -> int:
    """The packed slot; the same packing of the same sources is done once."""
    sources = tuple(_slot(a, v) for v in plan.sources)
    packed = plan.packed
    key = (sources, kernel_key(plan.kernel))
    written = any(_root(a, s) in a.written for s in sources)
    if key in a.packed and not written:
        return a.packed[key]
    type_ = TensorType(packed.dtype, packed.shape, plan.sources[0].type.device if plan.sources else "cpu")
    slot = _add(a, Slot(plan.name or packed.name, "packed" if plan.cached else "workspace", type_, packed.strides))
    a.packed[key] = slot
    name = _kernel(a, plan.kernel)
    arguments = (*sources, slot)
    a.steps.append(Pack(name, arguments, True) if plan.cached else Launch(name, arguments))
    return slot


def _root(a: _Assembly, slot: int) -> int:
    """The slot whose memory a slot lies in."""
    return _in_root(a, slot)[0]


def _in_root(a: _Assembly, slot: int) -> tuple[int, Dim]:
    """The slot whose memory a slot lies in, and where it starts there."""
    start: Dim = 0
    while a.slots[slot].kind == "view":
        start = add(start, a.slots[slot].offset)
        slot = a.slots[slot].source
    return slot, start


def _extern(a: _Assembly, op: Op, attributes: ExternAttributes) -> None:
    arguments = tuple(_slot(a, v) for v in op.operands)
    if attributes.target == CHECK_INDEX:
        (a.slot_of[op.result],) = arguments
        a.strides[op.result] = a.slots[arguments[0]].strides
        a.steps.append(Call(attributes, arguments, (), op.location))
        return
    a.steps.append(Call(attributes, arguments, _given_by_library(a, op.results), op.location))
    a.declined.append(
        Declined(f"library call {attributes.target}", attributes.reason or "no kernel for it", op.location)
    )


def _interpreted_group(a: _Assembly, op: Op, body: Graph, owned: dict[Value, Strides], reason: str) -> None:
    """The call gives contiguous results; one that the caller wants laid out otherwise is copied by a kernel."""
    raw = {
        r: Value(r.type, f"{r.name}_raw")
        for r in op.results
        if r in a.updates or (r in owned and not same_layout(r.type.shape, owned[r], contiguous_strides(r.type.shape)))
    }

    def renamed(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(raw.get(v, v) for v in values)

    ops = [replace(o, operands=renamed(o.operands), results=renamed(o.results)) for o in body.ops]
    _interpreted(a, ops, op.operands, renamed(op.results), reason)
    producers = body.producers()
    for result, source in raw.items():
        _copied(a, source, result, producers[result], owned)


def _copied(a: _Assembly, source: Value, result: Value, made: Op, owned: dict[Value, Strides]) -> None:
    """A kernel that puts what a call gave where ``made`` was to put it."""
    copy = Op(OPS["copy"], (source,), NO_ATTRIBUTES, (result,), made.location)
    if isinstance(made.attributes, CopyAtAttributes):
        copy = replace(made, operands=(source, *made.operands[1:]), results=(result,))
    inner = Graph(result.name, tuple(dict.fromkeys(copy.operands)), (result,), (copy,))
    _fused(a, Op(OPS["fused"], inner.inputs, FusedAttributes("map", inner), (result,), made.location), owned)


def _interpreted(
    a: _Assembly, ops: list[Op], operands: tuple[Value, ...], results: tuple[Value, ...], reason: str
) -> None:
    """Runs ops as one library call."""
    if any(not v.type.is_static for v in (*operands, *results)):
        raise _not_symbolic(ops[-1], reason)
    inner = Graph("piece", tuple(dict.fromkeys(operands)), results, tuple(ops))
    attributes = ExternAttributes("fusec.interpret", print_graph(inner), tuple(r.type for r in results), reason)
    arguments = tuple(_slot(a, v) for v in inner.inputs)
    a.steps.append(Call(attributes, arguments, _given_by_library(a, results), ops[-1].location))


def _given_by_library(a: _Assembly, results: tuple[Value, ...]) -> tuple[int, ...]:
    """The slots of a library call's results, which are contiguous."""
    for result in results:
        a.strides[result] = contiguous_strides(result.type.shape)
        a.slot_of[result] = _add(a, Slot(result.name, "extern", result.type, a.strides[result]))
    return tuple(a.slot_of[result] for result in results)


def _kernel_name(a: _Assembly, op: Op) -> str:
    base = f"{op.expect(FusedAttributes).kind}_{op.results[-1].name}"
    name = "".join(c if c.isalnum() else "_" for c in base)
    taken = {k.name for k in a.kernels}
    return name if name not in taken else f"{name}_{len(a.kernels)}"
