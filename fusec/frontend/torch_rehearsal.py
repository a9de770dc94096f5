# SPDX-License-Identifier: Apache-2.0
"""What eager refuses and fake tensors let pass: dtypes that no kernel of the library is made for, numbers that a dtype
does not hold, a layout, and writes to memory that the same call reads at other positions. Also what it gives in another
dtype.

Such a call is made once on small tensors of its own, whose contents do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import _disable_current_modes

from fusec.errors import UnsupportedOpError
from fusec.frontend.capture import of_library
from fusec.frontend.environment import Unwatched
from fusec.frontend.torch_fake import map_tensors, same_layout, tensors_in

_ALWAYS = frozenset((torch.float32, torch.float64))
"""Dtypes that every function of the library takes, where all its operands have the same."""

_MOST_BYTES = 1 << 26
"""Memory that is rehearsed on; writes that overlap in more are taken for right."""

_MOST_WORK = 100_000
"""Steps in which it must be decided whether two views have an element in common."""

Made = Exception | list[torch.dtype]
"""What a call raises, or the dtypes of what it gives."""

_known: dict[tuple[object, ...], Made | None] = {}


def check_dtypes(
    func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], outs: Sequence[torch.Tensor] = ()
) -> None:
    """What the library raises where it does not take the dtypes of a call on a CPU, or a number in one of them.

    UnsupportedOpError where it takes them, and gives other dtypes than these results of fake tensors have.
    """
    given = tensors_in((args, list(kwargs.values())))
    if func is torch.ops.aten.full.default:
        args = ([min(int(n), 2) for n in args[0]], *args[1:])  # of one element it takes any
    elif not given and func is not torch.ops.aten.scalar_tensor.default:
        return
    of_tensors = {t.dtype for t in given}
    dtypes = of_tensors | {kwargs.get("dtype") or torch.float32}
    if len(of_tensors) < 2 and dtypes <= _ALWAYS and not any(_is_beyond(x) for x in (*args, *kwargs.values())):
        return
    devices = {t.device.type for t in given} | {torch.device(kwargs.get("device") or "cpu").type}
    if devices != {"cpu"} or torch.Tag.nondeterministic_seeded in func.tags:
        return
    key = (func, repr(map_tensors(_kind, args)), repr({k: map_tensors(_kind, v) for k, v in kwargs.items()}))
    if key not in _known:
        _known[key] = _made(func, args, kwargs)
    made = _known[key]
    if isinstance(made, Exception):
        raise of_library(type(made)(str(made)))
    said = [out.dtype for out in outs]
    if made is not None and len(made) == len(said) and made != said:
        name = f"{func.namespace}.{func.overloadpacket.__name__}"
        raise UnsupportedOpError(f"{name} gives {made} on a CPU, and PyTorch's fake tensors say {said}")


def check_layout(func: OpOverload, args: tuple[Any, ...]) -> None:
    """What the library raises on a CPU for an image without a batch whose axes lie like channels last in two."""
    if func is not torch.ops.aten.max_pool3d_with_indices.default or args[0].device.type != "cpu":
        return
    image = args[0]
    if image.dim() == 4 and image.numel() and suggest_memory_format(image) is torch.channels_last:
        with _apart():
            try:
                func(torch.ones(2, 2, 2, 2).contiguous(memory_format=torch.channels_last), 1)
            except RuntimeError as error:
                raise of_library(error.with_traceback(None)) from None


def _is_beyond(x: Any) -> bool:
    """Whether a number is beyond those of f32, and not infinite."""
    return type(x) is float and torch.finfo(torch.float32).max < abs(x) < math.inf


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    return (tensor.dtype, *_small(tensor))


def _small(tensor: torch.Tensor) -> tuple[int, ...]:
    most = 8 if tensor.dim() <= 5 else 2
    return tuple(min(int(n), most) for n in tensor.shape)


def _made(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Made | None:
    """What a call of these dtypes raises and one of f32 does not, or gives; None for errors of the small extents."""
    made = _attempt(func, args, kwargs, None)
    if not isinstance(made, Exception):
        return made
    if any(reason in str(made) for reason in ("not implemented for", "without overflow")):
        return made
    return None if isinstance(_attempt(func, args, kwargs, torch.float32), Exception) else made


def takes_outs(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the library makes an elementwise call with ``out=`` tensors of these dtypes."""
    return not isinstance(_attempt(func, args, kwargs, None), Exception)


def _attempt(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], dtype: torch.dtype | None) -> Made:
    """What the call raises or gives on small tensors of this dtype, or else of their own."""

    def small(tensor: torch.Tensor) -> torch.Tensor:
        return torch.ones(_small(tensor), dtype=dtype or tensor.dtype)

    with _apart():
        try:
            made = func(*map_tensors(small, args), **{k: map_tensors(small, v) for k, v in kwargs.items()})
        except Exception as error:
            return error.with_traceback(None)
    return [tensor.dtype for tensor in tensors_in(made)]


def check_overlap(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """What eager raises for a call that writes where it reads.

    UnsupportedOpError where it lets that pass and the result depends on the order in which elements are computed.
    """
    written, read = _written(func, args, kwargs)
    shared = [(w, r) for w in written for r in read if _storage(w) == _storage(r) and w.numel() and r.numel()]
    if all(same_layout(w, r) and torch.Tag.pointwise in func.tags for w, r in shared):
        return
    if torch.Tag.nondeterministic_seeded not in func.tags and shared[0][0].device.type == "cpu":
        _rehearse(func, args, kwargs)
    if any(not same_layout(w, r) and _overlap(w, r) for w, r in shared):
        raise UnsupportedOpError(f"{func.namespace}.{func.overloadpacket.__name__} reads memory that it also writes")


def _written(
    func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors of a call that it writes, and those that it reads."""
    written: list[torch.Tensor] = []
    read: list[torch.Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        value = kwargs.get(argument.name, args[position] if position < len(args) else None)
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        (written if is_written else read).extend(tensors_in(value))
    return written, read


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _rehearse(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    given = tensors_in((args, list(kwargs.values())))
    sizes = {_storage(t): int(t.untyped_storage().nbytes()) for t in given}
    if sum(sizes.values()) > _MOST_BYTES:
        return
    with _apart():
        memory = {key: torch.zeros(size, dtype=torch.uint8).untyped_storage() for key, size in sizes.items()}

        def real(tensor: torch.Tensor) -> torch.Tensor:
            empty = torch.empty(0, dtype=tensor.dtype)
            return empty.set_(memory[_storage(tensor)], tensor.storage_offset(), tensor.shape, tensor.stride())

        func(*map_tensors(real, args), **{k: map_tensors(real, v) for k, v in kwargs.items()})


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two views of one storage may have an element in common."""
    memory = np.empty(int(a.untyped_storage().nbytes()), np.uint8)
    try:
        return np.shares_memory(_bytes_of(a, memory), _bytes_of(b, memory), max_work=_MOST_WORK)  # type: ignore[arg-type]
    except Exception:  # too hard to tell
        return True


def _bytes_of(tensor: torch.Tensor, memory: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    size = tensor.element_size()
    steps = tuple(int(s) * size for s in tensor.stride())
    return np.ndarray(tuple(tensor.shape), f"V{size}", memory, int(tensor.storage_offset()) * size, steps)


@contextmanager
def _apart() -> Iterator[None]:
    with Unwatched(), _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        yield
