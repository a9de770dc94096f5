"""A matrix product by PyTorch's library (cuBLAS), its operands as strides over memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusec.errors import FusecError

ACTIVATIONS = ("none", "relu", "gelu")


@dataclass(frozen=True)
class Matrix:
    """Operand number ``operand`` seen with these sizes, strides and offset, in elements."""

    operand: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Product:
    """``activation(lhs @ rhs + bias)`` in the shape ``shape``; two or, with a batch, three axes an operand."""

    lhs: Matrix
    rhs: Matrix
    bias: Matrix | None
    activation: str
    shape: tuple[int, ...]


def product_to_text(product: Product) -> str:
    """One line of JSON."""

    def part(m: Matrix | None) -> Any:
        return None if m is None else [m.operand, list(m.sizes), list(m.strides), m.offset]

    p = product
    record = {"lhs": part(p.lhs), "rhs": part(p.rhs), "bias": part(p.bias)}
    return json.dumps({**record, "activation": p.activation, "shape": list(p.shape)})


def product_from_text(text: str) -> Product:
    """FusecError for anything else than :func:`product_to_text` writes."""

    def matrix(part: Any) -> Matrix:
        operand, sizes, strides, offset = part
        return Matrix(int(operand), tuple(map(int, sizes)), tuple(map(int, strides)), int(offset))

    try:
        r = json.loads(text)
        bias = None if r["bias"] is None else matrix(r["bias"])
        made = Product(matrix(r["lhs"]), matrix(r["rhs"]), bias, str(r["activation"]), tuple(map(int, r["shape"])))
    except (ValueError, KeyError, TypeError) as error:
        raise FusecError(f"a library product can't be read: {error}") from None
    if made.activation not in ACTIVATIONS or (made.bias is None and made.activation != "none"):
        raise FusecError(f"the library adds no activation {made.activation!r}")
    return made


def bind_product(text: str) -> Callable[..., Sequence[Any]]:
    """The function from operand tensors to the product, in a list. It reads and writes only their memory."""
    import torch

    p = product_from_text(text)
    strided = torch.as_strided

    def seen(m: Matrix, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        base = operands[m.operand]
        return strided(base, m.sizes, m.strides, base.storage_offset() + m.offset)

    def run(*operands: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            a, b = seen(p.lhs, operands), seen(p.rhs, operands)
            if p.bias is None:
                made = torch.mm(a, b) if a.dim() == 2 else torch.bmm(a, b)
            elif p.activation == "none":
                made = torch.addmm(seen(p.bias, operands), a, b)
            else:
                made = torch._addmm_activation(seen(p.bias, operands), a, b, use_gelu=p.activation == "gelu")
            return [made.view(p.shape)]

    return run
