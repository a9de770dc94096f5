"""Values that hold others: what is in them, and how it is put back."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from operator import is_
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fusec.frontend.source import is_user_file

MISSING = object()


def contents(value: Any) -> Any:
    """A shallow copy of what a value holds: a container's parts, an object's, a class's or a function's attributes.

    None where it holds nothing that a function may change, or is not the user's to change (a library's module).
    """
    kind = type(value)
    if kind in (list, set, deque, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return dict.copy(value)  # its own methods may do anything
    if isinstance(value, ModuleType):
        return None
    if isinstance(value, type):
        return dict(vars(value)) if _is_users(value.__module__) else None
    own = getattr(value, "__dict__", None)
    slots = {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}
    if type(own) is not dict:
        return slots or None
    return {**own, **slots}


def put_back(value: Any, before: Any) -> None:
    """Makes a value hold what it held; one that still does is not touched."""
    if isinstance(value, list | np.ndarray):
        value[:] = before
    elif isinstance(value, deque):
        value.clear()
        value.extend(before)
    elif isinstance(value, set):
        value.clear()
        value.update(before)
    elif isinstance(value, dict):
        if not _is_untouched(value, before):
            value.clear()
            value.update(before)
    elif type(getattr(value, "__dict__", None)) is dict and not _slots(type(value)):
        put_back(value.__dict__, before)
    else:
        _put_back_attributes(value, before)


def parts(value: Any, state: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds, with the names of attributes."""
    if isinstance(value, tuple | frozenset | list | set | deque):
        yield from (("", part) for part in value)
    elif isinstance(value, dict):
        yield from (("", part) for part in state.values())
    elif isinstance(value, MethodType):
        yield "", value.__self__
    elif isinstance(value, functools.partial):
        yield from (("", part) for part in (value.func, value.args, value.keywords))
    elif not isinstance(value, type | FunctionType | np.ndarray) and state is not None:
        yield from state.items()


def is_torch_tensor(value: object) -> bool:
    """Whether it is one of PyTorch's, if that is there."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_users(module: str) -> bool:
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    return found is None or module == "__main__" or (file is not None and is_user_file(file))


def _slots(kind: type) -> tuple[str, ...]:
    """The names of the slots of a class of the user's."""
    if kind not in _known_slots:
        classes = kind.__mro__ if _is_users(kind.__module__) else ()
        found = [name for cls in classes for name, held in vars(cls).items() if type(held) is MemberDescriptorType]
        _known_slots[kind] = tuple(dict.fromkeys(found))
    return _known_slots[kind]


_known_slots: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()


def _put_back_attributes(value: Any, before: Mapping[str, Any]) -> None:
    now = contents(value) or {}
    for name in now.keys() - before.keys():
        delattr(value, name)
    for name, held in before.items():
        if now.get(name, MISSING) is not held:
            setattr(value, name, held)


def _is_untouched(container: Mapping[Any, object], before: Mapping[Any, object]) -> bool:
    same = len(container) == len(before) and all(map(is_, container.values(), before.values()))
    return same and all(map(is_, container, before))
