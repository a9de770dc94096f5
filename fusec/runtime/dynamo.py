# SPDX-License-Identifier: Apache-2.0
"""Whether Dynamo, PyTorch's compiler, looks at a call.

It can't follow a dispatcher. What it takes is the function itself, as written: gradients, exported programs and its own
guards are then what they are without fusec, and with ``backend="fusec"`` the function is fused with what surrounds it.
Where nothing surrounds it, and another backend would compile it, the call is left to the dispatcher.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


def _never() -> bool:
    return False


is_tracing: Callable[[], bool] = _never
"""A function that Dynamo takes for True. Elsewhere it is False; read it from the module at each call."""

outside: Callable[..., Any] = _never
"""Calls a function with arguments, unseen by Dynamo. There once :func:`is_whole` has found it wanted."""


def notice_torch() -> None:
    """To be called once PyTorch may have been imported."""
    global is_tracing
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "compiler"):
        is_tracing = torch.compiler.is_dynamo_compiling


def is_whole() -> bool:
    """Whether ``torch.compile`` was given nothing else than a compiled function, for another backend than fusec's.

    transformers does so where a cache is preallocated: it compiles the call of the model, whose forward is ours. Dynamo
    runs this function while it traces, and takes what it says for a constant.
    """
    global outside
    symbolic = sys.modules.get("torch._dynamo.symbolic_convert")
    if symbolic is None:
        return False
    tracing = [t for t in _translators() if isinstance(t, symbolic.InstructionTranslatorBase)]
    if not tracing or not all(_is_of_libraries(t.f_code.co_filename) for t in tracing):
        return False
    root = tracing[-1]
    if root.export or root.one_graph or root.error_on_graph_break or _is_ours(root.output.compiler_fn):
        return False
    if outside is _never:
        outside = sys.modules["torch"].compiler.disable(_call)
    return True


is_whole._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _call(dispatcher: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return dispatcher(args, kwargs)


def _translators() -> list[Any]:
    """What has ``run`` on this thread's stack, the innermost first."""
    found, frame = [], sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run":
            found.append(frame.f_locals.get("self"))
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _is_of_libraries(filename: str) -> bool:
    """Whether code is PyTorch's or ours: neither does anything but lead to a compiled function."""
    torch = os.path.dirname(sys.modules["torch"].__file__ or "")
    own = os.path.dirname(os.path.dirname(__file__))
    return filename.startswith((torch + os.sep, own + os.sep))


def _is_ours(backend: Any) -> bool:
    """Whether a backend of ``torch.compile``, or what it wraps, is fusec."""
    while backend is not None:
        if str(getattr(backend, "__module__", "")).startswith("fusec"):
            return True
        backend = getattr(backend, "_torchdynamo_orig_backend", None) or getattr(backend, "compiler_fn", None)
    return False
