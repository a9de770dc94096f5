"""What a frontend hands on: the graph of a function, and how a call feeds it and reads its results."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from fusec.ir.graph import Graph

Library = Literal["torch", "numpy", "cupy"]
Fallback = Literal["eager", "error"]
Rebuild = Callable[[Sequence[Any]], Any]
"""From the tensors of all graph outputs, in order, to what the user's function returns."""


FAILED = "{fail}"
"""Stands in the lines of a :class:`Guards` for what a failed test returns."""


@dataclass(frozen=True)
class Guards:
    """Tests as lines of a function, and the objects that the lines name. A line may raise: then a test failed."""

    lines: tuple[str, ...]
    objects: Mapping[str, object]


@dataclass(frozen=True)
class Conditions:
    """An environment's test in parts: functions that must give these very objects, a function that tests the rest
    (None where nothing is left), and tests that can stand in the code of a call (None where there are none)."""

    values: tuple[tuple[Callable[[], object], object], ...]
    rest: Callable[[], bool] | None
    guards: Guards | None = None


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


Source = ArgumentSource | ReferenceSource | IntegerSource


SAMPLING: ContextVar[bool] = ContextVar("SAMPLING", default=False)
"""Whether a capture is one of several that differ in extents alone, and must differ in numbers alone."""


@dataclass(frozen=True)
class Capture:
    """One function, captured for one signature.

    sources: one for each graph input. rebuild: makes the user's result from the output tensors; outputs
    whose port has ``mutates`` stand among them and are the mutated inputs themselves. notes: what runs
    through the library, and why.
    """

    graph: Graph
    sources: tuple[Source, ...]
    environment: Environment
    rebuild: Rebuild
    library: Library
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Static:
    """A leaf that is not a tensor: equal only to the same value of the same type.

    Plain values compare by value (floats by their digits, so ``-0.0`` is not ``0.0`` and NaN is NaN),
    all other objects by identity.
    """

    value: Any
    key: tuple[object, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", _static_key(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


_BY_VALUE = (bool, int, str, bytes, type(None), type(...), range)


def _static_key(value: Any) -> tuple[object, ...]:
    kind = type(value)
    if kind in _BY_VALUE:
        return (kind, value)
    if kind in (float, complex):
        return (kind, repr(value))
    if kind is slice:
        return (kind, *(_static_key(part) for part in (value.start, value.stop, value.step)))
    if kind.__module__ in ("numpy", "torch") and kind.__hash__ is not None:
        return (kind, repr(value), value)
    return (kind, id(value))


class _Tensor:
    """Stands for a tensor leaf in a structure."""

    def __repr__(self) -> str:
        return "*"


TENSOR = _Tensor()


@dataclass(frozen=True)
class Node:
    """A container in a structure: its type, the keys of a dict or the fields of a dataclass, its parts."""

    kind: type
    keys: tuple[object, ...]
    parts: tuple[Structure, ...]


@dataclass(frozen=True)
class Integer:
    """A plain integer from ``least`` to ``most``; those of one name are equal."""

    name: str
    least: int
    most: int


Structure = Node | Static | Integer | _Tensor


@dataclass(frozen=True)
class CallSpec:
    """The structure of a call without its tensors; hashable, so it can be part of a call's key."""

    args: tuple[Structure, ...]
    kwargs: tuple[tuple[str, Structure], ...]

    def restore(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The ``(args, kwargs)`` of this structure with these tensor leaves."""
        left = iter(leaves)
        args = tuple(rebuild(part, left) for part in self.args)
        return args, {name: rebuild(part, left) for name, part in self.kwargs}


def flatten(
    args: Sequence[Any], kwargs: Mapping[str, Any], is_tensor: Callable[[Any], bool]
) -> tuple[list[Any], CallSpec]:
    """Splits a call into its tensor leaves, in order, and its structure with the static values.

    Opens tuples (named ones too), lists, dicts and dataclass instances; all else is a leaf.
    """
    leaves: list[Any] = []
    structure = tuple(structure_of(a, is_tensor, leaves) for a in args)
    named = tuple((name, structure_of(a, is_tensor, leaves)) for name, a in kwargs.items())
    return leaves, CallSpec(structure, named)


def with_static(capture: Capture, leaves: frozenset[int]) -> Capture:
    """The capture with the array leaves of these numbers taken for weights: what is packed from them is kept."""
    ports = tuple(
        replace(port, role="parameter") if isinstance(source, ArgumentSource) and source.index in leaves else port
        for port, source in zip(capture.graph.input_ports, capture.sources, strict=True)
    )
    return replace(capture, graph=replace(capture.graph, input_ports=ports))


def leaves_of_parameters(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    is_tensor: Callable[[Any], bool],
    names: frozenset[str],
) -> frozenset[int]:
    """The numbers of the tensor leaves in the arguments of these parameters."""
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL] or [""]
    found: set[int] = set()
    leaves: list[Any] = []
    for k, value in enumerate(args):
        _add_leaves(value, positional[k].name if k < len(positional) else rest[0], is_tensor, names, leaves, found)
    for name, value in kwargs.items():
        _add_leaves(value, name, is_tensor, names, leaves, found)
    return frozenset(found)


def _add_leaves(
    value: Any,
    name: str,
    is_tensor: Callable[[Any], bool],
    names: frozenset[str],
    leaves: list[Any],
    found: set[int],
) -> None:
    before = len(leaves)
    structure_of(value, is_tensor, leaves)
    if name in names:
        found.update(range(before, len(leaves)))


def structure_of(value: Any, is_tensor: Callable[[Any], bool], leaves: list[Any]) -> Structure:
    """The structure of ``value``; its tensors are appended to ``leaves``."""
    if is_tensor(value):
        leaves.append(value)
        return TENSOR
    kind = type(value)
    if isinstance(value, tuple) and (kind is tuple or hasattr(kind, "_fields") or hasattr(kind, "n_sequence_fields")):
        return Node(kind, (), tuple(structure_of(part, is_tensor, leaves) for part in value))
    if kind is list:
        return Node(kind, (), tuple(structure_of(part, is_tensor, leaves) for part in value))
    if isinstance(value, dict):
        parts = tuple(structure_of(part, is_tensor, leaves) for part in value.values())
        return Node(kind, tuple(value), parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value))
        parts = tuple(structure_of(getattr(value, name), is_tensor, leaves) for name in names)
        return Node(kind, names, parts)
    return Static(value)


def rebuild(structure: Structure, leaves: Any) -> Any:
    """The value of this structure, its tensors taken from the iterator ``leaves``."""
    if isinstance(structure, Static):
        return structure.value
    if isinstance(structure, _Tensor):
        return next(leaves)
    assert isinstance(structure, Node), f"{structure} has no value"
    parts = [rebuild(part, leaves) for part in structure.parts]
    kind = structure.kind
    if kind is list:
        return parts
    if issubclass(kind, tuple):
        if hasattr(kind, "n_sequence_fields"):  # a struct sequence, such as the result of torch.max
            return kind(parts)
        return kind(*parts) if hasattr(kind, "_fields") else tuple(parts)
    if issubclass(kind, dict):
        return _make_dict(kind, dict(zip(structure.keys, parts, strict=True)))
    made = object.__new__(kind)
    for name, part in zip(structure.keys, parts, strict=True):
        object.__setattr__(made, str(name), part)
    return made


def _make_dict(kind: type, items: dict[object, Any]) -> Any:
    if kind is dict:
        return items
    if dataclasses.is_dataclass(kind):  # such as a Hugging Face ModelOutput: a dict whose entries are fields
        return kind(**{str(name): value for name, value in items.items()})
    made = kind()
    made.update(items)
    return made


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
