"""A convolution by PyTorch's library (cuDNN), its operands as strides over memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusec.errors import FusecError
from fusec.runtime.products import Matrix, matrix_from_json, matrix_to_json, see


CONVOLUTION = "fusec.convolution"
"""The target of a call that is a convolution of the library, said by ``arguments``."""


@dataclass(frozen=True)
class LibraryConvolution:
    """image: ``[n, channels, places...]``; None for the first operand, ``[n, places..., channels]``. weight: as PyTorch has
    it; None for the second operand. A third is a bias. padding: on both sides; of the windows that there
    are then, those in ``shape`` are taken: ``[n, windows..., columns]``, as the result lies. beyond: more places of a
    ``transposed`` one's result."""

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


def bind_convolution(text: str) -> Callable[..., Sequence[Any]]:
    """The function from operand tensors to the result, in a list. It reads their memory alone."""
    import torch

    c = convolution_from_text(text)
    places = len(c.stride)
    last, first = (0, *range(2, places + 2), 1), (0, places + 1, *range(1, places + 1))
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}

    def run(*operands: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            image = operands[0].permute(first) if c.image is None else see(c.image, operands)
            weight = operands[1] if c.weight is None else see(c.weight, operands)
            bias = operands[2] if len(operands) > 2 else None
            if places in formats:
                weight = weight.contiguous(memory_format=formats[places])
            made = torch.convolution(
                image, weight, bias, c.stride, c.padding, c.dilation, c.transposed, c.beyond or (0,) * places, c.groups
            )
            for axis, count in enumerate(c.shape[1:-1]):
                made = made.narrow(2 + axis, 0, count)
            return [made.permute(last).contiguous()]

    return run
