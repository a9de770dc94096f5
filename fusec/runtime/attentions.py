# SPDX-License-Identifier: Apache-2.0
"""Attention by PyTorch's library (cuDNN, FlashAttention), its operands as strides over memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusec.errors import FusecError
from fusec.ir.library_calls import Matrix, matrix_from_json, matrix_to_json
from fusec.runtime.matmuls import see

BACKENDS = ("cudnn", "flash")


@dataclass(frozen=True)
class Attention:
    """softmax(query @ keyᵀ * scale) @ value in the shape ``shape``; operands have four axes, heads second."""

    query: Matrix
    key: Matrix
    value: Matrix
    scale: float
    causal: bool
    shape: tuple[int, ...]


def attention_to_text(a: Attention, backend: str) -> str:
    """One line of JSON."""
    operands = {name: matrix_to_json(getattr(a, name)) for name in ("query", "key", "value")}
    return json.dumps({**operands, "scale": a.scale, "causal": a.causal, "shape": a.shape, "backend": backend})


def attention_from_text(text: str) -> tuple[Attention, str]:
    """FusecError for anything else than :func:`attention_to_text` writes."""
    try:
        r = json.loads(text)
        operands = [matrix_from_json(r[name]) for name in ("query", "key", "value")]
        backend = str(r["backend"])
        shape = tuple(map(int, r["shape"]))
        found = Attention(operands[0], operands[1], operands[2], float(r["scale"]), bool(r["causal"]), shape)
    except (ValueError, KeyError, TypeError) as error:
        raise FusecError(f"a library attention can't be read: {error}") from None
    if backend not in BACKENDS:
        raise FusecError(f"the library has no attention {backend!r}")
    return found, backend


def bind_attention(text: str) -> Callable[..., Sequence[Any]]:
    """The function from operand tensors to the attention, in a list. PyTorch's RuntimeError where it has no kernel."""
    import torch

    a, backend = attention_from_text(text)
    aten = torch.ops.aten
    backends = list(BACKENDS[BACKENDS.index(backend) :])

    def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if backends[0] == "flash":
            found = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, a.causal, False, scale=a.scale)
        else:
            found = aten._scaled_dot_product_cudnn_attention(q, k, v, None, False, 0.0, a.causal, False, scale=a.scale)
        result: torch.Tensor = found[0]
        return result

    def run(*operands: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            q, k, v = (see(m, operands) for m in (a.query, a.key, a.value))
            try:
                result = attended(q, k, v)
            except RuntimeError:
                if len(backends) == 1:
                    raise
                del backends[0]  # cuDNN has no kernel for it, or is switched off
                result = attended(q, k, v)
            return [result.reshape(a.shape)]

    return run
