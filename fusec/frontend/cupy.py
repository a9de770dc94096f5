# SPDX-License-Identifier: Apache-2.0
"""Capture of CuPy functions. CuPy has NumPy's interface, so they are traced as NumPy's, on the arrays' layouts alone.

The traced copy of a function sees NumPy where it names ``cupy``; what CuPy has beyond NumPy is not compiled. The graph
lies on the arrays' device. Reductions to one element give 0-d arrays, as CuPy's do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

import cupy
import numpy as np

from fusec.errors import CaptureError, FusecError
from fusec.frontend.capture import Capture, Fallback
from fusec.frontend.numpy import Flavour, capture_as
from fusec.frontend.numpy_scope import Fetch, ModuleView, Scope
from fusec.frontend.numpy_trace import Trace
from fusec.frontend.structures import flatten, rebuild, structure_of
from fusec.ir.place import place


def capture(
    f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, fallback: Fallback = "eager"
) -> Capture:
    """The graph of ``f(*args, **kwargs)`` for CuPy arrays of these dtypes, shapes and strides, on their device.

    Raises what the capture of NumPy functions raises, FusecError for arrays on several devices.
    """
    leaves, _ = flatten(args, kwargs or {}, is_array)
    made: list[CupyScope] = []

    def scope(trace: Trace) -> Scope:
        made.append(CupyScope(trace))
        return made[0]

    found = capture_as(Flavour("cupy", is_array, scope, layout_of), f, args, kwargs or {}, fallback)
    devices = {array.device.id for array in (*leaves, *made[0].fetched.values())} or {cupy.cuda.Device().id}
    if len(devices) > 1:
        raise FusecError(f"arrays on devices {sorted(devices)} in one function; move them to one")
    return replace(found, graph=place(found.graph, f"cuda:{devices.pop()}"), rebuild=_on_device(found.rebuild))


def is_array(value: Any) -> bool:
    """True for a CuPy array (a subclass too)."""
    return isinstance(value, cupy.ndarray)


def layout_of(array: Any) -> np.ndarray[Any, Any]:
    """A NumPy array of the same dtype, shape and strides over one element; only these are read of it."""
    memory = np.zeros(1, array.dtype)
    return np.lib.stride_tricks.as_strided(memory, array.shape, array.strides)


def _on_device(make: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    """The result with constant arrays, which the capture made on the host, as CuPy's."""

    def made(outputs: Sequence[Any]) -> Any:
        found: list[Any] = []
        structure = structure_of(make(outputs), lambda v: isinstance(v, np.ndarray | cupy.ndarray), found)
        return rebuild(structure, iter([cupy.asarray(array) for array in found]))

    return made


class CupyScope(Scope):
    """NumPy stands where the function names CuPy; CuPy arrays that it finds are inputs."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._originals: dict[int, Any] = {}

    def original(self, array: Any) -> Any:
        return self._originals.get(id(array), array)

    def patch(self, value: Any, path: str, fetch: Fetch, *, library: bool = False) -> Any:
        if type(value) is cupy.ndarray:
            self.fetched[id(value)] = value
            stand_in = layout_of(value)
            self._originals[id(stand_in)] = value
            return self.trace.state(stand_in, path, fetch)
        if type(value) is np.ndarray and not library and value.ndim:
            raise self.trace.unsupported(f"{path} is a NumPy array among CuPy's; move it with cupy.asarray")
        if _is_cupy(value):
            counterpart = _counterpart(value)
            if counterpart is None:
                raise self.trace.unsupported(f"{path} is CuPy's alone: there is no such function in NumPy")
            return super().patch(counterpart, path, fetch, library=library)
        return super().patch(value, path, fetch, library=library)

    def _module(self, module: ModuleType) -> Any:
        if module.__name__ == "cupy" or module.__name__.startswith("cupy."):
            return self._remember(module, _CupyView(self, module))
        return super()._module(module)


class _CupyView(ModuleView):
    """CuPy's module, whose functions are NumPy's of the same name."""

    def __getattr__(self, name: str) -> Any:
        module, scope = self._module, self._scope
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            made = scope._module(value)
        else:
            found = getattr(_numpy_module(module), name, None)
            if found is None and callable(value):
                raise scope.trace.unsupported(f"{module.__name__}.{name} is CuPy's alone: NumPy has no such function")
            made = value if found is None else scope.patch(found, f"{module.__name__}.{name}", lambda: value)
        self.__dict__[name] = made
        return made


def _is_cupy(value: object) -> bool:
    """One of CuPy's own functions."""
    owner = value.__module__ if isinstance(value, FunctionType) else type(value).__module__
    own = str(getattr(value, "__module__", None) or owner)
    is_function = isinstance(value, FunctionType) or (callable(value) and not isinstance(value, type))
    return is_function and (own.startswith("cupy.") or own == "cupy" or str(owner).startswith("cupy."))


def _counterpart(value: Any) -> Any:
    """NumPy's function of the same name, from the module of the same name."""
    name = str(getattr(value, "__name__", "")).removeprefix("cupy_")
    for module in (np, np.linalg, np.fft):
        found = getattr(module, name, None)
        if callable(found):
            return found
    return None


def _numpy_module(module: ModuleType) -> Any:
    found: Any = np
    for part in module.__name__.split(".")[1:]:
        found = getattr(found, part, None)
        if found is None:
            raise CaptureError(f"there is nothing like {module.__name__} in NumPy")
    return found
