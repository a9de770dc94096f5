# SPDX-License-Identifier: Apache-2.0
"""``type`` as traced code sees it: the type of a stand-in is that of what it stands for.

A stand-in says what it stands for by its ``__class__``, which ``isinstance`` and ``x.__class__`` ask for; ``type(x)``
does not. So ``type`` means :class:`KindOf` in the user's code that a capture runs: in copies of functions by their view
of the globals, and elsewhere by a name in the globals that the code finds, from its first call to the end of the run.
Other threads that run this code meanwhile find the same name, which for all but stand-ins gives what ``type`` does.
"""

from __future__ import annotations

import builtins
import dis
import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from fusec.errors import UnsupportedOpError
from fusec.frontend.source import code_location

_MISSING: Any = object()


class StandIn:
    """What stands for an object of a library while a function is traced; its ``__class__`` says of which type."""

    __slots__ = ()


class _KindOf(type):
    """Makes :class:`KindOf` behave as ``type``."""

    def __new__(mcs, name: str, bases: tuple[type, ...], members: dict[str, Any], **given: Any) -> Any:
        if _KindOf in map(type, bases):  # a metaclass that other code makes of it outlives the capture
            return type(name, tuple(type if type(base) is _KindOf else base for base in bases), members, **given)
        return super().__new__(mcs, name, bases, members)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs:
            return type(*args, **kwargs)
        kind = type(args[0])
        if kind is type or kind is _KindOf:
            return cls
        return args[0].__class__ if issubclass(kind, StandIn) else kind

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type)

    def __eq__(cls, other: object) -> bool:
        return other is type or other is cls

    def __hash__(cls) -> int:
        return hash(type)

    def __repr__(cls) -> str:
        return repr(type)


class KindOf(type, metaclass=_KindOf):
    """Stands for ``type`` in a traced function."""


KindOf.__name__ = KindOf.__qualname__ = "type"


def true_value(namespace: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """What a name stands for in a module's globals, seen past what a capture put there, on whatever thread."""
    found = namespace.get(name, default)
    if found is not KindOf:
        return found
    with _lock:
        stand_in = _stand_ins.get((id(namespace), name))
        return found if stand_in is None else default if stand_in.before is _MISSING else stand_in.before


class _StandIn:
    """A name that means :class:`KindOf` now. ``users``: how many captures need it; ``before``: what it meant."""

    __slots__ = ("before", "namespace", "users")

    def __init__(self, namespace: dict[str, Any], before: Any) -> None:
        self.namespace = namespace
        self.before = before
        self.users = 0


_lock = threading.RLock()
_stand_ins: dict[tuple[int, str], _StandIn] = {}


class Kinds:
    """The names that one capture has made mean :class:`KindOf`, until it is left."""

    def __init__(self) -> None:
        self._mine: set[tuple[int, str]] = set()

    def enter(self, code: CodeType, namespace: dict[str, Any], values: Mapping[str, object]) -> None:
        """Code that is about to run, and its variables.

        UnsupportedOpError where it has ``type`` by another way than a global name.
        """
        reads = _reads(code)
        for name in reads.globals:
            found = true_value(namespace, name, _MISSING)
            if found is type or (found is _MISSING and name == "type"):
                self._install(namespace, name)
            elif reads.asks_builtins and found is builtins:
                raise UnsupportedOpError(
                    f"the function may ask for an array's type by {name}.type; write type(x)", code_location(code)
                )
        for name in code.co_freevars:
            self.check(code, name, values.get(name))

    def check(self, code: CodeType, name: str, value: object) -> None:
        """UnsupportedOpError for an argument, or an outer variable, that is ``type``."""
        if value is type:
            message = f"the function may ask for an array's type by the name {name}; write type(x)"
            raise UnsupportedOpError(message, code_location(code))

    def _install(self, namespace: dict[str, Any], name: str) -> None:
        key = (id(namespace), name)
        if key in self._mine:
            return
        with _lock:
            stand_in = _stand_ins.get(key)
            if stand_in is None:
                stand_in = _stand_ins[key] = _StandIn(namespace, namespace.get(name, _MISSING))
                namespace[name] = KindOf
            stand_in.users += 1
            self._mine.add(key)

    def leave(self) -> None:
        """Gives the names back that no other capture needs."""
        with _lock:
            for key in self._mine:
                stand_in = _stand_ins[key]
                stand_in.users -= 1
                if stand_in.users:
                    continue
                del _stand_ins[key]
                if stand_in.namespace.get(key[1]) is not KindOf:  # the code has assigned it
                    continue
                if stand_in.before is _MISSING:
                    del stand_in.namespace[key[1]]
                else:
                    stand_in.namespace[key[1]] = stand_in.before
            self._mine.clear()


class _Reads:
    """The global names that code reads and does not assign. ``asks_builtins``: it reads an attribute ``type``."""

    __slots__ = ("asks_builtins", "globals")

    def __init__(self, instructions: Iterable[dis.Instruction]) -> None:
        read: dict[str, None] = {}
        stored: set[str] = set()
        self.asks_builtins = False
        for instruction in instructions:
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                read[instruction.argval] = None
            elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME"):
                stored.add(instruction.argval)
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM") and instruction.argval == "type":
                self.asks_builtins = True
        self.globals = tuple(name for name in read if name not in stored)


@lru_cache(maxsize=1024)
def _reads(code: CodeType) -> _Reads:
    return _Reads(dis.get_instructions(code))
