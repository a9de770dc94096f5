# SPDX-License-Identifier: Apache-2.0
"""What a function may return: nothing in which a stand-in for an array stays behind."""

from __future__ import annotations

import gc
import re
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from fusec.errors import CaptureError, DataDependentError
from fusec.frontend.garbage import collect_while
from fusec.frontend.plain import is_plain
from fusec.frontend.raw import is_a, is_object
from fusec.frontend.structures import Again, Node, Static, Structure, leaves_in, nodes_in
from fusec.location import Location

_TEXT = re.compile(r"<traced \w|\bFakeTensor\b")
"""How stand-ins show themselves in a text."""

_PLAIN = (str, bytes, int, float, complex, type(None), type, ModuleType, CodeType, FrameType)
_MOST_SEEN = 100_000


class HoldsArraysError(CaptureError):
    """A returned object, which no call can make, holds arrays."""


class MadeObjects:
    """The objects of a result that a run may have made: each call gets new ones.

    ``outlasting``: ids of those that are known to have been there before. Of others it shows afterwards, when the
    run's own have gone.
    """

    def __init__(self, outlasting: Set[int]) -> None:
        self._outlasting = outlasting
        self._references: dict[int, weakref.ref[Any]] = {}

    def opens(self, value: Any, inside: bool) -> bool:
        """Whether an object is looked into."""
        if id(value) in self._outlasting or is_plain(value) or not is_object(value):
            return False
        torch = sys.modules.get("torch")
        return torch is None or not is_a(value, torch.nn.Module)

    def note(self, containers: Sequence[Any]) -> None:
        """What was opened, by number."""
        for number, value in enumerate(containers):
            if is_object(value) and type(value).__weakrefoffset__:
                self._references[number] = weakref.ref(value)

    def settled(self, structure: Structure) -> Structure:
        """The structure with the objects themselves that are still there and hold no arrays."""
        collect_while(lambda: any(r() is not None for r in self._references.values()))
        alive = {number: value for number, r in self._references.items() if (value := r()) is not None}
        if not alive:
            return structure
        inner = {
            n.number for node in nodes_in(structure) if node.number in alive for n in nodes_in(node)
        } - alive.keys()
        if any(type(part) is Again and part.number in inner for n in nodes_in(structure) for part in n.parts):
            return structure
        return _with_objects(structure, alive)


def _with_objects(structure: Structure, alive: Mapping[int, Any]) -> Structure:
    if isinstance(structure, Again) and not structure.is_leaf and structure.number in alive:
        return Static(alive[structure.number])
    if not isinstance(structure, Node):
        return structure
    if structure.number in alive and not _leads_out(structure):
        return Static(alive[structure.number])
    return replace(structure, parts=tuple(_with_objects(part, alive) for part in structure.parts))


def _leads_out(node: Node) -> bool:
    """Whether there is an array below a node, or what stands elsewhere."""
    own = {inner.number for inner in nodes_in(node)}
    parts = [part for inner in nodes_in(node) for part in inner.parts]
    return leaves_in(node) > 0 or any(type(part) is Again and part.number not in own for part in parts)


def check_result(structure: Structure, is_stand_in: Callable[[Any], bool], location: Location | None) -> None:
    """CaptureError for a returned object that holds stand-ins where they can't be replaced; DataDependentError for a
    text made of an array's elements."""
    if isinstance(structure, Static):
        _check_value(structure.value, is_stand_in, location)
    elif isinstance(structure, Node):
        for key in structure.keys:
            _check_value(key, is_stand_in, location)
        for part in structure.parts:
            check_result(part, is_stand_in, location)


def _check_value(value: Any, is_stand_in: Callable[[Any], bool], location: Location | None) -> None:
    if isinstance(value, str):
        if _TEXT.search(value):
            message = "a text in the result shows elements of an array, which are known only when the function runs"
            raise DataDependentError(message, location)
    elif leads_to(value, is_stand_in):
        raise HoldsArraysError(
            f"the function returns a {type(value).__name__} with arrays in it; "
            "return tuples, lists, dicts or dataclasses",
            location,
        )


def leads_to(value: Any, is_stand_in: Callable[[Any], bool]) -> bool:
    """Whether an object leads to a stand-in, or to what else is looked for: through attributes, items, closures, or
    what an iterator has yet to do."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < _MOST_SEEN:
        part = waiting.pop()
        if is_stand_in(part):
            return True
        if isinstance(part, _PLAIN):
            continue
        if isinstance(part, FunctionType):
            found = [part.__closure__, part.__defaults__, part.__kwdefaults__, part.__dict__]
        else:
            found = gc.get_referents(part)
        for held in found:
            if id(held) not in seen:
                seen.add(id(held))
                waiting.append(held)
    return False
