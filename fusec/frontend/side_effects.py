"""What a traced run changed of the Python that outlives it: counters, lists, dicts, globals, attributes.

A compiled call repeats what the function does to arrays, and nothing else. So a run that changed other state is taken
back and refused; the call then runs as written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import is_
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any

from fusec.errors import UnsupportedOpError
from fusec.frontend.capture import CallSpec, flatten
from fusec.frontend.counters import COUNTING, IntegerAttribute, counters_in, is_counter
from fusec.frontend.guards import is_user_class
from fusec.ir.graph import Builder, Location

_MISSING = object()
_MOST_PARTS = 256
"""Of a longer container the first parts are looked into; the container itself is held whole."""

Holder = dict[Any, Any] | list[Any] | set[Any]


class StateChangedError(UnsupportedOpError):
    """A traced run changed state that outlives it; it is as it was before. Another run may find it settled.

    counters: the integers that changed, where nothing else did.
    """

    def __init__(self, what: str, location: Location | None = None, counters: Sequence[IntegerAttribute] = ()) -> None:
        self.counters = tuple(counters)
        super().__init__(
            f"the function changes {what}, which outlives the call and which a compiled call would not change; "
            "return the value instead",
            location,
        )


def refuse_late_errors(made: Builder, location: Location | None) -> None:
    """StateChangedError where a counter changes before a call that may raise: as written it would have changed."""
    counting = COUNTING.get()
    if counting is not None and counting.may_raise_late(made.finish([]).ops):
        raise StateChangedError("an integer attribute before a library call that may raise", location)


class ArgumentContainers:
    """The lists, dicts and dataclasses among a call's arguments, which a traced run gets copies of."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], is_array: Callable[[Any], bool]) -> None:
        self._given = (args, kwargs, is_array)
        self._before = self._contents()

    def check(self) -> None:
        """StateChangedError where the run has changed what is in them."""
        if self._contents() != self._before:
            raise StateChangedError("a list, a dict or an object among its arguments")

    def _contents(self) -> tuple[list[int], CallSpec]:
        leaves, spec = flatten(*self._given)
        return [id(leaf) for leaf in leaves], spec


@dataclass(frozen=True)
class _Held:
    """A container, or the ``__dict__`` of the object ``owner``, and a shallow copy of it from before."""

    owner: object
    container: Holder
    before: Holder


class Snapshots:
    """Copies, made while a function runs, of state as it was when the function first came upon it."""

    def __init__(self, is_plain: Callable[[object], bool]) -> None:
        self._is_plain = is_plain
        self._held: dict[int, _Held] = {}
        self._globals: dict[int, tuple[dict[str, object], dict[str, object]]] = {}
        self._cells: dict[tuple[int, str], object] = {}

    def see(self, frame: FrameType) -> None:
        """Code of the user's that is about to run for the first time: what its names stand for."""
        code, values = frame.f_code, frame.f_locals
        namespace: Any = frame.f_globals
        is_copy = hasattr(namespace, "original")  # in a scope for NumPy, which has cells of its own
        for name in code.co_freevars:
            if name in values and not is_copy:
                self._cells.setdefault((id(code), name), values[name])
            self.hold(values.get(name))
        namespace = namespace.original if is_copy else namespace
        _, known = self._globals.setdefault(id(namespace), (namespace, {}))
        for name in code.co_names:
            value = namespace.get(name, _MISSING)
            known.setdefault(name, value)
            self.hold(value)

    def hold(self, value: object) -> None:
        """A value that the function got hold of; what it contains, too."""
        if id(value) in self._held or isinstance(value, ModuleType | type | FunctionType):
            return
        if type(value) in (dict, list, set) or isinstance(value, dict):
            container: Any = value
            self._held[id(value)] = _Held(value, container, _contents(container))
            self._hold_parts(container.values() if isinstance(container, dict) else container)
            return
        own = getattr(value, "__dict__", None)
        if type(own) is dict:
            self._held[id(value)] = _Held(value, own, own.copy())
            self._hold_parts(part for name, part in own.items() if not name.startswith("_"))
            children = own.get("_modules")
            for child in children.values() if type(children) is dict else ():
                self.hold(child)

    def _hold_parts(self, parts: Iterable[object]) -> None:
        for part in islice(parts, _MOST_PARTS):
            if type(part) in (dict, list, set) or is_user_class(type(part)):
                self.hold(part)

    def take_all_back(self) -> None:
        """Puts everything back, after a run that failed."""
        for held in self._held.values():
            _put_back(held.container, held.before)
        for namespace, before in self._globals.values():
            for name, then in before.items():
                _assign(namespace, name, then)

    def take_back(
        self, paths: Mapping[int, str], stored: Mapping[int, set[str]], cells: Mapping[tuple[int, str], CellType]
    ) -> tuple[str, tuple[IntegerAttribute, ...]]:
        """Puts back what has changed of what outlives the run, and says what that is; empty where nothing has.

        The counters are given where nothing else has changed.

        ``paths``: by id, what was reached from outside the run, and how. ``stored``: the names that code assigns, by
        the id of the namespace. ``cells``: those of the functions that were reached.
        """
        found = [*self._changed_names(stored), *self._changed_cells(cells)]
        counters: list[IntegerAttribute] = []
        only_counts = not found
        for what, counted in self._changed_containers(paths):
            found.append(what)
            counters += counted
            only_counts = only_counts and bool(counted)
        return (found[0], tuple(counters) if only_counts else ()) if found else ("", ())

    def _changed_names(self, stored: Mapping[int, set[str]]) -> Iterator[str]:
        for key, (namespace, before) in self._globals.items():
            for name in sorted(stored.get(key, set()) & before.keys()):
                if not self._equal(namespace.get(name, _MISSING), before[name]):
                    _assign(namespace, name, before[name])
                    yield f"the global {name}"

    def _changed_cells(self, cells: Mapping[tuple[int, str], CellType]) -> Iterator[str]:
        for key, cell in cells.items():
            if key in self._cells and not self._equal(cell.cell_contents, self._cells[key]):
                cell.cell_contents = self._cells[key]
                yield f"the outer variable {key[1]}"

    def _changed_containers(self, paths: Mapping[int, str]) -> Iterator[tuple[str, tuple[IntegerAttribute, ...]]]:
        for key, held in self._held.items():
            if key not in paths or self._equal(_contents(held.container), held.before):
                continue
            if held.owner is held.container:
                _put_back(held.container, held.before)
                yield paths[key], ()
            elif names := self._changed_attributes(held):
                counters = counters_in(held.owner, names, held.before)
                _put_back(held.container, held.before)
                yield f"attributes of {paths[key]}", counters

    def _changed_attributes(self, held: _Held) -> list[str]:
        """Those of an object that differ, but for the counters of this capture."""
        own, before = vars(held.owner), held.before
        assert isinstance(before, dict)
        return [
            name
            for name in dict.fromkeys((*own, *before))
            if not is_counter(held.owner, name) and not self._equal(own.get(name, _MISSING), before.get(name, _MISSING))
        ]

    def _equal(self, now: Any, then: Any) -> bool:
        """Whether one may stand for the other: the same object, or equal plain values, in containers too."""
        if now is then:
            return True
        if type(now) is not type(then):
            return False
        if isinstance(then, list | tuple):
            return len(now) == len(then) and all(map(self._equal, now, then))
        if isinstance(then, dict):
            return list(now) == list(then) and all(map(self._equal, now.values(), then.values()))
        return (isinstance(then, set) or self._is_plain(then)) and bool(now == then)


def _contents(container: Holder) -> Holder:
    """A shallow copy; of a dict's subclass what it has as a dict, since its own methods may do anything."""
    return dict.copy(container) if isinstance(container, dict) else container.copy()


def _put_back(container: Any, before: Any) -> None:
    if isinstance(container, list):
        container[:] = before
    elif type(container) is set or not _is_untouched(container, before):
        container.clear()
        container.update(before)


def _is_untouched(container: Mapping[Any, object], before: Mapping[Any, object]) -> bool:
    same = len(container) == len(before) and all(map(is_, container.values(), before.values()))
    return same and all(map(is_, container, before))


def _assign(namespace: dict[str, object], name: str, value: object) -> None:
    if value is _MISSING:
        namespace.pop(name, None)
    elif namespace.get(name, _MISSING) is not value:
        namespace[name] = value
