# SPDX-License-Identifier: Apache-2.0
"""What a frontend hands on: the graph of a function, and how a call feeds it and reads its results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

from fusec.frontend.structures import Opener, Opens, opens_none
from fusec.ir.graph import Graph

Library = Literal["torch", "numpy", "cupy"]
Fallback = Literal["eager", "error"]
Rebuild = Callable[..., Any]
"""From the tensors of all graph outputs, in order, to what the user's function returns.

Where a capture ``takes_given`` also from the containers of the call, by number, into which it puts what the call leaves
there; without these it gives the result, with numbers in their place, and what would be put there.
"""


FAILED = "{fail}"
"""Stands in the lines of a :class:`Guards` for what a failed test returns."""


def of_library(error: Exception) -> Exception:
    """Marks an error that a capture raises because the library would: it is no fault of fusec's."""
    error.__dict__["_fusec_of_library"] = True
    return error


def is_of_library(error: Exception) -> bool:
    """Whether :func:`of_library` marked this error."""
    return "_fusec_of_library" in error.__dict__


def run_user(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls the user's function for a capture: frames below this one are the user's, the library's, or stand-ins'."""
    return function(*args, **kwargs)


@dataclass(frozen=True)
class Guards:
    """Tests as lines of a function, and the objects that the lines name. A line may raise: then a test failed."""

    lines: tuple[str, ...]
    objects: Mapping[str, object]


@dataclass(frozen=True)
class Conditions:
    """An environment's test in parts: functions that must give these very objects, a function that tests the rest
    (None where nothing is left), and tests that can stand in the code of a call (None where there are none).

    ``bare``: attributes that arrays of the call, by number, must not have of their own; None for any at all.
    ``apart``: where code may ask which arrays are one object, the ids of those that none of the call's may be; None
    where it does not ask.
    """

    values: tuple[tuple[Callable[[], object], object], ...]
    rest: Callable[[], bool] | None
    guards: Guards | None = None
    bare: tuple[tuple[int, str | None], ...] = ()
    apart: frozenset[int] | None = None


class Environment(Protocol):
    """State outside the arguments that the capture depended on."""

    def holds(self) -> bool:
        """True while every value that the capture read is what it was."""

    @property
    def conditions(self) -> Conditions:
        """What a call tests, besides the layouts of arrays and the library's modes that show in those
        (``Arrays.check``): all of :meth:`holds` that those leave."""
        return Conditions((), self.holds)


@dataclass(frozen=True)
class ArgumentSource:
    """Graph input taken from the call: the index into the tensor leaves that ``flatten`` gives."""

    index: int


@dataclass(frozen=True)
class IntegerSource:
    """Graph input without elements to read, whose one extent is the call's :class:`Integer` of this name."""

    name: str


@dataclass(frozen=True)
class ReferenceSource:
    """Graph input fetched anew at each call, so a replaced or updated tensor is seen.

    ``path`` is how the user would spell it (``self.encoder.weight``).
    """

    path: str
    fetch: Callable[[], Any]


@dataclass(frozen=True, eq=False)
class TableEntry:
    """Fetches ``name`` in a table (``_parameters`` or ``_buffers``) of the submodule ``steps`` below ``root``."""

    root: Any
    steps: tuple[str, ...]
    table: str
    name: str

    def __call__(self) -> Any:
        module = self.root
        for step in self.steps:
            module = module._modules[step]
        return getattr(module, self.table)[self.name]


class AsWritten(NamedTuple):
    """Why a call runs as written. ``is_part``: something larger is captured, of which the call becomes a part."""

    reason: str
    is_part: bool = False


Source = ArgumentSource | ReferenceSource | IntegerSource


SAMPLING: ContextVar[bool] = ContextVar("SAMPLING", default=False)
"""Whether a capture is one of several that differ in extents alone, and must differ in numbers alone."""


@dataclass(frozen=True, eq=False)
class ChosenRows:
    """Rows that data chooses in a recorded graph.

    conditions: of each set of rows the name of the node that gives its condition, and the condition's shape. masks: a
    graph that gives these conditions, flat. In the graph's nodes ``meta["rows"]`` says which set's rows a tensor has,
    along which axis, and of which of the condition's axes they are positions; ``meta["memory"]`` tells memories apart.
    """

    conditions: tuple[tuple[str, tuple[int, ...]], ...]
    masks: Graph


@dataclass(frozen=True, eq=False)
class Recorded:
    """A captured function as a graph of the library's own calls, of which autograd makes a backward.

    module: gives the tensors of the result, in order; rebuild: the user's result from these. sources: one for each
    input, changed: the numbers of those that it writes to. random: whether it draws random numbers. asked: after which
    node the function asked whether another requires a gradient, and what it was told. unfit: why the graph does not do
    what the function does; empty where it does. chosen: rows that data chooses; None where there are none.
    """

    module: Any
    sources: tuple[Source, ...]
    rebuild: Rebuild
    changed: tuple[int, ...] = ()
    random: bool = False
    asked: tuple[tuple[str, str, bool], ...] = ()
    unfit: str = ""
    chosen: ChosenRows | None = None


@dataclass(frozen=True)
class Capture:
    """One function, captured for one signature.

    sources: one for each graph input. rebuild: makes the user's result from the output tensors; outputs
    whose port has ``mutates`` stand among them and are the mutated inputs themselves. notes: what runs
    through the library, and why. recorded: where it was asked for and a gradient may be needed. takes_given: whether a
    call changes, or returns, containers and objects among its arguments. branches: outputs besides those of the result,
    by number, and what a call has to find in them for the graph to be for it.
    """

    graph: Graph
    sources: tuple[Source, ...]
    environment: Environment
    rebuild: Rebuild
    library: Library
    notes: tuple[str, ...] = ()
    recorded: Recorded | None = None
    takes_given: bool = False
    branches: tuple[tuple[int, bool], ...] = ()


def inputs_of(sources: Sequence[Source], leaves: Sequence[Any]) -> list[Any]:
    """The arrays that these sources give in a call with these leaves."""
    assert not any(isinstance(source, IntegerSource) for source in sources), "integers are no arrays"
    return [
        leaves[source.index] if isinstance(source, ArgumentSource) else source.fetch()
        for source in sources
        if not isinstance(source, IntegerSource)
    ]


def with_static(capture: Capture, leaves: frozenset[int]) -> Capture:
    """The capture with the array leaves of these numbers taken for weights: what is packed from them is kept."""
    ports = tuple(
        replace(port, role="static") if isinstance(source, ArgumentSource) and source.index in leaves else port
        for port, source in zip(capture.graph.input_ports, capture.sources, strict=True)
    )
    return replace(capture, graph=replace(capture.graph, input_ports=ports))


def frozen(graph: Graph) -> Graph:
    """The graph in which what is packed from a module's tensors, and from arrays that the function reads besides its
    arguments, is kept."""
    ports = tuple(
        replace(port, role="static") if port.role in ("parameter", "state") else port for port in graph.input_ports
    )
    return replace(graph, input_ports=ports)


def leaves_of_parameters(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    is_tensor: Callable[[Any], bool],
    names: frozenset[str],
    opens: Opens = opens_none,
) -> frozenset[int]:
    """The numbers of the tensor leaves in the arguments of these parameters."""
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL] or [""]
    found: set[int] = set()
    leaves: list[Any] = []
    opener = Opener(is_tensor, leaves, opens)
    named = [(positional[k].name if k < len(positional) else rest[0], value) for k, value in enumerate(args)]
    for name, value in (*named, *kwargs.items()):
        before = len(leaves)
        opener.open(value)
        if name in names:
            found.update(range(before, len(leaves)))
    return frozenset(found)


def format_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], operands: Sequence[Any]) -> str:
    """The text of ``ExternAttributes.arguments``: ``(args...), {kwargs...}`` with ``$i`` for ``operands[i]``.

    Operands are found by identity. TypeError for a value that has no safe spelling.
    """
    positions = {id(operand): index for index, operand in enumerate(operands)}
    listed = "".join(f"{_format(a, positions)}, " for a in args)
    named = ", ".join(f"{name!r}: {_format(a, positions)}" for name, a in kwargs.items())
    return f"({listed.rstrip() if len(args) == 1 else listed.rstrip(', ')}), {{{named}}}"


def _format(value: Any, positions: Mapping[int, int]) -> str:
    if id(value) in positions and not isinstance(value, bool | int | float | str | type(None)):
        return f"${positions[id(value)]}"
    kind = type(value)
    if kind in (bool, int, str, type(None)):
        return repr(value)
    if kind in (float, complex):
        return _format_number(value)
    if isinstance(value, tuple):
        inner = ", ".join(_format(part, positions) for part in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, list):
        return f"[{', '.join(_format(part, positions) for part in value)}]"
    if kind is slice:
        return f"slice({', '.join(_format(part, positions) for part in (value.start, value.stop, value.step))})"
    if value is ...:
        return "..."
    if kind.__module__ == "torch" and kind.__name__ in ("dtype", "layout", "memory_format"):
        return str(value)
    if kind.__module__ == "torch" and kind.__name__ == "device":
        return f"torch.device({str(value)!r})"
    if kind.__module__.startswith("numpy") or (kind is type and value.__module__.startswith("numpy")):
        return _format_numpy(value)
    raise TypeError(f"an argument of type {kind.__name__} has no spelling in IR text")


def _format_number(value: float | complex) -> str:
    if isinstance(value, complex):
        return f"complex({_format_number(value.real)}, {_format_number(value.imag)})"
    text = repr(value)
    return text if text.lstrip("-")[0].isdigit() else f"float({text!r})"


def _format_numpy(value: Any) -> str:
    import numpy as np

    if isinstance(value, np.dtype):
        return f"numpy.dtype({value.name!r})"
    if isinstance(value, type) and issubclass(value, np.generic):
        return f"numpy.dtype({np.dtype(value).name!r})"
    if isinstance(value, np.generic):
        return f"numpy.{value.dtype.name}({_format(value.item(), {})})"
    raise TypeError(f"an argument of type {type(value).__name__} has no spelling in IR text")
