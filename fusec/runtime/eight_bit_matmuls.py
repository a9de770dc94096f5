# SPDX-License-Identifier: Apache-2.0
"""Matmuls of 8 bits by PyTorch's library: floats with their scales, and bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusec.errors import FusecError
from fusec.ir.library_calls import Matrix, matrix_from_json, matrix_to_json
from fusec.ir.types import DTYPES
from fusec.runtime.matmuls import see


@dataclass(frozen=True)
class EightBitMatmul:
    """``lhs @ rhs`` in the shape ``shape``, two axes an operand, the right one with K side by side.

    dtype: of the result; i32 for bytes. rows, columns: of floats, scales of f32 by which the result is multiplied: one
    number, ``[m, 1]`` and ``[1, n]``; None for 1. fast: sums keep the digits that tensor cores keep.
    """

    lhs: Matrix
    rhs: Matrix
    rows: Matrix | None
    columns: Matrix | None
    dtype: str
    shape: tuple[int, ...]
    fast: bool = False


def eight_bit_matmul_to_text(m: EightBitMatmul) -> str:
    """One line of JSON."""
    parts = {name: getattr(m, name) for name in ("lhs", "rhs", "rows", "columns")}
    record = {name: part and matrix_to_json(part) for name, part in parts.items()}
    return json.dumps({**record, "dtype": m.dtype, "shape": list(m.shape), "fast": m.fast})


def eight_bit_matmul_from_text(text: str) -> EightBitMatmul:
    """FusecError for anything else than :func:`eight_bit_matmul_to_text` writes."""
    try:
        r = json.loads(text)
        rows, columns = (None if r[name] is None else matrix_from_json(r[name]) for name in ("rows", "columns"))
        lhs, rhs = matrix_from_json(r["lhs"]), matrix_from_json(r["rhs"])
        shape = tuple(map(int, r["shape"]))
        return EightBitMatmul(lhs, rhs, rows, columns, DTYPES[r["dtype"]].name, shape, bool(r["fast"]))
    except (ValueError, KeyError, TypeError) as error:
        raise FusecError(f"a library matmul can't be read: {error}") from None


_ALIGNMENT = 16
"""Bytes of which the library's operands begin at a multiple."""


def _aligned(operand: Any) -> Any:
    return operand.clone() if operand.data_ptr() % _ALIGNMENT else operand


def bind_eight_bit_matmul(text: str) -> Callable[..., Sequence[Any]]:
    """The function from operand tensors to the matmul, in a list. It reads and writes only their memory."""
    import torch

    p = eight_bit_matmul_from_text(text)
    dtype: torch.dtype = getattr(torch, DTYPES[p.dtype].long_name)
    ones: dict[torch.device, torch.Tensor] = {}

    def scale(m: Matrix | None, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        if m is not None:
            seen: torch.Tensor = see(m, operands)
            return seen
        device = operands[0].device
        if device not in ones:
            ones[device] = torch.ones((), device=device)
        return ones[device]

    def run(*operands: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            a, b = (_aligned(see(m, operands)) for m in (p.lhs, p.rhs))
            if dtype is torch.int32:
                return [torch._int_mm(a, b).view(p.shape)]
            scales = scale(p.rows, operands), scale(p.columns, operands)
            made = torch._scaled_mm(a, b, *scales, out_dtype=dtype, use_fast_accum=p.fast)
            return [made.view(p.shape)]

    return run
