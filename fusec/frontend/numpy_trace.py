# SPDX-License-Identifier: Apache-2.0
"""The state of one NumPy capture: the graph being built, its inputs, and what is known of its values.

A traced array keeps, beside its graph value, an ndarray of the same dtype, shape and strides that owns no such memory
(``meta``). NumPy's own view arithmetic on it gives shapes, strides and offsets; its elements are never read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Protocol

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple
from numpy.lib.stride_tricks import as_strided

from fusec.errors import DataDependentError, FusecError, TypeRuleError, UnsupportedOpError
from fusec.frontend.capture import ArgumentSource, Fallback, ReferenceSource, Source
from fusec.frontend.kinds import StandIn
from fusec.frontend.numpy_buffer import Buffer, Inputs, State
from fusec.frontend.numpy_constant import recognise
from fusec.frontend.source import user_location, user_site
from fusec.frontend.steps import Step
from fusec.ir.nodes import InputRole, Port, Value
from fusec.ir.types import DTYPES, DType, TensorType, bool_, dtype_of

Meta = np.ndarray[Any, np.dtype[Any]]
_KNOWN_LIMIT = 1 << 16
"""Most elements of a value that is computed at capture because Python asked for it."""


class IndexRuleError(TypeRuleError, IndexError):
    """An index out of range, where NumPy raises IndexError."""


def axis_of(axis: Any, rank: int) -> int:
    """An axis that is not negative."""
    return int(normalize_axis_index(whole(axis), rank))


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """:func:`axis_of` for one axis or a tuple of them, in the order given."""
    given = axis if isinstance(axis, tuple | list) else (axis,)
    return tuple(normalize_axis_tuple([whole(a) for a in given], rank))


def whole(axis: Any) -> int:
    """The integer; an error as of NumPy's functions in C, which take no bool for one."""
    if type(axis) is bool:
        raise TypeError("an integer is required")
    return operator.index(axis)


def address_of(meta: Meta) -> int:
    """Of the first element."""
    address: int = meta.__array_interface__["data"][0]
    return address


def describe(shape: Sequence[int], dtype: np.dtype[Any], strides: Sequence[int] | None = None) -> Meta:
    """An ndarray of this layout without memory behind it; its elements must never be read. Strides in bytes."""
    if strides is None:
        step, backwards = dtype.itemsize, []
        for extent in reversed(shape):
            backwards.append(step)
            step *= max(extent, 1)
        strides = backwards[::-1]
    return as_strided(np.empty(1, dtype), tuple(shape), tuple(strides))


def like_layout(
    shape: Sequence[int],
    dtype: np.dtype[Any],
    inputs: Sequence[Meta],
    cast: Sequence[bool] = (),
    loop: Callable[..., Any] = np.bitwise_or,
) -> Meta:
    """The layout that NumPy gives a fresh result of an elementwise loop over the inputs (order ``K``).

    cast: which inputs the loop casts; NumPy has another for contiguous arrays that it need not. loop: a function of
    three operands that walks over them as the loop does, where that is not one of a ufunc of one or two.
    """
    if all(m.flags.c_contiguous for m in inputs) or 0 in shape:
        return describe(shape, dtype)
    kinds = [np.dtype(np.int8 if k < len(cast) and cast[k] else np.int64) for k in range(len(inputs))]
    twins: list[Any] = [twin(m, kind) for m, kind in zip(inputs, kinds)]
    if loop is np.bitwise_or:
        return laid_out_as(np.bitwise_or(twins[0], twins[-1], dtype=np.int64), shape, dtype)
    return laid_out_as(loop(*twins, *[0] * (3 - len(twins))), shape, dtype)


def copy_layout(meta: Meta, dtype: np.dtype[Any]) -> Meta:
    """The layout of a copy (order ``K``): axes by their strides, of equal ones the first outermost. An elementwise
    loop looks at no stride of an axis of one element; this does."""
    if meta.flags.c_contiguous:
        return describe(meta.shape, dtype)
    if meta.flags.f_contiguous:
        return describe(meta.shape[::-1], dtype).T
    order = sorted(range(meta.ndim), key=lambda a: -abs(meta.strides[a]))
    return describe([meta.shape[a] for a in order], dtype).transpose(np.argsort(order))


def twin(meta: Meta, dtype: np.dtype[Any] | None = None) -> Meta:
    """A small real array whose axes lie in memory in the same order, for NumPy to show the order of a result.

    It is contiguous where the array is: NumPy has another loop then, which places axes of one element elsewhere.
    """
    order = memory_order(meta)
    extents = [1 if meta.strides[a] == 0 else min(meta.shape[a], 2) for a in order]
    gap = 1 if meta.flags.c_contiguous or meta.flags.f_contiguous else 2
    laid_out = np.zeros([*extents, gap], dtype or meta.dtype)[..., 0].transpose(np.argsort(order))
    signed = laid_out[tuple(slice(None, None, -1 if s < 0 else 1) for s in meta.strides)]
    strides = [0 if wanted == 0 else own for wanted, own in zip(meta.strides, signed.strides)]
    return as_strided(signed, [min(n, 2) for n in meta.shape], strides)


def memory_order(meta: Meta) -> list[int]:
    """The axes from the outermost in memory to the innermost; of equal strides one of a single element lies within."""
    return sorted(range(meta.ndim), key=lambda a: (-abs(meta.strides[a]), meta.shape[a] == 1))


def laid_out_as(sample: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> Meta:
    """A dense layout of this shape whose axes lie in the sample's order."""
    if sample.ndim != len(shape) or not shape or 0 in shape:
        return describe(shape, dtype)
    order = memory_order(sample)
    return describe([shape[a] for a in order], dtype).transpose(np.argsort(order))


def ir_dtype(dtype: np.dtype[Any]) -> DType:
    """fusec's type of a NumPy dtype; UnsupportedOpError for strings, objects, dates, records."""
    try:
        found = dtype_of(dtype)
        if found.kind == "float8":
            raise KeyError(dtype)
    except KeyError:
        known = ", ".join(d.long_name for d in DTYPES.values() if d.kind != "float8")
        message = f"arrays of dtype {dtype} can't be compiled; fusec has {known}"
        raise UnsupportedOpError(message, user_location()) from None
    if not dtype.isnative:
        raise UnsupportedOpError(
            f"dtype {dtype} is not in this machine's byte order; use x.astype(x.dtype.newbyteorder('='))"
        )
    return found


class Scope(Protocol):
    """The copies of functions that one capture runs."""

    def library_copy(self, function: FunctionType) -> FunctionType:
        """A copy of one of NumPy's own Python functions that can be traced."""


class Traced(StandIn):
    """A traced array or NumPy scalar: a chain of views over a buffer.

    ``is_scalar`` marks what NumPy would give as a scalar object (``np.float32``) and not as a 0-d array; ``is_root``
    the array that owns the buffer, or the very array that was given.
    """

    __slots__ = ("__weakref__", "_cached", "_meta", "buffer", "is_root", "is_scalar", "steps", "tracer")

    def __init__(
        self,
        trace: Trace,
        buffer: Buffer,
        steps: tuple[Step, ...],
        meta: Meta,
        is_scalar: bool = False,
        is_root: bool = False,
    ) -> None:
        self.tracer = trace
        self.buffer = buffer
        self.steps = steps
        self._meta = meta
        self.is_scalar = is_scalar
        self.is_root = is_root
        self._cached: tuple[int, Value] | None = None

    @property
    def meta(self) -> Meta:
        if self.buffer.state is not None:
            self.buffer.state.touched = True
        return self._meta

    @property
    def value(self) -> Value:
        """The graph value that the array has now."""
        if self._cached is None or self._cached[0] != self.buffer.version:
            self._cached = (self.buffer.version, self.buffer.read(self.steps))
        return self._cached[1]


class Trace(Inputs):
    """One capture in progress. Not shared between threads.

    reads_contents: the arrays that stand for inputs have their elements, too, not only their layouts.
    """

    def __init__(self, name: str, fallback: Fallback, make: type[Traced]) -> None:
        super().__init__(name)
        self.fallback: Fallback = fallback
        self.reads_contents = True
        self.scope: Scope
        self.make = make
        self.sources: list[Source] = []
        self.input_buffers: list[Buffer] = []
        self.inputs: list[Value] = []
        self.ports: list[Port] = []
        self.states: list[State] = []
        self.notes: list[str] = []
        self.pins: list[State] = []
        self._lifted: dict[int, tuple[object, Value]] = {}
        self._known: dict[Value, np.ndarray[Any, Any] | None] = {}
        self._constants = 0
        self._named: set[Value] = set()

    # Operands

    def mask(self, where: Any) -> Value:
        """The operand of a ``where=``; TypeRuleError, as NumPy's, unless it is made of bools."""
        where = where if isinstance(where, Traced) else np.asarray(where)
        dtype = where.meta.dtype if isinstance(where, Traced) else where.dtype
        if dtype != np.bool_:
            message = f"Cannot cast array data from {dtype!r} to dtype('bool') according to the rule 'safe'"
            raise TypeRuleError(message, self.location())
        return self.operand(where, bool_)

    def operand(self, x: Any, dtype: DType | None = None) -> Value:
        """The graph value of a traced array, an ndarray, a list of numbers or a number, cast to ``dtype``."""
        if isinstance(x, list | tuple):
            x = np.asarray(x)
        if isinstance(x, Traced):
            value = self.checked(x).value
        elif isinstance(x, np.ndarray) and x.ndim:
            value = self.lift(x)
        else:
            item = x[()] if isinstance(x, np.ndarray) else x
            if np.ndim(item):
                raise self.unsupported(f"a {type(x).__name__} is taken for an array; make one of it with np.asarray")
            return self.constant(item, dtype or ir_dtype(np.asarray(item).dtype))
        return value if dtype is None else self.cast(value, dtype)

    def checked(self, x: Traced) -> Traced:
        if x.tracer is not self:
            message = (
                "an array traced in another call is used here; a traced array must not be kept in a global or an object"
            )
            raise FusecError(message, user_location())
        return x

    # Making arrays

    def fresh(self, value: Value, meta: Meta | None = None, *, scalar: bool = False) -> Any:
        """A new array (or scalar) that owns its memory; its value gets the name that the user's line assigns it to."""
        if meta is None:
            meta = describe(value.type.static_shape, value.type.dtype.numpy)
        self.name_value(value)
        buffer = Buffer(self, value)
        buffer.layout = meta
        return self.make(self, buffer, (), meta, scalar, True)

    def result(self, value: Value, meta: Meta | None = None) -> Any:
        """A new array, or a scalar where there are no axes, as ufuncs and reductions give."""
        return self.fresh(value, meta, scalar=not value.type.shape)

    def view(self, of: Traced, steps: Sequence[Step], meta: Meta, *, scalar: bool = False) -> Any:
        """A view of an array; as a scalar it is a copy, and so is one of a scalar.

        It gets a layout of its own, so that it can be made read-only alone.
        """
        if of.is_scalar:
            of = self.fresh(of.value, of.meta)
        some = tuple(step for step in steps if step is not None)
        meta = meta.view() if meta is of.meta else meta
        made = self.make(self, of.buffer, (*of.steps, *some), meta, scalar)
        if scalar:
            return self.fresh(made.value, meta, scalar=True)
        return made

    def name_value(self, value: Value) -> None:
        op = self.producers.get(value)
        if op is None or op.name == "constant" or value in self._named:
            return
        name = user_site()[1]
        if name is not None and name.isidentifier():
            self._named.add(value)
            self.builder.rename(value, name)

    # Inputs

    def argument(self, array: np.ndarray[Any, Any], index: int, name: str, path: str) -> Any:
        """The traced array that stands for an argument."""
        buffer = Buffer(self, None, array=array, name=name, role="argument", path=path)
        buffer.source = ArgumentSource(index)
        self.add_input(buffer)
        return self.make(self, buffer, (), array, is_root=True)

    def state(self, array: np.ndarray[Any, Any], path: str, fetch: Callable[[], Any]) -> Any:
        """The traced array that stands for an array fetched at each call; a graph input once it is read."""
        ir_dtype(array.dtype)
        buffer = Buffer(self, None, array=array, name=path.rpartition(".")[2], role="state", path=path)
        buffer.state = State(path, fetch, array)
        buffer.source = ReferenceSource(path, fetch)
        self.states.append(buffer.state)
        return self.make(self, buffer, (), array, is_root=True)

    def add_input(self, buffer: Buffer) -> Value:
        array = buffer.array
        assert array is not None
        assert buffer.source is not None
        if type(array) is not np.ndarray:
            kind = type(array).__name__
            raise UnsupportedOpError(
                f"{buffer.path} is a {kind}; only plain ndarrays are compiled: use np.asarray", user_location()
            )
        value = self._input(array, buffer.name, buffer.role, buffer.path)
        buffer.value = value
        self.sources.append(buffer.source)
        self.input_buffers.append(buffer)
        if buffer.state is not None:
            buffer.state.touched = True
            if array.size <= _KNOWN_LIMIT and self.reads_contents:
                self._known[value] = array
        return value

    def _input(self, array: np.ndarray[Any, Any], name: str, role: InputRole, path: str) -> Value:
        dtype = ir_dtype(array.dtype)
        strides = None
        if not array.flags.c_contiguous:
            if any(s % array.itemsize for s in array.strides):
                raise UnsupportedOpError(
                    f"{path}: strides {array.strides} are not whole elements of {array.dtype}; copy it first"
                )
            strides = tuple(s // array.itemsize for s in array.strides)
        safe = "".join(c if c.isalnum() or c == "_" else "_" for c in name) or "x"
        port = Port(strides, 0, role, path)
        value = self.builder.input(TensorType(dtype, array.shape), safe, port)
        self.inputs.append(value)
        self.ports.append(port)
        return value

    def lift(self, array: np.ndarray[Any, Any]) -> Value:
        """The value of an ndarray that the function made or found: as ops where it has a simple form, else an input."""
        found = self._lifted.get(id(array))
        if found is not None:
            return found[1]
        ir_dtype(array.dtype)
        value = recognise(self, array)
        if value is None:
            path = f"constant{self._constants}"
            self._constants += 1
            value = self._input(array, path, "state", path)
            self._known[value] = array
            buffer = Buffer(self, value)
            buffer.array = array
            self.sources.append(ReferenceSource(path, lambda: array))
            self.input_buffers.append(buffer)
        self._lifted[id(array)] = (array, value)
        return value

    # What is known at capture

    def known(self, x: Traced) -> np.ndarray[Any, Any] | None:
        """The array's elements when they don't depend on an argument; contents of state read so become guards."""
        value = x.value
        found = self._evaluate(value)
        if found is not None:
            used = self._inputs_of(value)
            self.pins += [b.state for b in self.input_buffers if b.state is not None and b.value in used]
        return found

    def _evaluate(self, value: Value) -> np.ndarray[Any, Any] | None:
        if value in self._known:
            return self._known[value]
        op = self.producers.get(value)
        result: np.ndarray[Any, Any] | None = None
        if op is not None and op.name != "extern" and value.type.size <= _KNOWN_LIMIT:
            operands = [self._evaluate(v) for v in op.operands]
            if all(a is not None for a in operands):
                results = op.definition.reference([a for a in operands if a is not None], op.attributes)
                result = results[op.results.index(value)]
        self._known[value] = result
        return result

    def _inputs_of(self, value: Value) -> set[Value]:
        pending, seen = [value], {value}
        while pending:
            op = self.producers.get(pending.pop())
            for operand in op.operands if op is not None else ():
                if operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
        return seen

    def concrete(self, x: Traced, what: str, advice: str) -> np.ndarray[Any, Any]:
        """The elements, for Python to act on. DataDependentError when they are not known at capture."""
        found = self.known(x)
        if found is None:
            kind = f"{ir_dtype(x.meta.dtype)}{list(x.meta.shape)}"
            message = (
                f"{what} needs the elements of a traced array ({kind}), "
                f"which are known only when the compiled function runs; {advice}"
            )
            raise DataDependentError(message, user_location())
        return found
