"""A convolution by PyTorch's library (cuDNN, oneDNN)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusec.ir.library_calls import convolution_from_text
from fusec.runtime.products import see


def bind_convolution(text: str) -> Callable[..., Sequence[Any]]:
    """The function from operand tensors to the result, in a list. It reads their memory alone."""
    import torch

    c = convolution_from_text(text)
    places = len(c.stride)
    last, first = (0, *range(2, places + 2), 1), (0, places + 1, *range(1, places + 1))
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}

    def image_of(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        """With the strides that tell the library that channels are last, also along axes of one element."""
        seen = operands[0].permute(first) if c.image is None else see(c.image, operands)
        if 1 not in seen.shape:
            return seen
        dense, step = list(seen.stride()), 1
        for axis in (1, *range(places + 1, 1, -1), 0):
            if seen.shape[axis] != 1 and dense[axis] != step:
                return seen
            dense[axis] = step
            step *= seen.shape[axis]
        return seen.as_strided(seen.shape, dense)

    def run(*operands: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            image = image_of(operands)
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
