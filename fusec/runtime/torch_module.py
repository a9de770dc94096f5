# SPDX-License-Identifier: Apache-2.0
"""Compiled modules as PyTorch sees them: each is an ``nn.Module`` that stands for the one it compiles.

It shares that module's tables of parameters, buffers, children and hooks. Names are therefore the module's own:
``state_dict()``, ``named_parameters()`` and ``get_submodule()`` know the same keys with fusec and without, wherever the
module is nested. There is no level such as ``_orig_mod`` of ``torch.compile``.
"""

from __future__ import annotations

import copy
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from fusec.runtime.jit import JitModule, MakeDispatcher, original

_PROTOCOLS = (
    *("__len__", "__iter__", "__reversed__", "__contains__", "__getitem__", "__setitem__", "__delitem__"),
    *("__enter__", "__exit__", "__add__", "__radd__", "__iadd__", "__mul__", "__rmul__", "__imul__"),
)
"""What Python looks up in an object's class, of what modules have: a list of layers is subscripted."""

_FORWARDED = ("forward", "apply", "compile", "_replicate_for_data_parallel")
"""Methods of ``nn.Module`` that run on the module itself, whether or not its class has its own."""


class _TorchModule(JitModule, nn.Module):
    """A compiled module that nests in others, and in which PyTorch's tools find what they find in the module."""

    def __init__(self, module: nn.Module, make: MakeDispatcher) -> None:
        super().__init__(module, make)
        tables = ((name, value) for name, value in vars(module).items() if name in _TABLES)
        self.__dict__.update(tables)

    def __reduce__(self) -> tuple[Any, ...]:
        return compiled_module, (original(self), self._fusec.make)

    def __copy__(self) -> _TorchModule:
        return compiled_module(copy.copy(original(self)), self._fusec.make)

    def __deepcopy__(self, memo: dict[int, Any]) -> _TorchModule:
        return compiled_module(copy.deepcopy(original(self), memo), self._fusec.make)

    def __prepare_scriptable__(self) -> nn.Module:
        """What TorchScript compiles."""
        return original(self)  # type: ignore[no-any-return]


_TABLES = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict | set))


def compiled_module(module: nn.Module, make: MakeDispatcher) -> _TorchModule:
    """The module with calls that are compiled."""
    kind = type(module)
    made = _classes.get(kind)
    if made is None:
        made = _classes[kind] = _class_of(kind)
    return made(module, make)


_classes: WeakKeyDictionary[type[nn.Module], type[_TorchModule]] = WeakKeyDictionary()


def _class_of(kind: type[nn.Module]) -> type[_TorchModule]:
    """The class of compiled modules of a class: with the methods of ``nn.Module`` and of Python's protocols that the
    module's class has its own way."""
    members: dict[str, Any] = {name: _through(name) for name in _PROTOCOLS if hasattr(kind, name)}
    if "__len__" in members or hasattr(kind, "__bool__"):
        members["__bool__"] = _is_true
    for name, plain in vars(nn.Module).items():
        own = getattr(kind, name)
        if isinstance(plain, FunctionType) and not name.startswith("__") and (own is not plain or name in _FORWARDED):
            members[name] = _Own(name, own)
    members |= {"_version": kind._version, "__module__": __name__, "__doc__": JitModule.__doc__}
    return type("JitModule", (_TorchModule,), members)


class _Own:
    """A method that is the module's; looked up in the class, that of the module's class."""

    def __init__(self, name: str, function: Any) -> None:
        self._name = name
        self._function = function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self._function if instance is None else JitModule.__getattr__(instance, self._name)


def _through(name: str) -> Any:
    def call(self: Any, *args: Any) -> Any:
        module = original(self)
        result = getattr(module, name)(*args)
        return self if result is module else result

    call.__name__ = name
    return call


def _is_true(self: Any) -> bool:
    return bool(original(self))
