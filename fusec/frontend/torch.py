# SPDX-License-Identifier: Apache-2.0
"""Captures a PyTorch function or module as a graph, by running it once on fake tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from fusec.errors import CaptureError, UnsupportedOpError
from fusec.frontend.argument_changes import Edit, GivenContainers
from fusec.frontend.capture import (
    SAMPLING,
    Capture,
    Fallback,
    ReferenceSource,
    run_user,
)
from fusec.frontend.environment import Environment, Recorder, record_environment
from fusec.frontend.garbage import left_alone
from fusec.frontend.outcomes import followed_outcomes
from fusec.frontend.raw import in_class
from fusec.frontend.source import code_location, is_user_file
from fusec.frontend.state_errors import MemoFilledError, StateChangedError, refuse_late_errors
from fusec.frontend.structures import TENSOR, CallSpec, Given, Node, Opens, Static, Structure, names_in, opens_none
from fusec.frontend.structures import flatten as _flatten
from fusec.frontend.torch_guards import TorchGuards, ambient, hooked_everywhere, watched_everywhere
from fusec.frontend.torch_modes import dispatch_modes, without_dynamo
from fusec.frontend.torch_noted_rows import NotedRows
from fusec.frontend.torch_recording import GradientsOff, Recording
from fusec.frontend.torch_references import References
from fusec.frontend.torch_results import Result, is_tensor
from fusec.frontend.torch_row_counts import CountsRefused
from fusec.frontend.torch_row_sets import ChosenRowsError
from fusec.frontend.torch_scans import prepare_scans
from fusec.frontend.torch_settings import ASKED, kept
from fusec.frontend.torch_snapshots import TensorSnapshots
from fusec.frontend.torch_symbolic_int import reading_tensors
from fusec.frontend.torch_trace import Trace, tracing
from fusec.ir.place import place
from fusec.location import Location

_FILLS = 3
"""Runs that may fill caches of ``functools.lru_cache``, after which what they keep is no settled state."""


_HASHING = torch.Tensor.__hash__.__code__


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
@left_alone()
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
    edits: bool = False,
) -> Capture:
    """Captures ``f(*args, **kwargs)`` for the shapes, dtypes, strides and static values of this call.

    ``f`` is a function, a bound method or an ``nn.Module``. ``opens`` says which objects among the arguments are told
    by what is in them. No tensor's data is read and none is changed. With a GPU as ``device``, tensors on the CPU stand
    for such on the GPU, which need not be here: the graph is on it, and has what a call of tensors there would have.
    With ``record`` the calls are recorded where a gradient may be needed, for a backward to be made of them. With
    ``edits`` the function may change containers and objects among its arguments; else that is refused.
    Raises DataDependentError for Python control flow on a tensor's value, UnsupportedOpError for what can't be
    captured (with ``fallback='error'`` also for each call that only the library can run), and what eager raises
    for a mistake such as shapes that do not fit. All name the user's file and line.
    """
    prepare_scans()
    options: Any = {"fallback": fallback, "dynamic": dynamic, "opens": opens, "record": record, "edits": edits}
    run = partial(_filled, partial(_capture, f, args, kwargs, device=device, **options))
    try:
        return run()
    except ChosenRowsError:
        if SAMPLING.get() and device is None and not _is_on_gpu(args, kwargs, opens):
            raise
    return run(rows=True)


def _filled(run: Callable[..., Capture], **options: bool) -> Capture:
    """The capture with what the function's caches have for the call: it is put there first, as the call would do."""
    for _ in range(_FILLS):
        try:
            return run(**options)
        except MemoFilledError as error:
            if SAMPLING.get() or not error.calls:
                raise
            for memo, given, named in error.calls:
                memo(*given, **named)
    return run(**options)


def _is_on_gpu(args: Sequence[Any], kwargs: Mapping[str, Any], opens: Opens) -> bool:
    return any(leaf.device.type == "cuda" for leaf in flatten(args, kwargs, opens)[0])


def _capture(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    fallback: Fallback = "eager",
    dynamic: object = None,
    opens: Opens = opens_none,
    device: str | None = None,
    record: bool = False,
    edits: bool = False,
    rows: bool = False,
) -> Capture:
    """:func:`capture`. ``rows``: what rows that data chooses are made to is followed; else they are an error."""
    if dynamic:
        raise CaptureError("torch functions are captured for static shapes; leave dynamic= out", _location(f))
    names = _argument_names(f, args, kwargs)
    references = _references(f, names)
    trace = Trace(_graph_name(f), references, fallback, for_gpu=device is not None, rows=rows)
    leaves, spec = flatten(args, kwargs, opens)
    recording = _recording(references, leaves) if record else None
    if trace.row_sets is not None and recording is not None:
        recording.rows = NotedRows(trace, trace.row_sets)
    off = GradientsOff() if record and not torch.is_grad_enabled() else None
    trace.recording = recording or off
    fakes = spec.restore(_fakes(trace, leaves, names, spec))
    before = _attributes(f, references)
    recorder = record_environment(f, _statics(spec), holds_arrays=True, asked=ASKED, hashing=_HASHING)
    modes = ambient()
    given = GivenContainers(*fakes, is_tensor, opens)
    own = GivenContainers(args, kwargs, is_tensor, opens).known.keys()
    with recorder:
        with nullcontext() if recording is None else recording.running():
            result = _run(f, trace, fakes, TensorSnapshots((*references.tensors, *leaves)))
        if off is not None:
            off.returned(result)
        if off is not None and off.turned_on:
            raise UnsupportedOpError("the function turns gradients on where they are off", trace.emitter.location)
        known = given.known if edits and recording is None else {}
        edited = _edits(given, own & recorder.outlasting(), bool(known), f)
        results = _result(trace, result, recorder.outlasting(), recording, known, edited)
        recorded = results.recorded(recording) if recording is not None else None
        recorder.let_go(given.containers)
        _refuse_changes(before, f)
        refuse_late_errors(trace.builder, _location(f))
        if trace.branches:
            _check_repeatable(trace, results, recorded is not None)
    del result, fakes, given, edited  # a container rebuilt for the run is not to be taken for one that it reads
    graph, sources = results.finish()
    graph = graph if device is None else place(graph, device)
    graded = recorded is not None
    guards = _guards(f, recorder, trace.found_inputs(sources), leaves, graded=graded)
    results.settle()
    environment = TorchGuards(
        guards, modes, tuple(trace.ties), tuple(trace.asked.found), graded, bool(references.modules)
    )
    finished = recorded(results.rebuild_leaves) if recorded is not None else None
    return Capture(
        *(graph, sources, environment, results.rebuild, "torch", tuple(trace.notes), finished, results.takes_given),
        branches=results.branches,
    )


def _check_repeatable(trace: Trace, results: Result, recorded: bool) -> None:
    """CaptureError for a graph that follows branches on values, and that must not run in vain."""
    outcomes = followed_outcomes()
    if outcomes is not None:
        outcomes.check_all_taken()
    for is_so, what in (
        (results.changes, "changes its arguments"),
        (trace.draws_random, "draws random numbers"),
        (recorded, "needs a gradient"),
    ):
        if is_so:
            raise CaptureError(f"the function branches on values and {what}", trace.emitter.location)


def _edits(given: GivenContainers, outside: Set[int], allowed: bool, f: Callable[..., Any]) -> tuple[Edit, ...]:
    """What the run has changed in its arguments. StateChangedError where a call can't do the same: of the caller's
    containers those are reached from ``outside``, too, which the run saw as they were."""
    edits = given.edits()
    if edits is None or (edits and (outside or not allowed)):
        raise StateChangedError("a list, a dict or an object among its arguments", _location(f))
    return edits


def _result(
    trace: Trace,
    result: Any,
    outlasting: Set[int],
    recording: Recording | None,
    given: Mapping[int, Given],
    edits: Sequence[Edit],
) -> Result:
    """UnsupportedOpError for a result that no program gives; for what autograd made of it first."""
    try:
        return Result(trace, result, outlasting, given, edits)
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
    if hooked or hooked_everywhere():
        recording.refuse(f"{hooked[0] if hooked else 'every module'} has backward hooks")
    return recording


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
    settings: list[str] = []
    try:
        with kept(settings):
            result = _traced(f, trace, args, kwargs)
    finally:
        changed = before.put_back()
    if settings:
        where = trace.emitter.location or _location(f)
        raise UnsupportedOpError(f"the function changes a setting of PyTorch ({', '.join(settings)})", where)
    if changed:
        what = f"memory, requires_grad or attributes of a tensor of shape {list(changed[0].shape)}"
        where = trace.emitter.location or _location(f)
        raise UnsupportedOpError(f"the function changes the {what} that outlives the call", where)
    return result


def _traced(f: Callable[..., Any], trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    sets = trace.row_sets
    with tracing(trace), reading_tensors(), without_dynamo(), nullcontext() if sets is None else CountsRefused(sets):
        try:
            result = run_user(f, args, kwargs)
        except RuntimeError as error:
            if "tensor subclasses" in str(error) or "Cannot access data pointer" in str(error):
                raise CaptureError(
                    f"the function takes a tensor's data out of PyTorch ({error}); keep to torch operations",
                    trace.emitter.location or _location(f),
                ) from None
            raise
    if sets is not None:
        sets.check_ended()
    return result


def _guards(
    f: Callable[..., Any], recorder: Recorder, inputs: set[int], leaves: Sequence[torch.Tensor], *, graded: bool
) -> Environment:
    """What must stay as the run has found it. ``inputs``: ids of tensors that inputs of the graph fetch."""
    return recorder.finish(
        is_tensor=is_tensor,
        is_input=lambda value: id(value) in inputs,
        graded=graded,
        leaves={id(leaf): leaf for leaf in leaves}.values(),
        reached=lambda: References(f, {}).tensors,
    )


def _references(f: Callable[..., Any], names: Mapping[str, Any]) -> References:
    """The tensors and modules that a function reaches. UnsupportedOpError for modules that are more than they show."""
    references = References(f, names)
    _refuse_hooks(references)
    _refuse_lazy(references)
    return references


def _refuse_hooks(references: References) -> None:
    """A hook of the user's may do anything at each call; a graph would do it never. A library's is a part of its
    module: transformers' models put some into themselves, which give what was asked for besides."""
    if references.modules and watched_everywhere():
        raise UnsupportedOpError("every module has forward hooks; remove them first")
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
    return [position for position, value in enumerate(table) if is_tensor(value) and id(value) not in known]


def _location(f: Callable[..., Any]) -> Location | None:
    function = type(f).forward if isinstance(f, torch.nn.Module) else getattr(f, "__func__", f)
    code = getattr(function, "__code__", None)
    return code_location(code) if code is not None else None


def _graph_name(f: Callable[..., Any]) -> str:
    name = getattr(f, "__name__", None) or type(f).__name__
    return name if name.isidentifier() else "graph"
