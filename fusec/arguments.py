# SPDX-License-Identifier: Apache-2.0
"""What users hand over: functions under decorators of ours, and arguments that may be descriptions of arrays."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any

from fusec.errors import FusecError, OptionError
from fusec.frontend.capture import Capture, Fallback, Library
from fusec.frontend.structures import flatten
from fusec.runtime.dispatch import Dispatcher
from fusec.runtime.jit import JitFunction, JitModule, original
from fusec.runtime.libraries import library_of
from fusec.runtime.plan import Compile, Differentiate, Require, nothing_required
from fusec.specs import TensorSpec, example


def plain(function: Any) -> Any:
    """The function under a decorator of ours."""
    if isinstance(function, JitFunction):
        return function.dispatcher.function
    if isinstance(function, JitModule):
        return original(function)
    if not callable(function):
        raise OptionError(f"{type(function).__name__} is not a function or a module")
    return called(function)


def called(function: Any) -> Any:
    """What a call runs: for an object with a ``__call__`` of its own, that method; a module and a function as it is."""
    nn = sys.modules.get("torch.nn")
    method = getattr(type(function), "__call__", None)  # noqa: B004
    if not isinstance(method, types.FunctionType) or (nn is not None and isinstance(function, nn.Module)):
        return function
    return types.MethodType(method, function)


def _refuse(capture: Capture) -> Any:
    raise AssertionError("this dispatcher only captures")


def capturing(
    function: Any,
    fallback: Fallback = "eager",
    static: frozenset[str] = frozenset(),
    compile: Compile = _refuse,
    require: Require = nothing_required,
    device: str | None = None,
    differentiate: Differentiate | None = None,
    *,
    edits: bool = False,
) -> Dispatcher:
    """A dispatcher that is asked for captures, and not called. ``device``: a GPU that tensors on the CPU are meant
    for. ``edits``: as the calls of a jitted function may."""
    return Dispatcher(
        function,
        compile,
        fallback=fallback,
        static=static,
        require=require,
        device=device,
        differentiate=differentiate,
        edits=edits,
    )


def is_argument(value: object) -> bool:
    return isinstance(value, TensorSpec) or (library_of(_nothing, (value,), {}) is not None and _is_leaf(value))


def _is_leaf(value: object) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _nothing() -> None:
    """A function that reads no library."""


def devices_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> set[str]:
    """The devices of the specs and of PyTorch's tensors in a call."""
    return {str(leaf.device) for leaf in flatten(args, kwargs, is_argument)[0] if hasattr(leaf, "device")}


def examples(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], library: Library | None = None
) -> tuple[tuple[Any, ...], dict[str, Any], Library]:
    """The arguments with an array in the place of each spec. Named dimensions get an extent of their own.

    ``library``: whose arrays are meant, where neither the arguments nor the function tell.
    """
    leaves, call = flatten(args, kwargs, is_argument)
    told = library_of(function, tuple(v for v in leaves if not isinstance(v, TensorSpec)), {})
    if told is not None and library is not None and told != library:
        raise OptionError(f"library={library!r}, and the function or its arguments are of {told}")
    library = told or library
    if library is None:
        raise FusecError(
            "can't tell whether torch or NumPy is meant: no array among the arguments; give one, or library= "
            "(--library)"
        )
    names = sorted(frozenset[str]().union(*(v.names for v in leaves if isinstance(v, TensorSpec))))
    bindings = {name: 2 + number for number, name in enumerate(names)}
    made = [example(v, bindings, library) if isinstance(v, TensorSpec) else v for v in leaves]
    positional, named = call.restore(made)
    return positional, named, library
