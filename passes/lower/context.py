# SPDX-License-Identifier: Apache-2.0
"""What lowering a group starts from: its buffers, its inliner and the positions of its outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fusec.errors import LoweringError
from fusec.ir.attributes import CopyAtAttributes, DotAttributes, GroupedDotAttributes, GroupedOuterAttributes
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.index import Index, Symbol, product, symbol
from fusec.ir.indexing import last, most, slope, substitute
from fusec.ir.nodes import Op, Value
from fusec.ir.ops import OPS
from fusec.ir.print import symbols_in
from fusec.ir.types import Dim, DType, contiguous_strides
from fusec.passes.groups.partition import Group, Position
from fusec.passes.inline import MOVES, Inliner, Leaf
from fusec.tile.kernel import BlockTraits, Kernel, Move
from fusec.tile.nodes import Alloc, Block, Choose, Dot, Map, Reduce, Scan, SoftmaxExp, Store, statements
from fusec.tile.scalar import Apply, Buffer, IndexValue, Load, ScalarExpr, loads, offset_of, walk
from fusec.tile.views import Subscripts, settled

Strides = tuple[Dim, ...]
_PLAIN = BlockTraits()
"""Of maps, and on CPUs."""


@dataclass(frozen=True)
class PackPlan:
    """A rearranged copy of inputs: the kernel that makes it, what it reads, and the buffer it fills.

    cached: it stays from call to call. name: of the copy in the program, the buffer's where it is empty.
    """

    kernel: Kernel
    sources: tuple[Value, ...]
    packed: Buffer
    cached: bool = False
    name: str = ""


@dataclass(frozen=True)
class ReductionKernel:
    """A kernel that runs after the group's own, and what to pass for each of its parameters."""

    kernel: Kernel
    arguments: tuple[Value | Buffer, ...]


@dataclass(frozen=True)
class LoweredGroup:
    """A group's kernel, what to pass for each of its parameters, and the packing that comes first.

    ``scratch`` is memory of one call between the kernel and its ``reductions``, kernels that combine its parts in
    order after it. ``skipped``: the share of an attention's scores that are never computed. ``seconds``: predicted, of
    the kernel and its reduction kernels on a GPU; a CPU's depend on the whole program.
    """

    kernel: Kernel
    arguments: tuple[Value | Buffer, ...]
    packs: tuple[PackPlan, ...]
    schedule: tuple[tuple[str, int | str], ...]
    scratch: tuple[Buffer, ...] = ()
    reductions: tuple[ReductionKernel, ...] = ()
    skipped: float | None = None
    seconds: float = 0.0

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        """What explain shows: the schedule, and what it saves."""
        return self.schedule if self.skipped is None else (*self.schedule, ("skipped", f"{self.skipped:.0%}"))


class LoweringContext:
    """One fused op being lowered.

    ``strides`` gives the layout in memory, in elements, of each operand and result. ``static``: inputs of the body that
    stay as they are from call to call, or say when they change: what is packed from them is kept.
    """

    def __init__(
        self, op: Op, strides: Mapping[Value, Strides], name: str, static: frozenset[Value] = frozenset()
    ) -> None:
        self.op = op
        self.strides = strides
        self.static = static
        self.body: Graph = op.expect(FusedAttributes).body
        self.name = name
        self.producers = self.body.producers()
        self._taken: set[str] = set()
        self.buffers: dict[Value, Buffer] = {}
        for value in (*self.body.inputs, *self.body.outputs):
            if value not in self.buffers:
                self.buffers[value] = Buffer(
                    _identifier(value.name, self._taken), value.type.dtype, value.type.shape, strides[value]
                )
        self.inliner = Inliner(self.producers, {v: self._leaf(v) for v in self.body.inputs})
        self.extra: list[Buffer] = []
        self.packs: list[PackPlan] = []

    def fresh(self) -> LoweringContext:
        """The same op, to be lowered again from the start."""
        return LoweringContext(self.op, self.strides, self.name, self.static)

    def pack(self, kernel: Kernel, read: Sequence[Buffer], packed: Buffer) -> None:
        """Notes that ``packed`` is made of the buffers ``read``, parameters, before the group's kernel runs."""
        sources = tuple(self.input_of(b) for b in read)
        self.extra.append(packed)
        self.packs.append(PackPlan(kernel, sources, packed, self.static.issuperset(sources)))

    def _leaf(self, value: Value) -> Leaf:
        buffer = self.buffers[value]
        return lambda index: Load(buffer, index)

    def name_of(self, value: Value) -> str:
        """A name for scratch memory that holds ``value``, not used by another buffer of the kernel."""
        return self.unique(value.name)

    def unique(self, name: str) -> str:
        return _identifier(name, self._taken)

    def tile(self, name: str, dtype: DType, *shape: int) -> Buffer:
        """Scratch, row-major, under a name that no other buffer of the kernel has."""
        return Buffer(self.unique(name), dtype, shape, contiguous_strides(shape), "tile")

    def anchors(self, name: str) -> list[Op]:
        return [op for op in self.body.ops if op.name == name]

    def finish(
        self, kind: str, body: Block, schedule: Iterable[tuple[str, int | str]] = (), traits: BlockTraits = _PLAIN
    ) -> LoweredGroup:
        """The kernel, with only the parameters that its body uses, outputs last."""
        outputs = [self.buffers[v] for v in self.body.outputs]
        kernel, arguments = self.kernel(self.name, kind, body, outputs, traits=traits)
        return LoweredGroup(kernel, arguments, tuple(self.packs), tuple(schedule))

    def finish_in_two(
        self,
        kind: str,
        body: Block,
        scratch: Sequence[Buffer],
        combine_kind: str,
        combine_body: Block,
        schedule: Iterable[tuple[str, int | str]] = (),
        warps: int = 4,
        traits: tuple[BlockTraits, BlockTraits] = (_PLAIN, _PLAIN),
    ) -> LoweredGroup:
        """A kernel that leaves parts of the results in ``scratch``, and one that combines them, with this many
        warps."""
        outputs = [self.buffers[v] for v in self.body.outputs]
        final = max((b.dtype for b in outputs), key=lambda d: d.bits)
        kernel, arguments = self.kernel(self.name, kind, body, scratch, traits=traits[0])
        name = f"combine_{self.name}"
        last, passed = self.kernel(name, combine_kind, combine_body, outputs, scratch, traits[1])
        moved = sum(b.extent * b.dtype.itemsize for b in scratch)
        combining = ReductionKernel(replace(last, flops=0, bytes=moved, warps=warps, stages=min(warps, 1)), passed)
        first = replace(kernel, final=final)
        return LoweredGroup(first, arguments, tuple(self.packs), tuple(schedule), tuple(scratch), (combining,))

    def kernel(
        self,
        name: str,
        kind: str,
        body: Block,
        outputs: Sequence[Buffer],
        scratch: Sequence[Buffer] = (),
        traits: BlockTraits = _PLAIN,
    ) -> tuple[Kernel, tuple[Value | Buffer, ...]]:
        """A kernel of the group and its arguments; ``scratch`` is what it may read besides the group's inputs."""
        moves = tuple(move for b in outputs for move in self._moves(b))
        used = buffers_in(body) | {x.buffer for move in moves for x in loads(move.to)}
        value_of = {b: v for v, b in self.buffers.items()}
        inputs = [self.buffers[v] for v in self.body.inputs if self.buffers[v] in used]
        others = [b for b in (*self.extra, *scratch) if b in used]
        parameters = (*inputs, *others, *outputs)
        made = Kernel(
            name,
            kind,
            parameters,
            len(outputs),
            body,
            group_flops(self.body),
            group_bytes(self.body),
            sizes=sizes_of(self.body),
            moves=moves,
            traits=traits,
        )
        return made, tuple(value_of.get(b, b) for b in parameters)

    @property
    def moves_results(self) -> bool:
        """Whether data say where a result goes."""
        producers = self.producers
        return any((op := producers.get(v)) is not None and op.name in MOVES for v in self.body.outputs)

    def _moves(self, buffer: Buffer) -> Iterator[Move]:
        """Where the elements of an output go, where that is known at the call only."""
        value = next((v for v, b in self.buffers.items() if b is buffer), None)
        made = self.producers.get(value) if value is not None else None
        if made is None or not isinstance(made.attributes, CopyAtAttributes):
            return
        axes, extents = made.attributes.axes, made.attributes.extents
        for position, axis, extent in zip(made.operands[1:], axes, extents, strict=True):
            rows, along = position.type.rank > 0, axes[0] if position.type.rank else axis
            at = symbol("at", 0, last(buffer.shape[along]))
            to = self.inliner.at(position, (at,) if rows else ())
            if not rows and buffer.shape[axis] != 1:
                to = Apply("add", (to, IndexValue(at, to.dtype)), to.dtype)
            yield Move(buffer, axis, along, at, to, extent)

    def input_of(self, buffer: Buffer) -> Value:
        """The body input that a parameter buffer stands for."""
        for value in self.body.inputs:
            if self.buffers[value] is buffer:
                return value
        raise LoweringError(f"{buffer} is not an input of {self.name}")


def sizes_of(body: Graph) -> tuple[Symbol, ...]:
    """The symbolic extents of a group, by name."""
    return tuple(sorted(symbols_in(body), key=lambda s: s.name))


def _identifier(name: str, taken: set[str]) -> str:
    base = re.sub(r"\W", "_", name)
    if not base or base[0].isdigit():
        base = f"v{base}"
    candidate, count = base, 0
    while candidate in taken:
        count += 1
        candidate = f"{base}_{count}"
    taken.add(candidate)
    return candidate


def position_at(position: Position, group: Group, domain: tuple[Index, ...]) -> tuple[Index, ...]:
    """A position with the group's own symbols replaced by the index of a domain point."""
    table = {s: d for s, d in zip(group.identity, domain, strict=True) if isinstance(s, Symbol)}
    return tuple(substitute(i, table) for i in position)


def expect_index(value: Value, wanted: tuple[Index, ...], element: ScalarExpr) -> Leaf:
    """A leaf that is ``element``, and only at the index that the domain point has."""

    def leaf(index: Subscripts) -> ScalarExpr:
        if settled(index) != settled(wanted):
            raise LoweringError(f"{value} is read at {index} where its kernel has it at {wanted}")
        return element

    return leaf


def prefer_index(wanted: tuple[Index, ...], element: ScalarExpr) -> Leaf:
    """A leaf that is ``element`` at one index, and is computed again at any other."""
    return lambda index: element if tuple(index) == wanted else None


def buffers_in(block: Block) -> set[Buffer]:
    """Every buffer that the block reads or writes."""
    found: set[Buffer] = set()
    for s in statements(block):
        match s:
            case Map() | Store() | Reduce():
                found.add(s.target)
                found.update(x.buffer for x in loads(s.value))
            case Dot():
                found.update(x.buffer for x in (s.accumulator, s.a, s.b))
            case Scan():
                found.update(x.buffer for x in (s.carry, *(x for value in s.values for x in loads(value))))
                found.add(s.target)
            case SoftmaxExp():
                found.update(x.buffer for x in (s.weights, s.row_sum, s.shift, *loads(s.score)))
            case Choose():
                found.update(s.sources)
            case Alloc():
                found.add(s.buffer)
            case _:
                pass
    return found


def group_flops(body: Graph) -> int:
    """Floating-point operations of a group's body; where extents are symbolic, the most there can be."""
    total = 0
    for op in body.ops:
        total += op_flops(op)
    return total


def op_flops(op: Op) -> int:
    """Operations of one op: two a multiply-add, the table's hint for an elementwise op, one an element reduced or
    scanned."""
    if isinstance(op.attributes, DotAttributes):
        shape = op.operands[0].type.shape
        return 2 * op.result.type.most * most(product(shape[a] for a in op.attributes.lhs_contract))
    if isinstance(op.attributes, GroupedDotAttributes):
        return 2 * op.result.type.most * most(op.operands[0].type.shape[1])
    if isinstance(op.attributes, GroupedOuterAttributes):
        lhs, rhs = op.operands[0].type, op.operands[1].type
        return 2 * lhs.most * most(rhs.shape[1])
    kind = op.definition.kind
    if kind == "elementwise":
        return op.definition.flops * op.result.type.most
    if kind == "scatter":
        return op.operands[2].type.most
    if kind in ("reduce", "scan"):
        return op.operands[0].type.most * (2 if op.name == "recurrence" else 1)
    return 0


def element_flops(element: ScalarExpr) -> int:
    """Floating-point operations of one element."""
    return sum(OPS[n.op].flops for n in walk(element) if isinstance(n, Apply))


def group_bytes(body: Graph) -> int:
    """The least that a group must move: inputs once (of a gathered table, what is picked), outputs once."""
    moved = sum(v.type.most_bytes for v in body.outputs)
    for value in body.inputs:
        users = [op for op in body.ops if value in op.operands]
        if users and all(op.name == "gather" and op.operands[0] is value for op in users):
            moved += min(value.type.most_bytes, sum(op.result.type.most_bytes for op in users))
        else:
            moved += value.type.most_bytes
    return moved


def is_linear(load: Load, symbols: Iterable[Symbol]) -> bool:
    """True when the load's address is linear in each of the symbols."""
    return all(address_slope(load, s) is not None for s in symbols)


def is_large(value: Value, least: int) -> bool:
    """Whether a value has ``least`` bytes, known now; nothing has where ``least`` is 0."""
    count = value.type.count
    return isinstance(count, int) and 0 < least <= count * value.type.dtype.itemsize


def address_step(load: Load, s: Symbol) -> int | None:
    """Elements between the load's addresses at neighbouring values of ``s``; None when that is no constant."""
    found = address_slope(load, s)
    return found if isinstance(found, int) else None


def address_slope(load: Load, s: Symbol) -> Index | None:
    """:func:`address_step` that may hold the kernel's sizes; None when the address is not linear in ``s``."""
    flat = offset_of(load.buffer, load.index)
    return None if flat is None else slope(flat, s)
