# SPDX-License-Identifier: Apache-2.0
"""What a call of PyTorch's library is to do, as text in a program: operands as strides over memory; convolutions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fusec.errors import FusecError


@dataclass(frozen=True)
class Matrix:
    """Operand number ``operand`` seen with these sizes, strides and offset, in elements."""

    operand: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def matrix_to_json(m: Matrix) -> Any:
    return [m.operand, list(m.sizes), list(m.strides), m.offset]


def matrix_from_json(data: Any) -> Matrix:
    operand, sizes, strides, offset = data
    return Matrix(int(operand), tuple(map(int, sizes)), tuple(map(int, strides)), int(offset))


MOST_TAPS = 27
"""Positions of a window, up to which pooling is a map of ours: 5×5, 3×3×3 and less."""

MOST_WEIGHTED_TAPS = 49
"""The same for convolutions of one channel: 7×7. A lane computes several results, which share what they read."""

CONVOLUTION = "fusec.convolution"
"""The target of a call that is a convolution of the library, said by ``arguments``."""


@dataclass(frozen=True)
class LibraryConvolution:
    """image: ``[n, channels, spatial...]``; None for the first operand, ``[n, spatial..., channels]``. weight: as
    PyTorch has it; None for the second operand. A third is a bias. padding: on both sides; of the windows that there
    are then, those in ``shape`` are taken: ``[n, windows..., columns]``, as the result lies. beyond: more elements of
    a ``transposed`` one's result."""

    image: Matrix | None
    weight: Matrix | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    shape: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    beyond: tuple[int, ...] = ()


_NUMBERS = ("stride", "padding", "dilation", "shape", "beyond")


def convolution_to_text(c: LibraryConvolution) -> str:
    """One line of JSON."""
    numbers = {name: getattr(c, name) for name in _NUMBERS}
    record = {name: m and matrix_to_json(m) for name, m in (("image", c.image), ("weight", c.weight))}
    lists = {name: list(given) for name, given in numbers.items()}
    return json.dumps({**record, **lists, "groups": c.groups, "transposed": c.transposed})


def convolution_from_text(text: str) -> LibraryConvolution:
    """FusecError for anything else than :func:`convolution_to_text` writes."""
    try:
        r = json.loads(text)
        image, weight = (None if r[name] is None else matrix_from_json(r[name]) for name in ("image", "weight"))
        numbers = {name: tuple(map(int, r[name])) for name in _NUMBERS}
        return LibraryConvolution(image, weight, **numbers, groups=int(r["groups"]), transposed=bool(r["transposed"]))
    except (ValueError, KeyError, TypeError) as error:
        raise FusecError(f"a library convolution can't be read: {error}") from None
