# SPDX-License-Identifier: Apache-2.0
"""Whose arrays a call is about, and that library's frontend."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusec.frontend import raw
from fusec.frontend.capture import Capture, Library
from fusec.frontend.structures import is_data, own_attributes

CaptureFunction = Callable[..., Capture]

LIBRARIES: tuple[Library, ...] = ("torch", "cupy", "numpy")
"""By whose arrays decide where several libraries' are among the arguments."""


def load_capture(library: Library) -> CaptureFunction:
    """The capture function of a library's frontend, imported on first use."""
    if library == "torch":
        from fusec.frontend.torch import capture as torch_capture

        return torch_capture
    if library == "cupy":
        from fusec.frontend.cupy import capture as cupy_capture

        return cupy_capture
    from fusec.frontend.numpy import capture as numpy_capture

    return numpy_capture


def needs_autograd(library: Library, leaves: Sequence[Any], capture: Capture | None = None) -> bool:
    """True when the library would record this call for a gradient."""
    if library != "torch":
        return False
    from fusec.frontend.torch import needs_autograd as torch_needs_autograd

    return torch_needs_autograd(leaves, capture)


def library_of(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Library | None:
    """Whose arrays a call is about: PyTorch's if there is any tensor among them, else CuPy's, else NumPy's, or None.

    A call without arrays goes by the function: a module, or a function that reads only one library's name.
    """
    found: set[Library] = set()
    for value in (*args, *kwargs.values()):
        _libraries_in(value, found)
    owner = getattr(function, "__self__", function)
    if "torch" in found or is_torch_module(owner):
        return "torch"
    if found:
        return "cupy" if "cupy" in found else "numpy"
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    names = getattr(getattr(function, "__func__", function), "__globals__", {})
    read = [names.get(n) for n in (code.co_names if code else ())]
    read += [_content(cell) for cell in getattr(getattr(function, "__func__", function), "__closure__", None) or ()]
    used = {str(getattr(value, "__name__", "")).split(".")[0] for value in read}
    return next((library for library in LIBRARIES if library in used), None)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing has been assigned yet
        return None


def _libraries_in(value: Any, found: set[Library]) -> None:
    kind = type(value)
    if issubclass(kind, tuple | list | dict):
        for part in raw.values_of(value):
            _libraries_in(part, found)
    elif kind.__module__ != "builtins":
        torch, cupy, numpy = map(sys.modules.get, LIBRARIES)
        if torch is not None and issubclass(kind, torch.Tensor):
            found.add("torch")
        elif cupy is not None and issubclass(kind, cupy.ndarray):
            found.add("cupy")
        elif numpy is not None and issubclass(kind, numpy.ndarray):
            found.add("numpy")
        else:
            for _, part in own_attributes(value) if is_data(value) else ():
                _libraries_in(part, found)


def is_torch_module(value: object) -> bool:
    nn = sys.modules.get("torch.nn")
    return nn is not None and isinstance(value, nn.Module)
