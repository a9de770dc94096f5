"""A convolution by PyTorch's library (cuDNN), its operands as strides over memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusec.errors import FusecError
from fusec.runtime.products import Matrix, matrix_from_json, matrix_to_json, see


@dataclass(frozen=True)
class LibraryConvolution:
    """image: ``[n, channels, places...]``. weight: ``[columns, channels, places...]``. padding: on both sides; of the
    windows that there are then, those in ``shape`` are taken: ``[n, windows..., columns]``, as the result lies."""

    image: Matrix
    weight: Matrix
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    shape: tuple[int, ...]


def convolution_to_text(c: LibraryConvolution) -> str:
    """One line of JSON."""
    numbers = {"stride": c.stride, "padding": c.padding, "dilation": c.dilation, "shape": c.shape}
    record = {"image": matrix_to_json(c.image), "weight": matrix_to_json(c.weight)}
    return json.dumps({**record, **{name: list(given) for name, given in numbers.items()}})


def convolution_from_text(text: str) -> LibraryConvolution:
    """FusecError for anything else than :func:`convolution_to_text` writes."""
    try:
        r = json.loads(text)
        image, weight = matrix_from_json(r["image"]), matrix_from_json(r["weight"])
        names = ("stride", "padding", "dilation", "shape")
        return LibraryConvolution(image, weight, *(tuple(map(int, r[name])) for name in names))
    except (ValueError, KeyError, TypeError) as error:
        raise FusecError(f"a library convolution can't be read: {error}") from None


def bind_convolution(text: str) -> Callable[..., Sequence[Any]]:
    """The function from operand tensors to the result, in a list. It reads their memory alone."""
    import torch

    c = convolution_from_text(text)
    places = len(c.stride)
    last = (0, *range(2, places + 2), 1)
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}

    def run(*operands: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            image, weight = see(c.image, operands), see(c.weight, operands)
            if places in formats:
                weight = weight.contiguous(memory_format=formats[places])
            made = torch.convolution(
                image, weight, None, c.stride, c.padding, c.dilation, False, (0,) * places, 1
            )
            for axis, count in enumerate(c.shape[1:-1]):
                made = made.narrow(2 + axis, 0, count)
            return [made.permute(last).contiguous()]

    return run
