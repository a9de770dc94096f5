"""Capture of NumPy functions: the function is run once on traced arrays, and what it does becomes a graph."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fusec.frontend.capture import Capture, Fallback, Library, run_user
from fusec.frontend.environment import Recorder, record_environment, unwrap
from fusec.frontend.numpy_array import TracedArray
from fusec.frontend.numpy_buffer import Buffer
from fusec.frontend.numpy_scope import Scope
from fusec.frontend.numpy_trace import Meta, Trace, Traced, describe
from fusec.frontend.readings import reading
from fusec.frontend.results import check_result
from fusec.frontend.side_effects import ArgumentContainers, refuse_late_errors
from fusec.frontend.source import code_location
from fusec.frontend.steps import Step
from fusec.frontend.structures import TENSOR, Node, Static, Structure, flatten, names_in, rebuild, structure_of
from fusec.ir.graph import Graph, Location, Port, Value
from fusec.ir.ops import OPS


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
    returns = _Returns(trace, result)
    del function, new_args, new_kwargs, traced, result, given
    graph = _without_dead_ops(returns.graph)
    environment = _environment(trace, scope, recorder)
    return Capture(graph, tuple(trace.sources), environment, returns.rebuild, flavour.library, tuple(trace.notes))


def is_array(value: Any) -> bool:
    """True for an ndarray (a subclass too), not for a NumPy scalar."""
    return issubclass(type(value), np.ndarray)


NUMPY = Flavour("numpy", is_array, Scope, lambda array: array)


def _environment(trace: Trace, scope: Scope, recorder: Recorder) -> Any:
    for state in trace.pins:
        recorder.pin(state.path, state.fetch, state.array)
    for state in trace.states:
        if state.touched:
            recorder.pin_layout(state.path, state.fetch, scope.original(state.array))

    lifted = {*scope.fetched, *scope.stand_ins}  # not the scope itself: the guards outlive it

    def is_tensor(value: object) -> bool:
        return issubclass(type(value), Traced) or id(value) in lifted

    return recorder.finish(is_tensor=is_tensor)


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


@dataclass(frozen=True)
class _Leaf:
    """How one returned array is made from the graph's outputs: output ``index`` seen through ``steps``."""

    index: int
    steps: tuple[Step, ...] = ()
    is_scalar: bool = False
    constant: Any = None

    def make(self, outputs: Sequence[Any]) -> Any:
        if self.constant is not None:
            return self.constant.copy()
        array = outputs[self.index]
        for step in self.steps:
            (array,) = OPS[step.name].reference([array], step.attributes)
        return array[()] if self.is_scalar else array


def _strides_of(meta: Meta) -> tuple[int, ...] | None:
    """NumPy's strides in elements, of axes of one element too; None for those that a fresh array has."""
    plain = describe(meta.shape, meta.dtype).strides
    return None if meta.strides == plain else tuple(s // meta.itemsize for s in meta.strides)


class _Returns:
    """What the function gave back: the graph's outputs, and how the user's result is put together from them."""

    def __init__(self, trace: Trace, result: Any) -> None:
        self.trace = trace
        self.values: list[Value] = []
        self.ports: list[Port] = []
        self._owned: set[Value] = set()
        self._bases: dict[int, int] = {}
        found: list[Any] = []
        self.structure = structure_of(result, lambda v: issubclass(type(v), Traced | np.ndarray), found)
        check_result(self.structure, lambda v: isinstance(v, Traced), trace.location())
        self._views = self._count_views(found)
        self._add_mutated()
        known: dict[object, int] = {}
        self.leaves: list[_Leaf] = []
        self.order: list[int] = []
        for x in found:
            key = (id(x.buffer), x.steps, x.is_scalar) if isinstance(x, Traced) else id(x)
            if key not in known:
                known[key] = len(self.leaves)
                self.leaves.append(self._leaf(x))
            self.order.append(known[key])
        self.graph: Graph = trace.builder.finish(self.values, self.ports)

    @property
    def rebuild(self) -> Callable[[Sequence[Any]], Any]:
        structure, leaves, order = self.structure, self.leaves, self.order

        def put_together(outputs: Sequence[Any]) -> Any:
            made = [leaf.make(outputs) for leaf in leaves]
            return rebuild(structure, iter([made[i] for i in order]))

        return put_together

    def _count_views(self, found: Sequence[Any]) -> dict[int, set[object]]:
        views: dict[int, set[object]] = {}
        for x in found:
            if isinstance(x, Traced) and not x.is_scalar:
                views.setdefault(id(x.buffer), set()).add(x.steps)
        return views

    def _add_mutated(self) -> None:
        inputs = self.trace.input_buffers
        for index, buffer in enumerate(inputs):
            if not buffer.version or buffer.array is None:
                continue
            for other in inputs:
                shares = other is not buffer and other.array is not None
                if shares and np.may_share_memory(buffer.array, other.array):
                    raise self.trace.unsupported(
                        f"{buffer.path} is written and may share memory with {other.path}; copy one of them"
                    )
            value = buffer.value
            if self._root(value) is not None and value is not self.trace.inputs[index]:
                value = self.trace.emit("copy", value)
            self._owned.add(value)
            self._bases[id(buffer)] = self._output(value, replace(self._input_port(index), mutates=index))

    def _input_port(self, index: int) -> Port:
        return self.trace.ports[index]

    def _leaf(self, x: Any) -> _Leaf:
        if not isinstance(x, Traced):
            return _Leaf(-1, constant=x)
        buffer = x.buffer
        if x.is_scalar:
            return _Leaf(self._output(self._own(x.value), Port()), is_scalar=True)
        if id(buffer) in self._bases:
            return _Leaf(self._bases[id(buffer)], x.steps)
        if buffer.is_input:
            return _Leaf(self._output(x.value, self._port(x, self._input_array(buffer))))
        spread = any(step.name in ("broadcast", "windows", "strided") for step in x.steps)
        if len(self._views[id(buffer)]) > 1 or spread:
            self._bases[id(buffer)] = self._output(self._own(buffer.value), self._dense_port(buffer.layout))
            return _Leaf(self._bases[id(buffer)], x.steps)
        return _Leaf(self._output(self._own(x.value), self._dense_port(x.meta)))

    def _input_array(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        assert buffer.array is not None
        return buffer.array

    def _output(self, value: Value, port: Port) -> int:
        self.values.append(value)
        self.ports.append(port)
        return len(self.values) - 1

    def _port(self, x: Traced, base: np.ndarray[Any, Any]) -> Port:
        """The layout of a view of an input, from where the input starts."""
        size = x.meta.itemsize
        start = (x.meta.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // size if x.steps else 0
        return Port(_strides_of(x.meta), start)

    def _dense_port(self, meta: Any) -> Port:
        """The order of axes of a fresh array; contiguous where it is a slice of a larger one."""
        if meta is None:
            return Port()
        order = sorted(range(meta.ndim), key=lambda a: -meta.strides[a])
        if not meta.transpose(order).flags.c_contiguous:
            return Port()
        return Port(_strides_of(meta))

    def _own(self, value: Value) -> Value:
        """The value, copied where it would be another output's or an input's memory, or no memory at all."""
        root = self._root(value) or value
        op = self.trace.producers.get(root)
        if op is None or op.definition.kind == "create" or root in self._owned:
            value = root = self.trace.emit("copy", value)
        self._owned.add(root)
        return value

    def _root(self, value: Value) -> Value | None:
        """What a chain of view ops starts from; None when the value is made by another op."""
        op = self.trace.producers.get(value)
        if op is not None and op.definition.kind != "view":
            return None
        while op is not None and op.definition.kind == "view":
            value = op.operands[0]
            op = self.trace.producers.get(value)
        return value


def _without_dead_ops(graph: Graph) -> Graph:
    needed = set(graph.outputs)
    kept = []
    for op in reversed(graph.ops):
        if any(result in needed for result in op.results):
            needed.update(op.operands)
            kept.append(op)
    return graph.with_ops(reversed(kept))
