# SPDX-License-Identifier: Apache-2.0
"""Matmuls with sliding windows, and with broadcast operands, computed once instead of once a window."""

from __future__ import annotations

from dataclasses import replace

from fusec.ir.attributes import DotAttributes, PermuteAttributes, SliceAttributes, WindowsAttributes
from fusec.ir.nodes import Op, Value
from fusec.ir.ops.contract import free_axes
from fusec.ir.types import Dim
from fusec.passes.rewrite import Outcome, Reject, Rewriter, Rule, rule

COPY_COST = 16
"""Multiply-adds that writing and reading back one element of the small matmul is taken to cost: on a CPU with
512-bit vectors, 20 GB/s and 100 GFLOP/s a core, 8 bytes are 40 flops; half of it stays in cache."""


@rule("windows")
def windows_without_overlap(r: Rewriter) -> Outcome:
    """windows(x, size=n, step=n) ⇒ permute(reshape(x)): the axis is only split; so it is where there is one window"""
    attributes = r.op.expect(WindowsAttributes)
    (x,) = r.operands
    axis, size = attributes.axis, attributes.size
    count = r.op.result.type.shape[axis]
    if not x.type.is_static or not isinstance(count, int) or (size != attributes.step and count != 1):
        return None
    shape = list(x.type.static_shape)
    if shape[axis] != count * size:
        x = r.emit("slice", x, attributes=SliceAttributes.of_axes(shape, {axis: (0, count * size)}))
    split = r.reshape(x, [*shape[:axis], count, size, *shape[axis + 1 :]], hint="split")
    rank = len(shape) + 1
    return r.permute(split, [*(k for k in range(rank) if k != axis + 1), axis + 1])


@rule("windows")
def windows_of_permute(r: Rewriter) -> Outcome:
    """windows(permute(x)) ⇒ permute(windows(x))"""
    view = r.producer(r.operands[0], "permute")
    if view is None:
        return None
    attributes, names = r.op.expect(WindowsAttributes), _permutation(view, view.result.type.rank)
    inner = r.emit("windows", view.operands[0], attributes=replace(attributes, axis=names[attributes.axis]))
    return r.permute(inner, [*names, len(names)])


@rule("windows")
def windows_of_unit_axes(r: Rewriter) -> Outcome:
    """windows(reshape(x)) ⇒ reshape(windows(x)), where the reshape only adds or drops axes of extent 1"""
    view = r.producer(r.operands[0], "reshape")
    attributes = r.op.expect(WindowsAttributes)
    if view is None or not _moves_unit_axes(view) or view.result.type.shape[attributes.axis] == 1:
        return None
    (source,) = view.operands
    wanted = _wide_axes(view.result.type.shape).index(attributes.axis)
    inner = r.emit("windows", source, attributes=replace(attributes, axis=_wide_axes(source.type.shape)[wanted]))
    return r.reshape(inner, r.op.result.type.shape)


@rule("permute")
def permute_of_unit_axes(r: Rewriter) -> Outcome:
    """permute(reshape(windows(x))) ⇒ reshape(permute(windows(x))), where the reshape only moves axes of extent 1"""
    view = r.producer(r.operands[0], "reshape")
    if view is None or not _moves_unit_axes(view):
        return None
    (source,) = view.operands
    made = r.producer(source, "windows", "permute")
    if made is None or (made.name == "permute" and r.producer(made.operands[0], "windows") is None):
        return None
    inside, outside = _wide_axes(source.type.shape), _wide_axes(view.result.type.shape)
    order = [inside[outside.index(k)] for k in _permutation(r.op, len(outside)) if k in outside]
    units = [k for k in range(source.type.rank) if k not in inside]
    return r.reshape(r.permute(source, [*units, *order]), r.op.result.type.shape)


def _moves_unit_axes(view: Op) -> bool:
    """True for a reshape that only adds or drops axes of extent 1."""
    (source,) = view.operands
    return [d for d in source.type.shape if d != 1] == [d for d in view.result.type.shape if d != 1]


def _wide_axes(shape: tuple[Dim, ...]) -> list[int]:
    return [k for k, extent in enumerate(shape) if extent != 1]


@rule("dot")
def dot_of_broadcast(r: Rewriter) -> Outcome:
    """dot(broadcast(a), b) ⇒ permute(dot(a, b)), where all that a repeats for are its batch axes

    They become free axes of ``b``, so that one matmul does for all of them.
    """
    attributes = r.op.expect(DotAttributes)
    if not attributes.lhs_batch:
        return None
    for side in (0, 1):
        made = r.producer(r.operands[side], "broadcast")
        batch = (attributes.lhs_batch, attributes.rhs_batch)[side]
        if made is not None and _repeats_only(made, batch):
            return _freed(r, made.operands[0], side, attributes)
    return None


def _repeats_only(made: Op, axes: tuple[int, ...]) -> bool:
    """True when the broadcast repeats its operand along exactly these axes."""
    (source,) = made.operands
    wide = made.result.type.shape
    own = (*[1] * (len(wide) - source.type.rank), *source.type.shape)
    return all((own[k] == 1) if k in axes else (own[k] == wide[k]) for k in range(len(wide)))


def _freed(r: Rewriter, source: Value, side: int, attributes: DotAttributes) -> Value:
    """The dot with its batch axes made free axes of the other operand, and the result put back in order."""
    other = r.operands[1 - side]
    batches = (attributes.lhs_batch, attributes.rhs_batch)
    contracts = (attributes.lhs_contract, attributes.rhs_contract)
    rank = r.operands[side].type.rank
    retained = [k for k in range(rank) if k not in batches[side]]
    squeezed = r.reshape(source, [r.operands[side].type.shape[k] for k in retained], hint="squeezed")
    contract = tuple(retained.index(k) for k in contracts[side])
    own_free = len(retained) - len(contract)
    other_free = free_axes(other.type.rank, (), contracts[1 - side])
    # Where each axis of the other operand lies among the matmul's axes.
    first = own_free if side == 0 else 0
    position = {axis: first + n for n, axis in enumerate(other_free)}
    own = range(own_free) if side == 0 else range(len(other_free), len(other_free) + own_free)
    rest = [position[k] for k in other_free if k not in batches[1 - side]]
    batch = [position[k] for k in batches[1 - side]]
    new = replace(attributes, lhs_batch=(), rhs_batch=())
    if side == 0:
        result = r.emit("dot", squeezed, other, attributes=replace(new, lhs_contract=contract))
        return r.permute(result, [*batch, *own, *rest])
    result = r.emit("dot", other, squeezed, attributes=replace(new, rhs_contract=contract))
    return r.permute(result, [*batch, *rest, *own])


@rule("dot")
def dot_of_windows(r: Rewriter) -> Outcome:
    """dot(a, windows(b)) ⇒ windows(dot(a, b)), where neither axis that the windows make is contracted

    With ``b`` of n columns and windows of size s there are n - s + 1 windows, so s(n - s + 1) columns to multiply;
    this way it is n, and the windows of the matmul are a view.
    """
    nearest: Reject | None = None
    for side in (0, 1):
        view = r.producer(r.operands[side], "permute")
        made = r.producer(view.operands[0] if view else r.operands[side], "windows")
        if made is None:
            continue
        rank = made.result.type.rank
        found = _matmul_of_windows(r, made, side, _permutation(view, rank))
        if isinstance(found, Value):
            return found
        nearest = found or nearest
    return nearest


def _permutation(view: Op | None, rank: int) -> tuple[int, ...]:
    if view is None:
        return tuple(range(rank))
    return view.expect(PermuteAttributes).permutation


def _matmul_of_windows(r: Rewriter, made: Op, side: int, names: tuple[int, ...]) -> Value | Reject | None:
    """The rewritten dot, where operand ``side`` is ``permute(made, names)``."""
    attributes = r.op.expect(DotAttributes)
    windows = made.expect(WindowsAttributes)
    (source,) = made.operands
    batch = tuple(names[k] for k in (attributes.lhs_batch, attributes.rhs_batch)[side])
    contract = tuple(names[k] for k in (attributes.lhs_contract, attributes.rhs_contract)[side])
    if side == 0 and windows.axis not in (*contract, *batch) and source.type.rank in contract:
        return None  # a convolution
    for axis, what in ((windows.axis, "the windows' number"), (source.type.rank, "the position in the window")):
        if axis in contract:
            return Reject(f"{what}, axis {axis} of {made.result}, is summed over")
        if axis in batch:
            return Reject(f"{what}, axis {axis} of {made.result}, is a batch axis: each meets another matrix")
    loss = _loss(r, made, contract)
    if loss is not None:
        return loss
    other = r.operands[1 - side]
    if side == 0:
        renamed = replace(attributes, lhs_batch=batch, lhs_contract=contract)
        result = r.emit("dot", source, other, attributes=renamed)
    else:
        renamed = replace(attributes, rhs_batch=batch, rhs_contract=contract)
        result = r.emit("dot", other, source, attributes=renamed)
    free = free_axes(source.type.rank, batch, contract)
    others = result.type.rank - len(batch) - len(free)
    first = len(batch) + (others if side == 1 else 0)
    view = r.emit("windows", result, attributes=replace(windows, axis=first + free.index(windows.axis)))
    # Where each axis of the windows lies among the view's: the position in the window is always the last.
    position = {axis: first + n for n, axis in enumerate(free)} | {source.type.rank: view.type.rank - 1}
    wanted = [position[k] for k in names if k in position]
    rest = range(len(batch), len(batch) + others) if side == 1 else range(first + len(free), view.type.rank - 1)
    return r.permute(view, [*range(len(batch)), *([*rest, *wanted] if side == 1 else [*wanted, *rest])])


def _loss(r: Rewriter, made: Op, contract: tuple[int, ...]) -> Reject | None:
    """Why multiplying the windows is no slower than multiplying what they show and copying, if so."""
    windows = made.expect(WindowsAttributes)
    shape = made.result.type.shape
    extent, count = made.operands[0].type.shape[windows.axis], shape[windows.axis]
    depth = 1
    for axis in contract:
        size = shape[axis]
        if not isinstance(size, int):
            return Reject(f"the depth of {r.op.result} is the symbol {size}")
        depth *= size
    if not isinstance(extent, int) or not isinstance(count, int):
        return Reject(f"how far the windows of {made.operands[0]} overlap depends on the symbol {extent}")
    saved = depth * (count * windows.size - extent)
    cost = COPY_COST * extent
    if saved > cost:
        return None
    return Reject(
        f"{count} windows of {windows.size} show {count * windows.size} of {extent} elements: "
        f"{saved} multiply-adds a row saved, {cost} worth of copying added"
    )


WINDOW_RULES: tuple[Rule, ...] = (
    windows_without_overlap,
    windows_of_permute,
    windows_of_unit_axes,
    permute_of_unit_axes,
    dot_of_broadcast,
    dot_of_windows,
)
