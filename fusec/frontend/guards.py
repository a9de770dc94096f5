# SPDX-License-Identifier: Apache-2.0
"""Guards: a walk over values that a capture read, written out as one Python function that checks them again."""

from __future__ import annotations

import abc
import functools
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from fusec.frontend import raw
from fusec.frontend.counters import is_counter
from fusec.frontend.function_fields import fields_of
from fusec.frontend.guard_code import GuardCode
from fusec.frontend.held import is_torch_tensor, torch_layout
from fusec.frontend.insides import MISSING, inside, own_attributes
from fusec.frontend.kinds import KindOf, true_value
from fusec.frontend.plain import SCALARS, SINGLETONS, is_plain, plain_copy, same_array, same_plain, same_settings
from fusec.frontend.raw import is_a
from fusec.frontend.source import is_user_file, is_users_module
from fusec.frontend.standing_for import COMPILED, compiled_of

_FUNCTION_PARTS = ("__code__", "__defaults__", "__kwdefaults__", "__closure__")
_TABLES = ("_parameters", "_buffers", "_modules")
_LISTED = {"parameters", "named_parameters", "buffers", "named_buffers", "state_dict"}
_LISTED |= {"children", "named_children", "modules", "named_modules", *_TABLES}
_PARAMETERS_OF = {"_keys", "_size"}
"""Where PyTorch's dicts and lists of parameters keep what they have."""
_MOST_NAMES = 64
"""Attributes of one object that are guarded where code may read all of them."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_CELL_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)


@dataclass(frozen=True)
class Names:
    """What the code that ran can read: attribute names, and the ids of the code objects that ran.

    looked_for: attributes that it does not fail without (``getattr(x, "scale", 1)``), so that they count where they
    are not there. by_class: it may read what a class has and an instance, or a class before it, hides (``super()``).
    identity: it may ask which arrays are one object (``x is y``).
    """

    attributes: frozenset[str]
    executed: set[int]
    looked_for: frozenset[str] = frozenset()
    by_class: bool = False
    identity: bool = False


@dataclass
class GuardWriter:
    """Walks values from their roots and writes a guard for each one met.

    A value is checked after the one it was reached through, so each check starts from the live parent. Objects
    are kept by weak reference where they can be; a cycle ends at an object already visited. ``paths`` has the values
    met, by id, ``cells`` the ids of the cells of functions met. ``is_input``: a tensor is an input of the graph, whose
    layout calls test. ``graded``: modules' backward hooks count.
    """

    names: Names
    is_tensor: Callable[[object], bool]
    is_input: Callable[[object], bool] = lambda value: True
    graded: bool = False
    functions_visited: set[int] = field(default_factory=set)
    paths: dict[int, str] = field(default_factory=dict)
    cells: set[int] = field(default_factory=set)
    code: GuardCode = field(default_factory=GuardCode)
    _visited: set[int] = field(default_factory=set)
    _roots: set[tuple[int, str]] = field(default_factory=set)
    _kinds: set[type] = field(default_factory=set)
    _lacking: set[tuple[int, frozenset[str]]] = field(default_factory=set)
    _listed: set[int] = field(default_factory=set)
    """Ids of dicts of which all keys are guarded: a key that one does not have needs no guard of its own."""
    _alive: list[object] = field(default_factory=list)

    def has_met(self, value: object) -> bool:
        """Whether the walk has come to a value, or would not guard it."""
        kinds = (tuple, list, dict, set, frozenset, np.ndarray, FunctionType, type)
        return id(value) in self._visited or is_plain(value) or self.is_tensor(value) or is_a(value, *kinds)

    def forget(self) -> None:
        """The walk is over: what it made on the way may go."""
        self._alive.clear()

    # Roots

    def visit_global(self, namespace: dict[str, object], name: str) -> None:
        """Guards a global name of a module's namespace; a builtin is guarded against being shadowed."""
        if (id(namespace), name) in self._roots:
            return
        self._roots.add((id(namespace), name))
        where = self.code.bind(namespace)
        value = true_value(namespace, name, MISSING)
        if value is type:  # while another thread captures, it may mean something else
            self._visit(f"{self.code.bind(true_value)}({where}, {name!r})", value, f"global {name}")
        elif value is not MISSING:
            self._visit(f"{where}[{name!r}]", value, f"global {name}")
        else:
            other = f" and {where}[{name!r}] is not {self.code.bind(KindOf)}" if name == "type" else ""
            test = f"if {name!r} in {where}{other}: return {{fail}}"
            self.code.add([test], "None", f"global {name}", "a builtin")

    def visit_object(self, value: object, path: str) -> None:
        """Guards the attributes of an object that the call itself identifies, such as ``self``."""
        if is_plain(value) or id(value) in self._visited or self.is_tensor(value):
            return
        if is_a(value, tuple, list, dict, set, frozenset, np.ndarray):
            return
        self._visit(self.code.bind_weakly(value) or self.code.bind(value), value, path)

    def visit_remembered(self, value: object, path: str) -> None:
        """Guards what a cache of calls keeps: its arrays are inputs, and what is in all else counts."""
        if is_a(value, list, dict, set) and not is_plain(value):
            self._visit(self.code.bind(value), value, path)
        elif is_a(value, tuple):
            for part in raw.values_of(value):
                self.visit_remembered(part, path)
        else:
            self.visit_object(value, path)

    def visit_held(self, function: FunctionType, path: str) -> None:
        """Guards a function's code, defaults and cells."""
        if id(function) not in self._visited:
            self._visit(self.code.bind(function), function, path)

    def pin(self, path: str, read: Callable[[], object], value: object) -> None:
        """Guards the contents of what ``read`` gives."""
        self._snapshot(f"{self.code.bind(read)}()", value, path)

    def pin_identity(self, path: str, read: Callable[[], object], value: object) -> None:
        """Guards that ``read`` gives this very object."""
        self._identity(f"{self.code.bind(read)}()", value, path)

    def pin_layout(self, path: str, read: Callable[[], object], value: Any) -> None:
        """Guards the type, dtype, shape and strides of the array that ``read`` gives."""
        test = (
            f"type({{v}}) is not {self.code.bind(type(value))} or {{v}}.dtype != {self.code.bind(value.dtype)} "
            f"or {{v}}.shape != {value.shape} or {{v}}.strides != {value.strides}"
        )
        shown = f"{value.dtype}{list(value.shape)} with strides {value.strides}"
        self.code.check(f"{self.code.bind(read)}()", test, path, shown)

    # The walk

    def _visit(self, expression: str, value: Any, path: str) -> None:
        kind = type(value)
        self.paths.setdefault(id(value), path)
        if any(value is s for s in SINGLETONS):
            self.code.check(expression, "{v} is not " + repr(value), path, value, fixed=True)
        elif kind in SCALARS:
            self._scalar(expression, value, path)
        elif self.is_tensor(value):
            self._tensor_attributes(expression, value, path)
        elif is_plain(value) and kind is not tuple:
            known = self.code.bind(value)
            self.code.check(
                expression,
                f"{{v}} is not {known} and (type({{v}}) is not type({known}) or {{v}} != {known})",
                path,
                value,
                fixed=True,
            )
        elif is_a(value, tuple, list, dict, set, frozenset):
            self._container(expression, value, path)
        elif is_a(value, FunctionType):
            self._function(expression, value, path)
            for name in sorted(self.names.attributes & value.__dict__.keys()):
                self._visit(f"{expression}.__dict__[{name!r}]", value.__dict__[name], f"{path}.{name}")
            self._absent(expression, value, path)
        elif is_a(value, types.MethodType):
            v = self.code.check(expression, "type({v}) is not " + self.code.bind(kind), path, value)
            self._visit(f"{v}.__func__", value.__func__, path)
            self._visit(f"{v}.__self__", value.__self__, f"{path}.__self__")
        elif is_a(value, functools.partial):
            v = self.code.check(expression, "type({v}) is not " + self.code.bind(kind), path, value)
            for part in ("func", "args", "keywords"):
                self._visit(f"{v}.{part}", getattr(value, part), f"{path}.{part}")
        elif is_a(value, np.ndarray) or is_torch_tensor(value):
            self._snapshot(expression, value, path)
            self._tensor_attributes(expression, value, path)
        else:
            self._object(expression, value, path)

    def _scalar(self, expression: str, value: Any, path: str) -> None:
        known = self.code.bind(value)
        kind = type(value).__name__
        differs = f"{{v}} != {known}" if value else f"repr({{v}}) != {repr(value)!r}"
        if value != value:
            differs = "{v} == {v}"
        test = f"{{v}} is not {known} and (type({{v}}) is not {kind} or {differs})"
        self.code.check(expression, test, path, value, fixed=True)

    def _container(self, expression: str, value: Any, path: str) -> None:
        kind = self.code.bind(type(value))
        held = plain_copy(value)
        parts = list(held.values()) if type(held) is dict else list(held)
        is_own = type(value) is type(held)
        if type(held) in (set, frozenset) or all(is_plain(p) for p in parts):
            now = "{v}" if is_own else f"{self.code.bind(plain_copy)}({{v}})"
            test = f"type({{v}}) is not {kind} or not {self.code.bind(same_plain)}({now}, {self.code.bind(held)})"
            fixed = type(value) in (tuple, frozenset) and all(map(is_plain, parts))
            v = self.code.check(expression, test, path, held, fixed=fixed)
            self._container_attributes(v, value, path)
            return
        test = f"type({{v}}) is not {kind} or {self._length(held, is_own)} != {len(parts)}"
        if type(held) is dict:
            listed = "list({v})" if is_own else f"{self.code.bind(raw.keys_of)}({{v}})"
            test += f" or {listed} != {self.code.bind(list(held))}"
        v = self.code.check(expression, test, path, held)
        items: Iterable[tuple[Any, Any]] = held.items() if type(held) is dict else enumerate(parts)
        if type(held) is not tuple:
            if id(value) in self._visited:
                return
            self._visited.add(id(value))
        taken = v + "[{}]" if is_own else f"{self.code.bind(type(held).__getitem__)}({v}, {{}})"
        for key, part in items:
            accessor = repr(key) if type(key) in (int, str) else self.code.bind(key)
            shown = repr(key) if is_plain(key) else type(key).__name__
            self._visit(taken.replace("{}", accessor), part, f"{path}[{shown}]")
        self._container_attributes(v, value, path)

    def _container_attributes(self, v: str, value: Any, path: str) -> None:
        """What a container of a class of its own holds besides its parts."""
        if raw.attributes_of(value) is not None:
            self._attributes(v, value, self.names.attributes, path)
            self._absent(v, value, path)

    def _length(self, held: Any, is_own: bool) -> str:
        return "len({v})" if is_own else f"{self.code.bind(type(held).__len__)}({{v}})"

    def _snapshot(self, expression: str, value: Any, path: str) -> None:
        """An array used as a constant: its contents count."""
        if not isinstance(value, np.ndarray) and not is_torch_tensor(value):
            self._visit(expression, value, path)
            return
        copy = value.copy() if isinstance(value, np.ndarray) else value.detach().clone()
        test = f"not {self.code.bind(same_array)}({{v}}, {self.code.bind(copy)})"
        self.code.check(expression, test, path, f"{type(value).__name__}{tuple(value.shape)}")

    def _function(self, expression: str, function: FunctionType, path: str) -> None:
        code = function.__code__
        if not is_user_file(code.co_filename) and id(code) not in self.names.executed:
            v = self._identity(expression, function, path)
            self._wrapped(expression, function, path)
            registry = function.__dict__.get("registry")
            if is_a(registry, types.MappingProxyType):  # of functools.singledispatch
                self._visit(f"{v}.registry", registry, f"{path}.registry")
            return
        parts = {part: getattr(function, part) for part in _FUNCTION_PARTS}
        names = {part: "None" if held is None else self.code.bind(held) for part, held in parts.items()}
        fields = fields_of(function) if expression in self.code.bound else None
        if fields is not None:  # it is this very object, of which the closure can't change
            test = f"{self.code.bind(fields[0])}.raw != {self.code.bind(fields[1])}"
        else:
            test = f"type({{v}}) is not {self.code.bind(FunctionType)}"
            test += "".join(f" or {{v}}.{part} is not {name}" for part, name in names.items())
        v = self.code.check(expression, test, path, function)
        if id(function) in self._visited:
            return
        self._visited.add(id(function))
        self.functions_visited.add(id(code))
        if id(code) in self.names.executed:
            for position, value in enumerate(function.__defaults__ or ()):
                if not is_plain(value):  # a plain default is fixed by the identity of the tuple
                    self._visit(f"{v}.__defaults__[{position}]", value, f"{path}.__defaults__[{position}]")
            for name, value in (function.__kwdefaults__ or {}).items():
                self._visit(f"{v}.__kwdefaults__[{name!r}]", value, f"{path} default {name}")
            self._cells(function, code)
        self._wrapped(v, function, path)

    def _cells(self, function: FunctionType, code: CodeType) -> None:
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self.cells.add(id(cell))
            if name == "__class__" or (id(cell), name) in self._roots:
                continue
            self._roots.add((id(cell), name))
            try:
                contents = cell.cell_contents
            except ValueError:  # not yet assigned
                continue
            self._visit(f"{self.code.bind(cell)}.cell_contents", contents, f"closure {name}")

    def _wrapped(self, expression: str, value: object, path: str) -> None:
        inner = (raw.attributes_of(value) or {}).get("__wrapped__")
        if inner is not None and id(inner) not in self._visited:
            self._visit(f"{expression}.__wrapped__", inner, path)

    def _object(self, expression: str, value: Any, path: str) -> None:
        v = self._identity(expression, value, path)
        if id(value) in self._visited:
            return
        self._visited.add(id(value))
        self._inside(v, value, path)
        if is_a(value, ModuleType):
            if is_users_module(value):
                for name in sorted(self.names.attributes & value.__dict__.keys()):
                    self._visit(f"{v}.{name}", value.__dict__[name], f"{path}.{name}")
        elif is_a(value, type):
            self._class_attributes(v, value, value, path)
            if is_a(value, abc.ABCMeta) and is_user_class(value):  # which classes are its subclasses may be registered
                test = f"{{v}}() != {abc.get_cache_token()}"
                self.code.check(self.code.bind(abc.get_cache_token), test, "abc.get_cache_token()", "as it was")
        elif compiled_of(value) is not None:
            self._visit(f"{v}.{COMPILED}", compiled_of(value), path)
            return
        elif _is_nn_module(value):
            self._module(v, value, path)
        else:
            self._attributes(v, value, self.names.attributes | self._all_names(v, value, path), path)
            self._wrapped(v, value, path)
        self._absent(v, value, path)

    def _inside(self, v: str, value: Any, path: str) -> None:
        """What an object of a class of Python's own holds, such as a deque."""
        found = inside(value)
        if found is None:
            return
        read, held = found
        self._alive.append(held)
        expression, path = f"{self.code.bind(read)}({v})", f"{path}'s contents"
        if is_torch_tensor(held):
            self._identity(expression, held, path)
        self._visit(expression, held, path)

    def _all_names(self, v: str, value: Any, path: str) -> set[str]:
        """All attributes of an object of the user's, where the code may read any of them."""
        own = own_attributes(value)
        is_users = is_a(value, types.SimpleNamespace) or is_user_class(type(value))
        if "__dict__" not in self.names.attributes or own is None or not is_users or len(own) > _MOST_NAMES:
            return set()
        self._list(self._table(v, value), own, f"{path}.__dict__", sorted(own))
        return set(own)

    def _list(self, expression: str, table: dict[str, Any], path: str, shown: object, fixed: bool = True) -> None:
        """Guards all keys of a dict that the expression gives, in their order. ``fixed``: the dict is watched."""
        self._listed.add(id(table))
        test = f"list({{v}}) != {self.code.bind(list(table))}" if table else "{v}"
        self.code.check(expression, test, path, shown, fixed=fixed and type(table) is dict)

    def _absent(self, v: str, value: Any, path: str) -> None:
        """Attributes that the code looks for, and that neither the object nor its class has."""
        cls = value if is_a(value, type) else type(value)
        classes = [c for c in raw.classes_of(cls) if is_user_class(c)]
        wanted = self.names.looked_for
        if any("__getattr__" in raw.table_of(c) for c in classes):  # what it gives instead may be anything
            wanted |= self.names.attributes
        own = None if cls is value else own_attributes(value)
        inner = {name: (own or {})[name] for name in _TABLES if _is_nn_module(value)}
        found = {*(own or {}), *(name for table in inner.values() for name in table)}
        missing = frozenset(n for n in wanted - found if not raw.is_in_class(cls, n))
        if not missing:
            return
        shown = f"without {', '.join(sorted(missing))}"
        if own is not None:
            tables = {"{v}": own, **{f"{{v}}[{name!r}]": table for name, table in inner.items()}}
            tests = [self._holds_some(missing, of) for of, table in tables.items() if id(table) not in self._listed]
            unlisted = [name for name, table in inner.items() if id(table) not in self._listed]
            fixed = all(self.code.watch_table(v, value, name) for name in unlisted)
            if tests:
                self.code.check(self._table(v, value), " or ".join(tests), f"{path}.__dict__", shown, fixed=fixed)
        for holder in classes:
            self._lacks(holder, missing)

    def _lacks(self, cls: type, names: frozenset[str]) -> None:
        """A class's own table has none of the names."""
        if (id(cls), names) not in self._lacking:
            self._lacking.add((id(cls), names))
            test = self._holds_some(names, "{v}")
            shown = f"without {', '.join(sorted(names))}"
            self.code.check(f"{self.code.bind(cls)}.__dict__", test, f"{cls.__qualname__}.__dict__", shown)

    def _holds_some(self, names: Iterable[str], table: str) -> str:
        """The test that a dict has one of the names."""
        listed = sorted(names)
        if len(listed) <= 3:
            return " or ".join(f"{name!r} in {table}" for name in listed)
        return f"not {self.code.bind(frozenset(listed))}.isdisjoint({table})"

    def _tensor_attributes(self, expression: str, value: Any, path: str) -> None:
        """What a tensor that is fetched at each call has of its own, besides its elements."""
        own = raw.attributes_of(value) if is_torch_tensor(value) else None
        if own is None or id(value) in self._visited:
            return
        self._visited.add(id(value))
        if not self.is_input(value):
            known = self.code.bind(torch_layout(value))
            test = f"{self.code.bind(torch_layout)}({{v}}) != {known}"
            expression = self.code.check(expression, test, path, f"{value.dtype}{list(value.shape)}")
            if self.names.identity:
                self._identity(expression, value, path)
        if "grad" in self.names.attributes:
            is_none = value.grad is None
            self.code.check(f"{expression}.grad is None", f"{{v}} is not {is_none}", f"{path}.grad", value.grad)
        names = self.names.attributes & own.keys()
        missing = {n for n in self.names.looked_for - own.keys() if not raw.is_in_class(type(value), n)}
        if not names and not missing:
            return
        test = self._holds_some(missing, "{v}") if missing else "False"
        without = f"without {', '.join(sorted(missing))}"
        table = self.code.check(f"{expression}.__dict__", test, f"{path}.__dict__", without)
        for name in sorted(names):
            self._visit(f"{table}[{name!r}]", own[name], f"{path}.{name}")

    def _attributes(self, v: str, value: Any, wanted: Iterable[str], path: str) -> None:
        """Attributes of the instance itself, then those of its class and slots."""
        own = own_attributes(value) or {}
        for name in sorted(wanted):
            if name in own and not is_counter(value, name):
                is_set = _has(raw.in_class(type(value), name), "__set__")
                plain = name.isidentifier() and not is_set and raw.looks_up_plainly(type(value))
                access = f"{v}.{name}" if plain else f"{self._table(v, value)}[{name!r}]"
                self._visit(access, own[name], f"{path}.{name}")
        if is_user_class(type(value)):
            self._class_attributes(v, type(value), value, path)

    def _table(self, v: str, value: object) -> str:
        """The expression for an object's own ``__dict__``."""
        return f"{v}.__dict__" if raw.looks_up_plainly(type(value)) else f"{self.code.bind(raw.attributes_of)}({v})"

    def _class_attributes(self, v: str, cls: type, value: object, path: str) -> None:
        """What the names that were read mean in a class: constants, methods, properties, slots."""
        table = own_attributes(value) if value is not cls else None
        own = table or {}
        owner = v if value is cls else self.code.bind(cls)
        may_be_shadowed = set()
        inherited: dict[type, set[str]] = {}
        for name in sorted(self.names.attributes | self._ran(cls)):
            holders = [c for c in raw.classes_of(cls) if name in raw.table_of(c)]
            holder = next(iter(holders), None)
            self._hidden(holders if name in own else holders[1:], name, path)
            if holder is None or not is_user_class(holder):
                continue
            found = raw.table_of(holder)[name]
            if name in own and not _has(found, "__set__"):
                continue
            if not _has(found, "__set__") and not is_a(found, functools.cached_property):
                may_be_shadowed.add(name)
            if _has(found, "__get__") and not is_a(found, FunctionType):  # it is read from the class that has it
                classes = raw.classes_of(cls)
                for c in classes[: classes.index(holder)]:
                    inherited.setdefault(c, set()).add(name)
            if is_a(found, *_CELL_DESCRIPTORS):
                self._cell_attribute(f"{v}.{name}", found, cls, value, path)
            elif is_a(found, classmethod, staticmethod):
                self._visit(f"{self.code.bind(holder)}.__dict__[{name!r}].__func__", found.__func__, f"{path}.{name}")
            elif is_a(found, property, functools.cached_property):
                getter = "fget" if is_a(found, property) else "func"
                access = f"{self.code.bind(holder)}.__dict__[{name!r}].{getter}"
                self._visit(access, getattr(found, getter), f"{path}.{name}")
            elif is_a(found, FunctionType) or not _has(found, "__get__"):
                self._visit(f"{owner}.{name}", found, f"{path}.{name}")
        for c, names in inherited.items():
            self._lacks(c, frozenset(names))
        if may_be_shadowed and table is not None and id(table) not in self._listed:
            shadowing = self.code.bind(frozenset(may_be_shadowed))
            test = f"not {shadowing}.isdisjoint({{v}})"
            self.code.check(self._table(v, value), test, f"{path}.__dict__", "without them", fixed=True)

    def _hidden(self, holders: Iterable[type], name: str, path: str) -> None:
        """What a name means in classes of which an instance, or a class before them, hides it; ``super()`` finds it."""
        for holder in holders:
            found = raw.table_of(holder)[name]
            is_function = is_a(found, FunctionType)
            if is_user_class(holder) and (is_function or (self.names.by_class and not _has(found, "__get__"))):
                self._visit(
                    f"{self.code.bind(holder)}.__dict__[{name!r}]", found, f"{path} {holder.__qualname__}.{name}"
                )

    def _ran(self, cls: type) -> set[str]:
        """The methods that ran, those that Python looks up itself among them: operators, ``__call__``, ``forward``."""
        tables = [raw.table_of(c) for c in raw.classes_of(cls) if is_user_class(c)]
        found = [(name, value) for table in tables for name, value in table.items() if is_a(value, FunctionType)]
        return {name for name, value in found if id(value.__code__) in self.names.executed}

    def _cell_attribute(self, expression: str, found: Any, cls: type, value: object, path: str) -> None:
        """A slot of an object, which may be empty."""
        if value is cls:
            return
        owner, _, name = expression.rpartition(".")
        try:
            held = found.__get__(value)
        except AttributeError:
            if name in self.names.looked_for:
                test = f"{self.code.bind(raw.fills)}({owner}, {self.code.bind(found)})"
                self.code.check(test, "{v}", f"{path}.{name}", "empty")
            return
        if not raw.looks_up_plainly(type(value)):
            expression = f"{self.code.bind(found)}.__get__({owner})"
        self._visit(expression, held, f"{path}.{name}")

    def _module(self, v: str, module: Any, path: str) -> None:
        """A torch module: its mode, its hooks, its children, and plain attributes (all, where the code is torch's)."""
        if raw.looks_up_plainly(type(module)):
            self.code.watch(v, module)
        test = f"{{v}} is not {module.training}"
        self.code.check(f"{v}.training", test, f"{path}.training", module.training, fixed=True)
        for hooks in (*_HOOKS, *_BACKWARD_HOOKS) if self.graded else _HOOKS:
            held = list(module.__dict__[hooks].values())
            test = f"list({{v}}.values()) != {self.code.bind(held)}" if held else "{v}"
            fixed = not held and self.code.watch_table(v, module, hooks)
            self.code.check(f"{v}.{hooks}", test, f"{path}.{hooks}", len(held), fixed=fixed)
        own = {name for name in module.__dict__ if not name.startswith("_") and name != "training"}
        if "__dict__" in self.names.attributes:  # the code may read all of them
            self._list(f"{v}.__dict__", module.__dict__, f"{path}.__dict__", sorted(own))
            self._attributes(v, module, own, path)
        self._own_forward(v, module, path)
        if is_user_class(type(module)):
            own &= self.names.attributes
            self._attributes(v, module, own | {n for n in self.names.attributes if n in module.__dict__}, path)
        else:
            plain = {name for name in own if is_plain(module.__dict__[name])}
            self._attributes(v, module, plain, path)
            for name in sorted(own - plain):
                self._settings(f"{v}.{name}", module.__dict__[name], f"{path}.{name}")
        is_container = raw.in_class(type(module), "__iter__") is not None
        reads_all = not self.names.attributes.isdisjoint(_LISTED)
        for name in sorted(_PARAMETERS_OF & module.__dict__.keys()):
            self._visit(f"{v}.{name}", module.__dict__[name], f"{path}.{name}")
        for table in _TABLES[:2]:
            held = module.__dict__[table]
            if reads_all or (is_container and held):
                fixed = self.code.watch_table(v, module, table)
                self._list(f"{v}.{table}", held, f"{path}.{table}", list(held), fixed)
            empty = [name for name, tensor in held.items() if tensor is None]
            if empty:
                test = " or ".join(f"{{v}}[{name!r}] is not None" for name in empty)
                fixed = self.code.watch_table(v, module, table)
                self.code.check(f"{v}.{table}", test, f"{path}.{table}", f"without {', '.join(empty)}", fixed=fixed)
            tensors = held.keys() - set(empty)
            for name in sorted(tensors if reads_all or is_container else tensors & self.names.attributes):
                self._visit(f"{v}.{table}[{name!r}]", module.__dict__[table][name], f"{path}.{name}")
        children, held_children = module._modules, ""
        if children:
            test = f"len({{v}}) != {len(children)} or list({{v}}) != {self.code.bind(list(children))}"
            fixed = type(children) is dict and self.code.watch_table(v, module, "_modules")
            shown = list(children)
            held_children = self.code.check(f"{v}._modules", test, f"{path}._modules", shown, fixed=fixed, table=fixed)
            self._listed.add(id(children))
        elif reads_all or is_container:
            fixed = self.code.watch_table(v, module, "_modules")
            self._list(f"{v}._modules", children, f"{path}._modules", "empty", fixed)
        for name, child in children.items():
            self._visit(f"{held_children}[{name!r}]", child, f"{path}.{name}")

    def _settings(self, expression: str, value: Any, path: str) -> None:
        """An object that a library's module keeps, such as a model's configuration: its plain attributes."""
        own = raw.attributes_of(value)
        is_other = is_a(value, ModuleType, type, FunctionType) or _is_nn_module(value) or self.is_tensor(value)
        if type(own) is not dict or is_other or is_a(value, dict, list, tuple, set):
            return
        v = self._identity(expression, value, path)
        known = {name: held for name, held in own.items() if is_plain(held)}
        if id(value) not in self._visited and known:
            self._visited.add(id(value))
            self.paths.setdefault(id(value), path)
            test = f"not {self.code.bind(same_settings)}({{v}}, {self.code.bind(known)})"
            self.code.watch(v, value)
            self.code.check(self._table(v, value), test, f"{path}.__dict__", known, fixed=True, holder=v)

    def _own_forward(self, v: str, module: Any, path: str) -> None:
        """A ``forward`` that was put into a module itself, as adapters and offloading do, in place of its class's."""
        kind = type(module)
        if "forward" in module.__dict__:
            self._visit(f"{v}.__dict__['forward']", module.__dict__["forward"], f"{path}.forward")
            return
        if id(module.__dict__) not in self._listed:
            self.code.check(f"{v}.__dict__", "'forward' in {v}", f"{path}.__dict__", "without forward", fixed=True)
        if kind not in self._kinds:
            self._kinds.add(kind)
            test = f"{{v}} is not {self.code.bind(kind.forward)}"
            self.code.check(f"{self.code.bind(kind)}.forward", test, f"{kind.__qualname__}.forward", kind.forward)

    def _identity(self, expression: str, value: object, path: str) -> str:
        weak = None if is_a(value, ModuleType, type) else self.code.bind_weakly(value)
        if weak is None:
            return self.code.check(expression, f"{{v}} is not {self.code.bind(value)}", path, value, fixed=True)
        kind = type(value)
        other = f" or type({{v}}) is not {self.code.bind(kind)}" if is_user_class(kind) or _is_nn_module(value) else ""
        fixed = not other or (_is_nn_module(value) and self.code.watch_kind(value))
        if weak == expression:  # reached through the reference itself: alive is enough
            return self.code.check(expression, "{v} is None" + other, path, value)
        test = f"{{v}} is None or {{v}} is not {weak}{other}"
        return self.code.check(expression, test, path, value, fixed=fixed)


def _has(value: object, method: str) -> bool:
    return raw.in_class(type(value), method) is not None


def _is_nn_module(value: object) -> bool:
    nn = sys.modules.get("torch.nn")
    return nn is not None and is_a(value, nn.Module)


def is_user_class(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    return module is None or cls.__module__ == "__main__" or is_users_module(module)
