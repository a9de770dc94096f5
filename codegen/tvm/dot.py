# SPDX-License-Identifier: Apache-2.0
"""The register-blocked contraction: ``rows`` by ``columns`` accumulators stay in registers over the whole of k.

Blocks of columns are the outer loop, so that one panel of ``b`` is used by all blocks of rows while it is in
the cache (Goto and van de Geijn, *Anatomy of High-Performance Matrix Multiplication*, 2008).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.casts import register_type
from fusec.codegen.tvm.context import Context, load_index
from fusec.codegen.tvm.domain import iter_count, static_count
from fusec.codegen.tvm.tir import Node, Value
from fusec.codegen.tvm.vector import Code, is_float
from fusec.errors import LoweringError
from fusec.ir import index as ix
from fusec.ir import indexing
from fusec.ir.index import Index, Symbol, symbol
from fusec.tile.nodes import Dot, Iter
from fusec.tile.scalar import Load


@dataclass(frozen=True, eq=False)
class RowBlock:
    """``rows`` rows from ``start`` on, after ``number`` blocks of rows. ``last``: the last row there is, where the
    block may go beyond it."""

    start: Index
    number: Index
    rows: int
    last: Symbol | None = None


class DotWriter:
    group = 1
    """Elements of k that one multiplication takes; they are adjacent."""

    def __init__(self, context: Context, dot: Dot) -> None:
        self.context, self.dot = context, dot
        self.type = register_type(dot.accumulator.dtype)
        self.check()
        self.lanes = context.target.lanes(dot.accumulator.dtype.bits)
        while dot.registers.columns % self.lanes:
            self.lanes //= 2
        self.vectors = dot.registers.columns // self.lanes
        self.flat = {id(load): load_index(load) for load in (dot.a, dot.b, dot.accumulator)}
        self.rows: list[Symbol] = []
        """Where each row of ``a`` begins in the block that is being written; empty where rows are evenly spaced."""

    def check(self) -> None:
        """LoweringError for operands that this writer can't multiply."""
        for operand in (self.dot.a, self.dot.b):
            if operand.dtype != self.dot.accumulator.dtype:
                raise LoweringError(
                    f"dot of {operand.dtype} into {self.dot.accumulator.dtype}: operands must be packed first"
                )

    def write(self, code: Code) -> None:
        columns = self.dot.registers.columns
        count = self._count(code, self.dot.n, "columns")
        blocks = (count + columns - 1) // columns if isinstance(count, int) else None
        if blocks == 0:
            return
        block = symbol(code.fresh("nb"), 0, max(0, -(-self.dot.n.extent // columns) - 1))
        inner = code.nested()
        variable = self.context.bind(block)
        remaining = self._columns_left(inner, count, block)
        self._row_blocks(inner, ix.mul(block, columns), remaining)
        if blocks is not None:
            extent = self._number(blocks)
        else:
            extent = tirx.truncdiv(tirx.Add(count, self._number(columns - 1)), self._number(columns))
        code.append(tir.loop(variable, extent, inner.statements, dtype=self.context.index_type))

    def _number(self, value: int | Node) -> Node:
        return self.context.integer(value)

    def _count(self, code: Code, it: Iter, name: str) -> int | Node:
        """The number of points: an integer, or a bound variable that is not negative."""
        static = static_count(it)
        if static is not None:
            return static
        node = tirx.Max(iter_count(self.context, it), self._number(0))
        return code.let_index(node, self.context.index_type, name)

    def _columns_left(self, code: Code, count: int | Node, block: Symbol) -> Node | None:
        """Columns from the block's first on, where an operand is a parameter that ends there; else None."""
        padded = all(o.buffer.space == "tile" for o in (self.dot.b, self.dot.accumulator))
        whole = isinstance(count, int) and count % self.dot.registers.columns == 0
        if padded or whole:
            return None
        total = self._number(count)
        done = tirx.Mul(self.context.loops[block], self._number(self.dot.registers.columns))
        return code.let_index(tirx.Sub(total, done), self.context.index_type, "left")

    # rows

    def _row_blocks(self, code: Code, column: Index, remaining: Node | None) -> None:
        rows = self.dot.registers.rows
        count = self._count(code, self.dot.m, "rows")
        full = count // rows if isinstance(count, int) else tirx.truncdiv(count, self._number(rows))
        block = symbol(code.fresh("mb"), 0, max(0, self.dot.m.extent // rows - 1))
        if not (isinstance(full, int) and full == 0):
            variable = self.context.bind(block)
            inner = code.nested()
            self._micro(inner, RowBlock(ix.mul(block, rows), block, rows), column, remaining)
            extent = self._number(full)
            code.append(tir.loop(variable, extent, inner.statements, dtype=self.context.index_type))
        if isinstance(count, int):
            if count % rows:
                self._micro(code, RowBlock(count - count % rows, count // rows, count % rows), column, remaining)
            return
        self._dynamic_rest(code, count, column, remaining)

    def _dynamic_rest(self, code: Code, count: Node, column: Index, remaining: Node | None) -> None:
        """The last rows, fewer than a block: one variant for each number of them that can occur, if few can."""
        rows, dtype = self.dot.registers.rows, self.context.index_type
        rest = code.let_index(tirx.truncmod(count, self._number(rows)), dtype, "rest")
        first = symbol(code.fresh("row"), 0, self.dot.m.extent)
        code.append(tir.bind(self.context.bind(first), tirx.Sub(count, rest)))
        possible = _possible_rests(self.dot.m, rows)
        if possible is not None:
            for size in possible:
                inner = code.nested()
                self._micro(inner, RowBlock(first, ix.floordiv(first, rows), size), column, remaining)
                code.append(tir.when(tirx.EQ(rest, self._number(size)), inner.statements))
            return
        last = symbol(code.fresh("last"), 0, self.dot.m.extent)
        inner = code.nested()
        inner.append(tir.bind(self.context.bind(last), tirx.Sub(count, self._number(1))))
        self._micro(inner, RowBlock(first, ix.floordiv(first, rows), rows, last), column, remaining)
        code.append(tir.when(tirx.GT(rest, self._number(0)), inner.statements))

    # one block of registers

    def _micro(self, code: Code, block: RowBlock, column: Index, remaining: Node | None) -> None:
        if remaining is None:
            self._block(code, block, column, None)
            return
        columns = self.dot.registers.columns
        whole, part = code.nested(), code.nested()
        self._block(whole, block, column, None)
        self._block(part, block, column, remaining)
        code.append(tir.when(tirx.GE(remaining, self._number(columns)), whole.statements, part.statements))

    def _block(self, code: Code, block: RowBlock, column: Index, remaining: Node | None) -> None:
        masks = [self._mask(remaining, j) for j in range(self.vectors)]
        sums = self._start(code, block)
        self.rows = self._uneven_rows(code, block, column)
        self._k_loop(code, block, column, sums, masks)
        self._finish(code, block, column, sums, masks)

    def _uneven_rows(self, code: Code, block: RowBlock, column: Index) -> list[Symbol]:
        """Where each row of ``a`` begins, bound before the loop over k, if rows are not evenly spaced and k is: what
        is left in the loop is one addition a row, which LLVM has no reason to do in vectors (4×64, Zen 4: 2.3 ms with
        addresses in vectors, 2.0 without)."""
        a, k = self.flat[id(self.dot.a)], self.dot.k.var
        if indexing.coefficient(a, k) != 1 or indexing.coefficient(a, self.dot.m.var) is not None:
            return []
        found = []
        for i in range(block.rows):
            start = self.context.index(self._flat_at(self.dot.a, self._at(block, i, column, 0)))
            row = symbol(code.fresh("row"), 0)
            code.append(tir.bind(self.context.bind(row), start))
            found.append(row)
        return found

    def _mask(self, remaining: Node | None, vector: int) -> Node | None:
        if remaining is None:
            return None
        left = tirx.Sub(remaining, self._number(vector * self.lanes))
        return tir.first_lanes(left, self.lanes, self.context.index_type)

    def _start(self, code: Code, block: RowBlock) -> list[list[Node]]:
        """Registers at zero, also where there is a sum already: it joins at the end, so that blocks of a long sum
        are added up apart, and rounding errors do not run through all of it."""
        sums = []
        for _ in range(block.rows):
            row = []
            for _ in range(self.vectors):
                buffer, allocate = tir.registers(code.fresh("sum"), self.type, self.lanes)
                code.append(allocate)
                zero = tir.constant(0, self.type, self.lanes).node
                code.append(tirx.BufferStore(buffer, zero, [tir.integer(0)]))
                row.append(buffer)
            sums.append(row)
        return sums

    def _at(self, block: RowBlock, i: int, column: Index, j: int, k: Index = 0) -> Mapping[Symbol, Index]:
        """The subscripts' symbols at row ``i`` of the block, the first lane of vector ``j``, and ``k``."""
        row: Index = ix.add(block.start, i)
        if block.last is not None and i > 0:
            row = ix.minimum(row, block.last)
        return {self.dot.m.var: row, self.dot.n.var: ix.add(column, j * self.lanes), self.dot.k.var: k}

    def _k_loop(
        self, code: Code, block: RowBlock, column: Index, sums: list[list[Node]], masks: list[Node | None]
    ) -> None:
        unroll = max(1, self.dot.registers.unroll)
        count = self._count(code, self.dot.k, "depth")
        dtype = self.context.index_type
        whole = count // unroll if isinstance(count, int) else tirx.truncdiv(count, self._number(unroll))
        if not (isinstance(whole, int) and whole == 0):
            step = symbol(code.fresh("kb"), 0, max(0, self.dot.k.extent // unroll - 1))
            variable = self.context.bind(step)
            inner = code.nested()
            for u in range(unroll):
                self._step(inner, block, column, ix.add(ix.mul(step, unroll), u), sums, masks)
            extent = self._number(whole)
            code.append(tir.loop(variable, extent, inner.statements, dtype=dtype))
        if unroll == 1 or (isinstance(count, int) and count % unroll == 0):
            return
        node = self._number(count)
        done = tirx.Mul(tirx.truncdiv(node, self._number(unroll)), self._number(unroll))
        rest = symbol(code.fresh("k"), 0, self.dot.k.extent)
        counter = tir.variable(code.fresh("kr"), dtype)
        inner = code.nested()
        inner.append(tir.bind(self.context.bind(rest), tirx.Add(done, counter)))
        self._step(inner, block, column, rest, sums, masks)
        code.append(tir.loop(counter, tirx.Sub(node, done), inner.statements, dtype=dtype))

    def _step(
        self, code: Code, block: RowBlock, column: Index, k: Index, sums: list[list[Node]], masks: list[Node | None]
    ) -> None:
        """One k: the outer product of a column of ``a`` and a row of ``b``."""
        vector_type = tir.vector_type(self.type, self.lanes)
        vectors = []
        for j in range(self.vectors):
            variable = tir.variable(code.fresh("b"), vector_type)
            at = self._at(block, 0, column, j, k)
            code.append(tir.bind(variable, self._vector(self.dot.b, at, masks[j])))
            vectors.append(variable)
        self._fetch(code, block, column, k)
        zero = tir.integer(0)
        memory = self.context.memory[self.dot.a.buffer]
        for i in range(block.rows):
            if self.rows:
                offset = ix.add(self.rows[i], k)
            else:
                offset = self._flat_at(self.dot.a, self._at(block, i, column, 0, k))
            variable = tir.variable(code.fresh("a"), vector_type)
            element = tirx.BufferLoad(memory, [self.context.index(offset)])
            code.append(tir.bind(variable, tir.widen(Value(element, self.type), self.lanes).node))
            for j, vector in enumerate(vectors):
                old = tirx.BufferLoad(sums[i][j], [zero])
                code.append(tirx.BufferStore(sums[i][j], self._multiply_add(code, variable, vector, old), [zero]))

    def _fetch(self, code: Code, block: RowBlock, column: Index, k: Index) -> None:
        """Has a part of what follows in ``b`` brought to the cache, where the schedule asks for it: a step of k later
        on to the level that the target's rows are fetched to, or to L2, where several blocks of rows take the same
        columns, the share of this block."""
        load = self.dot.b
        if not self.dot.registers.prefetch_bytes:
            return
        if self._row_step() not in (None, self.dot.registers.columns * self.group):
            self._fetch_row(code, block, column, k)
            return
        blocks = -(-self.dot.m.extent // self.dot.registers.rows)
        lines = -(-self.vectors // blocks)
        step = ix.add(ix.mul(block.number, self.dot.k.extent), k) if blocks > 1 else k
        start = self._flat_at(load, self._at(block, 0, column, 0))
        first = ix.add(start, self.dot.registers.prefetch_bytes // load.dtype.itemsize)
        for line in range(lines):
            flat = ix.add(first, ix.mul(ix.add(ix.mul(step, lines), line), self.lanes * self.group))
            memory = self.context.memory[load.buffer]
            level = 2 if blocks > 1 or self.context.target.fetches_to_l2 else 1
            code.append(tir.fetch(memory, self.context.index(flat), level))

    def _row_step(self) -> int | None:
        """Elements of ``b`` from one step of k to the next; None where they are not evenly spaced."""
        k = self.dot.k.var
        first = {self.dot.m.var: 0, self.dot.n.var: 0}
        return indexing.coefficient(indexing.substitute(self.flat[id(self.dot.b)], first), k)

    def _fetch_row(self, code: Code, block: RowBlock, column: Index, k: Index) -> None:
        """The same where rows of ``b`` lie apart: of the row that comes ``ahead`` bytes later, what this step takes."""
        if isinstance(block.number, int) and block.number > 0:
            return
        load = self.dot.b
        prefetch_bytes = self.dot.registers.prefetch_bytes // load.dtype.itemsize
        level = 2 if self.context.target.fetches_to_l2 else 1
        for j in range(self.vectors):
            flat = ix.add(self._flat_at(load, self._at(block, 0, column, j, k)), prefetch_bytes)
            code.append(tir.fetch(self.context.memory[load.buffer], self.context.index(flat), level))

    def _multiply_add(self, code: Code, a: Node, b: Node, c: Node) -> Node:
        if is_float(self.type) and code.fused:
            return tir.intrinsic("llvm.fma", self.type, self.lanes, a, b, c)
        values = [Value(x, self.type, self.lanes) for x in (a, b, c)]
        return code.add(code.mul(values[0], values[1]), values[2]).node

    def _finish(
        self, code: Code, block: RowBlock, column: Index, sums: list[list[Node]], masks: list[Node | None]
    ) -> None:
        for i in range(block.rows):
            inner = code.nested()
            for j in range(self.vectors):
                value = tirx.BufferLoad(sums[i][j], [tir.integer(0)])
                if not self.dot.fresh:
                    before = self._vector(self.dot.accumulator, self._at(block, i, column, j), masks[j])
                    value = tirx.Add(before, value)
                self._store(inner, self._at(block, i, column, j), value, masks[j])
            if block.last is None or i == 0:
                code.append(*inner.statements)
            else:
                row = self.context.index(ix.add(block.start, i))
                code.append(tir.when(tirx.LE(row, self.context.loops[block.last]), inner.statements))

    # memory

    def _flat_at(self, load: Load, values: Mapping[Symbol, Index]) -> Index:
        return indexing.substitute(self.flat[id(load)], values)

    def _offset(self, load: Load, values: Mapping[Symbol, Index]) -> tuple[Node, int | None]:
        """The flat index of the lanes from ``values`` on, and their stride (None: each its own)."""
        lane = symbol("lane", 0, self.lanes - 1)
        shifted = {**values, self.dot.n.var: ix.add(values[self.dot.n.var], lane)}
        flat = self._flat_at(load, shifted)
        stride = indexing.coefficient(flat, lane)
        dtype = self.context.index_type
        if stride is None:
            numbers = tir.ramp(self._number(0), self.lanes, dtype=dtype)
            return self.context.index(flat, {lane: numbers}, self.lanes), None
        first = self.context.index(indexing.substitute(flat, {lane: 0}))
        if stride == 0 and self.lanes > 1:
            return tirx.Broadcast(first, self.lanes), None
        return tir.ramp(first, self.lanes, stride, dtype), stride

    def _vector(self, load: Load, values: Mapping[Symbol, Index], mask: Node | None) -> Node:
        offset, stride = self._offset(load, values)
        memory = self.context.memory[load.buffer]
        if mask is None or load.buffer.space == "tile":
            return tirx.BufferLoad(memory, [offset])
        if stride == 1 and self.lanes > 1:
            return tirx.op.masked_load(tir.vector_type(self.type, self.lanes), memory, offset, mask)
        raise LoweringError(f"dot: the last columns of {load.buffer} are not adjacent in memory; pack it first")

    def _store(self, code: Code, values: Mapping[Symbol, Index], value: Node, mask: Node | None) -> None:
        offset, stride = self._offset(self.dot.accumulator, values)
        memory = self.context.memory[self.dot.accumulator.buffer]
        if mask is None or self.dot.accumulator.buffer.space == "tile":
            code.append(tirx.BufferStore(memory, value, [offset]))
        elif stride == 1 and self.lanes > 1:
            code.append(tirx.Evaluate(tirx.op.masked_store(memory, value, offset, mask)))
        else:
            raise LoweringError(f"dot: columns of {self.dot.accumulator.buffer} are not adjacent in memory")


def _possible_rests(m: Iter, rows: int) -> tuple[int, ...] | None:
    """The remainders that ``min(extent, limit) % rows`` can take, 0 left out; None where that is not known."""
    assert m.limit is not None
    limit = ix.mod(m.limit, rows)
    if not isinstance(limit, int):
        return None
    return tuple(sorted({m.extent % rows, limit} - {0}))
