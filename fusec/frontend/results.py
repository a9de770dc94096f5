"""What a function may return: nothing in which a stand-in for an array stays behind."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from fusec.errors import CaptureError, DataDependentError
from fusec.frontend.capture import Node, Static, Structure
from fusec.ir.graph import Location

_TEXT = re.compile(r"<traced \w+\[|\bFakeTensor\(")
"""How stand-ins show themselves in a text."""

_PLAIN = (str, bytes, int, float, complex, type(None), type, ModuleType, CodeType, FrameType)
_MOST_SEEN = 100_000


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
    elif _holds(value, is_stand_in):
        raise CaptureError(
            f"the function returns a {type(value).__name__} with arrays in it; "
            "return tuples, lists, dicts or dataclasses",
            location,
        )


def _holds(value: Any, is_stand_in: Callable[[Any], bool]) -> bool:
    """Whether an object leads to a stand-in: through attributes, items, closures, or what an iterator has yet to do."""
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
