# SPDX-License-Identifier: Apache-2.0
"""A matmul by PyTorch's library (cuBLAS), its operands as strides over memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from fusec.errors import FusecError
from fusec.ir.library_calls import Matrix, matrix_from_json, matrix_to_json

ACTIVATIONS = ("none", "relu", "gelu")

_threads = threading.local()
"""``begun`` in threads where CUDA's runtime has been called."""


@dataclass(frozen=True)
class Matmul:
    """``activation(lhs @ rhs + bias)`` in the shape ``shape``; two or, with a batch, three axes an operand."""

    lhs: Matrix
    rhs: Matrix
    bias: Matrix | None
    activation: str
    shape: tuple[int, ...]


def see(m: Matrix, operands: Sequence[Any]) -> Any:
    """The operand's tensor with the matrix's sizes and strides."""
    base = operands[m.operand]
    return base.as_strided(m.sizes, m.strides, base.storage_offset() + m.offset)


def matmul_to_text(matmul: Matmul) -> str:
    """One line of JSON."""

    p = matmul
    record = {"lhs": matrix_to_json(p.lhs), "rhs": matrix_to_json(p.rhs), "bias": p.bias and matrix_to_json(p.bias)}
    return json.dumps({**record, "activation": p.activation, "shape": list(p.shape)})


def matmul_from_text(text: str) -> Matmul:
    """FusecError for anything else than :func:`matmul_to_text` writes."""

    try:
        r = json.loads(text)
        bias = None if r["bias"] is None else matrix_from_json(r["bias"])
        lhs, rhs, shape = matrix_from_json(r["lhs"]), matrix_from_json(r["rhs"]), tuple(map(int, r["shape"]))
        made = Matmul(lhs, rhs, bias, str(r["activation"]), shape)
    except (ValueError, KeyError, TypeError) as error:
        raise FusecError(f"a library matmul can't be read: {error}") from None
    if made.activation not in ACTIVATIONS or (made.bias is None and made.activation != "none"):
        raise FusecError(f"the library adds no activation {made.activation!r}")
    return made


@contextmanager
def _in_ieee() -> Iterator[None]:
    """In which the library multiplies f32 as f32, whatever this process allows it: programs of TF32 don't call it."""
    get, put = _tf32_setting()
    before = get()
    if before not in (True, "tf32"):
        yield
        return
    put("ieee" if before == "tf32" else False)
    try:
        yield
    finally:
        put(before)


@cache
def _tf32_setting() -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """What gives, and sets, whether matmuls of f32 may be TF32's. Before 2.9 PyTorch has another setting."""
    import torch

    c: Any = torch._C
    if not hasattr(c, "_get_fp32_precision_getter"):
        return c._get_cublas_allow_tf32, c._set_cublas_allow_tf32
    where = "cuda", "matmul"
    return partial(c._get_fp32_precision_getter, *where), partial(c._set_fp32_precision_setter, *where)


def bind_matmul(text: str) -> Callable[..., Sequence[Any]]:
    """The function from operand tensors to the matmul, in a list. It reads and writes only their memory."""
    import torch

    p = matmul_from_text(text)

    def multiply(operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        a, b = see(p.lhs, operands), see(p.rhs, operands)
        if p.bias is None:
            made = torch.mm(a, b) if a.dim() == 2 else torch.bmm(a, b)
        elif p.activation == "none":
            made = torch.addmm(see(p.bias, operands), a, b)
        else:
            made = torch._addmm_activation(see(p.bias, operands), a, b, use_gelu=p.activation == "gelu")
        return [made.view(p.shape)]

    def run(*operands: torch.Tensor) -> list[torch.Tensor]:
        on_card = operands[0].is_cuda
        if not _threads.__dict__ and on_card:
            # PyTorch's backward has a thread of its own, where cuBLAS warns that no context is current before this
            torch.cuda.is_current_stream_capturing()
            _threads.begun = True
        with torch.no_grad():
            if operands[0].dtype is not torch.float32 or not on_card:
                return multiply(operands)
            with _in_ieee():
                return multiply(operands)

    return run
