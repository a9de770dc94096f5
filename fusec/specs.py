# SPDX-License-Identifier: Apache-2.0
"""Descriptions of arrays that are not there yet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any

from fusec.errors import OptionError, SignatureError
from fusec.frontend.capture import Library
from fusec.ir.types import Dim, TensorType, contiguous_strides, dtype_of
from fusec.target.gpu import has_cuda, is_device, is_gpu


@dataclass(frozen=True, init=False)
class TensorSpec:
    """The shape, dtype, strides and device of an argument.

    A dimension is an integer or a name, such as ``TensorSpec(("B", 768), "float32")``; equal names are equal
    dimensions. A name may come with a range, as text (``"B:1..64"``) or as ``torch.export.Dim("B", min=1, max=64)``.
    ``strides`` are in elements, None for row-major. OptionError for a shape or dtype that can't be.
    """

    shape: tuple[int | str, ...]
    dtype: str
    strides: tuple[int, ...] | None
    device: str
    ranges: tuple[tuple[str, int, int], ...] = field(init=False)

    def __init__(
        self,
        shape: Sequence[Any],
        dtype: object = "float32",
        strides: Sequence[int] | None = None,
        device: object = "cpu",
    ) -> None:
        if isinstance(shape, str | bytes) or not isinstance(shape, Iterable):
            raise OptionError(f"{shape!r:.100} is not a shape; give a tuple of integers and names, such as ('B', 768)")
        dims = [_dimension(n) for n in shape]
        steps = _strides(strides, len(dims))
        if not _DEVICE.fullmatch(str(device)):
            raise OptionError(f"{device!r:.100} is not a device; it is 'cpu', 'cuda' or 'cuda:1'")
        try:
            name = dtype_of(dtype).long_name
        except (KeyError, TypeError) as error:
            raise OptionError(str(error.args[0])) from None
        object.__setattr__(self, "shape", tuple(n for n, _ in dims))
        ranges = dict.fromkeys((str(n), *ends) for n, ends in dims if ends is not None)
        object.__setattr__(self, "ranges", tuple(ranges))
        object.__setattr__(self, "dtype", name)
        object.__setattr__(self, "strides", steps)
        object.__setattr__(self, "device", "cuda:0" if str(device) == "cuda" else str(device))

    def __str__(self) -> str:
        where = "" if self.device == "cpu" else f"@{self.device}"
        return f"{dtype_of(self.dtype)}[{', '.join(map(str, self.shape))}]{where}"

    @property
    def names(self) -> frozenset[str]:
        """The named dimensions."""
        return frozenset(n for n in self.shape if isinstance(n, str))

    @staticmethod
    def parse(text: str) -> TensorSpec:
        """Reads ``f32[B:1..64, 512, 768]``, ``@cuda:0`` after it for a device. OptionError for any other text."""
        found = _SPEC.fullmatch(text.strip())
        if found is None:
            raise OptionError(f"{text!r} is not a spec; write one as f32[B:1..64, 512, 768]")
        dtype, dims, device = found.groups()
        shape = [int(d) if d.isdigit() else d for d in (part.strip() for part in dims.split(",")) if d]
        return TensorSpec(shape, dtype, None, device or "cpu")

    def type(self, bindings: Mapping[str, Dim]) -> TensorType:
        """The type with each name replaced by its extent. KeyError for a name without one."""
        shape = tuple(bindings[n] if isinstance(n, str) else n for n in self.shape)
        return TensorType(dtype_of(self.dtype), shape, self.device)

    def laid_out(self, bindings: Mapping[str, Dim]) -> tuple[Dim, ...]:
        """Strides in elements."""
        return self.strides if self.strides is not None else contiguous_strides(self.type(bindings).shape)

    def bind(self, array_type: TensorType, where: str, bindings: dict[str, int]) -> None:
        """Adds the extents of an array's named dimensions. SignatureError where the array does not fit."""
        fits = array_type.rank == len(self.shape) and array_type.dtype == dtype_of(self.dtype)
        if fits and array_type.device == self.device:
            for wanted, extent in zip(self.shape, array_type.static_shape, strict=True):
                known = bindings.setdefault(wanted, extent) if isinstance(wanted, str) else wanted
                if known != extent:
                    break
            else:
                return
        known_names = "".join(f", {name} = {extent}" for name, extent in bindings.items() if name in self.names)
        raise SignatureError(f"{where} is {array_type}, compiled was {self}{known_names}")


def _strides(given: object, rank: int) -> tuple[int, ...] | None:
    """Strides in elements. OptionError for what can't be."""
    if given is None:
        return None
    try:
        found = tuple(index(step) for step in given)  # type: ignore[attr-defined]
    except TypeError:
        raise OptionError(f"strides={given!r:.100}; they are integers, in elements") from None
    if len(found) != rank:
        raise OptionError(f"{len(found)} strides for {rank} dimensions")
    return found


_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,4})?")
_SPEC = re.compile(r"([a-z]+[0-9]*)\s*\[([^\[\]]*)\](?:@([a-z]+(?::[0-9]+)?))?")
_NAMED = re.compile(r"([^\W\d]\w*)\s*(?::\s*([0-9]{1,18})\s*\.\.\s*([0-9]{1,18}))?")


def named_specs(texts: Sequence[str]) -> dict[str, TensorSpec]:
    """Reads ``x=f32[B:1..64, 768]``: specs by the name of the argument. OptionError for any other text."""
    found: dict[str, TensorSpec] = {}
    for text in texts:
        name, equals, spec = text.partition("=")
        if not equals or not name.strip().isidentifier() or name.strip() in found:
            raise OptionError(f"{text!r} is not a spec of one more argument; write it as x=f32[B:1..64, 768]")
        found[name.strip()] = TensorSpec.parse(spec)
    return found


def _dimension(n: Any) -> tuple[int | str, tuple[int, int] | None]:
    """A dimension and, where it is a name with one, its range."""
    if isinstance(n, str):
        found = _NAMED.fullmatch(n.strip())
        if found is None:
            raise OptionError(f"{n!r} can't name a dimension; use an identifier such as 'B', or 'B:1..64'")
        name, low, high = found.groups()
        return name, None if low is None else checked_range(name, (int(low), int(high)))
    if isinstance(getattr(n, "min", None), int) and hasattr(n, "max") and hasattr(n, "__name__"):
        name = str(n.__name__)
        if not name.isidentifier():
            raise OptionError(f"dimension {name} is made of others; name it by itself, equal names are equal extents")
        return name, checked_range(name, (max(n.min, 1), n.max))
    if isinstance(n, bool) or not hasattr(n, "__int__") or int(n) != n or n < 0:
        raise OptionError(f"{n!r} is not a dimension; use an integer from 0 on, or a name")
    return int(n), None


MOST_EXTENT = 1 << 40


def checked_range(name: str, ends: Any) -> tuple[int, int]:
    """The range of a named dimension. OptionError for one that is empty, without an end, or that starts below 1."""
    try:
        low, high = (int(end) for end in ends)
    except (TypeError, ValueError, OverflowError):
        raise OptionError(f"the range of {name} is {ends!r}; give its least and its largest extent") from None
    if not 1 <= low <= high <= MOST_EXTENT:
        raise OptionError(f"the range of {name} is {low} to {high}; it must start at 1 or later, and have an end")
    return low, high


def example(spec: TensorSpec, bindings: Mapping[str, int], library: Library) -> Any:
    """An array of this layout, its contents not defined. It lies on the CPU where its device is not here."""
    from fusec.runtime.adapters import load_arrays
    from fusec.runtime.code import Scope

    scope = Scope()
    type = spec.type(bindings)
    if type.device.startswith("cuda") and not has_cuda():
        type = replace(type, device="cpu")
    expression = load_arrays(library).allocate(scope, type, spec.laid_out(bindings))
    return eval(expression, dict(scope.objects))


def placement(devices: Iterable[str], target: str | None, library: Library) -> str | None:
    """The GPU that a program for arguments on these devices and a target runs on; None for a CPU, and for NumPy's
    arrays, which stay in host memory.

    For a GPU's target that is the GPU that the arguments are on, or else the one that the target names, or the first
    one; arguments on the CPU are meant for it. SignatureError for arguments on several GPUs, OptionError where they are
    on another device than the target.
    """
    named = sorted({device for device in devices if is_gpu(device)})
    if len(named) > 1:
        raise SignatureError(f"arguments on {', '.join(named)}; a program runs on one device")
    given = named[0] if named else None
    if given is not None and library == "numpy":
        raise OptionError(f"an argument on {given}, and NumPy's arrays are in host memory; leave device= out")
    if target is None or library == "numpy":
        return given
    if not is_gpu(target):
        own = "cpu"
    else:
        own = f"cuda:{target.partition(':')[2] or '0'}" if is_device(target) else given or "cuda:0"
    if given not in (None, own):
        raise OptionError(f"target={target!r} and an argument on {given}; leave one of them out")
    return None if own == "cpu" else own


def spec_of(array: Any, library: Library) -> TensorSpec:
    """The layout of an array. TypeError for one that can't be compiled for."""
    from fusec.runtime.adapters import load_arrays

    layout = load_arrays(library).layout(array)
    shape = layout.type.static_shape
    strides = None if layout.strides == contiguous_strides(shape) else layout.strides
    return TensorSpec(shape, layout.type.dtype, strides, layout.type.device)
