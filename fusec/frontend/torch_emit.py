# SPDX-License-Identifier: Apache-2.0
"""Writes IR for one ATen call: casts, constants, broadcasts and shapes by PyTorch's rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isfinite

import torch

from fusec.errors import UnsupportedOpError
from fusec.frontend.capture import SAMPLING
from fusec.ir.attributes import (
    NO_ATTRIBUTES,
    Attributes,
    CastAttributes,
    ConstantAttributes,
    DotAttributes,
    IotaAttributes,
    PermuteAttributes,
    ReduceAttributes,
    Scalar,
    ShapeAttributes,
    SliceAttributes,
)
from fusec.ir.builder import Builder
from fusec.ir.nodes import Value
from fusec.ir.types import Dim, DType, TensorType, bf16, bool_, dtype_of, f8e4m3, f16, f32, f64
from fusec.location import Location

Operand = Value | bool | int | float | complex
"""A tensor, or a Python number, which is weak in type promotion."""

VIEW_OPS = frozenset({"permute", "reshape", "broadcast", "slice", "strided", "windows"})


class Declined(Exception):  # noqa: N818 - not an error: the caller goes on to the next way
    """This lowering does not cover the call; the reason is kept for the user.

    ``final`` where PyTorch's own decomposition would be no better: the call goes to the library whole.
    """

    def __init__(self, reason: str, *, final: bool = False) -> None:
        self.final = final
        super().__init__(reason)


_ROUNDED_ONCE = (f32, f16, bf16)
"""What PyTorch rounds to 8 bits as it is; other numbers become f32 before."""

_SATURATES = not bool(torch.full((), 1e9).to(torch.float8_e4m3fn).float().isnan())
"""Whether this version of PyTorch casts what is beyond the numbers of e4m3fn to the largest one, and not to NaN."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of the same name."""
    found = getattr(torch, dtype.long_name)
    assert isinstance(found, torch.dtype)
    return found


def ir_dtype(dtype: torch.dtype) -> DType:
    """The IR dtype; UnsupportedOpError for one that fusec has not, such as float8."""
    try:
        return dtype_of(dtype)
    except KeyError as error:
        raise UnsupportedOpError(str(error.args[0])) from None


def tensor_type(tensor: torch.Tensor) -> TensorType:
    """The type of a tensor, or of a fake one."""
    return TensorType(ir_dtype(tensor.dtype), tuple(int(d) for d in tensor.shape), str(tensor.device))


def memory_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """A tensor's axes in the order in which it lies in memory, without gaps; as they are where it lies in no such."""
    axes = tuple(range(tensor.dim()))
    if not all(isinstance(n, int) for n in tensor.shape) or tensor.is_contiguous():
        return axes
    long = sorted((a for a in axes if tensor.shape[a] != 1), key=lambda a: -tensor.stride()[a])
    order = tuple(a if tensor.shape[a] == 1 else long.pop(0) for a in axes)
    return order if tensor.permute(order).is_contiguous() else axes


def extents(value: Value) -> tuple[int, ...]:
    """The static shape of a value."""
    return value.type.static_shape


def axes_of(rank: int, dims: int | Sequence[int] | None) -> tuple[int, ...]:
    """Ascending axes, none negative; None and an empty list mean all, as in ATen's reductions."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted(axis_of(rank, d) for d in listed)) if rank else ()


def axis_of(rank: int, dim: int) -> int:
    """The axis, not negative. A 0-d tensor has one axis in ATen's eyes."""
    return dim % max(rank, 1)


class Emitter:
    """Appends ops to a builder, at the location that is current.

    ``results`` are the types that PyTorch gives the call that is being lowered; ``call`` is its name. ``calls``: a
    lowering may call the library. ``for_gpu``: what is on the CPU stands for what will be on a GPU.
    """

    def __init__(self, builder: Builder, *, for_gpu: bool = False) -> None:
        self.builder = builder
        self.for_gpu = for_gpu
        self.location: Location | None = None
        self.results: tuple[TensorType, ...] = ()
        self.call = ""
        self.calls = True
        self.notes: list[str] = []
        self.viewed: dict[Value, Value] = {}
        self.repeated: dict[Value, Value] = {}
        """What broadcasts repeat."""
        self._constants: dict[tuple[str, DType, str], Value] = {}
        self._constant_values: set[Value] = set()
        self._iotas: set[Value] = set()

    @property
    def out(self) -> TensorType:
        """The type of the call's first result."""
        return self.results[0]

    def is_on_cpu(self, operand: TensorType | torch.Tensor) -> bool:
        """Whether this will be on a CPU when the program runs. All that is chosen by the kind of device asks here."""
        return not self.for_gpu and str(operand.device) == "cpu"

    def op(self, name: str, *values: Value, attributes: Attributes = NO_ATTRIBUTES) -> tuple[Value, ...]:
        """Appends an op; all results."""
        results = self.builder.op(name, *values, attributes=attributes, names=(".",), location=self.location)
        if name in VIEW_OPS:
            self.viewed[results[0]] = values[0]
        if name == "broadcast":
            self.repeated[results[0]] = values[0]
        return results

    def note(self, target: str, reason: str) -> None:
        """Keeps what runs through the library, where, and why."""
        where = f" at {self.location}" if self.location else ""
        self.notes.append(f"{target}{where} runs through torch: {reason}")

    def emit(self, name: str, *values: Value, attributes: Attributes = NO_ATTRIBUTES) -> Value:
        """Appends an op with one result."""
        (result,) = self.op(name, *values, attributes=attributes)
        return result

    # Values

    def constant(self, value: Scalar, dtype: DType, device: str | None = None) -> Value:
        """A 0-d constant, converted to ``dtype`` as torch converts a Python number.

        While samples of a range are captured each whole number is one of its own: an extent may be equal to another
        number in one of them.
        """
        where = device or self.out.device
        converted = convert(value, dtype)
        key = (repr(converted), dtype, where)
        may_differ = isinstance(value, int) and abs(value) > 1 and SAMPLING.get()
        if key not in self._constants or may_differ:
            made = self.emit("constant", attributes=ConstantAttributes(converted, dtype, where))
            self._constants[key] = made
            self._constant_values.add(made)
        return self._constants[key]

    def value(self, operand: Operand, dtype: DType) -> Value:
        """The operand in ``dtype``."""
        return self.cast(operand, dtype) if isinstance(operand, Value) else self.constant(operand, dtype)

    def is_constant(self, value: Value) -> bool:
        """True for a 0-d constant made by :meth:`constant`."""
        return value in self._constant_values

    def iota(self, shape: Sequence[Dim], axis: int, dtype: DType, device: str | None = None) -> Value:
        where = device or self.out.device
        made = self.emit("iota", attributes=IotaAttributes(tuple(shape), axis, dtype, where))
        self._iotas.add(made)
        return made

    def is_iota(self, value: Value) -> bool:
        """True for views of an iota, which is never negative."""
        return self.root(value) in self._iotas

    def cast(self, value: Value, dtype: DType) -> Value:
        source = value.type.dtype
        if source == dtype:
            return value
        if (dtype.kind == "float8" and source not in _ROUNDED_ONCE) or source.kind == "float8":
            value = self.emit("cast", value, attributes=CastAttributes(f32)) if source is not f32 else value
            return self.cast(value, dtype) if dtype is not f32 else value
        if dtype is f8e4m3 and _SATURATES:
            value = self._within(value, 448.0)
        return self.emit("cast", value, attributes=CastAttributes(dtype))

    def _within(self, value: Value, largest: float) -> Value:
        """Numbers beyond the largest as that number; NaN as it is."""
        for test, bound in (("gt", largest), ("lt", -largest)):
            limit = self.constant(bound, value.type.dtype)
            value = self.emit("select", self.emit(test, value, limit), limit, value)
        return value

    def rounded(self, value: Value, dtype: DType) -> Value:
        """The end of a call that PyTorch computes in f32 for half types: a rounding that the user did not write."""
        implied = value.type.dtype is f32 and dtype in (f16, bf16)
        return self.emit("cast", value, attributes=CastAttributes(dtype, True)) if implied else self.cast(value, dtype)

    def with_bias(self, total: Value, bias: Value | None, dtype: DType) -> Value:
        """The end of such a call: the bias is added to what was summed up, which then is rounded."""
        if bias is not None:
            total = self.emit("add", total, self.cast(bias, total.type.dtype))
        return self.rounded(total, dtype)

    def truth(self, operand: Operand) -> Value:
        """The operand as bool: not equal to 0, so NaN is True."""
        return self.value(operand, bool_)

    # Shapes

    def reshape(self, value: Value, shape: Sequence[Dim]) -> Value:
        if value.type.shape == tuple(shape):
            return value
        return self.emit("reshape", value, attributes=ShapeAttributes(tuple(shape)))

    def broadcast(self, value: Value, shape: Sequence[Dim]) -> Value:
        if value.type.shape == tuple(shape):
            return value
        return self.emit("broadcast", value, attributes=ShapeAttributes(tuple(shape)))

    def permute(self, value: Value, permutation: Sequence[int]) -> Value:
        if tuple(permutation) == tuple(range(value.type.rank)):
            return value
        return self.emit("permute", value, attributes=PermuteAttributes(tuple(permutation)))

    def channels_last(self, image: Value) -> Value:
        """A view of an image with its channels behind its positions."""
        return self.permute(image, (0, *range(2, image.type.rank), 1))

    def channels_first(self, image: Value) -> Value:
        """A view of an image with its channels before its positions."""
        rank = image.type.rank
        return self.permute(image, (0, rank - 1, *range(1, rank - 1)))

    def narrow(self, value: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
        """Elements ``start``, ``start + step``, ... before ``stop`` along one axis."""
        attributes = narrowing(extents(value), axis, start, stop, step)
        if step == 1 and start == 0 and stop == extents(value)[axis]:
            return value
        return self.emit("slice", value, attributes=attributes)

    def reduce(self, name: str, value: Value, axes: Sequence[int], keep: bool = False) -> Value:
        """A reduction; with ``keep`` the reduced axes stay with extent 1."""
        if value.type.rank == 0:
            return self.emit(name, value, attributes=ReduceAttributes(()))
        result = self.emit(name, value, attributes=ReduceAttributes(tuple(axes)))
        return self.keep(result, value, axes) if keep else result

    def summed_products(self, a: Value, b: Value, first: int, count: int, dtype: DType) -> Value:
        """Products in the dtype, summed up over ``count`` axes from ``first`` on."""
        products = self.emit("mul", self.cast(a, dtype), self.cast(b, dtype))
        return self.reduce("reduce_sum", products, tuple(range(first, first + count)))

    def dot_in(self, a: Value, b: Value, attributes: DotAttributes, dtype: DType) -> Value:
        """A dot whose result has this dtype."""
        named = replace(attributes, dtype=None if dtype == a.type.dtype else dtype)
        return self.emit("dot", a, b, attributes=named)

    def keep(self, reduced: Value, of: Value, axes: Sequence[int]) -> Value:
        """The reduced value with its axes put back with extent 1."""
        return self.reshape(reduced, [1 if i in axes else d for i, d in enumerate(of.type.shape)])

    def root(self, value: Value) -> Value:
        """The value whose elements this one shows, through views."""
        while value in self.viewed:
            value = self.viewed[value]
        return value

    # Type promotion

    def promote(self, *operands: Operand) -> DType:
        """The common dtype: tensors with axes, then 0-d tensors, then Python numbers, each weaker than the last."""
        return ir_dtype(promote_operands(operands))


def promote_operands(operands: Iterable[Operand]) -> torch.dtype:
    """torch.result_type for values and Python numbers."""
    ranks: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, Value):
            tier, dtype = (0 if operand.type.rank else 1), torch_dtype(operand.type.dtype)
        else:
            tier, dtype = 2, _number_dtype(operand)
        known = ranks[tier]
        ranks[tier] = dtype if known is None else torch.promote_types(known, dtype)
    result: torch.dtype | None = None
    for tier_dtype in ranks:
        if tier_dtype is not None and (result is None or _category(tier_dtype) > _category(result)):
            result = tier_dtype if result is None else _weak(result, tier_dtype)
    assert result is not None
    return result


def _weak(strong: torch.dtype, weak: torch.dtype) -> torch.dtype:
    """The dtype when a weaker operand is of a higher category: a float keeps its own, a number gives the default."""
    return torch.promote_types(strong, weak) if weak.is_complex and strong.is_floating_point else weak


def _number_dtype(number: bool | int | float | complex) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, int):
        return torch.int64
    if isinstance(number, float):
        return torch.get_default_dtype()
    return torch.complex128 if torch.get_default_dtype() is torch.float64 else torch.complex64


def _category(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 0
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 1


def convert(value: Scalar, dtype: DType) -> Scalar:
    """A Python number as a value of ``dtype``: integers wrap around, floats truncate."""
    if dtype.kind == "bool":
        return bool(value)
    if dtype.kind == "complex":
        return complex(value)
    if isinstance(value, complex):
        raise Declined("a complex number where a real one is needed")
    if dtype.is_float:
        return float(value)
    if isinstance(value, float) and not isfinite(value):
        raise Declined(f"{value} has no value of {dtype}")
    whole = int(value) % (1 << dtype.bits)
    return whole - (1 << dtype.bits) if dtype.kind == "int" and whole >= 1 << (dtype.bits - 1) else whole


def exact_in(value: Scalar, dtype: DType) -> bool:
    """True when a number has exactly this value in ``dtype``.

    While samples of a range are captured a whole number may be an extent, and is taken for one that has not.
    """
    if not dtype.is_float or dtype in (f32, f64) or isinstance(value, complex):
        return True
    if isinstance(value, int) and abs(value) > 1 and SAMPLING.get():
        return False
    return dtype.rounded(value) == float(value) or value != value


def narrowing(shape: Sequence[int], axis: int, start: int, stop: int, step: int) -> SliceAttributes:
    """A slice of one axis that leaves the others whole."""
    starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return SliceAttributes(tuple(starts), tuple(stops), tuple(steps))
