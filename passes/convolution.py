# SPDX-License-Identifier: Apache-2.0
"""Convolutions: dots whose left operand shows windows of an image.

Found by the operand's index map, so that spellings are one: ``F.conv2d``, ``sliding_window_view`` or ``Tensor.unfold``
and ``einsum``. Not ``F.unfold`` and a matmul yet: a reshape joins the windows' axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from fusec.errors import LoweringError
from fusec.ir.attributes import ConstantAttributes, DotAttributes, PadAttributes
from fusec.ir.index import Index, Symbol, symbols_of
from fusec.ir.indexing import coefficient, substitute
from fusec.ir.nodes import Op, Value
from fusec.ir.ops.contract import free_axes
from fusec.tile.views import Subscripts, fresh_index, pure, settled, view_index


@dataclass(frozen=True)
class Windowed:
    """An axis of an image that windows slide along, and where the dot has them among its axes.

    axis: the image's. count: windows, of ``size`` taps each, ``stride`` apart; taps are ``dilation`` apart.
    low: elements of padding before the first. tap_axis: which of the contracted axes goes through a window's taps;
    None where there is one.
    """

    axis: int
    extent: int
    count: int
    size: int
    stride: int
    dilation: int
    low: int
    tap_axis: int | None

    @property
    def high(self) -> int:
        """Elements of padding behind the last that windows reach; negative where they don't reach the end."""
        return (self.count - 1) * self.stride + (self.size - 1) * self.dilation + 1 - self.extent - self.low


@dataclass(frozen=True)
class Convolution:
    """A dot ``[batch, windows..., columns]`` over the windows of an image, whose axes it names.

    image: what is padded with zeros, a view of memory. batch, channels: its axes; None for one that it has not.
    pad: the op that pads, where it is not the image itself. groups: the dot's batch, each of which has its own part of
    the channels.
    """

    dot: Op
    image: Value
    batch: int | None
    channels: int | None
    windowed: tuple[Windowed, ...]
    pad: Op | None
    groups: int = 1

    @property
    def depth(self) -> int:
        """Channels that a column is made of."""
        return 1 if self.channels is None else self.image.type.static_shape[self.channels] // self.groups

    @property
    def taps(self) -> int:
        """Positions of a window."""
        return prod(w.size for w in self.windowed)


def convolution_of(dot: Op, producers: Mapping[Value, Op]) -> Convolution | None:
    """The dot as a convolution; None where its left operand shows no windows of one image."""
    attributes, left = dot.expect(DotAttributes), dot.operands[0]
    if len(attributes.lhs_batch) > 1 or not left.type.is_static or 0 in left.type.shape:
        return None
    if not dot.operands[1].type.is_static:
        return None
    symbols = fresh_index("w", left.type.shape)
    found = _base(left, settled(symbols), producers)
    if found is None:
        return None
    image, index, pad = found
    low = (0,) * image.type.rank
    if pad is not None:
        low = pad.expect(PadAttributes).low
    free = [symbols[a] for a in free_axes(left.type.rank, attributes.lhs_batch, attributes.lhs_contract)]
    inner = [symbols[a] for a in attributes.lhs_contract]
    group = symbols[attributes.lhs_batch[0]] if attributes.lhs_batch else None
    return _by_role(dot, image, index, low, free, inner, group, pad)


def _base(
    value: Value, index: Subscripts, producers: Mapping[Value, Op]
) -> tuple[Value, tuple[Index, ...], Op | None] | None:
    """What the views of a value show: before padding with zeros, if there is one; and where."""
    op = producers.get(value)
    try:
        while op is not None and op.definition.kind == "view":
            index, value = settled(view_index(op, index)), op.operands[0]
            op = producers.get(value)
        if op is not None and op.name == "pad":
            fill = producers.get(op.operands[1])
            if fill is not None and isinstance(fill.attributes, ConstantAttributes) and fill.attributes.value == 0:
                return op.operands[0], pure(index), op
        return value, pure(index), None
    except LoweringError:
        return None


def _by_role(
    dot: Op,
    image: Value,
    index: tuple[Index, ...],
    low: tuple[int, ...],
    free: list[Symbol],
    inner: list[Symbol],
    group: Symbol | None,
    pad: Op | None,
) -> Convolution | None:
    """Each axis of the image goes through the batch, the channels, or windows and the taps in them."""
    batch: int | None = None
    channels: int | None = None
    windowed: list[Windowed] = []
    used: list[Symbol] = []
    units: list[int] = []
    for axis, (e, extent, before) in enumerate(zip(index, image.type.static_shape, low, strict=True)):
        if group is not None and group in symbols_of(e):
            if before or channels is not None or not _is_of_a_group(e, group, extent, inner):
                return None
            channels = axis
            used += symbols_of(e)
            continue
        seen = symbols_of(e)
        used += seen
        outer, windowed_symbols = [s for s in seen if s in free], [s for s in seen if s in inner]
        if len(outer) > 1 or len(windowed_symbols) > 1:
            return None
        steps = [coefficient(e, s) for s in (*outer, *windowed_symbols)]
        start = substitute(e, dict.fromkeys(seen, 0))
        if any(step is None or step < 1 for step in steps) or not isinstance(start, int):
            return None
        whole = start == 0 and before == 0 and steps == [1]
        if not outer and whole and channels is None and _extent(windowed_symbols[0]) == extent:
            channels = axis
        elif not windowed_symbols and whole and batch is None and outer[0] is free[0] and _extent(outer[0]) == extent:
            batch = axis
        elif not seen and extent == 1 and start == 0 and before == 0:
            units.append(axis)
        else:
            stride, count = (steps[0] or 1, _extent(outer[0])) if outer else (1, 1)
            dilation, size = (steps[-1] or 1, _extent(windowed_symbols[0])) if windowed_symbols else (1, 1)
            tap_axis = inner.index(windowed_symbols[0]) if windowed_symbols else None
            windowed.append(Windowed(axis, extent, count, size, stride, dilation, before - start, tap_axis))
    wide = [s for s in (*free, *inner, *([group] if group is not None else [])) if _extent(s) != 1]
    if not windowed or len(windowed) > 3 or len(used) != len(set(used)) or not set(wide) <= set(used):
        return None
    axes = [w.axis for w in windowed]
    batch = next((a for a in units if a < min(axes)), None) if batch is None else batch
    channels = next((a for a in units if a > max(axes)), None) if channels is None else channels
    if all(w.count == 1 and w.low == 0 and w.high <= 0 for w in windowed):
        return None  # one window at one place: a plain contraction of several axes
    order = [s for e in index for s in free if s in symbols_of(e)]
    if order != sorted(order, key=free.index) or all(w.size == 1 and w.stride == 1 for w in windowed):
        return None
    return Convolution(dot, image, batch, channels, tuple(windowed), pad, 1 if group is None else _extent(group))


def _is_of_a_group(e: Index, group: Symbol, extent: int, inner: list[Symbol]) -> bool:
    """Whether an index goes through the channels of one group after those of another."""
    channels = [s for s in symbols_of(e) if s is not group]
    if len(channels) > 1 or not set(channels) <= set(inner):
        return False
    depth = prod(map(_extent, channels))
    steps = [coefficient(e, s) for s in (group, *channels)]
    starts = substitute(e, dict.fromkeys((group, *channels), 0)) == 0
    return starts and steps == [depth, *(1 for _ in channels)] and depth * _extent(group) == extent


def _extent(s: Symbol) -> int:
    assert isinstance(s.hi, int)
    return s.hi + 1
