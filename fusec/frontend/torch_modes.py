# SPDX-License-Identifier: Apache-2.0
"""PyTorch's modes: which of them a plan is made for, and under which a call runs as written.

A mode may do anything to each operation, a transform (vmap, forward-mode differentiation) and a tracer need each of
them: under these a function runs as written. A default device is a mode, too, and part of a plan's key.

PyTorch notes for the whole process whether a dispatch mode is on, and each mode puts back what it found. Modes of
several threads end in another order than they began: the last to end puts back that there is one, and from then on
guards see modes that are none. So what was noted before the first of them is put back after the last.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch
from torch.utils._device import DeviceContext

from fusec.frontend.capture import AsWritten

_Key = torch._C.DispatchKey


def _keys(*keys: torch._C.DispatchKey) -> int:
    """A set of dispatch keys as a number."""
    found = torch._C.DispatchKeySet(keys[0])
    for key in keys[1:]:
        found = found.add(key)
    return int(found.raw_repr())


_AUTOCAST = tuple(key for name, key in _Key.__members__.items() if name.startswith("Autocast"))
_USUAL = _keys(_Key.BackendSelect, _Key.ADInplaceOrView, *_AUTOCAST)
"""Layers that are on where nothing but gradients, inference mode and autocast is."""

_PLAIN = {
    "cpu": _keys(_Key.CPU, _Key.ADInplaceOrView, _Key.AutogradCPU, _Key.AutocastCPU),
    "cuda": _keys(_Key.CUDA, _Key.ADInplaceOrView, _Key.AutogradCUDA, _Key.AutocastCUDA),
}
"""The layers that see a plain dense tensor."""

PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

function_modes = torch._C._len_torch_function_stack
"""How many modes see calls of functions."""


def in_dispatch_mode() -> bool:
    """Whether operations of this thread go through a mode in Python, such as one of fake tensors."""
    return bool(torch._C._dispatch_tls_local_include_set().has(_Key.Python))


def mode() -> Hashable:
    """PyTorch's state that a plan depends on, in parts that compare equal where it is the same."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._dispatch_tls_local_include_set().raw_repr(),
        torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        default_devices(),
    )


def default_devices() -> tuple[str, ...] | None:
    """The devices of ``torch.device`` contexts and ``torch.set_default_device``; None where another mode is on."""
    modes = [torch._C._get_function_stack_at(level) for level in range(function_modes())]
    if any(type(mode) is not DeviceContext for mode in modes):
        return None
    return tuple(str(mode.device) for mode in modes) if not modes or torch._C._is_torch_function_enabled() else None


def why_as_written() -> AsWritten | None:
    """Why no plan serves a call now, whatever its arguments; None where one may."""
    if torch._C._get_tracing_state() is not None:
        return AsWritten("torch.jit.trace records it", is_part=True)
    if forward_ad._current_level >= 0:
        return AsWritten("forward-mode derivatives are computed")
    on = torch._C._dispatch_tls_local_include_set()
    if on.raw_repr() & ~_USUAL:
        if on.has(_Key.FuncTorchDynamicLayerFrontMode):
            return AsWritten("a transform of torch.func is applied to it")
        modes = _python_dispatch._get_current_dispatch_mode_stack()
        is_part = all(map(_is_torchs_own, modes))
        names = ", ".join(type(mode).__name__ for mode in modes) or f"the layers {on}"
        return AsWritten(f"PyTorch's operations go through {names}", is_part)
    if default_devices() is None:
        return AsWritten("a TorchFunctionMode is on")
    return None


def without_onlookers() -> AbstractContextManager[Any]:
    """Turns off modes that PyTorch has on to look at custom operations, and that pass by what compilers do."""
    modes = _python_dispatch._get_current_dispatch_mode_stack()
    if modes and all(getattr(type(mode), "ignore_compile_internals", bool)() for mode in modes):
        off: AbstractContextManager[Any] = _python_dispatch._disable_current_modes()
        return off
    return nullcontext()


def _is_torchs_own(mode: _python_dispatch.TorchDispatchMode) -> bool:
    """Fake tensors, functionalization, make_fx, and what AOTAutograd looks for at its graphs' first call."""
    return mode.is_infra_mode() or type(mode).__module__.startswith("torch._functorch")


def why_not_plain(tensor: torch.Tensor) -> str:
    """Why a tensor is more than its memory, shape and strides say; empty where it is not.

    Nothing is asked of it that such tensors refuse.
    """
    kind = type(tensor)
    if kind not in PLAIN_CLASSES and not issubclass(kind, torch.nn.Parameter | torch.nn.Buffer):
        return f"a tensor of class {kind.__name__} may redefine what operators do"
    keys = torch._C._dispatch_keys(tensor)
    if keys.raw_repr() & ~_PLAIN.get(tensor.device.type, 0) == 0:
        return ""
    if tensor.is_nested:
        return "it is a nested tensor"
    if tensor.is_quantized:
        return "it is quantized"
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}"
    if tensor.is_neg() or tensor.is_conj():
        return "its negation or conjugation is still to be done; call resolve_neg() or resolve_conj()"
    if tensor.device.type not in _PLAIN:
        return f"it is on the device {tensor.device}"
    return f"PyTorch's layers {keys} see it"


_NAMES = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
_lock = threading.Lock()
_running = 0
_before: Mapping[str, bool] = {}


@contextmanager
def dispatch_modes() -> Iterator[None]:
    """Runs a body that enters dispatch modes, on any thread."""
    global _running, _before
    with _lock:
        if not _running:
            _before = {name: vars(_python_dispatch)[name] for name in _NAMES if hasattr(_python_dispatch, name)}
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                _put_back(_before)


_as_written = 0
_stance: Any = None


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Runs a body in which ``torch.compile``'s functions run as written.

    Under a dispatch mode Dynamo passes by a function's code, and never looks at it again; ``torch.cond`` then fails for
    the rest of the process. Other threads' compiled functions run as written meanwhile, too: they give the same.
    """
    global _as_written, _stance
    from torch._dynamo import eval_frame  # fake tensors import it in any case

    module: Any = eval_frame
    with _lock:
        if not _as_written and hasattr(module, "DynamoStance"):
            _stance, module._stance = module._stance, module.DynamoStance("force_eager")
        _as_written += 1
    try:
        yield
    finally:
        with _lock:
            _as_written -= 1
            if not _as_written and _stance is not None:
                module._stance, _stance = _stance, None


def _put_back(noted: Mapping[str, bool]) -> None:
    module: Any = _python_dispatch
    for name, value in noted.items():
        setattr(module, name, value)
    told = getattr(module, "set_is_in_mode_without_ignore_compile_internals", None)
    if told is not None:
        told(noted[_NAMES[-1]])
