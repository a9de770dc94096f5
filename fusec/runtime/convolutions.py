# SPDX-License-Identifier: Apache-2.0
"""A convolution by PyTorch's library (cuDNN, oneDNN)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from fusec.ir.library_calls import LibraryConvolution, convolution_from_text
from fusec.runtime.matmuls import see


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
            dtype = image.dtype
            if image.device.type == "cpu" and _fails_with_channels_last(c, tuple(image.shape), tuple(weight.shape)):
                image, weight = _plain(image), _plain(weight)
                if dtype.itemsize == 2:  # with AVX-512 FP16 and with AMX it fails in this order, too
                    image, weight, bias = image.float(), weight.float(), None if bias is None else bias.float()
            elif places in formats:
                weight = weight.contiguous(memory_format=formats[places])
            made = torch.convolution(
                image, weight, bias, c.stride, c.padding, c.dilation, c.transposed, c.beyond or (0,) * places, c.groups
            )
            made = made.to(dtype)
            for axis, count in enumerate(c.shape[1:-1]):
                made = made.narrow(2 + axis, 0, count)
            return [made.permute(last).contiguous()]

    return run


@lru_cache(maxsize=1024)
def _fails_with_channels_last(c: LibraryConvolution, image: tuple[int, ...], weight: tuple[int, ...]) -> bool:
    """Whether oneDNN fails (3.11 with AVX-512 does) for images that have their channels last, and not for others.

    With one channel it reads memory that is not the image's, where an axis has one window and several weights. The
    memory of such an image is the same with its channels second. It crashes where all windows of an axis lie in the
    padding and are dilated.
    """
    if c.transposed:
        return False
    if image[1] == 1:
        return True
    axes = list(zip(image[2:], weight[2:], c.stride, c.padding, c.dilation, strict=True))
    windows = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes]
    return any(
        not any(0 <= window * s - p + place * d < n for window in range(count) for place in range(k))
        for (n, k, s, p, d), count in zip(axes, windows, strict=True)
        if p
    )


def _plain(x: Any) -> Any:
    """The same elements in order, and strides that say so along axes of one element, too."""
    strides = [1] * x.ndim
    for axis in range(x.ndim - 1, 0, -1):
        strides[axis - 1] = strides[axis] * x.shape[axis]
    return x.contiguous().as_strided(x.shape, strides)
