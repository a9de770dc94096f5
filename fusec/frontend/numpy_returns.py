# SPDX-License-Identifier: Apache-2.0
"""What a NumPy function gave back: the graph's outputs, and how the user's result is put together from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fusec.frontend.capture import Library
from fusec.frontend.numpy_buffer import Buffer
from fusec.frontend.numpy_trace import Meta, Trace, Traced, address_of, describe
from fusec.frontend.numpy_views import view
from fusec.frontend.results import check_result
from fusec.frontend.structures import rebuild, structure_of
from fusec.ir.graph import Graph
from fusec.ir.nodes import Port, Value
from fusec.tile.views import strided_view

_OVERLAPPING = ("broadcast", "windows", "strided")
"""View ops whose elements may share memory."""


@dataclass(frozen=True)
class _Window:
    """Where a view lies after the first element of an array: strides and offset in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, array: Any, library: Library) -> Any:
        if library == "numpy":
            return view(array, self.dtype, self.shape, self.strides, self.offset)
        return type(array)(self.shape, self.dtype, array.data + self.offset, self.strides)


@dataclass(frozen=True)
class _Leaf:
    """How one returned array is made from the graph's outputs: output ``index``, or a window of it.

    is_view: an array object of its own, where the output is an argument. is_read_only: where the output is not.
    constant: an array that is the same at each call, of which each call gets a copy.
    """

    index: int
    is_scalar: bool = False
    window: _Window | None = None
    is_view: bool = False
    is_read_only: bool = False
    constant: Any = None

    def make(self, outputs: Sequence[Any], library: Library, owners: dict[int, Any]) -> Any:
        if self.constant is not None:
            return _copy_of(self.constant, owners)
        array = outputs[self.index]
        if self.window is not None:
            array = self.window.of(array, library)
        elif self.is_view:
            array = array.view()
        return array[()] if self.is_scalar else array


class Returns:
    """The outputs of a capture's graph, and ``rebuild``, which makes the user's result of them."""

    def __init__(self, trace: Trace, result: Any, library: Library) -> None:
        self.trace = trace
        self.library: Library = library
        self.values: list[Value] = []
        self.ports: list[Port] = []
        self._owned: set[Value] = set()
        self._bases: dict[int, int] = {}
        self._seen: set[object] = set()
        found: list[Any] = []
        self.structure = structure_of(result, lambda v: issubclass(type(v), Traced | np.ndarray), found)
        check_result(self.structure, lambda v: isinstance(v, Traced), trace.location())
        self._views = self._count_views(found)
        self._add_mutated()
        known: dict[int, int] = {}
        self.leaves: list[_Leaf] = []
        self.order: list[int] = []
        for x in found:
            if id(x) not in known:
                known[id(x)] = len(self.leaves)
                self.leaves.append(self._leaf(x))
            self.order.append(known[id(x)])
        self.graph: Graph = trace.builder.finish(self.values, self.ports)

    @property
    def rebuild(self) -> Callable[[Sequence[Any]], Any]:
        structure, leaves, order, library = self.structure, self.leaves, self.order, self.library
        has_flags = library == "numpy"
        frozen = [k for k, x in enumerate(leaves) if _is_read_only(x.constant) or (has_flags and x.is_read_only)]

        def put_together(outputs: Sequence[Any]) -> Any:
            owners: dict[int, Any] = {}  # copies of the memory of constants, in which their views lie
            made = [leaf.make(outputs, library, owners) for leaf in leaves]
            for k in frozen:
                made[k].flags.writeable = False  # when all views are made: one of what is read-only is so, too
            return rebuild(structure, iter([made[i] for i in order]))

        return put_together

    def _count_views(self, found: Sequence[Any]) -> dict[int, set[int]]:
        """The arrays among the results, by the memory that they lie in."""
        views: dict[int, set[int]] = {}
        for x in found:
            if isinstance(x, Traced) and not x.is_scalar:
                views.setdefault(id(x.buffer), set()).add(id(x))
        return views

    def _add_mutated(self) -> None:
        inputs = self.trace.input_buffers
        for index, buffer in enumerate(inputs):
            if not buffer.version or buffer.array is None:
                continue
            for other in inputs:
                shares = other is not buffer and other.array is not None
                if shares and np.may_share_memory(buffer.array, other.array):
                    raise self.trace.unsupported(
                        f"{buffer.path} is written and may share memory with {other.path}; copy one of them"
                    )
            value = buffer.value
            if self._root(value) is not None and value is not self.trace.inputs[index]:
                value = self.trace.emit("copy", value)
            self._owned.add(value)
            self._bases[id(buffer)] = self._output(value, replace(self.trace.ports[index], mutates=index))

    def _leaf(self, x: Any) -> _Leaf:
        if not isinstance(x, Traced):
            return self._constant(x)
        buffer = x.buffer
        if x.is_scalar:
            return _Leaf(self._output(self._own(x.value), Port()), is_scalar=True)
        if id(buffer) in self._bases:
            return self._in_base(x)
        if buffer.array is not None:
            return self._of_input(x, buffer.array)
        spread = any(step.name in _OVERLAPPING for step in x.steps)
        backwards = any(s < 0 for s in x.meta.strides)
        if len(self._views[id(buffer)]) > 1 or spread or backwards:
            self._bases[id(buffer)] = self._output(self._own(buffer.value), self._port_of(self._layout(buffer, x)))
            return self._in_base(x)
        value = x.value if _is_dense(x.meta) or not x.steps else self.trace.emit("copy", x.value)
        return _Leaf(self._output(self._own(value), self._port_of(x.meta)), is_read_only=not x.meta.flags.writeable)

    def _constant(self, x: Any) -> _Leaf:
        if x.dtype.kind not in "biufc" or type(x) is not np.ndarray:
            raise self.trace.unsupported(f"the function returns a {type(x).__name__} of dtype {x.dtype} of its own")
        owner = _owner_of(x)
        if owner.size and not _is_dense(owner):
            raise self.trace.unsupported("the function returns a view of memory that is no array's")
        return _Leaf(-1, constant=x)

    def _in_base(self, x: Traced) -> _Leaf:
        """A view of memory that is an output as a whole."""
        index = self._bases[id(x.buffer)]
        if x.is_root and not x.steps:  # its shape may have been set
            return _Leaf(index, is_read_only=not x.meta.flags.writeable)
        base = x.buffer.array if x.buffer.array is not None else self._layout(x.buffer, x)
        window = _Window(x.meta.dtype, x.meta.shape, x.meta.strides, _distance(x.meta, base))
        return _Leaf(index, window=window, is_read_only=not x.meta.flags.writeable)

    def _of_input(self, x: Traced, base: Meta) -> _Leaf:
        """A view of an argument, or of an array that the function found; that array itself where it is the root."""
        region = (id(x.buffer), x.meta.shape, x.meta.strides, address_of(x.meta))
        itself = (id(x.buffer), base.shape, base.strides, address_of(base))
        is_view = region == itself or region in self._seen  # equal views are one array to the program
        self._seen.add(region)
        start = _distance(x.meta, base) if x.steps else 0
        repeats = x.meta.size > 0 and any(s == 0 and n != 1 for n, s in zip(x.meta.shape, x.meta.strides))
        writeable = x.meta.flags.writeable
        if not self._is_strided(x) or (repeats and writeable) or _differs_in_ones(x.meta, base):
            window = _Window(x.meta.dtype, x.meta.shape, x.meta.strides, start)
            index = self._output(x.buffer.value, self._port_of(base))
            return _Leaf(index, window=window, is_read_only=not x.meta.flags.writeable)
        index = self._output(x.value, Port(_strides_of(x.meta), start // x.meta.itemsize))
        if x.is_root:
            return _Leaf(index)
        return _Leaf(index, is_view=is_view, is_read_only=base.flags.writeable and not writeable)

    def _is_strided(self, x: Traced) -> bool:
        """Whether strides say what the view ops of an input do; those of the diagonal of a part of it, they do not."""
        strides = {v: p.strides for v, p in zip(self.trace.inputs, self.trace.ports) if p.strides is not None}
        return not x.meta.size or strided_view(x.value, self.trace.producers, strides) is not None

    def _layout(self, buffer: Buffer, x: Traced) -> Meta:
        """How the memory that the function made lies."""
        layout = buffer.layout if buffer.layout is not None else x.meta
        if any(s < 0 for s in layout.strides):
            raise self.trace.unsupported("a view of an array that runs backwards in memory is not compiled as a result")
        return layout

    def _output(self, value: Value, port: Port) -> int:
        self.values.append(value)
        self.ports.append(port)
        return len(self.values) - 1

    def _port_of(self, meta: Meta) -> Port:
        return Port() if 0 in meta.shape else Port(_strides_of(meta))

    def _own(self, value: Value) -> Value:
        """The value, copied where it would be another output's or an input's memory, or no memory at all."""
        root = self._root(value) or value
        op = self.trace.producers.get(root)
        if op is None or op.definition.kind == "create" or root in self._owned:
            value = root = self.trace.emit("copy", value)
        self._owned.add(root)
        return value

    def _root(self, value: Value) -> Value | None:
        """What a chain of view ops starts from; None when the value is made by another op."""
        op = self.trace.producers.get(value)
        if op is not None and op.definition.kind != "view":
            return None
        while op is not None and op.definition.kind == "view":
            value = op.operands[0]
            op = self.trace.producers.get(value)
        return value


def _distance(meta: Meta, base: Meta) -> int:
    """Bytes from the first element of one layout to another's, which is a view of it."""
    return address_of(meta) - address_of(base)


def _differs_in_ones(meta: Meta, base: Meta) -> bool:
    """Whether a view is the array itself but for strides that nothing steps along: a program takes it for that."""
    if meta.strides == base.strides or meta.shape != base.shape or address_of(meta) != address_of(base):
        return False
    return all(a == b for n, a, b in zip(meta.shape, meta.strides, base.strides) if n > 1)


def _owner_of(constant: Meta) -> Meta:
    """The array whose memory it is; ``as_strided`` puts an object between its view and that."""
    owner = constant
    while True:
        base = owner.base if isinstance(owner.base, np.ndarray) else getattr(owner.base, "base", None)
        if not isinstance(base, np.ndarray):
            return owner
        owner = base


def _is_read_only(constant: Meta | None) -> bool:
    return constant is not None and not constant.flags.writeable


def _copy_of(constant: Meta, owners: dict[int, Any]) -> Meta:
    """An array of the same elements and strides, in a copy of its memory that ``owners`` keeps by the memory's id."""
    owner = _owner_of(constant)
    if id(owner) not in owners:
        owners[id(owner)] = _copy_at_layout(owner)
    copy = owners[id(owner)]
    if constant is owner:
        return copy  # type: ignore[no-any-return]
    return view(copy, constant.dtype, constant.shape, constant.strides, _distance(constant, owner))


def _copy_at_layout(owner: Meta) -> Meta:
    """A copy of the same strides."""
    made = owner.copy(order="K")
    if made.strides == owner.strides:
        return made
    return view(made, owner.dtype, owner.shape, owner.strides, 0)


def _is_dense(meta: Meta) -> bool:
    order = sorted(range(meta.ndim), key=lambda a: -meta.strides[a])
    return bool(meta.transpose(order).flags.c_contiguous)


def _strides_of(meta: Meta) -> tuple[int, ...] | None:
    """NumPy's strides in elements, of axes of one element too; None for those that a fresh array has."""
    plain = describe(meta.shape, meta.dtype).strides
    return None if meta.strides == plain else tuple(s // meta.itemsize for s in meta.strides)
