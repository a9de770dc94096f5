# SPDX-License-Identifier: Apache-2.0
"""The structure of calls and results: containers and objects, the plain values in them, and where tensors stand.

Containers and objects are opened and made past all that their classes redefine (:mod:`fusec.frontend.raw`): no
``__init__`` runs, and what was in an object's ``__dict__`` and slots is in the new one's.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusec.frontend import raw

Opens = Callable[[Any, bool], bool]
"""Whether an object is opened, beside containers and dataclasses; and whether it is inside one that was."""


def opens_none(value: Any, inside: bool) -> bool:
    """Where containers and dataclasses alone are opened."""
    return False


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
    """A container or an object in a structure: its type, the keys of a dict or the names of an object's attributes,
    its parts.

    The attributes of a dict that is of another class than :class:`dict` are one part more, a node of
    :class:`Attributes`. All but tuples have a number, from outside in; in results tuples have one, too.
    """

    kind: type
    keys: tuple[object, ...]
    parts: tuple[Structure, ...]
    number: int = dataclasses.field(default=-1, compare=False)


class Attributes:
    """The kind of a node that holds the attributes of a container."""


@dataclass(frozen=True)
class Again:
    """What has stood before: a node by its number, or a leaf."""

    number: int
    is_leaf: bool = False


@dataclass(frozen=True)
class Given:
    """In a result: the caller's own container or tensor of this number among those of the call."""

    number: int
    is_leaf: bool = False


@dataclass(frozen=True)
class Integer:
    """A plain integer from ``least`` to ``most``; those of one name are equal."""

    name: str
    least: int
    most: int


Structure = Node | Static | Integer | Again | Given | _Tensor


@dataclass(frozen=True)
class CallSpec:
    """The structure of a call without its tensors; hashable, so it can be part of a call's key."""

    args: tuple[Structure, ...]
    kwargs: tuple[tuple[str, Structure], ...]

    def restore(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The ``(args, kwargs)`` of this structure with these tensor leaves."""
        return self.restored(leaves)[:2]

    def restored(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any], dict[int, Any]]:
        """``(args, kwargs)``, and the containers in them by their numbers."""
        maker = Maker(iter(leaves))
        args = tuple(maker.make(part) for part in self.args)
        return args, {name: maker.make(part) for name, part in self.kwargs}, maker.made


def flatten(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    is_tensor: Callable[[Any], bool],
    opens: Opens = opens_none,
) -> tuple[list[Any], CallSpec]:
    """Splits a call into its tensor leaves, in order, and its structure with the static values.

    Opens tuples (named ones too), lists, dicts, dataclass instances, and what ``opens`` says; all else is a leaf.
    """
    opener = Opener(is_tensor, [], opens)
    structure = tuple(map(opener.open, args))
    named = tuple((name, opener.open(a)) for name, a in kwargs.items())
    return opener.leaves, CallSpec(structure, named)


def structure_of(
    value: Any, is_tensor: Callable[[Any], bool], leaves: list[Any], opens: Opens = opens_none
) -> Structure:
    """The structure of ``value``, a result; its tensors are appended to ``leaves``."""
    return Opener(is_tensor, leaves, opens, of_result=True).open(value)


class Opener:
    """Opens values one after the other; ``leaves`` are their tensors, ``containers`` what was opened, by number.

    ``known``: parts that stand for values met elsewhere, by identity. ``of_result``: a tuple that stands twice is one
    object; among arguments two that are equal are alike.
    """

    def __init__(
        self,
        is_tensor: Callable[[Any], bool],
        leaves: list[Any],
        opens: Opens,
        known: Mapping[int, Structure] = {},
        *,
        of_result: bool = False,
    ) -> None:
        self.leaves = leaves
        self.containers: list[Any] = []
        self._is_tensor = is_tensor
        self._opens = opens
        self._known = dict(known)
        self._of_result = of_result
        self._inside = False

    def open(self, value: Any) -> Structure:
        known = self._known.get(id(value))
        if known is not None:
            return known
        if self._is_tensor(value):
            self.leaves.append(value)
            return TENSOR
        kind = type(value)
        if issubclass(kind, tuple):
            if kind is tuple or hasattr(kind, "_fields") or hasattr(kind, "n_sequence_fields"):
                return self._tuple(value, kind)
            return Static(value)
        is_object = self._opens(value, self._inside)
        if is_object or kind is list or issubclass(kind, dict) or is_data(value):
            number = len(self.containers)
            self._known[id(value)] = Again(number)
            self.containers.append(value)
            outer, self._inside = self._inside, self._inside or is_object
            node = self._container(value, kind)
            self._inside = outer
            return dataclasses.replace(node, number=number)
        return Static(value)

    def _tuple(self, value: Any, kind: type) -> Node:
        """A tuple is known once its parts are: it can't be made before them."""
        node = Node(kind, (), tuple(map(self.open, raw.values_of(value))))
        if not self._of_result:
            return node
        number = len(self.containers)
        self._known[id(value)] = Again(number)
        self.containers.append(value)
        return dataclasses.replace(node, number=number)

    def _container(self, value: Any, kind: type) -> Node:
        if kind is list:
            return Node(kind, (), tuple(map(self.open, value)))
        if not issubclass(kind, dict):
            return self._attributes(value, kind, {})
        items = raw.items_of(value)
        first = len(self.leaves)
        parts = [self.open(part) for _, part in items]
        if kind not in (dict, OrderedDict):
            own = {id(leaf): Again(first + k, True) for k, leaf in enumerate(self.leaves[first:])}
            parts.append(self._attributes(value, Attributes, own))
        return Node(kind, tuple(key for key, _ in items), tuple(parts))

    def _attributes(self, value: Any, kind: type, items: Mapping[int, Again]) -> Node:
        """``items``: tensors in the object's own items."""
        held = own_attributes(value)
        parts = tuple(items.get(id(part)) or self.open(part) for _, part in held)
        return Node(kind, tuple(name for name, _ in held), parts)


def is_data(value: Any) -> bool:
    """Whether an instance of a dataclass that holds nothing but attributes."""
    return raw.in_class(type(value), "__dataclass_fields__") is not None and raw.is_object(value)


def own_attributes(value: Any) -> list[tuple[str, Any]]:
    """An object's attributes by name, then its slots."""
    slots = [(slot.__name__, held) for slot, held in raw.slots_of(value).items()]
    table = raw.attributes_of(value)
    return [*raw.items_of(table), *slots] if table else slots


def rebuild(structure: Structure, leaves: Iterator[Any]) -> Any:
    """The value of this structure, its tensors taken from the iterator ``leaves``."""
    return Maker(leaves).make(structure)


class Maker:
    """Makes values of structures, one after the other; ``made`` are containers by number.

    ``given``: the containers and the tensors of the call, for structures of results.
    """

    def __init__(self, leaves: Iterator[Any], given: tuple[Sequence[Any], Sequence[Any]] = ((), ())) -> None:
        self.made: dict[int, Any] = {}
        self._leaves = leaves
        self._taken: list[Any] = []
        self._given = given

    def make(self, structure: Structure) -> Any:
        kind = type(structure)
        if kind is _Tensor:
            leaf = next(self._leaves)
            self._taken.append(leaf)
            return leaf
        if kind is Node:
            return self._node(structure)  # type: ignore[arg-type]
        if kind is Static:
            return structure.value  # type: ignore[union-attr]
        if kind is Again:
            return self._taken[structure.number] if structure.is_leaf else self.made[structure.number]  # type: ignore[union-attr]
        assert isinstance(structure, Given), f"{structure} has no value"
        return self._given[structure.is_leaf][structure.number]

    def _node(self, node: Node) -> Any:
        kind = node.kind
        if issubclass(kind, tuple):
            parts = list(map(self.make, node.parts))
            made = self.made[node.number] = (
                kind(parts) if hasattr(kind, "n_sequence_fields") else tuple.__new__(kind, parts)
            )
            return made
        if kind is Attributes:
            return [(name, self.make(part)) for name, part in zip(node.keys, node.parts, strict=True)]
        made = self.made[node.number] = new(kind)
        parts = list(map(self.make, node.parts))
        if kind is list:
            made += parts
        elif issubclass(kind, dict):
            self._fill_dict(made, node, parts)
        else:
            set_own_attributes(made, zip(node.keys, parts, strict=True))
        return made

    def _fill_dict(self, made: Any, node: Node, parts: Sequence[Any]) -> None:
        raw.set_items(made, zip(node.keys, parts))
        if len(parts) > len(node.keys):
            set_own_attributes(made, parts[-1])


def new(kind: type) -> Any:
    """An empty instance of a container's or an object's class."""
    base = next(b for b in (list, OrderedDict, dict, object) if issubclass(kind, b))
    return base.__new__(kind)


def set_own_attributes(value: Any, items: Any) -> None:
    """Puts attributes into an object's ``__dict__`` and slots."""
    table = raw.attributes_of(value)
    for name, part in items:
        slot = raw.slot_of(type(value), name)
        if slot is not None:
            slot.__set__(value, part)
        else:
            assert table is not None, f"{type(value).__name__} has no place for {name}"
            dict.__setitem__(table, name, part)


def nodes_in(structure: Structure) -> Iterator[Node]:
    """All nodes of a structure, the outer first."""
    if isinstance(structure, Node):
        yield structure
        for part in structure.parts:
            yield from nodes_in(part)


def leaves_in(structure: Structure) -> int:
    """How many tensors are in a structure."""
    return sum(part is TENSOR for node in nodes_in(structure) for part in node.parts) + (structure is TENSOR)


def names_in(node: Node) -> list[tuple[str, Structure]]:
    """The parts of a node with how each is spelled behind the whole's path."""
    if issubclass(node.kind, dict):
        spelled = [f"[{key!r}]" for key in node.keys]
    elif node.keys:
        spelled = [f".{key}" for key in node.keys]
    else:
        spelled = [f"[{k}]" for k in range(len(node.parts))]
    return list(zip([*spelled, ""], node.parts))
