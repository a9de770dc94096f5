# SPDX-License-Identifier: Apache-2.0
"""What a call's signature can't hold, and how two of them differ, in words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusec.frontend.capture import Library
from fusec.frontend.structures import CallSpec, Node, Static, Structure
from fusec.runtime.libraries import is_torch_module


def what_differs(new: Any, old: Any) -> list[str]:
    """How a signature (library, structure, layouts, mode) differs from another, in words."""
    (library, spec, layouts, mode), (old_library, old_spec, old_layouts, old_mode) = new, old
    if library != old_library:
        return [f"arrays of {library}, before of {old_library}"]
    found = [] if spec == old_spec else _what_arguments_differ(spec, old_spec)
    for number, (a, b) in enumerate(zip(layouts, old_layouts)):
        if a.type != b.type:
            found.append(f"array {number} is {a.type}, was {b.type}")
        elif a.strides != b.strides:
            found.append(f"array {number} has strides {a.strides}, had {b.strides}")
        elif a.flags != b.flags:
            found.append(f"array {number} has flags {a.flags}, had {b.flags}")
    return found if mode == old_mode else [*found, f"mode {mode}, was {old_mode}"]


def _what_arguments_differ(new: CallSpec, old: CallSpec) -> list[str]:
    """How the arguments of a call differ from another's beside their arrays, in words."""
    if len(new.args) != len(old.args) or [name for name, _ in new.kwargs] != [name for name, _ in old.kwargs]:
        return ["other arguments are given"]
    named = [(f"argument {number}", part) for number, part in enumerate(new.args)]
    named += [(f"argument {name}", part) for name, part in new.kwargs]
    before = [*old.args, *(part for _, part in old.kwargs)]
    found = []
    for (name, part), other in zip(named, before, strict=True):
        if part == other:
            continue
        if isinstance(part, Static) and isinstance(other, Static):
            found.append(f"{name} is {part.value!r:.60}, was {other.value!r:.60}")
        else:
            found.append(f"{name} has another structure, or other values in it that are no arrays")
    return found


def unfit(spec: CallSpec, library: Library) -> str:
    """Why the static values of a call can't be part of a key; empty when they can."""
    for part in (*spec.args, *(part for _, part in spec.kwargs)):
        for value in _statics(part):
            if library != "numpy" and isinstance(value, np.ndarray):
                return f"{'torch tensors' if library == 'torch' else 'CuPy arrays'} and NumPy arrays are mixed"
            if type(value).__module__ == "torch.fx.proxy":
                return "it is traced by torch.fx"
            if isinstance(value, set | bytearray):
                return f"an argument is a {type(value).__name__}"
    return ""


def _statics(part: Structure) -> list[Any]:
    if isinstance(part, Static):
        return [part.value]
    if isinstance(part, Node):
        return [value for inner in part.parts for value in _statics(inner)]
    return []


def bind_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """TypeError, as a call would raise, for arguments that do not fit the function's parameters."""
    called: Any = function
    if is_torch_module(function):
        called = called.forward
    try:
        signature = inspect.signature(called)
    except ValueError:  # a builtin without one
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{getattr(function, '__qualname__', type(function).__name__)}() {error}") from None
