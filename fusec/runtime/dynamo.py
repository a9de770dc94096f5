# SPDX-License-Identifier: Apache-2.0
"""Whether Dynamo, PyTorch's compiler, looks at a call.

It can't follow a dispatcher. What it takes is the function itself, as written: gradients, exported programs and its own
guards are then what they are without fusec, and with ``backend="fusec"`` the function is fused with what surrounds it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def _never() -> bool:
    return False


is_tracing: Callable[[], bool] = _never
"""A function that Dynamo takes for True. Elsewhere it is False; read it from the module at each call."""


def notice_torch() -> None:
    """To be called once PyTorch may have been imported."""
    global is_tracing
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "compiler"):
        is_tracing = torch.compiler.is_dynamo_compiling
