# SPDX-License-Identifier: Apache-2.0
"""Calls that are the library's on one kind of device, and kernels of ours on the other."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fusec.ir.attributes import ExternAttributes
from fusec.ir.library_calls import CONVOLUTION, MOST_WEIGHTED_TAPS, convolution_from_text
from fusec.ir.nodes import Op
from fusec.ir.types import Dim, DType, bf16

RESAMPLING = frozenset(
    {
        *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
        *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        *(f"{name}{n}d" for n in (1, 2, 3) for name in ("upsample_nearest", "_upsample_nearest_exact")),
    }
)
"""ATen's calls that the library computes faster on a CPU, axis by axis."""


def why_whole(
    dtype: DType,
    channels: Dim,
    weight: Sequence[int],
    groups: int,
    transposed: bool,
    *,
    steps: Sequence[tuple[int, int]] = (),
    on_cpu: bool,
) -> str:
    """Why a convolution is the library's; empty where it is opened. ``channels`` are the image's, ``weight`` is the
    shape of the weight as PyTorch has it; ``steps`` are the stride and the dilation of each axis."""
    taps = prod(weight[2:])
    if transposed:
        why = _why_transposed(dtype, channels, weight[2:], groups, steps, on_cpu)
        if why:
            return why
    if groups not in (1, channels) and on_cpu:
        return "no kernel of ours is a convolution in groups"
    if groups == channels != 1 and taps > MOST_WEIGHTED_TAPS:
        return f"of windows of {taps} positions of one channel"
    if on_cpu and taps > 1 and groups == 1 and dtype is bf16:
        return "the library's kernel of bfloat16 is faster"
    return ""


def _why_transposed(
    dtype: DType,
    channels: Dim,
    size: Sequence[int],
    groups: int,
    steps: Sequence[tuple[int, int]],
    on_cpu: bool,
) -> str:
    """Why a transposed convolution is the library's, though another would not be."""
    if any(stride > 1 and dilation > 1 for stride, dilation in steps):
        return "its phases are dilated"
    if groups not in (1, channels):
        return "no kernel of ours is a transposed convolution in groups"
    if groups != 1 and on_cpu and any(stride > 1 for stride, _ in steps):
        return "the library puts phases of one channel together faster"
    if not on_cpu and dtype.bits > 16:
        return "the library's may round to TF32"
    if not on_cpu and any(n != stride for n, (stride, _) in zip(size, steps, strict=True)):
        return "the library's kernel is faster where what elements add to overlaps"
    return ""


def is_for_cpus(op: Op) -> bool:
    """Whether a library call is there because the graph was captured for a CPU."""
    attributes = op.attributes
    if not isinstance(attributes, ExternAttributes) or any(v.type.device != "cpu" for v in op.results):
        return False
    if attributes.target != CONVOLUTION:
        return attributes.target.partition(".")[2].partition(".")[0] in RESAMPLING
    call = convolution_from_text(attributes.arguments)
    steps = tuple(zip(call.stride, call.dilation, strict=True))
    image, weight = (operand.type for operand in op.operands[:2])
    if call.image is not None or not weight.is_static:
        return False
    weights = weight.static_shape
    return not why_whole(image.dtype, image.shape[-1], weights, call.groups, call.transposed, steps=steps, on_cpu=False)
