"""Captures a PyTorch function or module as a graph, by running it once on fake tensors."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.modules.module as _all_modules
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from fusec.errors import CaptureError, UnsupportedOpError
from fusec.frontend.capture import (
    SAMPLING,
    Capture,
    Conditions,
    Environment,
    Fallback,
    Rebuild,
    Recorded,
    ReferenceSource,
    Source,
    run_user,
)
from fusec.frontend.environment import record_environment
from fusec.frontend.raw import in_class
from fusec.frontend.results import MadeObjects, check_result
from fusec.frontend.side_effects import ArgumentContainers, StateChangedError, refuse_late_errors
from fusec.frontend.source import code_location, is_user_file
from fusec.frontend.steps import Step
from fusec.frontend.structures import TENSOR, CallSpec, Node, Opener, Opens, Static, Structure, names_in, opens_none
from fusec.frontend.structures import flatten as _flatten
from fusec.frontend.structures import rebuild as _rebuild
from fusec.frontend.torch_memory import Memory, apply_steps
from fusec.frontend.torch_modes import dispatch_modes, without_dynamo
from fusec.frontend.torch_recording import GradientsOff, Recording
from fusec.frontend.torch_references import Fetch, References
from fusec.frontend.torch_snapshots import TensorSnapshots
from fusec.frontend.torch_stand_in import check_returned
from fusec.frontend.torch_symbolic_int import reading_tensors
from fusec.frontend.torch_trace import Trace, tracing
from fusec.ir.attributes import ShapeAttributes
from fusec.ir.graph import Graph
from fusec.ir.liveness import live_ops
from fusec.ir.nodes import Port, Value
from fusec.ir.place import place
from fusec.ir.raising import is_effect, is_lookup
from fusec.ir.types import contiguous_strides
from fusec.location import Location

Ambient = tuple[object, ...]


def is_tensor(value: object) -> bool:
    """True for a torch tensor."""
    return issubclass(type(value), torch.Tensor)


def flatten(
    args: Sequence[Any], kwargs: Mapping[str, Any], opens: Opens = opens_none
) -> tuple[list[torch.Tensor], CallSpec]:
    """The tensors of a call, in order, and its hashable structure with the static values."""
    return _flatten(args, kwargs, is_tensor, opens)


def needs_autograd(leaves: Sequence[torch.Tensor], capture: Capture | None = None) -> bool:
    """True when eager would record this call for backward: grad mode is on, and a tensor that it reads needs grad.

    Such a call must run eagerly. A capture whose outputs are all integers or bools never needs it.
    """
    if not torch.is_grad_enabled():
        return False
    if capture is not None and all(v.type.dtype.kind not in ("float", "complex") for v in capture.graph.outputs):
        return False
    if any(leaf.requires_grad for leaf in leaves):
        return True
    if capture is None:
        return False
    return any(s.fetch().requires_grad for s in capture.sources if isinstance(s, ReferenceSource))


@dispatch_modes()
def capture(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    fallback: Fallback = "eager",
    dynamic: object = None,
    opens: Opens = opens_none,
    device: str | None = None,
    record: bool = False,
) -> Capture:
    """Captures ``f(*args, **kwargs)`` for the shapes, dtypes, strides and static values of this call.

    ``f`` is a function, a bound method or an ``nn.Module``. ``opens`` says which objects among the arguments are told
    by what is in them. No tensor's data is read and none is changed. With a GPU as ``device``, tensors on the CPU stand
    for such on the GPU, which need not be here: the graph is on it, and has what a call of tensors there would have.
    With ``record`` the calls are recorded where a gradient may be needed, for a backward to be made of them.
    Raises DataDependentError for Python control flow on a tensor's value, UnsupportedOpError for what can't be
    captured (with ``fallback='error'`` also for each call that only the library can run), and what eager raises
    for a mistake such as shapes that do not fit. All name the user's file and line.
    """
    if dynamic:
        raise CaptureError("torch functions are captured for static shapes; leave dynamic= out", _location(f))
    names = _argument_names(f, args, kwargs)
    references = References(f, names)
    _refuse_hooks(references)
    _refuse_lazy(references)
    trace = Trace(_graph_name(f), references, fallback, for_gpu=device is not None)
    leaves, spec = flatten(args, kwargs, opens)
    recording = _recording(references, leaves) if record else None
    off = GradientsOff() if record and not torch.is_grad_enabled() else None
    trace.recording = recording or off
    fakes = spec.restore(_fakes(trace, leaves, names, spec))
    before = _attributes(f, references)
    recorder = record_environment(f, _statics(spec), holds_arrays=True)
    ambient = _ambient()
    given = ArgumentContainers(*fakes, is_tensor, opens)
    with recorder:
        with nullcontext() if recording is None else recording.running():
            result = _run(f, trace, fakes, TensorSnapshots((*references.tensors, *leaves)))
        if off is not None and off.turned_on:
            raise UnsupportedOpError("the function turns gradients on where they are off", trace.emitter.location)
        results = _result(trace, result, recorder.outlasting(), recording)
        recorded = results.recorded(recording) if recording is not None else None
        given.check()
        _refuse_changes(before, f)
        refuse_late_errors(trace.builder, _location(f))
    del result, fakes, given  # so that a container rebuilt for the run is not taken for one that the function reads
    graph, sources = results.finish()
    graph = graph if device is None else place(graph, device)
    inputs = trace.found_inputs(sources)
    graded = recorded is not None
    guards = recorder.finish(is_tensor=is_tensor, is_input=lambda value: id(value) in inputs, graded=graded)
    results.settle()
    environment = _Guards(guards, ambient, tuple(trace.ties), tuple(trace.asked.found), graded)
    finished = recorded(results.rebuild_leaves) if recorded is not None else None
    return Capture(graph, sources, environment, results.rebuild, "torch", tuple(trace.notes), finished)


def _result(trace: Trace, result: Any, outlasting: Set[int], recording: Recording | None) -> Result:
    """UnsupportedOpError for a result that no program gives; for what autograd made of it first."""
    try:
        return Result(trace, result, outlasting)
    except UnsupportedOpError as error:
        if recording is not None and recording.unfit:
            raise UnsupportedOpError(recording.unfit, error.location) from error
        raise


def _recording(references: References, leaves: Sequence[torch.Tensor]) -> Recording | None:
    """What keeps the calls of a run of which some may need a gradient; None where none can."""
    if not torch.is_grad_enabled() or SAMPLING.get():
        return None
    if not any(tensor.requires_grad for tensor in (*leaves, *references.tensors)):
        return None
    recording = Recording()
    hooked = [path for path, module in references.modules if module._backward_hooks or module._backward_pre_hooks]
    if hooked or _hooked_everywhere():
        recording.refuse(f"{hooked[0] if hooked else 'every module'} has backward hooks")
    return recording


def _hooked_everywhere() -> bool:
    """Whether a backward hook is registered for all modules."""
    return bool(_all_modules._global_backward_hooks or _all_modules._global_backward_pre_hooks)


@dataclass(frozen=True, eq=False)
class _Guards:
    """The function's guards, PyTorch's own modes (grad, autocast, default dtype), and references that share a tensor.

    ``bare``: attributes that the arguments did not have, which calls test. ``graded``: a backward is made of it.
    """

    guards: Environment
    ambient: Ambient
    ties: tuple[tuple[Fetch, Fetch], ...]
    bare: tuple[tuple[int, str | None], ...]
    graded: bool = False

    @cached_property
    def holds(self) -> Callable[[], bool]:
        """A plain function: True while all is as it was."""
        graded, dtype, *autocast = self.ambient
        is_graded, default_dtype, own = torch.is_grad_enabled, torch.get_default_dtype, self.guards.holds
        autocasts = torch._C._is_any_autocast_enabled
        if self.ties or any(autocast) or self.graded:
            return self._holds

        def holds() -> bool:
            if autocasts():
                return self._holds()
            return is_graded() is graded and default_dtype() is dtype and own()

        return holds

    @property
    def conditions(self) -> Conditions:
        """The grad mode and autocast are left to :meth:`TorchArrays.check`, which sees both."""
        _, dtype, *autocast = self.ambient
        if self.ties or any(autocast):
            return Conditions((), self._holds, bare=self.bare)
        own = self.guards.conditions
        values = [(torch.get_default_dtype, dtype), *([(_hooked_everywhere, False)] if self.graded else [])]
        return Conditions(tuple(values), own.rest, own.guards, self.bare)

    def _holds(self) -> bool:
        hooked = self.graded and _hooked_everywhere()
        return not hooked and _ambient() == self.ambient and self.guards.holds() and self._tied()

    def _tied(self) -> bool:
        try:
            return all(one() is other() for one, other in self.ties)
        except (AttributeError, LookupError, AssertionError, ValueError):
            return False

    def why_changed(self) -> str:
        """The first thing found changed; empty when nothing is."""
        if _ambient() != self.ambient:
            return f"torch's modes: were {self.ambient}, now {_ambient()}"
        if self.graded and _hooked_everywhere():
            return "every module has backward hooks"
        if not self._tied():
            return "two attributes that held one tensor no longer do"
        explain = getattr(self.guards, "why_changed", None)
        return explain() if explain is not None else ""


def _ambient() -> Ambient:
    cpu, gpu = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_autocast_dtype("cpu") if cpu else None,
        torch.get_autocast_dtype("cuda") if gpu else None,
    )


# Arguments


def _argument_names(f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Argument values by the names that the user's signature gives them, in the order of ``flatten``."""
    function = f.forward if isinstance(f, torch.nn.Module) else f
    names: list[str] = []
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for position in range(len(args)):
        parameter = parameters[min(position, len(parameters) - 1)] if parameters else None
        if parameter is None or parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            names.append(f"arg{position}")
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names.append(f"{parameter.name}_{position - parameters.index(parameter)}")
        else:
            names.append(parameter.name)
    return {**dict(zip(names, args, strict=True)), **kwargs}


def _fakes(trace: Trace, leaves: Sequence[torch.Tensor], names: Iterable[str], spec: CallSpec) -> list[torch.Tensor]:
    """What stands for the tensors of a call; one that is given twice is one."""
    parts = (*spec.args, *(part for _, part in spec.kwargs))
    paths = [path for name, part in zip(names, parts, strict=True) for path in _structure_paths(name, part)]
    fakes: dict[int, torch.Tensor] = {}
    for index, (leaf, path) in enumerate(zip(leaves, paths, strict=True)):
        if id(leaf) not in fakes:
            fakes[id(leaf)] = trace.argument(leaf, index, path)
    return [fakes[id(leaf)] for leaf in leaves]


def _structure_paths(name: str, structure: Structure) -> list[str]:
    if structure is TENSOR:
        return [name]
    if not isinstance(structure, Node):
        return []
    return [path for step, part in names_in(structure) for path in _structure_paths(f"{name}{step}", part)]


def _statics(spec: CallSpec) -> list[Any]:
    """The values in a call that are no tensors; containers are part of the call's key, and not among them."""
    open_parts: list[Structure] = [*spec.args, *(part for _, part in spec.kwargs)]
    values = []
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, Static):
            values.append(part.value)
        open_parts += getattr(part, "parts", ())
    return values


# The run


def _run(
    f: Callable[..., Any], trace: Trace, fakes: tuple[tuple[Any, ...], dict[str, Any]], before: TensorSnapshots
) -> Any:
    args, kwargs = fakes
    try:
        result = _traced(f, trace, args, kwargs)
    finally:
        changed = before.put_back()
    if changed:
        what = f"memory, or requires_grad, of a tensor of shape {list(changed[0].shape)} that outlives the call"
        raise UnsupportedOpError(f"the function changes the {what}", trace.emitter.location or _location(f))
    return result


def _traced(f: Callable[..., Any], trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with tracing(trace), reading_tensors(), without_dynamo():
        try:
            return run_user(f, args, kwargs)
        except RuntimeError as error:
            if "tensor subclasses" in str(error) or "Cannot access data pointer" in str(error):
                raise CaptureError(
                    f"the function takes a tensor's data out of PyTorch ({error}); keep to torch operations",
                    trace.emitter.location or _location(f),
                ) from None
            raise


def _refuse_hooks(references: References) -> None:
    """A hook of the user's may do anything at each call; a graph would do it never. A library's is a part of its
    module: transformers' models put some into themselves, which give what was asked for besides."""
    for path, module in references.modules:
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            if is_user_file(_file_of(hook)):
                raise UnsupportedOpError(f"{path} ({type(module).__name__}) has forward hooks; remove them first")


def _refuse_lazy(references: References) -> None:
    """The first call of a module gives some parameters their shapes; the next may be compiled."""
    for path, module in references.modules:
        tensors = (*module._parameters.values(), *module._buffers.values())
        if any(tensor is not None and is_lazy(tensor) for tensor in tensors):
            raise StateChangedError(f"parameters of {path} ({type(module).__name__}) that have no shape yet")


def _file_of(hook: Any) -> str:
    """Where a hook's code is; a user's file for one that can't be told."""
    hook = hook.func if isinstance(hook, partial) else hook
    function = getattr(hook, "__func__", hook)
    code = getattr(function, "__code__", None) or getattr(in_class(type(function), "__call__"), "__code__", None)
    return str(getattr(code, "co_filename", ""))


Table = dict[Any, Any] | list[Any]


def _attributes(f: Callable[..., Any], references: References) -> list[tuple[Table, Table]]:
    """The attribute tables of the modules and the object at hand, and containers in them, each with a copy."""
    tables: list[Table] = []
    for _, module in references.modules:
        own = vars(module)
        tables += [own, own["_buffers"], own["_parameters"]]
    owner = getattr(f, "__self__", None)
    if owner is not None and not isinstance(owner, torch.nn.Module) and hasattr(owner, "__dict__"):
        tables.append(vars(owner))
    inner = [v for t in tables if isinstance(t, dict) for v in t.values() if type(v) in (dict, list)]
    return [(t, t.copy()) for t in [*tables, *inner]]


def _refuse_changes(before: list[tuple[Table, Table]], f: Callable[..., Any]) -> None:
    """Puts back tables to which the traced run added tensors, and refuses the function."""
    changed = [(table, copy, _added_tensors(table, copy)) for table, copy in before]
    changed = [entry for entry in changed if entry[2]]
    for table, copy, _ in changed:
        table.clear()
        if isinstance(table, dict):
            table.update(copy)
        else:
            table.extend(copy)
    if changed:
        raise UnsupportedOpError(
            f"the function assigns a tensor to {changed[0][2][0]!r}, which outlives the call; return it instead",
            _location(f),
        )


def _added_tensors(table: Table, copy: Table) -> list[Any]:
    """Keys or positions at which a tensor is that was not there before."""
    if isinstance(table, dict) and isinstance(copy, dict):
        return [key for key, value in table.items() if is_tensor(value) and copy.get(key) is not value]
    known = {id(value) for value in copy}
    return [place for place, value in enumerate(table) if is_tensor(value) and id(value) not in known]


def _location(f: Callable[..., Any]) -> Location | None:
    function = type(f).forward if isinstance(f, torch.nn.Module) else getattr(f, "__func__", f)
    code = getattr(function, "__code__", None)
    return code_location(code) if code is not None else None


def _graph_name(f: Callable[..., Any]) -> str:
    name = getattr(f, "__name__", None) or type(f).__name__
    return name if name.isidentifier() else "graph"


# Results


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

    ``outlasting``: the ids of objects that were there before the run, and are returned themselves.
    """

    def __init__(self, trace: Trace, result: Any, outlasting: Set[int] = frozenset()) -> None:
        self._trace = trace
        leaves: list[Any] = []
        made = MadeObjects(outlasting)
        opener = Opener(is_tensor, leaves, made.opens)
        self._structure = opener.open(result)
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
        with tracing(trace):
            values = {id(m): self._distinct(m.value, m) for m in changed}
            self._bases = {id(m): self._add(values[id(m)], m.tensor.stride(), m.source) for m in changed}
            distinct = {id(leaf): leaf for leaf in leaves}
            shown = Counter(id(trace.handle(leaf).memory) for leaf in distinct.values())
            known = {number: self._slot(leaf, shown) for number, leaf in distinct.items()}
            self._slots = [known[id(leaf)] for leaf in leaves]
            for leaf in distinct.values():
                is_made = trace.handle(leaf).memory.source is None
                check_returned(leaf, is_made)
                if is_made and leaf.is_inference() != self._inference:
                    self._other_mode.add(known[id(leaf)])

    def recorded(self, recording: Recording) -> Callable[[Rebuild], Recorded]:
        """The recording of the function that gave this result."""
        leaves, self._leaves = [self._trace.fake(leaf) for leaf in self._leaves], []
        if self._other_mode:
            recording.refuse("the function enters or leaves inference mode")
        return recording.finish(leaves, self._changed)

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
        other_mode, inference = frozenset(self._other_mode), not self._inference
        if not other_mode:
            return lambda outputs: _rebuild(structure, iter([outputs[slot] for slot in slots]))

        def rebuild(outputs: Sequence[torch.Tensor]) -> Any:
            made = [_in_mode(x, inference) if slot in other_mode else x for slot, x in enumerate(outputs)]
            return _rebuild(structure, iter([made[slot] for slot in slots]))

        return rebuild

    def finish(self) -> tuple[Graph, tuple[Source, ...]]:
        """The graph without what no output needs, and the sources of its inputs."""
        trace = self._trace
        graph = _without_unused(trace.builder.finish(self._outputs, self._ports), trace.abandoned)
        sources = tuple(s for s, v in zip(trace.sources, trace.builder.finish([]).inputs) if v in set(graph.inputs))
        trace.namer.finish(trace.builder, graph)
        return graph, sources


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
