# SPDX-License-Identifier: Apache-2.0
"""Capture of NumPy functions: the function is run once on traced arrays, and what it does becomes a graph."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusec.frontend.capture import Capture, Fallback, Library, run_user
from fusec.frontend.environment import Recorder, record_environment, unwrap
from fusec.frontend.numpy_array import TracedArray
from fusec.frontend.numpy_returns import Returns
from fusec.frontend.numpy_scope import Scope
from fusec.frontend.numpy_trace import Trace, Traced
from fusec.frontend.readings import reading
from fusec.frontend.side_effects import ArgumentContainers
from fusec.frontend.source import code_location
from fusec.frontend.state_errors import refuse_late_errors
from fusec.frontend.structures import TENSOR, Node, Static, Structure, flatten, names_in
from fusec.ir.graph import Graph
from fusec.ir.liveness import live_ops
from fusec.ir.raising import is_effect, is_lookup
from fusec.location import Location


def capture(
    f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, fallback: Fallback = "eager"
) -> Capture:
    """The graph of ``f(*args, **kwargs)`` for arrays of these dtypes, shapes and strides.

    Arrays (also inside tuples, lists, dicts and dataclasses) are graph inputs; all other arguments are constants of
    the capture. Arrays that ``f`` finds in globals, closures and attributes are inputs by reference. With
    ``fallback="eager"`` a call that has no form in ops becomes an extern op; with ``"error"`` it is refused.

    Raises DataDependentError where Python needs an element of a traced array, UnsupportedOpError for what can't
    be compiled, TypeRuleError for shapes and dtypes that don't fit; each names the user's file and line.
    """
    return capture_as(NUMPY, f, args, kwargs or {}, fallback)


@dataclass(frozen=True)
class Flavour:
    """A library with NumPy's interface. scope: made for the trace; stand_in: a NumPy array of an array's layout."""

    library: Library
    is_array: Callable[[Any], bool]
    scope: Callable[[Trace], Scope]
    stand_in: Callable[[Any], np.ndarray[Any, Any]]


def capture_as(
    flavour: Flavour, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], fallback: Fallback
) -> Capture:
    """:func:`capture` for arrays of a library."""
    leaves, spec = flatten(args, kwargs, flavour.is_array)
    trace = Trace(_graph_name(f), fallback, TracedArray)
    trace.reads_contents = flavour.library == "numpy"
    scope = flavour.scope(trace)
    trace.scope = scope
    paths = list(_leaf_paths(f, spec.args, spec.kwargs))
    traced = [trace.argument(flavour.stand_in(leaf), i, *paths[i]) for i, leaf in enumerate(leaves)]
    new_args, new_kwargs = spec.restore(traced)
    new_args = tuple(scope.patch(a, f"argument {i}", lambda: None) for i, a in enumerate(new_args))
    new_kwargs = {k: scope.patch(a, k, lambda: None) for k, a in new_kwargs.items()}
    statics = list(_statics((*spec.args, *(part for _, part in spec.kwargs))))
    function = scope.patch_root(f)
    with record_environment(f, statics) as recorder:
        given = ArgumentContainers(new_args, new_kwargs, lambda value: issubclass(type(value), Traced | np.ndarray))
        with reading():
            result = run_user(function, new_args, new_kwargs)
        given.check()
        scope.check_no_side_effects()
        refuse_late_errors(trace.builder, _definition(f))
    trace.site = _definition(f)
    returns = Returns(trace, result, flavour.library)
    del function, new_args, new_kwargs, traced, result, given
    graph = _without_dead_ops(returns.graph)
    environment = _environment(trace, scope, recorder, leaves)
    return Capture(graph, tuple(trace.sources), environment, returns.rebuild, flavour.library, tuple(trace.notes))


def is_array(value: Any) -> bool:
    """True for an ndarray (a subclass too), not for a NumPy scalar."""
    return issubclass(type(value), np.ndarray)


NUMPY = Flavour("numpy", is_array, Scope, lambda array: array)


def _environment(trace: Trace, scope: Scope, recorder: Recorder, leaves: Sequence[Any]) -> Any:
    for state in trace.pins:
        recorder.pin(state.path, state.fetch, state.array)
    for state in trace.states:
        if state.touched:
            recorder.pin_layout(state.path, state.fetch, scope.original(state.array))
        else:
            recorder.pin_identity(state.path, state.fetch, scope.original(state.array))

    lifted = {*scope.fetched, *scope.stand_ins}  # not the scope itself: the guards outlive it

    def is_tensor(value: object) -> bool:
        return issubclass(type(value), Traced) or id(value) in lifted

    return recorder.finish(
        is_tensor=is_tensor,
        leaves=leaves,
        reached=lambda: [scope.original(s.array) for s in trace.states],
        followed=scope.followed,
    )


def _definition(f: Any) -> Location | None:
    code = getattr(unwrap(f), "__code__", None)
    return code_location(code) if code is not None else None


def _graph_name(f: Any) -> str:
    if isinstance(f, functools.partial):
        return _graph_name(f.func)
    name = getattr(f, "__name__", type(f).__name__)
    return name if name.isidentifier() else "graph"


def _statics(parts: Sequence[Structure]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, Static):
            yield part.value
        elif isinstance(part, Node):
            yield from _statics(part.parts)


def _leaf_paths(
    f: Any, args: Sequence[Structure], kwargs: Sequence[tuple[str, Structure]]
) -> Iterator[tuple[str, str]]:
    """A name and a path for each array among the arguments, in order."""
    for name, structure in [*zip(_parameter_names(f, len(args)), args), *kwargs]:
        for path in _paths(structure, name):
            yield path.replace("[", "_").replace("]", "").replace("'", "").replace(".", "_"), path


def _parameter_names(f: Any, count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}{i}" for i in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return [*names, *(f"arg{i}" for i in range(len(names), count))][:count]


def _paths(structure: Structure, path: str) -> Iterator[str]:
    if structure is TENSOR:
        yield path
    if not isinstance(structure, Node):
        return
    for name, part in names_in(structure):
        yield from _paths(part, f"{path}{name}")


def _without_dead_ops(graph: Graph) -> Graph:
    return graph.with_ops(live_ops(graph.ops, graph.outputs, lambda op: is_effect(op) or is_lookup(op)))
