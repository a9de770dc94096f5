# SPDX-License-Identifier: Apache-2.0
"""Where a torch function's parameters, buffers and other tensors are kept, so that each call can fetch them anew."""

from __future__ import annotations

import dis
import operator
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fusec.frontend import raw
from fusec.frontend.capture import TableEntry
from fusec.frontend.plain import is_plain
from fusec.frontend.raw import is_a
from fusec.frontend.source import is_users_module
from fusec.frontend.standing_for import compiled_of

_DEPTH = 4
"""How many containers and plain objects deep a tensor is looked for, outside of modules."""

Fetch = Callable[[], Any]


@dataclass(frozen=True)
class Reference:
    """A tensor's path, as the user would spell it, and how to fetch the tensor that is there now.

    ``others`` fetch it from further attributes that hold the same tensor, as tied weights do. ``within``: what fetches
    each tensor that it is a part of, and that tensor as it was: what else such a tensor holds says how it is computed
    with.
    """

    path: str
    fetch: Fetch
    is_parameter: bool
    others: list[Fetch] = field(default_factory=list)
    within: tuple[tuple[Fetch, Fetch], ...] = ()


class References:
    """Finds tensors that a function can reach: through itself, its globals, closure, defaults and arguments.

    ``modules`` are the modules met on the way, with their paths.
    """

    def __init__(self, function: Callable[..., object], arguments: Mapping[str, object]) -> None:
        walk = _Walk()
        walk.function(function)
        for name, value in arguments.items():
            walk.enter(name, _constant(value), value, 0)
        walk.run()
        self._found = walk.found
        self.modules: list[tuple[str, torch.nn.Module]] = walk.modules

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that were found."""
        return tuple(tensor for tensor, _ in self._found.values())

    def find(self, tensor: torch.Tensor) -> Reference | None:
        """The reference to this very tensor object, or None where it was not found."""
        entry = self._found.get(id(tensor))
        return entry[1] if entry is not None else None


class _Walk:
    """A breadth-first walk, so that the shortest path to a tensor is the one that is kept."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[torch.Tensor, Reference]] = {}
        self.modules: list[tuple[str, torch.nn.Module]] = []
        self._seen: dict[int, object] = {}
        self._queue: deque[tuple[str, Fetch, Any, int]] = deque()

    def enter(self, path: str, fetch: Fetch, value: Any, depth: int) -> None:
        """Notes a tensor, or queues what may hold tensors."""
        if is_a(value, torch.Tensor):
            self._note(value, Reference(path, fetch, isinstance(value, torch.nn.Parameter)))
        elif depth <= _DEPTH and id(value) not in self._seen and not is_a(value, int, float, str, bytes):
            self._seen[id(value)] = value
            self._queue.append((path, fetch, value, depth))

    def _note(self, tensor: torch.Tensor, reference: Reference) -> None:
        """Notes a tensor, and of one that is made of others (a quantised weight) those."""
        known = self.found.setdefault(id(tensor), (tensor, reference))[1]
        if known is not reference:
            known.others.append(reference.fetch)
        elif is_traceable_wrapper_subclass(tensor):
            within = (*reference.within, (reference.fetch, weakref.ref(tensor)))
            for name in tensor.__tensor_flatten__()[0]:
                path, fetch = f"{reference.path}.{name}", partial(_attribute, reference.fetch, name)
                part = Reference(path, fetch, reference.is_parameter, within=within)
                self._note(getattr(tensor, name), part)

    def run(self) -> None:
        while self._queue:
            self._open(*self._queue.popleft())

    def function(self, function: Callable[..., object]) -> None:
        """Enters a function, a bound method or a module as the root; its own tensors are ``self.…``."""
        owner = getattr(function, "__self__", None)
        if isinstance(function, torch.nn.Module):
            self.enter("self", _constant(function), function, 0)
        elif owner is not None:
            self.enter("self", _constant(owner), owner, 0)
            self._code_of(function, 0)
        else:
            self._code_of(function, 0)

    def _open(self, path: str, fetch: Fetch, value: Any, depth: int) -> None:
        if is_a(value, torch.nn.Module):
            module = compiled_of(value)
            self._module(path, value if module is None else module)
        elif is_a(value, dict):
            for key, part in raw.items_of(value):
                shown = repr(key) if is_plain(key) else type(key).__name__
                self.enter(f"{path}[{shown}]", partial(_item, fetch, _getter(value), key), part, depth + 1)
        elif is_a(value, list, tuple):
            for index, part in enumerate(raw.values_of(value)):
                self.enter(f"{path}[{index}]", partial(_item, fetch, _getter(value), index), part, depth + 1)
        elif is_a(value, partial):
            self.enter(f"{path}.args", partial(_attribute, fetch, "args"), value.args, depth + 1)
            self.enter(f"{path}.keywords", partial(_attribute, fetch, "keywords"), value.keywords, depth + 1)
            self._code_of(value.func, depth)
        elif is_a(value, FunctionType, MethodType):
            self._code_of(value, depth + 1)
        elif not is_a(value, type, ModuleType):
            attribute = _attribute if raw.looks_up_plainly(type(value)) else _own_attribute
            for name, part in raw.items_of(raw.attributes_of(value) or {}):
                self.enter(f"{path}.{name}", partial(attribute, fetch, name), part, depth + 1)
            self._class(path, fetch, value, depth)

    def _class(self, path: str, fetch: Fetch, value: object, depth: int) -> None:
        """Tensors kept by the user's classes. One that the object, or a class before its own, hides is its class's."""
        hidden = set(raw.attributes_of(value) or {})
        for holder in raw.classes_of(type(value)):
            table = raw.table_of(holder)
            module = table.get("__module__")
            owner = sys.modules.get(module) if type(module) is str else None
            if owner is not None and is_users_module(owner):
                for name, part in list(table.items()):
                    if is_a(part, torch.Tensor, list, dict, tuple):
                        of_class = partial(_of_class, holder, name)
                        found = of_class if name in hidden else partial(_attribute, fetch, name)
                        shown = f"{holder.__qualname__}.{name}" if name in hidden else f"{path}.{name}"
                        self.enter(shown, found, part, depth + 1)
            hidden.update(table)

    def _module(self, path: str, root: torch.nn.Module) -> None:
        """Parameters, buffers and plain tensor attributes of a module and its children, fetched from the root down."""
        for prefix, module in root.named_modules(remove_duplicate=True):
            stands_for = compiled_of(module)
            module = module if stands_for is None else stands_for
            if id(module) in self._seen and module is not root:
                continue
            self._seen[id(module)] = module
            steps = tuple(prefix.split(".")) if prefix else ()
            where = f"{path}.{prefix}" if prefix else path
            self.modules.append((where, module))
            for table in ("_parameters", "_buffers"):
                for name, tensor in module.__dict__[table].items():
                    if tensor is not None:
                        fetch: Fetch = TableEntry(root, steps, table, name)
                        self._note(tensor, Reference(f"{where}.{name}", fetch, True))
            for name, part in list(module.__dict__.items()):
                if not name.startswith("_") or isinstance(part, torch.Tensor):
                    fetch = partial(_module_attribute, root, steps, name)
                    self.enter(f"{where}.{name}", fetch, part, 2)
            self._class(where, partial(_submodule, root, steps), module, 2)
            self._code_of(type(module).forward, 1)

    def _code_of(self, function: Any, depth: int) -> None:
        """Globals, cells and defaults of a function, and of user functions that it names."""
        owner = getattr(function, "__self__", None)
        if owner is not None and not isinstance(owner, type | ModuleType):
            self.enter("self", _constant(owner), owner, depth)
        function = getattr(function, "__func__", function)
        wrapped = getattr(function, "__wrapped__", None)
        if isinstance(wrapped, FunctionType):
            self.enter("", _constant(wrapped), wrapped, depth)
        if not isinstance(function, FunctionType) or (function.__module__ or "").split(".")[0] == "torch":
            return
        names = _names(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            try:
                self.enter(name, partial(_cell, cell), cell.cell_contents, depth)
            except ValueError:  # a cell that is not filled yet
                continue
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, ModuleType):
                self._user_module(value, names, depth)
            else:
                self.enter(name, partial(_key, function.__globals__, name), value, depth)
        for position, value in enumerate(function.__defaults__ or ()):
            name = function.__code__.co_varnames[
                function.__code__.co_argcount - len(function.__defaults__ or ()) + position
            ]
            self.enter(name, _constant(value), value, depth)
        for name, value in (function.__kwdefaults__ or {}).items():
            self.enter(name, _constant(value), value, depth)

    def _user_module(self, module: ModuleType, names: Set[str], depth: int) -> None:
        if is_users_module(module):
            for name in sorted(names & module.__dict__.keys()):
                path = f"{module.__name__}.{name}"
                self.enter(path, partial(_key, module.__dict__, name), module.__dict__[name], depth + 1)


@lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    """Global and attribute names in a code object and those nested in it."""
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD")
    own = frozenset(i.argval for i in dis.get_instructions(code) if i.opname.startswith(loads))
    return own.union(*(_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)))


def _constant(value: object) -> Fetch:
    return lambda: value


def _item(fetch: Fetch, get: Callable[[Any, Any], Any], key: object) -> Any:
    return get(fetch(), key)


def _getter(container: Any) -> Callable[[Any, Any], Any]:
    """What takes an entry out of a container like this one; ``__getitem__`` of a class of the user's may do more."""
    kind = next(k for k in (dict, list, tuple) if is_a(container, k))
    return operator.getitem if type(container) is kind else kind.__getitem__


def _own_attribute(fetch: Fetch, name: str) -> Any:
    return (raw.attributes_of(fetch()) or {})[name]


def _of_class(holder: type, name: str) -> Any:
    return raw.table_of(holder)[name]


def _attribute(fetch: Fetch, name: str) -> Any:
    return getattr(fetch(), name)


def _cell(cell: Any) -> Any:
    return cell.cell_contents


def _key(table: Mapping[str, Any], name: str) -> Any:
    return table[name]


def _submodule(root: torch.nn.Module, steps: tuple[str, ...]) -> torch.nn.Module:
    for step in steps:
        found = root._modules[step]
        assert found is not None
        root = found
    return root


def _module_attribute(root: torch.nn.Module, steps: tuple[str, ...], name: str) -> Any:
    return getattr(_submodule(root, steps), name)
