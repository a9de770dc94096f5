# SPDX-License-Identifier: Apache-2.0
"""What a traced run changed of the Python that outlives it: counters, lists, dicts, globals, attributes.

A compiled call repeats what the function does to arrays, and nothing else. So a run that changed other state is taken
back and refused; the call then runs as written.
"""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from io import BytesIO, IOBase, StringIO
from itertools import islice
from types import BuiltinMethodType, CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from fusec.errors import UnsupportedOpError
from fusec.frontend.cells import assigned_cells, content_of, imported, refill
from fusec.frontend.counters import IntegerAttribute, counters_in, is_counter
from fusec.frontend.generators import HeldGenerator, held_generator
from fusec.frontend.held import State, contents, is_torch_tensor, parts, put_back, same_parts
from fusec.frontend.insides import MISSING
from fusec.frontend.kinds import true_value
from fusec.frontend.memos import HeldMemo, MemoCall, is_memo
from fusec.frontend.raw import attributes_of, classes_of, is_a, is_in_class, items_of, table_of, values_of
from fusec.frontend.source import code_location, is_user_file
from fusec.frontend.stand_in_types import adds_stand_ins
from fusec.frontend.standing_for import STANDS
from fusec.frontend.state_errors import StateChangedError
from fusec.frontend.structures import CallSpec, Opens, flatten, opens_none

_MOST_PARTS = 256
"""Of a longer container the first parts are looked into; the container itself is held whole."""

_MOST_HELD = 20000
"""Values that are held together."""

_MOST_BYTES = 1 << 26
"""Larger arrays are not held."""

_HOLDERS: tuple[type, ...] = (
    *(threading.local, threading.Event, threading.Semaphore, threading.Barrier, StringIO, BytesIO),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet),
)
"""Whose modules are no user's, and what they hold is."""

LOCKS: tuple[type, ...] = (type(threading.Lock()), type(threading.RLock()))
_ON_LOCKS = ("acquire", "release")

_OPAQUE = frozenset(
    (
        "fusec",
        "logging",
        "threading",
        "_thread",
        "multiprocessing",
        "asyncio",
        "concurrent",
        "io",
        "_io",
        "os",
        "re",
        "weakref",
        "torch._ops",  # operations note how they are dispatched
    )
)
"""Modules and packages whose objects are no state of the user's.

What a traced function sees in place of a library is ours.
"""


class ArgumentContainers:
    """The lists, dicts and dataclasses among a call's arguments, which a traced run gets copies of."""

    def __init__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        is_array: Callable[[Any], bool],
        opens: Opens = opens_none,
    ) -> None:
        self._given = (args, kwargs, is_array, opens)
        self._before = self._contents()

    def check(self) -> None:
        """StateChangedError where the run has changed what is in them."""
        if self._contents() != self._before:
            raise StateChangedError("a list, a dict or an object among its arguments")

    def _contents(self) -> tuple[list[int], CallSpec]:
        leaves, spec = flatten(*self._given)
        return [id(leaf) for leaf in leaves], spec


@dataclass
class _Held:
    """A value that holds others, and what it held before.

    path: how it is reached from outside the run; empty for one that the run may have made. is_private: reached by a
    name with an underscore, so that what a library notes there for itself is no matter.
    """

    value: object
    before: State
    path: str = ""
    is_private: bool = False


class Snapshots:
    """Copies, made while a function runs, of state as it was when the function first came upon it.

    ``holds_arrays``: NumPy's are state, too, and its generators: they are none of the arrays that are traced.
    """

    def __init__(self, is_plain: Callable[[object], bool], holds_arrays: bool = False) -> None:
        self._is_plain = is_plain
        self._held: dict[int, _Held] = {}
        self._globals: dict[int, tuple[dict[str, object], dict[str, object]]] = {}
        self._cells: dict[int, tuple[CellType, str, object]] = {}
        self._memos: dict[int, HeldMemo] = {}
        self._holds_arrays = holds_arrays
        self._generators = {0: HeldGenerator(random, random.getstate, random.setstate)}
        if holds_arrays:
            self._generators[1] = HeldGenerator(np.random, np.random.get_state, np.random.set_state)
        self._outlasting = set(self._generators)
        self._locks: dict[int, tuple[Any, int]] = {}

    def see(self, frame: FrameType, *, is_root: bool) -> None:
        """Code of the user's that is about to run for the first time: what its names stand for.

        ``is_root``: it is the function that is captured, so that what it is given outlives the run.

        UnsupportedOpError where one stands for an iterator: what is taken from it can't be put back.
        """
        code, values = frame.f_code, frame.f_locals
        namespace: Any = frame.f_globals
        is_copy = hasattr(namespace, "original")  # in a scope for NumPy, which has cells of its own
        names = frozenset(code.co_names)
        for name in code.co_freevars:
            self._meet(values.get(name), names, code, f"closure {name}" if is_root else "")
        if not is_copy:
            self._hold_cells(code)
        namespace = namespace.original if is_copy else namespace
        self._hold_names(namespace, names)
        for name in code.co_names:
            self._meet(true_value(namespace, name), names, code, f"global {name}")
        for module in imported(code, namespace):
            self._meet(module, names, code, "")
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            self._meet(values.get(name), names, code, f"argument {name}" if is_root else "")

    def see_closure(self, frame: FrameType) -> None:
        """What another function of code that has been seen may find in variables of outer functions."""
        values = frame.f_locals
        for name in frame.f_code.co_freevars:
            self.hold(values.get(name))

    def _hold_cells(self, code: CodeType) -> None:
        """The cells that code may assign to, of each function that has the code."""
        assigned = assigned_cells(code)
        functions = [f for f in gc.get_referrers(code) if is_a(f, FunctionType)] if assigned else []
        for function in functions:
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                if name in assigned and function.__code__ is code:
                    self._cells.setdefault(id(cell), (cell, name, content_of(cell)))

    def _hold_names(self, namespace: dict[str, object], names: Iterable[str]) -> None:
        _, known = self._globals.setdefault(id(namespace), (namespace, {}))
        for name in names:
            known.setdefault(name, true_value(namespace, name, MISSING))

    def _meet(self, value: object, names: frozenset[str], code: CodeType, path: str) -> None:
        """A value that code has a name for; ``names`` are those of attributes that the code may read."""
        if is_a(value, ModuleType):
            file = getattr(value, "__file__", None)
            if file is None or is_user_file(file):
                self._hold_names(vars(value), names)
            return
        if value is None or is_torch_tensor(value) or (self._is_plain(value) and not is_a(value, Enum)):
            return
        self.hold(value, path)
        own = attributes_of(value) or {}
        found = [held for name, held in items_of(own) if name in names]
        classes = (*_bases(value), *classes_of(type(value)))
        known_to_class = [held for cls in classes for name, held in table_of(cls).items() if name in names]
        for part in (*found, *known_to_class):
            self.hold(part, path)
        for part in (value, *found, *known_to_class):
            self._note_memo(part)
        containers = [part for part in (value, *found) if is_a(part, list, tuple, dict, deque)]
        inner = [part for container in containers for part in islice(values_of(container), _MOST_PARTS)]
        for part in (value, *found, *inner):
            if path and issubclass(type(part), Iterator) and not is_a(part, IOBase):
                raise UnsupportedOpError(
                    f"the function may take from {path} ({type(part).__name__}), which outlives the call; "
                    "take from it outside, and pass what it gave",
                    code_location(code),
                )
            generator = held_generator(part, path, of_arrays=self._holds_arrays)
            if generator is not None:
                self._generators.setdefault(id(part), generator)
                if path:
                    self._outlasting.add(id(part))

    def _note_memo(self, value: object) -> None:
        """A function that remembers its results, as a method of a class, too."""
        value = value.__func__ if is_a(value, staticmethod, classmethod) else value  # type: ignore[attr-defined]
        if is_memo(value) and id(value) not in self._memos:
            self._memos[id(value)] = HeldMemo(value)

    def note_lock(self, frame: FrameType, method: Any) -> None:
        """A lock that the user's code is about to take or to give back.

        StateChangedError for one that is taken already: whether it is got shows in no result.
        """
        lock, name = method.__self__, method.__name__
        if name not in _ON_LOCKS or not is_user_file(frame.f_code.co_filename):
            return
        if name == "acquire" and type(lock) is type(threading.Lock()) and lock.locked():
            raise StateChangedError("a lock, which is taken,", code_location(frame.f_code))
        taken = self._locks.get(id(lock), (lock, 0))[1] + (1 if name == "acquire" else -1)
        self._locks[id(lock)] = (lock, taken)

    def _put_locks_back(self) -> bool:
        """Whether the run left one taken, or gave one back that it had not taken; it is as it was before.

        Another thread may hold one: an attempt to take it got none, or it was free for a moment.
        """
        left = [(lock, count) for lock, count in self._locks.values() if count]
        self._locks.clear()
        for lock, count in left:
            for _ in range(abs(count)):
                if count < 0:
                    lock.acquire(blocking=False)
                    continue
                with suppress(RuntimeError):
                    lock.release()
        return bool(left)

    def hold(self, value: object, path: str = "") -> None:
        """A value that the function got hold of; what it contains, too. ``path``: how it is reached from outside."""
        waiting = [(value, path, False)]
        while waiting:
            value, path, is_private = waiting.pop()
            known = self._held.get(id(value))
            if known is not None and (known.path or not path):
                continue
            is_plain = self._is_plain(value) and not is_a(value, Enum)
            if is_plain or len(self._held) > _MOST_HELD or not self._is_holder(value):
                continue
            state = contents(value)
            if known is not None:
                known.path, known.is_private = path, is_private
            elif state is not None:
                self._held[id(value)] = _Held(value, state, path, is_private)
            elif not is_a(value, tuple, frozenset, BuiltinMethodType):
                continue
            for name, part in islice(parts(value, state), _MOST_PARTS):
                self._note_memo(part)
                inner = is_private or (name.startswith("_") and name != "_modules")
                if not path and (inner or type(part) not in (dict, list, set, deque)):
                    continue
                waiting.append((part, path, inner))
            if path:
                classes = _bases(value)[1:] if is_a(value, type) else classes_of(type(value))
                waiting += [(cls, path, is_private) for cls in classes]

    def let_go(self, values: Iterable[object]) -> None:
        """Values that are no state any more."""
        for value in values:
            self._held.pop(id(value), None)

    def outlasting(self) -> set[int]:
        """The ids of values that are reached from outside the run."""
        return {key for key, held in self._held.items() if held.path}

    def _is_holder(self, value: object) -> bool:
        if is_a(value, np.ndarray):
            return self._holds_arrays and type(value) is np.ndarray and value.nbytes <= _MOST_BYTES
        if is_a(value, *_HOLDERS) or is_in_class(type(value), STANDS):
            return True
        module = table_of(type(value)).get("__module__")
        is_opaque = type(module) is str and (module in _OPAQUE or module.partition(".")[0] in _OPAQUE)
        return not is_torch_tensor(value) and not is_opaque

    def take_all_back(self) -> None:
        """Puts everything back, after a run that failed."""
        self._put_locks_back()
        for held in self._held.values():
            put_back(held.value, held.before)
        for namespace, before in self._globals.values():
            for name, then in before.items():
                _assign(namespace, name, then)
        for cell, _, content in self._cells.values():
            if content_of(cell) is not content:
                refill(cell, content)
        for memo in self._memos.values():
            memo.forget(memo.added())
        self._put_generators_back()

    def _put_generators_back(self) -> None:
        for generator in self._generators.values():
            generator.put_back()

    def fresh_calls(
        self,
        is_stand_in: Callable[[object], bool],
        is_array: Callable[[object], bool],
        is_lasting: Callable[[object], bool],
    ) -> tuple[str, tuple[MemoCall, ...]]:
        """The calls of which the run was the first and that left in a cache what stands for arrays, or arrays of
        arguments that are there in this run alone. They are taken out again.

        The name of a function that keeps some, and no calls, where they can't be made without the run.
        """
        name, calls, known = "", [], True
        for memo in self._memos.values():
            for key, result in memo.added().items():
                call = memo.call(key)
                lasts = all(map(is_lasting, (*call.args, *call.kwargs.values())))
                if is_stand_in(result) or (not lasts and is_array(result)):
                    name = memo.name
                    calls.append(call)
                    known = known and lasts
                elif lasts:
                    continue
                memo.forget([key])
        return name, tuple(calls) if known else ()

    def called_for_arrays(self, is_array: Callable[[object], bool], but: Container[int]) -> str:
        """The name of a function that the run has called and whose cache keeps arrays; empty where there is none.

        ``but``: the ids of those whose results are known to be kept.
        """
        for key, memo in self._memos.items():
            if key not in but and memo.was_called and any(map(is_array, memo.kept)):
                return memo.name
        return ""

    def remembered(self) -> Iterator[tuple[str, Any]]:
        """What caches keep, with the names of their functions."""
        for memo in self._memos.values():
            for kept in memo.kept:
                yield f"what {memo.name} keeps", kept

    def forget_stand_ins(self) -> None:
        """Takes out of tables what a library noted about the types that stood in for arrays' own."""
        for held in self._held.values():
            if is_a(held.value, dict):
                now = contents(held.value)
                if now is not None and len(now.keys) > len(held.before.keys) and adds_stand_ins(now, held.before):
                    put_back(held.value, held.before)

    def take_back(
        self,
        paths: Mapping[int, str],
        cells: Set[int],
        is_array: Callable[[object], bool],
    ) -> tuple[str, tuple[IntegerAttribute, ...]]:
        """Puts back what has changed of what outlives the run, and says what that is; empty where nothing has.

        The counters are given where nothing else has changed.

        ``paths``: by id, what was reached from outside the run, and how.
        ``cells``: the ids of those of functions that were reached so.
        """
        found = [*self._changed_names(), *self._changed_cells(cells), *self._changed_generators(paths)]
        counters: list[IntegerAttribute] = []
        only_counts = not found
        for what, counted in self._changed_containers(paths, is_array):
            found.append(what)
            counters += counted
            only_counts = only_counts and bool(counted)
        if self._put_locks_back():
            found.append("whether a lock is taken")
            only_counts = False
        if not found:
            self._put_generators_back()
            return "", ()
        self.take_all_back()  # what a library noted for itself goes with what it is about
        return found[0], tuple(counters) if only_counts else ()

    def _changed_names(self) -> Iterator[str]:
        for namespace, before in self._globals.values():
            for name in before:
                if not self._equal(true_value(namespace, name, MISSING), before[name]):
                    _assign(namespace, name, before[name])
                    yield f"the global {name}"

    def _changed_cells(self, cells: Set[int]) -> Iterator[str]:
        for key in self._cells.keys() & cells:
            cell, name, before = self._cells[key]
            if not self._equal(content_of(cell), before):
                refill(cell, before)
                yield f"the outer variable {name}"

    def _changed_containers(
        self, paths: Mapping[int, str], is_array: Callable[[object], bool]
    ) -> Iterator[tuple[str, tuple[IntegerAttribute, ...]]]:
        for key, held in self._held.items():
            path = paths.get(key) or held.path
            if not path:
                continue
            now = contents(held.value)
            if now is None or (held.is_private and not _has_new(now, held.before, is_array)):
                continue
            if self._has_other_parts(now, held.before):
                put_back(held.value, held.before)
                yield path, ()
            elif names := self._changed_attributes(held, now):
                counters = counters_in(held.value, names, held.before)
                put_back(held.value, held.before)
                yield f"attributes of {path}", counters

    def _has_other_parts(self, now: State, then: State) -> bool:
        same = self._equal
        return not (same_parts(now.keys, then.keys, same) and same_parts(now.parts, then.parts, same))

    def _changed_attributes(self, held: _Held, now: State) -> list[str]:
        """Those of an object that differ, but for the counters of this capture."""
        own, before = now.names(), held.before.names()
        found = ["__class__"] if now.kind is not held.before.kind else []
        return found + [
            name
            for name in dict.fromkeys((*own, *before))
            if not is_counter(held.value, name) and not self._equal(own.get(name, MISSING), before.get(name, MISSING))
        ]

    def _changed_generators(self, paths: Mapping[int, str]) -> Iterator[str]:
        outside = self._outlasting | paths.keys()
        for key, generator in self._generators.items():
            if key in outside and generator.has_drawn():
                yield generator.what

    def _equal(self, now: Any, then: Any) -> bool:
        """Whether one may stand for the other: the same object, or equal plain values, in containers too."""
        if now is then:
            return True
        if type(now) is not type(then):
            return False
        if type(then) in (list, deque) or is_a(then, tuple):
            return same_parts(values_of(now), values_of(then), self._equal)
        if type(then) is dict:
            return same_parts(list(now), list(then), self._equal) and same_parts(
                list(now.values()), list(then.values()), self._equal
            )
        if type(then) is np.ndarray:
            return same_parts(now, then, self._equal)
        if type(then) is set:
            return set(map(id, now)) == set(map(id, then)) or (all(map(self._is_plain, then)) and bool(now == then))
        return self._is_plain(then) and bool(now == then)


def _bases(value: Any) -> tuple[type, ...]:
    """Of a class, itself and its bases; nothing of another value."""
    return classes_of(value) if is_a(value, type) else ()


def _has_new(now: State, then: State, is_array: Callable[[object], bool]) -> bool:
    """Whether there is an array that was not there before."""
    known = set(map(id, _all_parts(then)))
    return any(id(part) not in known and is_array(part) for part in _all_parts(now))


def _all_parts(state: State) -> list[Any]:
    parts = state.parts if type(state.parts) is list else []
    return [*parts, *state.names().values()]


def _assign(namespace: dict[str, object], name: str, value: object) -> None:
    if true_value(namespace, name, MISSING) is value:
        return
    if value is MISSING:
        del namespace[name]
    else:
        namespace[name] = value
