# SPDX-License-Identifier: Apache-2.0
"""Kernel to TIR: one traversal of the tile IR.

Parameters are integer addresses; all indexing is on flat memory with explicit vectors. A grid of more than
one point is one parallel loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from math import prod
from typing import assert_never

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.casts import memory_type
from fusec.codegen.tvm.context import Context, Numbers, distinct
from fusec.codegen.tvm.contractions import emit_dot
from fusec.codegen.tvm.pointwise import emit_beside, emit_pointwise
from fusec.codegen.tvm.reduce import emit_reduce
from fusec.codegen.tvm.scalars import Points
from fusec.codegen.tvm.scan import emit_scan
from fusec.codegen.tvm.softmax_exp import emit_softmax_exp
from fusec.codegen.tvm.tiles import configure, release
from fusec.codegen.tvm.tir import Node
from fusec.codegen.tvm.vector import Code
from fusec.errors import LoweringError
from fusec.ir import index as ix
from fusec.ir import indexing
from fusec.ir.types import bf16, most_of
from fusec.target.cpu import CpuTarget
from fusec.tile.kernel import Kernel, Move
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
    multiplies_halves,
    statements,
    uses_tiles,
)
from fusec.tile.scalar import Buffer, IndexValue, Load, ScalarExpr, loads, reindex

STACK_BYTES = 256 * 1024
"""Larger scratch comes from the heap."""

PROMOTED_BYTES = 1024
"""Smaller scratch may become registers, which takes memory that LLVM knows all of."""

STACK_TOTAL = 1024 * 1024
"""Stack that one kernel may use: threads have 8 MB by default, 2 MB where the limit is lifted."""


class Emitter:
    """Writes the body of one kernel."""

    def __init__(self, kernel: Kernel, target: CpuTarget) -> None:
        self.kernel = kernel
        self.context = Context(target, "int64" if _is_large(kernel) else "int32")
        self.numbers = Numbers()
        self._names = [0]
        rounds = self.context.target.multiplies(bf16) and multiplies_halves(kernel.body)
        self._halves = self.context.imports if rounds else None
        self._stack_left = STACK_TOTAL
        self._releases: list[list[Node]] = []

    def code(self) -> Code:
        target = self.context.target
        return Code(target.has_avx512, self._names, self._halves, target.has_fma, target.roots_slowly)

    def declared(self, buffer: Buffer, address: Node) -> list[Node]:
        """A parameter's memory at an address."""
        element = memory_type(buffer.dtype)
        pointer, bound = tir.pointer_of(address, f"{buffer.name}_pointer", element)
        memory, declared = tir.memory(buffer.name, element, max(buffer.extent, 1), pointer, buffer.dtype.itemsize)
        self.context.memory[buffer] = memory
        return [bound, declared]

    def moved(self, buffer: Buffer, moves: Sequence[Move], address: Node) -> list[Node]:
        """A parameter's memory, some elements after its address where data say so; what they are is declared."""
        code = self.code()
        for move in moves:
            if any(move.at in load.symbols for load in loads(move.to)):
                raise LoweringError("several positions that are data, in a kernel for a CPU")
            to = reindex(move.to, {move.at: 0})
            by = Points(self.context, code, self.numbers, None, None).value(to)
            stride = tirx.Cast("int64", self.context.index(buffer.strides[move.axis]))
            step = tirx.Mul(tirx.Cast("int64", by.node), stride)
            nbytes = tirx.Mul(step, tir.integer(buffer.dtype.itemsize, "int64"))
            address = code.let_index(tirx.Add(address, nbytes), "int64", f"{buffer.name}_place")
        return [*code.statements, *self.declared(buffer, address)]

    def block(self, statements: Block) -> list[Node]:
        code = self.code()
        self._releases.append([])
        for number, statement in enumerate(statements):
            if isinstance(statement, Store) and statement.beside:
                continue  # written with the one before
            stores = [statement, *takewhile(_is_beside, statements[number + 1 :])]
            if len(stores) > 1:
                emit_beside(self.context, code, self.numbers, [s for s in stores if isinstance(s, Store)])
            else:
                self.statement(code, statement)
        code.append(*self._releases.pop())
        return code.statements

    def statement(self, code: Code, statement: Statement) -> None:
        match statement:
            case Grid():
                self._grid(code, statement)
            case Loop():
                self._loop(code, statement)
            case If():
                self._if(code, statement)
            case Let():
                node = Points(self.context, code, self.numbers, None, None).value(statement.value).node
                code.append(tir.bind(self.context.bind(statement.var), tirx.Cast(self.context.index_type, node)))
            case Choose():
                raise LoweringError("one of several buffers, chosen by data")
            case Alloc():
                self._alloc(code, statement.buffer)
            case Map() | Store():
                emit_pointwise(self.context, code, self.numbers, statement)
            case Reduce():
                emit_reduce(self.context, code, self.numbers, statement)
            case Scan():
                emit_scan(self.context, code, self.numbers, statement)
            case SoftmaxExp():
                emit_softmax_exp(self.context, code, self.numbers, statement)
            case Dot():
                emit_dot(self.context, code, self.numbers, statement)
            case _:
                assert_never(statement)

    def _grid(self, code: Code, grid: Grid) -> None:
        total = prod(i.extent for i in grid.iters)
        if total == 0:
            return
        if total > 1 and any(map(self._has_size, grid.iters)):
            self._grid_of_sizes(code, grid)
            return
        point = tir.variable(code.fresh("point"), self.context.index_type)
        body = self.code()
        rest = total
        for it in grid.iters:
            rest //= it.extent
            node = tirx.truncdiv(point, self.context.integer(rest)) if rest > 1 else point
            if rest * it.extent != total:
                node = tirx.truncmod(node, self.context.integer(it.extent))
            value = node if total > 1 and it.extent > 1 else self.context.integer(0)
            body.append(tir.bind(self.context.bind(it.var), value))
        inner = self._point(grid)
        for it in grid.iters:
            if it.limit is not None:
                inner = [tir.when(tirx.LT(self.context.loops[it.var], self.context.index(it.limit)), inner)]
        body.append(*inner)
        if total == 1:
            code.append(*body.statements)
            return
        self._parallel(code, point, self.context.integer(total), body.statements)

    def _parallel(self, code: Code, point: Node, points: Node, body: list[Node]) -> None:
        """A loop over points in parallel. Their number is a variable: what a loop's closure reads first comes first in
        its data, where the launcher looks for it."""
        count = code.let_index(points, self.context.index_type, "points")
        code.append(tir.loop(point, count, body, tir.PARALLEL, self.context.index_type))

    def _point(self, grid: Grid) -> list[Node]:
        """One point of a grid; on AMX each configures the tiles, which costs less than a step of a product.

        What went past the caches is in order before the point ends: on x86 the stores that threads wait with would
        not wait for it.
        """
        before, after = self.code(), self.code()
        if uses_tiles(grid.body):
            configure(before, grid.body)
            release(after)
        non_temporal = any(isinstance(s, Store) and s.non_temporal for s in statements(grid.body))
        if non_temporal and self.context.target.architecture == "x86_64":
            after.append(tir.effect("llvm.x86.sse.sfence"))
        return [*before.statements, *self.block(grid.body), *after.statements]

    def _has_size(self, it: Iter) -> bool:
        """Whether the number of points is known before the grid starts, and not now."""
        return it.limit is not None and ix.symbols_of(it.limit) <= set(self.kernel.sizes)

    def _grid_of_sizes(self, code: Code, grid: Grid) -> None:
        dtype = self.context.index_type
        counts = [self._points(code, it) for it in grid.iters]
        rest = [self.context.integer(1)]
        for count in reversed(counts):
            rest.insert(0, code.let_index(tirx.Mul(rest[0], count), dtype, "points"))
        point = tir.variable(code.fresh("point"), dtype)
        body = self.code()
        for it, count, behind in zip(grid.iters, counts, rest[1:], strict=True):
            node = tirx.truncmod(tirx.truncdiv(point, behind), count)
            body.append(tir.bind(self.context.bind(it.var), node))
        inner = self._point(grid)
        for it in grid.iters:
            if it.limit is not None and not self._has_size(it):
                inner = [tir.when(tirx.LT(self.context.loops[it.var], self.context.index(it.limit)), inner)]
        body.append(*inner)
        self._parallel(code, point, rest[0], body.statements)

    def _points(self, code: Code, it: Iter) -> Node:
        if it.limit is None or not self._has_size(it):
            return self.context.integer(it.extent)
        return code.let_index(self.context.index(ix.minimum(it.limit, it.extent)), self.context.index_type, "count")

    def _loop(self, code: Code, loop: Loop) -> None:
        dtype = self.context.index_type
        counter = tir.variable(code.fresh("step"), dtype)
        node = counter if loop.step == 1 else tirx.Mul(counter, self.context.integer(loop.step))
        if loop.within is None:
            count = self.context.index(ix.floordiv(ix.add(ix.sub(loop.stop, loop.start), loop.step - 1), loop.step))
            start = self.context.index(loop.start)
        else:
            start, count = self._found_bounds(code, loop, loop.within)
        if loop.start != 0 or loop.within is not None:
            node = tirx.Add(start, node)
        bound = tir.bind(self.context.bind(loop.var), node)
        body = self.block(loop.body)
        code.append(tir.loop(counter, count, [bound, *body], dtype=dtype))

    def _found_bounds(self, code: Code, loop: Loop, within: tuple[Load, Load]) -> tuple[Node, Node]:
        """Where a loop starts whose bounds are data, and its number of steps, which may be below 0."""
        dtype = self.context.index_type
        points = Points(self.context, code, self.numbers, None, None)
        first, past = (tirx.Cast(dtype, points.value(x).node) for x in within)
        start = code.let_index(tirx.Max(self.context.index(loop.start), first), dtype, "first")
        stop = tirx.Min(self.context.index(loop.stop), past)
        rounded = tirx.Add(tirx.Sub(stop, start), self.context.integer(loop.step - 1))
        return start, tirx.truncdiv(rounded, self.context.integer(loop.step))

    def _if(self, code: Code, statement: If) -> None:
        test = Points(self.context, code, self.numbers, None, None).value(statement.condition)
        code.append(tir.when(test.node, self.block(statement.body), self.block(statement.orelse)))

    def _alloc(self, code: Code, buffer: Buffer) -> None:
        element, size = memory_type(buffer.dtype), max(buffer.extent, 1)
        nbytes = size * buffer.dtype.itemsize
        if nbytes <= min(STACK_BYTES, self._stack_left):
            self._stack_left -= nbytes
            if nbytes < PROMOTED_BYTES:
                memory, *allocate = tir.stack(buffer.name, element, size)
            else:
                memory, allocate = tir.aligned_stack(buffer.name, element, size, nbytes)
        else:
            memory, allocate, release = tir.heap(buffer.name, element, size, nbytes)
            self._releases[-1].append(release)
        self.context.memory[buffer] = memory
        code.append(*allocate)


def emit_kernel(kernel: Kernel, target: CpuTarget) -> Node:
    """The PrimFunc of a kernel: one int64 address a parameter, in order, then one int64 a size."""
    emitter = Emitter(kernel, target)
    addresses = [tir.variable(f"{buffer.name}_address", "int64") for buffer in kernel.parameters]
    statements: list[Node] = []
    sizes = []
    for size in kernel.sizes:
        given = tir.variable(size.name, "int64")
        sizes.append(given)
        narrow = given if emitter.context.index_type == "int64" else tirx.Cast(emitter.context.index_type, given)
        statements.append(tir.bind(emitter.context.bind(size), narrow))
    for buffer, address in zip(kernel.parameters, addresses, strict=True):
        statements += emitter.moved(buffer, kernel.moves_of(buffer), address)
    body = emitter.block(kernel.body)
    whole = tir.block([*statements, *body])
    for text in sorted(emitter.context.imports):
        whole = tir.importing(text, whole)
    function = tirx.PrimFunc([*addresses, *sizes], whole)
    return function.with_attr("global_symbol", kernel.name).with_attr("tirx.noalias", True)


def _is_beside(statement: Statement) -> bool:
    return isinstance(statement, Store) and statement.beside


def _is_large(kernel: Kernel) -> bool:
    """Whether an offset, a count or an index value can pass the range of int32."""
    for buffer in kernel.parameters:
        low = sum((n - 1) * s for n, s in zip(most_of(buffer.shape), most_of(buffer.strides), strict=True) if s < 0)
        if buffer.extent >= _LARGE or low <= -_LARGE:
            return True
    return any(_needs_int64(statement) for statement in statements(kernel.body))


_LARGE = 2**30
"""Half of int32's range: sums on the way to an offset stay within it."""


def _needs_int64(statement: Statement) -> bool:
    match statement:
        case Grid():
            return prod(max(it.extent, 1) for it in statement.iters) >= _LARGE
        case Map() | Store() | Reduce():
            return any(it.extent >= _LARGE for it in statement.domain) or _has_large_value(statement.value)
        case Scan():
            return any(it.extent >= _LARGE for it in statement.domain) or any(map(_has_large_value, statement.values))
        case Dot():
            return any(it.extent >= _LARGE for it in (statement.m, statement.n, statement.k))
        case Loop():
            return indexing.needs_int64(statement.start, statement.stop)
        case If():
            return _has_large_value(statement.condition)
        case SoftmaxExp():
            return _has_large_value(statement.score)
        case Alloc() | Choose() | Let():
            return False
        case _:
            assert_never(statement)


def _has_large_value(e: ScalarExpr) -> bool:
    return any(isinstance(n, IndexValue) and indexing.needs_int64(n.index) for n in distinct(e))
