# SPDX-License-Identifier: Apache-2.0
"""Modules of another package that are loaded when something of them is first used."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


@contextmanager
def lazily(names: Collection[str]) -> Iterator[None]:
    """Imports in the body load these modules later: when a name of theirs, or a module in them, is asked for.

    Python's own LazyLoader loads at any question, also of those that look through all modules for a file.
    """
    finder = _Finder(frozenset(names))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if found is None or found.loader is None:
            return None
        found.loader = _Later(found.loader)
        return found


class _Later(Loader):
    """Leaves a module that loads itself."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["_fusec_later"] = self._loader, module.__dict__.pop("__path__", None)


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if "_fusec_later" not in own or (name.startswith("__") and name != "__path__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        loader, path = own.pop("_fusec_later")
        if path is not None:
            own["__path__"] = path
        try:
            loader.exec_module(self)
        except Exception as error:  # those who look through all modules take no other for an answer
            raise AttributeError(f"module {self.__name__!r} can't be loaded: {error}") from error
        return getattr(self, name)
