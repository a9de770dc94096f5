# SPDX-License-Identifier: Apache-2.0
"""What a captured PyTorch function gives: the outputs of its graph, and how its result is made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fusec.errors import CaptureError, UnsupportedOpError
from fusec.frontend.argument_changes import Edit, apply_edits
from fusec.frontend.capture import (
    Rebuild,
    Recorded,
    Source,
)
from fusec.frontend.results import MadeObjects, check_result
from fusec.frontend.steps import Step
from fusec.frontend.structures import Given, Maker, Node, Opener, Static, Structure, nodes_in
from fusec.frontend.structures import rebuild as _rebuild
from fusec.frontend.torch_memory import Memory, apply_steps
from fusec.frontend.torch_recording import Recording, requires_grad
from fusec.frontend.torch_stand_in import check_returned
from fusec.frontend.torch_trace import Trace, tracing
from fusec.ir.attributes import ShapeAttributes
from fusec.ir.graph import Graph
from fusec.ir.liveness import live_ops
from fusec.ir.nodes import Port, Value
from fusec.ir.raising import is_effect, is_lookup
from fusec.ir.types import contiguous_strides

_MOST_GIVEN = 1 << 20
"""More than the containers of any call: their numbers stand for them where they are not there."""


def is_tensor(value: object) -> bool:
    """True for a torch tensor."""
    return issubclass(type(value), torch.Tensor)


def _check_changed(changed: Sequence[torch.Tensor], trace: Trace) -> None:
    """UnsupportedOpError for changes of inputs that no program makes."""
    if any(map(_overlaps_itself, changed)):
        raise UnsupportedOpError("an input that overlaps itself in memory is written to", trace.emitter.location)
    trace.check_memories()
    for tensor, shape, strides in trace.relabelled.values():
        memory = trace.handle(tensor).memory
        is_input = memory.tensor is tensor and memory.source is not None
        if is_input and (tensor.shape, tensor.stride()) != (shape, strides):
            raise UnsupportedOpError("an input's shape or strides are changed in place", trace.emitter.location)


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may lie at one address."""
    span = 1
    for stride, extent in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride < span:
            return True
        span += stride * (extent - 1)
    return False


class Result:
    """The user's result: its structure, and the graph outputs that its tensors come from.

    Tensors that share memory are views of one output, which is the input that was changed, or the memory that the
    function made; this one is among the graph's outputs even where no tensor of the result shows all of it.

    ``outlasting``: the ids of objects that were there before the run, and are returned themselves. ``given``: the
    call's containers, where the run may have made these ``edits`` in them.
    """

    def __init__(
        self,
        trace: Trace,
        result: Any,
        outlasting: Set[int] = frozenset(),
        given: Mapping[int, Given] = {},
        edits: Sequence[Edit] = (),
    ) -> None:
        self._trace = trace
        leaves: list[Any] = []
        made = MadeObjects(outlasting)
        opener = Opener(is_tensor, leaves, made.opens, given, of_result=True)
        self._structure = opener.open((result, tuple(edits)) if given else result)
        self.takes_given = bool(given) and (bool(edits) or any(type(p) is Given for p in _parts(self._structure)))
        if given and not self.takes_given:
            assert isinstance(self._structure, Node), "the result stands before the edits"
            self._structure = self._structure.parts[0]
        made.note(opener.containers)
        self._made = made
        check_result(self._structure, lambda v: isinstance(v, FakeTensor), trace.emitter.location)
        _check_structure(self._structure, trace)
        self._outputs: list[Value] = []
        self._ports: list[Port] = []
        self._by_memory: dict[Value, Memory] = {}
        changed = [m for m in trace.memories if m.source is not None and m.version]
        _check_changed([m.tensor for m in changed], trace)
        self._leaves, self._changed = leaves, [m.tensor for m in changed]
        self._inference = torch.is_inference_mode_enabled()
        self._other_mode: set[int] = set()
        self._detached: set[int] = set()
        with tracing(trace):
            values = {id(m): self._distinct(m.value, m) for m in changed}
            self._bases = {id(m): self._add(values[id(m)], m.tensor.stride(), m.source) for m in changed}
            distinct = {id(leaf): leaf for leaf in leaves}
            shown = Counter(id(trace.handle(leaf).memory) for leaf in distinct.values())
            known = {number: self._slot(leaf, shown) for number, leaf in distinct.items()}
            self._slots = [known[id(leaf)] for leaf in leaves]
            for leaf in distinct.values():
                if trace.row_sets is not None:
                    trace.row_sets.check_returned(trace.fake(leaf))
                is_made = trace.handle(leaf).memory.source is None
                check_returned(leaf, is_made)
                if is_made and leaf.is_inference() != self._inference:
                    self._other_mode.add(known[id(leaf)])
                if requires_grad(trace.handle(leaf).memory.tensor) and not requires_grad(trace.fake(leaf)):
                    self._detached.add(known[id(leaf)])

        asked = [(trace.emitter.emit("copy", value), found) for value, found in trace.branches]
        self.branches = tuple((self._add(value, (), None), found) for value, found in asked)

    def recorded(self, recording: Recording) -> Callable[[Rebuild], Recorded]:
        """The recording of the function that gave this result."""
        leaves, self._leaves = [self._trace.fake(leaf) for leaf in self._leaves], []
        if self._other_mode:
            recording.refuse("the function enters or leaves inference mode")
        return recording.finish(leaves, self._changed)

    @property
    def changes(self) -> bool:
        """Whether a call changes inputs, or what holds them."""
        return self.takes_given or bool(self._changed)

    @property
    def rebuild_leaves(self) -> Rebuild:
        """Makes the user's result from the tensors in it, in order."""
        structure = self._structure
        return lambda tensors: _rebuild(structure, iter(tensors))

    def settle(self) -> None:
        """Once nothing of the run is left: what is still there was not made by it, and is returned itself."""
        self._structure = self._made.settled(self._structure)

    def _slot(self, leaf: torch.Tensor, shown: Mapping[int, int]) -> int:
        handle = self._trace.handle(leaf)
        memory = handle.memory
        is_given = memory.source is not None
        whole = self._trace.fake(leaf) is memory.tensor and (is_given or not handle.steps)
        if memory.sealed and memory.tensor is leaf:
            raise UnsupportedOpError(f"memory that {memory.sealed} is returned", self._trace.emitter.location)
        if not is_given and (shown[id(memory)] > 1 or _overlaps_itself(leaf)) and id(memory) not in self._bases:
            self._bases[id(memory)] = self._add(self._all_of(memory), self._trace.made_strides(memory), None)
        base = self._bases.get(id(memory))
        if base is not None and whole:
            return base
        if base is None and not is_given:
            return self._add(self._distinct(handle.read(self._trace.emitter), memory), leaf.stride(), None)
        value = memory.value if base is None else self._outputs[base]
        return self._add(value if whole else self._shown(value, handle.steps), leaf.stride(), None)

    def _shown(self, value: Value, steps: tuple[Step, ...]) -> Value:
        """A view, another tensor than the one that it shows."""
        emitter = self._trace.emitter
        if not steps:
            return emitter.emit("reshape", value, attributes=ShapeAttributes(value.type.shape))
        return apply_steps(emitter, value, steps)

    def _all_of(self, memory: Memory) -> Value:
        """The value of memory that the function has made, as one that is no view of another."""
        emitter = self._trace.emitter
        value = memory.value
        if value in emitter.viewed or emitter.is_constant(value):
            return emitter.emit("copy", value)
        return self._distinct(value, memory)

    def _distinct(self, value: Value, memory: Memory) -> Value:
        """A value that lies in this memory; a copy where tensors with memory of their own would share it."""
        root = self._trace.emitter.root(value)
        if self._by_memory.setdefault(root, memory) is not memory:
            return self._trace.emitter.emit("copy", value)
        return value

    def _add(self, value: Value, strides: tuple[int, ...], mutates: int | None) -> int:
        plain = tuple(strides) == contiguous_strides(value.type.shape)
        self._outputs.append(value)
        self._ports.append(Port(strides=None if plain else tuple(strides), mutates=mutates))
        return len(self._outputs) - 1

    @property
    def rebuild(self) -> Rebuild:
        """Makes the user's result from the tensors of the graph's outputs. Keeps nothing of the trace alive."""
        structure, slots = self._structure, tuple(self._slots)
        make = _with_edits(structure) if self.takes_given else partial(_rebuild, structure)
        other_mode, inference, detached = frozenset(self._other_mode), not self._inference, frozenset(self._detached)
        if not other_mode and not detached:
            return lambda outputs, *given: make(iter([outputs[slot] for slot in slots]), *given)

        def rebuild(outputs: Sequence[torch.Tensor], *given: Sequence[Any]) -> Any:
            made = [_in_mode(x, inference) if slot in other_mode else x for slot, x in enumerate(outputs)]
            made = [x.detach() if slot in detached else x for slot, x in enumerate(made)]
            return make(iter([made[slot] for slot in slots]), *given)

        return rebuild

    def finish(self) -> tuple[Graph, tuple[Source, ...]]:
        """The graph without what no output needs, and the sources of its inputs."""
        trace = self._trace
        graph = _without_unused(trace.builder.finish(self._outputs, self._ports), trace.abandoned)
        sources = tuple(s for s, v in zip(trace.sources, trace.builder.finish([]).inputs) if v in set(graph.inputs))
        trace.namer.finish(trace.builder, graph)
        return graph, sources


def _with_edits(structure: Structure) -> Callable[..., Any]:
    """Makes the result, and what is left in the call's containers, and puts it there."""
    numbers = range(_MOST_GIVEN)

    def make(leaves: Iterator[Any], containers: Sequence[Any] | None = None) -> Any:
        made = Maker(leaves, (numbers if containers is None else containers, ())).make(structure)
        if containers is None:
            return made
        result, edits = made
        apply_edits(edits, containers)
        return result

    return make


def _in_mode(tensor: torch.Tensor, inference: bool) -> torch.Tensor:
    """The tensor as the function makes it where it enters or leaves ``torch.inference_mode()`` itself."""
    with torch.inference_mode(inference):
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _check_structure(structure: Structure, trace: Trace) -> None:
    """CaptureError for a returned object that may hold tensors where they can't be replaced."""
    if isinstance(structure, Static):
        held = getattr(structure.value, "__dict__", {})
        if any(is_tensor(v) for v in held.values()) or isinstance(structure.value, set | frozenset):
            raise CaptureError(
                f"the function returns a {type(structure.value).__name__} with tensors in it; "
                "return tuples, lists, dicts or dataclasses",
                trace.emitter.location,
            )
    for part in getattr(structure, "parts", ()):
        _check_structure(part, trace)


def _parts(structure: Structure) -> Iterator[Structure]:
    return (part for node in nodes_in(structure) for part in node.parts)


def _without_unused(graph: Graph, abandoned: Sequence[range]) -> Graph:
    """Drops ops that no output needs and that can't raise, and tensors lifted by reference that nothing reads.

    abandoned: the numbers of ops that were made in vain.
    """
    vain = {graph.ops[number] for numbers in abandoned for number in numbers}
    ops = live_ops(graph.ops, graph.outputs, lambda op: (is_effect(op) or is_lookup(op)) and op not in vain)
    needed = {*graph.outputs, *(value for op in ops for value in op.operands)}
    mutated = {port.mutates for port in graph.output_ports if port.mutates is not None}
    roles = [port.role for port in graph.input_ports]
    used = [i for i, v in enumerate(graph.inputs) if v in needed or i in mutated or roles[i] == "argument"]
    position = {old: new for new, old in enumerate(used)}
    ports = tuple(
        port if port.mutates is None else replace(port, mutates=position[port.mutates]) for port in graph.output_ports
    )
    return replace(
        graph,
        inputs=tuple(graph.inputs[i] for i in used),
        input_ports=tuple(graph.input_ports[i] for i in used),
        ops=ops,
        output_ports=ports,
    )
