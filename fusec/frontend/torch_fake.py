# SPDX-License-Identifier: Apache-2.0
"""Tensors while torch is traced: fakes of real ones, their layouts, and tensors inside arguments and results."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import lru_cache
from types import FrameType, GeneratorType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fusec.errors import UnsupportedOpError
from fusec.frontend.steps import Step
from fusec.frontend.torch_emit import Declined
from fusec.frontend.torch_memory import Memory
from fusec.frontend.torch_modes import why_not_plain
from fusec.ir.attributes import PermuteAttributes, StridedAttributes
from fusec.ir.indexing import round_up
from fusec.ir.types import contiguous_strides
from fusec.packages import uncollected

MOST_KNOWN = 1 << 14
"""Results of operations on fake tensors that PyTorch may know; it forgets none by itself, and each takes 0.5 KB."""


def fake_mode() -> FakeTensorMode:
    """A mode for one capture. Its tensors have no address: asked for one they raise."""
    if len(FakeTensorMode.cache) > MOST_KNOWN:
        FakeTensorMode.cache_clear()
    with uncollected():  # the first one imports torch.compile's front half
        mode = FakeTensorMode()
    mode._allow_unsafe_data_ptr_access = False
    return mode


def fake_like(mode: FakeTensorMode, real: torch.Tensor) -> torch.Tensor:
    """A fake tensor with the layout of a real one, in a storage of its own; one of inference where that is one.

    PyTorch makes a view of the fake where the function takes one of the real one, whose version counter it then shares.
    """
    shape, strides, offset = tuple(real.shape), tuple(real.stride()), real.storage_offset()
    with torch.inference_mode(real.is_inference()):
        with mode:
            if offset == 0 and strides == contiguous_strides(shape):
                fake = torch.empty(shape, dtype=real.dtype, device=real.device)
            else:
                reach = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides))
                memory = torch.empty((offset + reach,), dtype=real.dtype, device=real.device)
                fake = memory.as_strided(shape, strides, offset)
        return fake.requires_grad_(real.requires_grad)


def check_plain(tensor: torch.Tensor, path: str) -> None:
    """UnsupportedOpError for a tensor that is not a plain dense one, such as a sparse or a quantized tensor."""
    reason = why_not_plain(tensor)
    if reason:
        raise UnsupportedOpError(f"{path} is not a plain dense tensor: {reason}")


def is_held(tensor: torch.Tensor) -> bool:
    """True when something besides running code refers to a tensor, so that another call may find another one there.

    A tensor that the function has just made (``torch.from_numpy(...)``, ``torch.tensor`` in TorchScript) is held by
    variables of running frames only, those of generators among them.
    """
    frames = _running_frames()
    running = {id(frame) for frame in frames} | {id(frame.f_locals) for frame in frames}
    return any(
        id(holder) not in running
        and not isinstance(holder, tuple | FrameType)
        and not (isinstance(holder, GeneratorType) and holder.gi_running)
        for holder in gc.get_referrers(tensor)
    )


def _running_frames() -> list[FrameType]:
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True when two tensors on one storage show the same elements in the same way."""
    return (
        a.shape == b.shape
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
        and a.dtype == b.dtype
    )


def strided_steps(memory: Memory, out: torch.Tensor) -> tuple[Step, ...]:
    """The result as strides into its memory, whose elements are brought to their order in memory first."""
    base = memory.tensor
    if base.dtype != out.dtype:
        raise Declined("a view in another dtype")
    strides = tuple(base.stride())
    order = sorted(range(base.dim()), key=lambda a: (-strides[a], a))
    shape = [base.shape[a] for a in order]
    if tuple(strides[a] for a in order if base.shape[a] != 1) != tuple(
        s for s, n in zip(contiguous_strides(shape), shape) if n != 1
    ):
        raise Declined("strides into memory with gaps")
    from_base = int(out.storage_offset()) - int(base.storage_offset())
    strided = StridedAttributes(tuple(out.shape), tuple(out.stride()), from_base)
    steps = [Step("strided", strided)]
    if order != list(range(base.dim())):
        steps.insert(0, Step("permute", PermuteAttributes(tuple(order))))
    return tuple(steps)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a result or in arguments, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [t for part in value for t in tensors_in(part)]
    return []


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The value with ``function`` applied to the tensors in it."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in (tuple, list):
        return type(value)(map_tensors(function, part) for part in value)
    return value


def grouped_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor | None:
    """``_grouped_mm`` of fake tensors on a CPU, whose own rule refuses all but bf16; None where it may know better.

    The shapes and padded strides are those of ``create_grouped_gemm_output_tensor`` (ATen/native/GroupedMMUtils.h).
    """
    flat = (a.dim() == 2, b.dim() == 2)
    fits = {a.dim(), b.dim()} <= {2, 3} and a.size(-1) == b.size(-2) and (offsets is not None) == any(flat)
    if not (a.is_cpu and b.is_cpu and fits and a.dtype == b.dtype and bias is None):
        return None
    groups = offsets.shape[0] if offsets is not None else a.shape[0]
    if any(x.dim() == 3 and x.shape[0] != groups for x in (a, b)):
        return None
    rows, columns = a.shape[-2], b.shape[-1]
    dtype = out_dtype or a.dtype
    aligned = 16 // dtype.itemsize
    step = round_up(columns, aligned)
    together = flat[0] == flat[1]
    shape, strides = ((groups, rows, columns), (rows * step, step, 1)) if together else ((rows, columns), (step, 1))
    return torch.empty_strided(shape, strides, dtype=dtype)


@lru_cache(maxsize=1)
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of ATen calls, core ATen's first."""
    from torch._decomp import core_aten_decompositions, decomposition_table  # half a second: only when needed

    return {**decomposition_table, **core_aten_decompositions()}


def value_name(path: str) -> str:
    """A path as a name that IR text can show without quotes."""
    name = "".join(c if c.isalnum() or c in "_." else "_" for c in path.replace("]", "")) or "arg"
    return name if name[0].isalpha() or name[0] == "_" else f"_{name}"
