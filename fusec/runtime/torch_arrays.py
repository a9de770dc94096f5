# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors in generated code."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from itertools import pairwise
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from fusec.errors import FusecError
from fusec.frontend.capture import AsWritten, Library
from fusec.frontend.torch_modes import (
    PLAIN_CLASSES,
    default_devices,
    function_modes,
    in_dispatch_mode,
    why_as_written,
    why_not_plain,
)
from fusec.frontend.torch_modes import mode as torch_mode
from fusec.ir.types import Dim, DType, TensorType, dtype_of
from fusec.runtime.arrays import Layout, Stopwatch, Watch, span
from fusec.runtime.code import Scope, spell, spell_tuple
from fusec.runtime.numpy_arrays import array_over

_WORD = 16
"""Bytes of a tensor's memory that are looked at together."""

_HALF_PAGE = 2048 // _WORD
_SAMPLES = 8
_INFERENCE_SAMPLES = 16

_ANYWHERE = {"version": 3, "data": (_WORD, True), "shape": (1 << 58,), "typestr": f"|V{_WORD}"}
_MEMORY = np.asarray(SimpleNamespace(__array_interface__=_ANYWHERE))
"""All memory from address ``_WORD`` on; only what is known to lie somewhere may be read."""

_FROM_NUMPY = frozenset({"f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "bool", "c64", "c128"})


def torch_dtype(dtype: DType) -> torch.dtype:
    found = getattr(torch, dtype.long_name)
    assert isinstance(found, torch.dtype)
    return found


def _find(module: str, name: str) -> Any:
    """A function of PyTorch's own compiler runtime, None where this version has none."""
    try:
        return getattr(__import__(module, fromlist=[name]), name, None)
    except ImportError:
        return None


_empty_strided_cpu = _find("torch._C._dynamo.guards", "_empty_strided_cpu")
"""``torch.empty_strided`` with fixed options, 0.4 instead of 0.9 µs."""

_empty_strided_cuda = _find("torch._C._dynamo.guards", "_empty_strided_cuda")
"""The same on the current CUDA device."""

_TensorGuards = _find("torch._C._dynamo.guards", "TensorGuards")
"""Checks class, dispatch keys, dtype, device, requires_grad, shape and strides of many tensors in 0.1 to 0.2 µs."""


@cache
def _empty_on(device: int) -> Callable[..., torch.Tensor]:
    """``empty(shape, strides, dtype)`` on a CUDA device."""
    if torch.cuda.device_count() == 1:
        return cast("Callable[..., torch.Tensor]", _empty_strided_cuda)
    current, make = torch._C._cuda_getDevice, _empty_strided_cuda

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if current() == device:
            return cast(torch.Tensor, make(shape, strides, dtype))
        with torch.cuda.device(device):
            return cast(torch.Tensor, make(shape, strides, dtype))

    return empty


class TorchArrays:
    """See :class:`fusec.runtime.arrays.Arrays`."""

    library: Library = "torch"

    def is_array(self, value: object) -> bool:
        return isinstance(value, torch.Tensor)

    def layout(self, array: torch.Tensor) -> Layout:
        reason = why_not_plain(array)
        if reason or type(array) not in PLAIN_CLASSES:
            raise TypeError(reason or f"its class is {type(array).__name__}")
        try:
            address = array.data_ptr()
        except RuntimeError:
            raise TypeError("it has no memory of its own, as under torch.func's transforms") from None
        if address % array.element_size():
            raise TypeError("it is not aligned to its dtype")
        device = array.device
        kind = TensorType(dtype_of(array.dtype), tuple(array.shape), str(device))
        flags = (type(array), array.requires_grad, array.is_inference(), _dispatch_keys(array))
        return Layout(kind, array.stride(), flags)

    def mode(self) -> Hashable:
        return torch_mode()

    def why_as_written(self) -> AsWritten | None:
        return why_as_written()

    def needs_autograd(self, arrays: Sequence[torch.Tensor]) -> bool:
        return torch.is_grad_enabled() and any(array.requires_grad for array in arrays)

    def memory(self, array: torch.Tensor) -> tuple[int, int]:
        if array.numel() == 0:
            return 0, 0
        storage = array.untyped_storage()
        start = storage.data_ptr()
        return start, start + storage.nbytes()

    def check(self, scope: Scope, arrays: Sequence[torch.Tensor], variables: Sequence[str]) -> str:
        mode = _mode_test(scope)
        if not arrays:
            return f"{mode} and {scope.bind(self.mode, 'mode')}() == {self.mode()!r}"
        first = {id(array): v for array, v in reversed(list(zip(arrays, variables, strict=True)))}
        again = [f"{v} is {first[id(array)]}" for array, v in zip(arrays, variables) if first[id(array)] != v]
        if again:  # the guards refuse a tensor that comes twice
            distinct = {v: array for array, v in zip(arrays, variables) if first[id(array)] == v}
            return f"{' and '.join(again)} and {self.check(scope, list(distinct.values()), list(distinct))}"
        mode = " and ".join(
            [mode, *(f"not {v}.is_nested" for v in variables)]
        )  # one would end the process in the guards
        if _TensorGuards is None:
            return f"{mode} and {scope.bind(_Check(self, arrays), 'check')}({', '.join(variables)})"
        guards = _TensorGuards(
            *arrays,
            dynamic_dims_sizes=[list(array.shape) for array in arrays],
            dynamic_dims_strides=[list(array.stride()) for array in arrays],
        )
        scope.bind(guards, "guards")
        return f"{mode} and {scope.bind(guards.check, 'same_layout')}({', '.join(variables)})"

    def check_kind(
        self, scope: Scope, array: torch.Tensor, variable: str, symbolic: Sequence[bool], row_major: bool = True
    ) -> str:
        if _TensorGuards is None:
            raise FusecError("this version of PyTorch has no guards for changing extents")
        open_strides = [not row_major or any(symbolic[axis + 1 :]) for axis in range(array.dim())]
        guards = _TensorGuards(
            array,
            dynamic_dims_sizes=[[None if s else n for n, s in zip(array.shape, symbolic, strict=True)]],
            dynamic_dims_strides=[[None if s else n for n, s in zip(array.stride(), open_strides, strict=True)]],
        )
        scope.bind(guards, "guards")
        same = f"not {variable}.is_nested and {scope.bind(guards.check, 'same_kind')}({variable})"
        return f"{same} and {variable}.is_contiguous()" if row_major else same

    address_field = None

    def address(self, scope: Scope, variable: str) -> str:
        return f"{variable}.data_ptr()"

    def stream(self, scope: Scope, device: int) -> str:
        return f"{scope.bind(torch._C._cuda_getCurrentRawStream, 'stream_of')}({device})"

    address_of = staticmethod(torch.Tensor.data_ptr)

    def allocate(self, scope: Scope, type: TensorType, strides: Sequence[Dim]) -> str:
        layout = f"{spell_tuple(type.shape)}, {spell_tuple(strides)}"
        dtype = scope.bind(torch_dtype(type.dtype), type.dtype.long_name)
        if _empty_strided_cpu is not None and type.device == "cpu":
            return f"{scope.bind(_empty_strided_cpu, 'empty_strided')}({layout}, {dtype})"
        if _empty_strided_cuda is not None and type.device.startswith("cuda:"):
            empty = scope.bind(_empty_on(int(type.device.removeprefix("cuda:"))), "empty_cuda")
            return f"{empty}({layout}, {dtype})"
        empty = scope.bind(torch.empty_strided, "empty_strided")
        return f"{empty}({layout}, dtype={dtype}, device={type.device!r})"

    def over_block(self, scope: Scope, type: TensorType, strides: Sequence[Dim], block: str) -> str:
        if type.dtype.name in _FROM_NUMPY:
            return f"{scope.bind(torch.from_numpy, 'from_numpy')}({array_over(scope, type, strides, block)})"
        dtype = scope.bind(torch_dtype(type.dtype), type.dtype.long_name)
        make = scope.bind(_tensor_over, "tensor_over")
        nbytes = spell(span(type, strides) * type.dtype.itemsize)
        return f"{make}({block}[:{nbytes}], {dtype}, {spell_tuple(type.shape)}, {spell_tuple(strides)})"

    def place(self, array: torch.Tensor, device: str) -> torch.Tensor:
        if str(array.device) == device:
            return array
        flat = array.detach().as_strided((_reach(array),), (1,)).to(device)
        return flat.as_strided(array.shape, array.stride(), 0)

    def view(self, scope: Scope, type: TensorType, strides: Sequence[Dim], base: str, offset: Dim) -> str:
        made = f"{scope.bind(torch.as_strided, 'as_strided')}({base}, {spell_tuple(type.shape)}, {spell_tuple(strides)}"
        return f"{made}, {base}.storage_offset() + {spell(offset)})" if offset != 0 else f"{made})"

    def scalar(self, scope: Scope, type: TensorType, value: Any) -> str:
        constant = torch.full(type.static_shape, value, dtype=torch_dtype(type.dtype), device=type.device)
        return f"{scope.bind(constant, 'constant')}.clone()"

    def copy(self, scope: Scope, variable: str) -> str:
        return f"{variable}.clone()"

    def copy_into(self, scope: Scope, target: str, source: str) -> str:
        return f"{target}.copy_({source})"

    def note_write(self, scope: Scope, variable: str) -> str:
        return f"{scope.bind(torch._C._increment_version, 'increment_version')}(({variable},))"

    def contiguous(self, scope: Scope, variable: str) -> str:
        return f"{variable}.contiguous()"

    def stopwatch(self, device: int | None) -> Stopwatch:
        return Stopwatch() if device is None else Stopwatch(_mark, _seconds_between, _hold)

    def profiler(self) -> Any:
        return torch.autograd.profiler

    def watch(self, arrays: Sequence[torch.Tensor]) -> Watch | None:
        return _Watch(arrays)

    def to_bytes(self, array: torch.Tensor) -> tuple[DType, tuple[int, ...], bytes]:
        dtype = dtype_of(array.dtype)
        plain = array.detach().cpu().contiguous()
        word = torch.int16 if dtype.bits == 16 else torch.uint8
        known = dtype.name in _FROM_NUMPY or dtype.bits not in (8, 16)
        raw = plain.numpy() if known or dtype.is_integer else plain.view(word).numpy()
        return dtype, tuple(array.shape), raw.tobytes()

    def from_numpy(self, array: np.ndarray[Any, Any], dtype: DType) -> torch.Tensor:
        if dtype.name in _FROM_NUMPY:
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(f"i{dtype.itemsize}")).view(torch_dtype(dtype))


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _seconds_between(marks: Sequence[torch.cuda.Event]) -> list[float]:
    marks[-1].synchronize()
    return [a.elapsed_time(b) * 1e-3 for a, b in pairwise(marks)]


def _hold() -> None:
    """Keeps the device busy for about a millisecond, so that what is launched meanwhile runs without gaps."""
    torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]


class _Watch:
    """Addresses of tensors, their version counters, and some words of their memory.

    Writes through ``.data``, ``.numpy()`` or DLPack pass the version counter by. An update of most elements, as an
    optimizer or an average of weights makes, shows in the words looked at; a write to a few elements may not. A tensor
    made under ``torch.inference_mode()`` has no counter. No gradient ever reaches it, so what updates it is loading
    other weights, which changes most elements.
    """

    __slots__ = ("_addresses", "_read", "_sampled", "_seen", "_storages", "_versions", "key")

    def __init__(self, arrays: Sequence[torch.Tensor]) -> None:
        self._storages = [array.untyped_storage() for array in arrays]  # so that no other tensor comes to lie there
        self._addresses = list(map(torch.Tensor.data_ptr, arrays))
        self.key = tuple((array.data_ptr(), array.dtype, array.shape, array.stride()) for array in arrays)
        self._read = _versions if any(map(torch.Tensor.is_inference, arrays)) else _counters
        self._versions = self._read(arrays)
        self._sampled = np.concatenate([np.empty(0, np.int64), *map(_samples, arrays)])  # of constants there is none
        self._seen = _MEMORY[self._sampled].tobytes()

    def same(self, arrays: Sequence[torch.Tensor]) -> bool:
        return (
            list(map(torch.Tensor.data_ptr, arrays)) == self._addresses
            and self._read(arrays) == self._versions
            and _MEMORY[self._sampled].tobytes() == self._seen  # at once, so that waits for memory overlap
        )


def _versions(arrays: Sequence[torch.Tensor]) -> list[int]:
    return [-1 if array.is_inference() else array._version for array in arrays]


def _counters(arrays: Sequence[torch.Tensor]) -> list[int]:
    """The same where all have counters, in a third of the time."""
    try:
        return list(map(_version_of, arrays))
    except RuntimeError:  # one has none
        return _versions(arrays)


_version_of = attrgetter("_version")


def _samples(array: torch.Tensor) -> np.ndarray[Any, Any]:
    """Which words of :data:`_MEMORY` are looked at: some spread evenly over a tensor's memory, two in each page.

    Finding a page takes longer than reading it.
    """
    start, stop = _extent(array)
    if start == stop:
        return np.empty(0, np.int64)
    words = range(-(-start // _WORD), stop // _WORD) or range(start // _WORD, -(-stop // _WORD))
    wanted = _INFERENCE_SAMPLES if array.is_inference() else _SAMPLES
    step = max(1, len(words) // wanted) | 1  # odd, so that it does not stay in one column
    found = np.arange(words.start, words.stop, step)
    found = np.union1d(found, found ^ _HALF_PAGE)
    return found[(found >= words.start) & (found < words.stop)] - 1


class _Check:
    """The test of layouts in Python, for a PyTorch without its compiler's guards."""

    def __init__(self, arrays: TorchArrays, examples: Sequence[torch.Tensor]) -> None:
        self._layout = arrays.layout
        self._mode = arrays.mode
        self._known = [arrays.layout(example) for example in examples]
        self._known_mode = arrays.mode()

    def __call__(self, *found: object) -> bool:
        if self._mode() != self._known_mode:
            return False
        try:
            return all(isinstance(a, torch.Tensor) and self._layout(a) == k for a, k in zip(found, self._known))
        except TypeError:
            return False


def _mode_test(scope: Scope) -> str:
    """The test of what the guards of arrays don't see: the gradient mode, other modes, and forward-mode derivatives."""
    graded = f"{'' if torch.is_grad_enabled() else 'not '}{scope.bind(torch.is_grad_enabled, 'is_grad_enabled')}()"
    devices = f"not {scope.bind(function_modes, 'function_modes')}()"
    if function_modes():
        devices = f"{scope.bind(default_devices, 'default_devices')}() == {default_devices()!r}"
    level = f"{scope.bind(forward_ad, 'forward_ad')}._current_level < 0"
    anywhere = f"{scope.bind(_python_dispatch, 'python_dispatch')}._is_in_torch_dispatch_mode"  # on some thread
    return f"{graded} and {devices} and {level} and not ({anywhere} and {scope.bind(in_dispatch_mode, 'in_mode')}())"


def _dispatch_keys(array: torch.Tensor) -> str:
    """Which of PyTorch's layers see a call on this tensor: vmap, grad, a mode, ..."""
    return str(torch._C._dispatch_keys(array))


def _extent(array: torch.Tensor) -> tuple[int, int]:
    """First byte address of a tensor's elements, and one past the last."""
    start = array.data_ptr()
    if array.numel() == 0:
        return start, start
    return start, start + _reach(array) * array.element_size()


def _reach(array: torch.Tensor) -> int:
    """Elements from the first to one past the last."""
    return 1 + sum((n - 1) * s for n, s in zip(array.shape, array.stride())) if array.numel() else 0


def _tensor_over(
    block: np.ndarray[Any, Any], dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cpu").set_(torch.from_numpy(block).untyped_storage(), 0, shape, strides)


ARRAYS = TorchArrays()
