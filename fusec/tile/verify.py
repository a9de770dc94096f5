# SPDX-License-Identifier: Apache-2.0
"""Checks that a kernel keeps the contract of the tile IR, before an emitter sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn, assert_never

from fusec.errors import VerifyError
from fusec.ir.index import Expr, Index, Symbol, bounds, is_at_least, symbol, symbols_of
from fusec.ir.indexing import coefficient, slope, substitute
from fusec.ir.monoid import SCANS
from fusec.ir.types import bool_, fixed
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import (
    Alloc,
    Block,
    Choose,
    Dot,
    Grid,
    If,
    Iter,
    Let,
    Loop,
    Map,
    Reduce,
    Scan,
    SoftmaxExp,
    Statement,
    Store,
    grouped,
)
from fusec.tile.print import print_scalar
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, Subscript, offset_of, symbols_in


def verify(kernel: Kernel) -> None:
    """VerifyError for a kernel that breaks the contract; the message names the kernel and the statement.

    Checked: a grid is outermost and alone; buffers are parameters or allocated in an enclosing block; symbols
    are bound where they are used; subscripts fit the buffer's rank and, where bounds are known, lie within it;
    Map writes scratch and Store parameters; a condition uses index values only; on a CPU a Dot's operands have
    the accumulator's dtype or a narrower one that is multiplied into it, and ``b`` and the accumulator the stride along
    ``n`` that this takes, or with k on the lanes ``a`` and ``b`` stride 1 along ``k``; on a GPU the register tiles of
    its warps or threads make up the block.
    """
    _Verifier(kernel).run()


_WIDENING = (("bf16", "bf16", "f32"), ("i8", "i8", "i32"))
"""Dtypes of a Dot's operands and accumulator where they may differ on a CPU."""


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.where = ""

    def run(self) -> None:
        names = [p.name for p in self.kernel.parameters]
        if len(set(names)) != len(names):
            self.fail(f"two parameters have one name: {', '.join(names)}")
        if not 0 < self.kernel.outputs <= len(names):
            self.fail(f"{self.kernel.outputs} outputs of {len(names)} parameters")
        for parameter in self.kernel.parameters:
            self.buffer(parameter, "parameter")
        self.block(self.kernel.body, frozenset(self.kernel.parameters), frozenset(self.kernel.sizes), outermost=True)

    def fail(self, message: str) -> NoReturn:
        where = f", in {self.where}" if self.where else ""
        raise VerifyError(f"kernel {self.kernel.name}{where}: {message}")

    def buffer(self, buffer: Buffer, space: str) -> None:
        if buffer.space != space:
            self.fail(f"{buffer} is a {buffer.space}, not a {space}")
        if len(buffer.shape) != len(buffer.strides):
            self.fail(f"{buffer} has shape {buffer.shape} and strides {buffer.strides}")
        if space == "tile" and any(s < 0 for s in fixed(buffer.strides)):
            self.fail(f"scratch {buffer} has a negative stride")

    def block(self, block: Block, known: frozenset[Buffer], bound: frozenset[Symbol], outermost: bool = False) -> None:
        for statement in block:
            if isinstance(statement, Grid) and not (outermost and len(block) == 1):
                self.fail("a grid must be the kernel's only outermost statement")
            if isinstance(statement, Alloc):
                self.where = f"alloc {statement.buffer}"
                self.buffer(statement.buffer, "tile")
                known = known | {statement.buffer}
            elif isinstance(statement, Choose):
                self.where = f"choose {statement.buffer}"
                self.choose(statement, known, bound)
                known = known | {statement.buffer}
            elif isinstance(statement, Let):
                self.where = f"let {statement.var}"
                self.number(statement.value, known, bound)
                bound = bound | {statement.var}
            else:
                self.statement(statement, known, bound)

    def statement(self, statement: Statement, known: frozenset[Buffer], bound: frozenset[Symbol]) -> None:
        match statement:
            case Grid():
                self.where = "grid"
                self.block(statement.body, known, self.domain(statement.iters, bound))
            case Loop():
                self.where = f"loop {statement.var}"
                self.index(statement.start, bound)
                self.index(statement.stop, bound)
                if statement.step < 1:
                    self.fail(f"the step is {statement.step}")
                for load in statement.within or ():
                    self.number(load, known, bound)
                self.block(statement.body, known, bound | {statement.var})
            case If():
                self.where = "if"
                self.condition(statement.condition, known, bound)
                self.block(statement.body, known, bound)
                self.block(statement.orelse, known, bound)
            case Map() | Store():
                self.pointwise(statement, known, bound)
            case Reduce():
                self.reduce(statement, known, bound)
            case Scan():
                self.scan(statement, known, bound)
            case SoftmaxExp():
                self.softmax_exp(statement, known, bound)
            case Dot():
                self.dot(statement, known, bound)
            case Alloc() | Choose() | Let():
                raise AssertionError("handled by block")
            case _:
                assert_never(statement)

    def choose(self, choose: Choose, known: frozenset[Buffer], bound: frozenset[Symbol]) -> None:
        """One of parameters that lie alike."""
        self.index(choose.index, bound)
        self.buffer(choose.buffer, "parameter")
        layout = (choose.buffer.dtype, choose.buffer.shape, choose.buffer.strides)
        for source in choose.sources:
            if source not in known or (source.dtype, source.shape, source.strides) != layout:
                self.fail(f"{source} is no parameter that lies as {choose.buffer} does")
        low, high = bounds(choose.index)
        if low is None or high is None or low < 0 or high >= len(choose.sources):
            self.fail(f"{choose.index} is in [{low}, {high}], there are {len(choose.sources)} buffers")

    def number(self, load: Load, known: frozenset[Buffer], bound: frozenset[Symbol]) -> None:
        """A scalar that is an index, or bounds one."""
        if load.buffer.space != "tile" or load.buffer.shape or not load.dtype.is_integer:
            self.fail(f"{load.buffer} is an index and no scalar of integers")
        self.scalar(load, known, bound, ())

    def domain(self, iters: Sequence[Iter], bound: frozenset[Symbol]) -> frozenset[Symbol]:
        for it in iters:
            if it.extent < 0:
                self.fail(f"iterator {it.var} has extent {it.extent}")
            if it.var in bound:
                self.fail(f"{it.var} is bound twice")
            if it.limit is not None:
                self.index(it.limit, bound)
            bound = bound | {it.var}
        return bound

    def pointwise(self, statement: Map | Store, known: frozenset[Buffer], bound: frozenset[Symbol]) -> None:
        kind = "map" if isinstance(statement, Map) else "store"
        self.where = f"{kind} to {statement.target}"
        self.buffer(statement.target, "tile" if kind == "map" else "parameter")
        inner = self.domain(statement.domain, bound)
        self.access(statement.target, statement.index, known, inner, statement.domain)
        self.scalar(statement.value, known, inner, statement.domain)
        if isinstance(statement, Store) and statement.posts:
            self.posted(statement.target)

    def posted(self, buffer: Buffer) -> None:
        """Numbers of 32 bits, each with a mark behind it."""
        if (
            buffer.dtype.bits != 32
            or buffer.shape[-1:] != (2,)
            or buffer.strides[-1:] != (1,)
            or self.kernel.language == "tir"
        ):
            self.fail(f"{buffer} has no pairs of a number of 32 bits and a mark, or is a CPU's")

    def reduce(self, statement: Reduce, known: frozenset[Buffer], bound: frozenset[Symbol]) -> None:
        self.where = f"reduce to {statement.target}"
        if not statement.domain:
            self.fail("a reduction needs an iterator")
        inner = self.domain(statement.domain, bound)
        self.access(statement.target, statement.index, known, inner, statement.domain)
        self.scalar(statement.value, known, inner, statement.domain)
        if statement.op in ("any", "all") and statement.target.dtype is not bool_:
            self.fail(f"{statement.op} into {statement.target.dtype}")
        if statement.branches:
            self.branches(statement)
        if statement.awaits:
            if not isinstance(statement.value, Load) or statement.value.buffer.space != "parameter":
                self.fail("what is awaited is no load of a parameter")
            self.posted(statement.value.buffer)

    def branches(self, statement: Reduce) -> None:
        value, last = statement.value, statement.domain[-1].var
        if not (isinstance(value, Apply) and value.op == "select"):
            self.fail("what branches is no select")
        seen, _, other = value.args
        if last in symbols_in(seen):
            self.fail(f"the branch differs along {last}")
        if statement.op != "sum" or not isinstance(other, Const) or other.value != 0:
            self.fail("a branch that is not taken adds 0 to a sum")

    def scan(self, statement: Scan, known: frozenset[Buffer], bound: frozenset[Symbol]) -> None:
        self.where = f"scan to {statement.target}"
        self.buffer(statement.target, "tile")
        self.buffer(statement.carry.buffer, "tile")
        inner = self.domain(statement.domain, bound)
        self.access(statement.target, statement.index, known, inner, statement.domain)
        self.scalar(statement.carry, known, inner, statement.domain)
        for value in statement.values:
            self.scalar(value, known, inner, statement.domain)
        if statement.along not in {it.var for it in statement.domain}:
            self.fail(f"it runs along {statement.along}, which is no iterator of its own")
        if statement.along in statement.carry.symbols:
            self.fail(f"the carry differs along {statement.along}")
        if statement.op not in SCANS:
            self.fail(f"{statement.op} does not run along an axis")

    def softmax_exp(self, statement: SoftmaxExp, known: frozenset[Buffer], bound: frozenset[Symbol]) -> None:
        self.where = f"softmax_exp to {statement.weights.buffer}"
        domain = (statement.keys, statement.queries)
        inner = self.domain(domain, bound)
        for load in (statement.weights, statement.row_sum, statement.shift):
            self.buffer(load.buffer, "tile")
            self.access(load.buffer, load.index, known, inner, domain)
            shared = statement.keys.var in load.symbols
            if load is not statement.weights and (load.dtype != statement.row_sum.dtype or shared):
                self.fail(f"{load.buffer} holds no {statement.row_sum.dtype} for each query")
        self.scalar(statement.score, known, inner, domain)
        for load in statement.prefetch:
            self.access(load.buffer, load.index, known, bound | {statement.keys.var}, (statement.keys,))

    def dot(self, dot: Dot, known: frozenset[Buffer], bound: frozenset[Symbol]) -> None:
        for store in dot.beside:
            self.pointwise(store, known, bound)
        self.where = f"dot to {dot.accumulator.buffer}"
        if dot.beside and not (dot.registers.tiles and dot.m.extent <= dot.registers.rows):
            self.fail("stores run beside one block of tiles only")
        domain = (dot.m, dot.n, dot.k)
        on_cpu = dot.registers.columns > 0 and not self.kernel.warps
        inner = self.domain(domain, bound)
        for operand, unused in ((dot.accumulator, dot.k), (dot.a, dot.n), (dot.b, dot.m)):
            if on_cpu and (dot.a.dtype.name, dot.b.dtype.name, dot.accumulator.dtype.name) in _WIDENING:
                pass
            elif on_cpu and operand.dtype != dot.accumulator.dtype:
                self.fail(f"operand {operand.buffer} is {operand.dtype}, the accumulator {dot.accumulator.dtype}")
            if unused.var in operand.symbols:
                self.fail(f"the index of {operand.buffer} uses {unused.var}")
            padded = (dot.m, dot.n) if operand.buffer.space == "tile" else ()
            self.access(operand.buffer, operand.index, known, inner, tuple(it for it in domain if it not in padded))
        if dot.registers.columns and not on_cpu:
            self.shares(dot)
        if on_cpu:
            step = 64 // dot.a.dtype.itemsize if dot.registers.tiles else grouped(dot)
            self.unit_stride(dot.accumulator, dot, 1)
            if dot.registers.along:
                self.side_by_side(dot.a, dot)
                self.side_by_side(dot.b, dot)
                return
            if step > 1 and (dot.k.extent % step or dot.k.limit is not None):
                self.fail(f"the extent of {dot.k.var} is no multiple of {step}")
            self.unit_stride(dot.b, dot, grouped(dot))

    def shares(self, dot: Dot) -> None:
        """Each warp, or each thread, of the block has one register tile."""
        rows, columns, warps = dot.registers.rows, dot.registers.columns, self.kernel.warps
        tiles = dot.m.extent // rows * (dot.n.extent // columns)
        if dot.m.extent % rows or dot.n.extent % columns or tiles not in (warps, 32 * warps):
            self.fail(f"{warps} warps with {rows}x{columns} in registers share {dot.m.extent}x{dot.n.extent}")

    def unit_stride(self, operand: Load, dot: Dot, step: int) -> None:
        """Neighbouring columns lie ``step`` elements apart within a block of columns."""
        columns = dot.registers.columns
        block, lane = symbol("block", 0, max(0, dot.n.extent // columns)), symbol("lane", 0, columns - 1)
        flat: Index = 0
        for i, stride in zip(operand.index, operand.buffer.strides, strict=True):
            assert isinstance(i, int | Expr)
            flat = substitute(i, {dot.n.var: block * columns + lane}) * stride + flat
        if dot.n.extent > 1 and coefficient(flat, lane) != step:
            self.fail(f"{operand.buffer} does not have stride {step} along {dot.n.var}")

    def side_by_side(self, operand: Load, dot: Dot) -> None:
        """Neighbours along k lie side by side."""
        flat = offset_of(operand.buffer, operand.index)
        if dot.k.extent > 1 and (flat is None or slope(flat, dot.k.var) != 1):
            self.fail(f"{operand.buffer} does not have stride 1 along {dot.k.var}")

    def access(
        self,
        buffer: Buffer,
        subscripts: Iterable[Subscript],
        known: frozenset[Buffer],
        bound: frozenset[Symbol],
        domain: Sequence[Iter],
    ) -> None:
        if buffer not in known:
            self.fail(f"{buffer} is neither a parameter nor allocated here")
        subscripts = tuple(subscripts)
        if len(subscripts) != len(buffer.shape):
            self.fail(f"{buffer} of rank {len(buffer.shape)} has {len(subscripts)} subscripts")
        for i, extent in zip(subscripts, buffer.shape, strict=True):
            if isinstance(i, int | Expr):
                self.index(i, bound)
                self.within(buffer, i, extent, domain)
            else:
                self.scalar(i, known, bound, domain)

    def within(self, buffer: Buffer, i: Index, extent: Index, domain: Sequence[Iter]) -> None:
        """Fails where the least or the greatest value lies outside for certain: limits may keep the rest inside."""
        if any(it.extent == 0 for it in domain) or extent == 0:
            return
        low, high = bounds(i)
        if not isinstance(extent, int):
            if is_at_least(i, extent) or (high is not None and high < 0):
                self.fail(f"subscript {i} of {buffer} is in [{low}, {high}], its extent is {extent}")
            return
        if (low is not None and low >= extent) or (high is not None and high < 0):
            self.fail(f"subscript {i} of {buffer} is in [{low}, {high}], its extent is {extent}")
        free = {it.var for it in domain if it.limit is None}
        if symbols_of(i) <= free and low is not None and high is not None and (low < 0 or high >= extent):
            tight = {it.var: symbol(it.var.name, 0, it.extent - 1) for it in domain}
            low, high = bounds(substitute(i, tight))
            if low is None or high is None or low < 0 or high >= extent:
                self.maybe_outside(buffer, i, low, high, extent)

    def maybe_outside(self, buffer: Buffer, i: Index, low: int | None, high: int | None, extent: int) -> None:
        if not self.guarded:
            self.fail(f"subscript {i} of {buffer} reaches [{low}, {high}], its extent is {extent}")

    guarded = 0
    """How many selects enclose the expression at hand: only one side of each is meant."""

    def scalar(self, e: ScalarExpr, known: frozenset[Buffer], bound: frozenset[Symbol], domain: Sequence[Iter]) -> None:
        seen: set[tuple[int, bool]] = set()

        def visit(e: ScalarExpr) -> None:
            if (id(e), self.guarded > 0) in seen:
                return
            seen.add((id(e), self.guarded > 0))
            match e:
                case Const():
                    pass
                case IndexValue():
                    self.index(e.index, bound)
                case Load():
                    self.access(e.buffer, e.index, known, bound, domain)
                case Apply():
                    self.apply(e, visit)
                case _:
                    assert_never(e)

        visit(e)

    def apply(self, e: Apply, visit: object) -> None:
        assert callable(visit)
        if e.op != "select":
            for a in e.args:
                visit(a)
            return
        if e.args[0].dtype is not bool_:
            self.fail(f"the condition of {print_scalar(e)} is {e.args[0].dtype}")
        visit(e.args[0])
        self.guarded += 1
        for a in e.args[1:]:
            visit(a)
        self.guarded -= 1

    def condition(self, e: ScalarExpr, known: frozenset[Buffer], bound: frozenset[Symbol]) -> None:
        if e.dtype is not bool_:
            self.fail(f"the condition {print_scalar(e)} is {e.dtype}")
        self.scalar(e, frozenset(b for b in known if b.space == "tile"), bound, ())

    def index(self, i: Index, bound: frozenset[Symbol]) -> None:
        free = symbols_of(i) - bound
        if free:
            self.fail(f"{', '.join(sorted(s.name for s in free))} of {i} is not bound")
