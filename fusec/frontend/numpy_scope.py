# SPDX-License-Identifier: Apache-2.0
"""The names that a user's function sees while it is traced.

NumPy does not dispatch every function to traced arrays (``as_strided``, ``np.array``, ``np.zeros``), and arrays found
in globals, closures and attributes must become graph inputs. So the function runs as a copy of itself: the same
code with a view of its globals, in which such names mean the tracing versions, helper functions are copies of the same
kind, and arrays are traced. Nothing outside the capture is changed, so threads do not see one another.
"""

from __future__ import annotations

import builtins
import enum
import functools
import types
import weakref
from collections.abc import Callable
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from fusec.errors import CaptureError
from fusec.frontend.guards import is_user_class
from fusec.frontend.kinds import KindOf
from fusec.frontend.memos import file_of_memo, is_memo
from fusec.frontend.numpy_memo import MemoView
from fusec.frontend.numpy_substitutes import substitutes
from fusec.frontend.numpy_trace import Trace, Traced
from fusec.frontend.raw import attributes_of, in_class, is_a, items_of
from fusec.frontend.source import code_location, is_user_file, is_users_module
from fusec.location import Location

Fetch = Callable[[], Any]
_MISSING: Any = object()
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by a class statement
_ADVICE = "a compiled call would not do so: return the value"


class GlobalsView(dict[str, Any]):
    """A function's globals with names replaced as they are read; what the function stores stays in the view."""

    def __init__(self, scope: Scope, original: dict[str, Any], library: bool) -> None:
        known = scope.builtins if library else {**scope.builtins, "type": KindOf}
        super().__init__(__builtins__=known, __name__=original.get("__name__", ""))
        self.scope = scope
        self.original = original
        self.library = library
        self._read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        found = dict.get(self, name, _MISSING)
        if found is not _MISSING:
            return found
        if name not in self._read:
            original = self.original
            value = original[name]
            self._read[name] = self.scope.patch(value, name, lambda: original[name], library=self.library)
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or name in self.original

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def stored(self) -> set[str]:
        """Names that the function assigned."""
        return set(self) - {"__builtins__", "__name__"}


class ModuleView:
    """A module with its attributes replaced as they are read."""

    def __init__(self, scope: Scope, module: ModuleType) -> None:
        self.__dict__.update(_scope=scope, _module=module, __name__=module.__name__, __path__=[])

    def __getattr__(self, name: str) -> Any:
        module = self._module
        value = getattr(module, name)
        made = self._scope.patch(value, f"{module.__name__}.{name}", lambda: getattr(module, name))
        self.__dict__[name] = made
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        raise CaptureError(f"the function assigns {self._module.__name__}.{name}; a compiled call would not do so")


class RandomView:
    """Stands for a source of random numbers: a compiled function must not freeze what it drew."""

    def __init__(self, scope: Scope, path: str) -> None:
        self._scope = scope
        self._path = path

    def __getattr__(self, name: str) -> Any:
        raise self._scope.trace.unsupported(
            f"{self._path}.{name} draws random numbers, which a compiled function would not draw anew; "
            "draw them outside and pass them as an argument"
        )


class Scope:
    """The copies and views of one capture."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.fetched: dict[int, Any] = {}
        self.stand_ins: dict[int, Any] = {}
        self.followed: set[int] = set()
        self.builtins = {**vars(builtins), "__import__": self._import}
        self._memo: dict[tuple[int, bool], Any] = {}
        self._alive: list[Any] = []
        self._views: dict[tuple[int, bool], GlobalsView] = {}
        self._cells: list[tuple[str, CellType, Any, Location]] = []
        self._shadows: list[tuple[Any, dict[str, Any]]] = []
        self._substitutes = {id(k): v for k, v in substitutes(trace).items()}

    # Replacing values

    def patch_root(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The function to trace; the one at the root is copied wherever it is from."""
        if isinstance(f, FunctionType):
            return self.copy_function(f)
        made = self.patch(f, getattr(f, "__name__", "self"), lambda: f)
        return made if callable(made) else f

    def original(self, array: Any) -> Any:
        """The user's array that a traced array was made for."""
        return array

    def patch(self, value: Any, path: str, fetch: Fetch, *, library: bool = False) -> Any:
        """What stands for ``value`` in the traced function. ``fetch`` gives it again at a later call."""
        kind = type(value)
        if is_a(value, Traced):
            return value
        if kind is np.ndarray:
            if value.dtype.kind not in "biufc":
                return value
            self.fetched[id(value)] = value
            return self.trace.state(value, path, fetch)
        if kind in (list, tuple, dict):
            return self._container(value, path, fetch)
        key = (id(value), library)
        if key in self._memo:
            return self._memo[key]
        substitute = self._substitutes.get(id(value))
        if substitute is not None:
            return substitute
        if value is type and not library:
            return KindOf
        return self._patch_object(value, path, fetch, library)

    def _patch_object(self, value: Any, path: str, fetch: Fetch, library: bool) -> Any:
        if is_a(value, FunctionType):
            file = value.__code__.co_filename
            if is_user_file(file) or (library and value.__module__.startswith("numpy")):
                return self.copy_function(value, library=library)
        elif is_a(value, MethodType):
            owner = self.patch(value.__self__, f"{path}.__self__", lambda: fetch().__self__)
            return MethodType(self.patch(value.__func__, path, lambda: fetch().__func__), owner)
        elif is_memo(value) and is_user_file(file_of_memo(value)):
            self.followed.add(id(value))
            return self._remember(value, MemoView(self.trace, value, self.patch))
        elif is_a(value, functools.partial):
            return self._partial(value, path, fetch)
        elif is_a(value, ModuleType):
            return self._module(value)
        elif is_a(value, np.random.Generator, np.random.RandomState):
            return self._remember(value, RandomView(self, path), library)
        elif type(value).__module__.startswith("fusec.") and in_class(type(value), "dispatcher") is not None:
            return self.patch(value.__wrapped__, path, lambda: fetch().__wrapped__)
        elif _has_user_state(value):
            return self._shadow(value, path)
        return value

    def _remember(self, value: Any, made: Any, library: bool = False) -> Any:
        self._alive.append(value)
        self._memo[id(value), library] = made
        if made is not value:
            self.stand_ins[id(made)] = made
        return made

    def copy_function(self, function: FunctionType, *, library: bool = False) -> FunctionType:
        """The function with the same code, in this scope."""
        view = self._view(function.__globals__, library)
        code = function.__code__
        closure = None
        if function.__closure__ is not None:
            closure = tuple(CellType() for _ in function.__closure__)
        made = FunctionType(code, view, function.__name__, None, closure)
        self._remember(function, made, library)
        for name, old, new in zip(code.co_freevars, function.__closure__ or (), closure or ()):
            self._fill_cell(name, old, new, code_location(code), library)
        path = function.__qualname__
        made.__defaults__ = self.patch(function.__defaults__, f"{path}.__defaults__", lambda: function.__defaults__)
        made.__kwdefaults__ = self.patch(
            function.__kwdefaults__, f"{path}.__kwdefaults__", lambda: function.__kwdefaults__
        )
        made.__qualname__, made.__module__ = path, function.__module__
        made.__dict__.update(function.__dict__)
        return made

    def library_copy(self, function: FunctionType) -> FunctionType:
        """A copy of one of NumPy's own Python functions that can be traced."""
        made = self._memo.get((id(function), True))
        return made if made is not None else self.copy_function(function, library=True)

    def _fill_cell(self, name: str, old: CellType, new: CellType, where: Location, library: bool) -> None:
        try:
            contents = old.cell_contents
        except ValueError:  # not assigned yet
            return
        if name == "__class__":
            new.cell_contents = contents
            return
        new.cell_contents = self.patch(contents, name, lambda: old.cell_contents, library=library)
        self._cells.append((name, new, new.cell_contents, where))

    def _view(self, namespace: dict[str, Any], library: bool) -> GlobalsView:
        if isinstance(namespace, GlobalsView):
            return namespace
        key = (id(namespace), library)
        if key not in self._views:
            self._views[key] = GlobalsView(self, namespace, library)
        return self._views[key]

    def _container(self, value: Any, path: str, fetch: Fetch) -> Any:
        """A list, tuple or dict with its parts replaced; itself where none is."""
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        made = [self.patch(part, f"{path}[{key!r}]", _item_of(fetch, key)) for key, part in items]
        if all(new is old for new, (_, old) in zip(made, items)):
            return value
        if isinstance(value, dict):
            return dict(zip(value, made))
        return type(value)(made)

    def _partial(self, value: Any, path: str, fetch: Fetch) -> Any:
        function = self.patch(value.func, path, lambda: fetch().func)
        args = self.patch(value.args, f"{path}.args", lambda: fetch().args)
        keywords = self.patch(value.keywords, f"{path}.keywords", lambda: fetch().keywords)
        return functools.partial(function, *args, **keywords)

    def _module(self, module: ModuleType) -> Any:
        name = module.__name__
        if name == "numpy.random":
            return self._remember(module, RandomView(self, "np.random"))
        if name in ("numpy", "builtins") or name.startswith("numpy.") or is_users_module(module):
            return self._remember(module, ModuleView(self, module))
        return module

    def _shadow(self, value: Any, path: str) -> Any:
        """An object of a subclass whose methods are copies and whose arrays are traced."""
        cls = type(value)
        made: Any = object.__new__(self._shadow_class(cls))
        self._remember(value, made)
        try:
            reference: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            reference = lambda: value  # noqa: E731
        own = attributes_of(made)
        assert own is not None
        for name, part in items_of(attributes_of(value) or {}):
            own[name] = self.patch(part, f"{path}.{name}", _attribute_of(reference, name))
        self._shadows.append((made, dict(own)))
        return made

    def _shadow_class(self, cls: type) -> type:
        key = (id(cls), False)
        if key not in self._memo:
            members: dict[str, Any] = {
                "__module__": cls.__module__,
                "__qualname__": cls.__qualname__,
                "__doc__": cls.__doc__,
            }
            for holder in reversed(cls.__mro__):
                if is_user_class(holder):
                    members.update({k: self._member(v) for k, v in vars(holder).items() if _is_member(v)})
            self._alive.append(cls)
            self._memo[key] = type(cls.__name__, (cls,), members)
        made: type = self._memo[key]
        return made

    def _member(self, member: Any) -> Any:
        if isinstance(member, FunctionType):
            return self.copy_function(member)
        if isinstance(member, property):
            return property(*(self._member(f) if f else None for f in (member.fget, member.fset, member.fdel)))
        return type(member)(self._member(member.__func__))

    def _import(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        found = builtins.__import__(name, getattr(globals, "original", globals), locals, fromlist, level)
        return self._module(found) if found.__name__.partition(".")[0] == "numpy" else found

    # After the run

    def check_no_side_effects(self) -> None:
        """CaptureError when the function assigned a global, an outer variable or an attribute that outlives it."""
        for view in self._views.values():
            if not view.library and view.stored():
                names = ", ".join(sorted(view.stored()))
                raise CaptureError(f"the function assigns the global {names}; {_ADVICE}")
        for name, cell, before, where in self._cells:
            try:
                same = cell.cell_contents is before
            except ValueError:
                same = False
            if not same:
                raise CaptureError(f"the function assigns the outer variable {name}; {_ADVICE}", where)
        for shadow, before in self._shadows:
            now = attributes_of(shadow) or {}
            changed = [k for k in {**before, **now} if now.get(k, _MISSING) is not before.get(k, _MISSING)]
            if changed:
                kind = type(shadow).__name__
                message = f"the function assigns the attribute {changed[0]} of a {kind}; {_ADVICE}"
                raise CaptureError(message)


def _item_of(fetch: Fetch, key: Any) -> Fetch:
    return lambda: fetch()[key]


def _attribute_of(reference: Fetch, name: str) -> Fetch:
    return lambda: (attributes_of(reference()) or {})[name]


def _is_member(member: Any) -> bool:
    if isinstance(member, staticmethod | classmethod):
        return isinstance(member.__func__, FunctionType)
    return isinstance(member, FunctionType | property)


def _has_user_state(value: Any) -> bool:
    """An instance of a plain class of the user's, whose attributes are in its ``__dict__``."""
    cls = type(value)
    if is_a(value, type, enum.Enum, BaseException, types.ModuleType) or type(cls) is not type:
        return False
    if not is_user_class(cls) or attributes_of(value) is None:
        return False
    bases = [c for c in cls.__mro__ if c is not object]
    if not all(c.__flags__ & _HEAP_TYPE for c in bases):
        return False
    return not any("__new__" in vars(c) or "__init_subclass__" in vars(c) or vars(c).get("__slots__") for c in bases)
