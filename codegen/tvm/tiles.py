# SPDX-License-Identifier: Apache-2.0
"""Matmuls on AMX: two by two tiles of sums, each of 16 by 16, and tiles of operands between them.

A tile has 16 rows of 64 bytes. One of ``a`` holds 16 rows and 32 bf16 (or 64 i8) steps of k; one of ``b`` as many
steps, in groups of 32 bits, of 16 columns (Intel's *Architectures Optimization Reference Manual*, chapter 20). Tiles
0 to 3 are the sums, 4 and 5 of ``a``, 6 and 7 of ``b``. With fewer rows than 16, the sums' tiles and that of ``a`` have
as many. The kernel's registers are configured where its grid's points start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.context import Context, Numbers, load_index
from fusec.codegen.tvm.domain import iter_count, static_count
from fusec.codegen.tvm.pointwise import emit_pointwise
from fusec.codegen.tvm.tir import Node
from fusec.codegen.tvm.vector import Code
from fusec.errors import LoweringError
from fusec.ir import index as ix
from fusec.ir import indexing
from fusec.ir.index import Index, Symbol, symbol
from fusec.ir.indexing import pow2
from fusec.tile.nodes import Block, Dot, Iter, Store, grouped, tiled_dots
from fusec.tile.scalar import Load, reindex

SIDE = 16
"""Rows, and 32-bit columns, of a tile."""

ROW_BYTES = 64

_MULTIPLY = {"bf16": "tdpbf16ps", "i8": "tdpbssd"}
_SUMS, _LEFT, _RIGHT = 0, 4, 6

_FEW = 4
"""Steps of k for which loading the left operand's tiles twice takes less than waiting for sums to be stored."""


def configure(code: Code, block: Block) -> None:
    """The tiles that a block's matmuls use, for the thread that runs what follows.

    Those of few rows have tiles of as many: the others' time and memory are not spent.
    """
    found = {min(dot.registers.rows, SIDE) for dot in tiled_dots(block)}
    if len(found) != 1:
        raise LoweringError(f"one kernel's AMX tiles have {sorted(found)} rows")
    palette, sizes, rows = 1, ROW_BYTES << 16 | ROW_BYTES, found.pop()
    low, high = rows * 0x01010101, rows * 0x0101 | SIDE * 0x01010000
    words = [palette, 0, 0, 0, *[sizes] * 4, 0, 0, 0, 0, low, high, 0, 0]
    buffer, allocate = tir.stack(code.fresh("tiles"), "int32", len(words))
    vector = tir.join([tir.constant(word, "int32") for word in words])
    code.append(allocate, tirx.BufferStore(buffer, vector.node, [tir.ramp(tir.integer(0), len(words))]))
    code.append(tir.effect("llvm.x86.ldtilecfg", tir.address_of(buffer, tir.integer(0))))


def release(code: Code) -> None:
    """Gives the tiles back, so that a thread that is switched away need not save them."""
    code.append(tir.effect("llvm.x86.tilerelease"))


def emit_tiled_dot(context: Context, code: Code, numbers: Numbers, dot: Dot) -> None:
    _TileWriter(context, numbers, dot).write(code)


class _TileWriter:
    def __init__(self, context: Context, numbers: Numbers, dot: Dot) -> None:
        self.context, self.numbers, self.dot = context, numbers, dot
        registers = dot.registers
        self.side = min(SIDE, registers.rows)
        whole = registers.rows in (self.side, 2 * SIDE)
        if dot.a.dtype.name not in _MULTIPLY or not whole or registers.columns not in (16, 32):
            raise LoweringError(f"no matmul of {dot.a.dtype} on {registers.rows}x{registers.columns} AMX sums")
        if not context.target.multiplies_in_tiles(dot.a.dtype):
            raise LoweringError(f"{context.target.name} does not multiply {dot.a.dtype} in tiles")
        self.step = ROW_BYTES // dot.a.dtype.itemsize
        self.flat = {id(load): load_index(load) for load in (dot.a, dot.b, dot.accumulator)}
        self.columns = registers.columns // SIDE

    def write(self, code: Code) -> None:
        columns = self.dot.registers.columns
        count = static_count(self.dot.n)
        if count is None or count % columns:
            raise LoweringError(f"{self.dot.n.var} is no whole number of AMX tiles; pad it first")
        block = symbol(code.fresh("nb"), 0, max(0, count // columns - 1))
        inner = code.nested()
        variable = self.context.bind(block)
        self._row_blocks(inner, ix.mul(block, columns))
        extent = self._number(count // columns)
        code.append(tir.loop(variable, extent, inner.statements, dtype=self.context.index_type))

    def _number(self, value: int) -> Node:
        return self.context.integer(value)

    def _row_blocks(self, code: Code, column: Index) -> None:
        """Blocks of two tiles of rows, then one tile where no more are left.

        A tile reads and writes all of its rows: beyond the last one there is padding, or nothing (where tiles end
        there).
        """
        rows, side, m = self.dot.registers.rows, self.side, self.dot.m
        count = static_count(m)
        tiles = symbol(code.fresh("mb"), 0, max(0, m.extent // rows))
        variable = self.context.bind(tiles)
        inner = code.nested()
        self._block(inner, ix.mul(tiles, rows), column, rows // side)
        if count is not None:
            left = -(-(count % rows) // side)
            whole = count // rows + (left * side == rows)
            code.append(tir.loop(variable, self._number(whole), inner.statements, dtype=self.context.index_type))
            if 0 < left * side < rows:
                self._block(code, whole * rows, column, left)
            return
        total = code.let_index(
            tirx.truncdiv(tirx.Add(iter_count(self.context, m), self._number(side - 1)), self._number(side)),
            self.context.index_type,
            "tiles",
        )
        each = self._number(rows // side)
        code.append(
            tir.loop(variable, tirx.truncdiv(total, each), inner.statements, dtype=self.context.index_type),
        )
        if rows > side:
            last = symbol(code.fresh("row"), 0, m.extent)
            start = tirx.Mul(tirx.Sub(total, self._number(1)), self._number(SIDE))
            code.append(tir.bind(self.context.bind(last), start))
            rest = code.nested()
            self._block(rest, last, column, 1)
            odd = tirx.EQ(tirx.truncmod(total, each), self._number(1))
            code.append(tir.when(odd, rest.statements))

    def _block(self, code: Code, row: Index, column: Index, rows: int) -> None:
        """The sums of ``rows`` by ``self.columns`` tiles: of few steps of k a column of tiles after the other.

        Tiles that are stored hold up the matmuls that come next into them; these go into others meanwhile.
        """
        if self.columns > 1 and not self.dot.beside and self.dot.k.extent <= _FEW * self.step:
            for j in range(self.columns):
                self._sums(code, row, ix.add(column, j * SIDE), [(i, 0, _SUMS + j * 2 + i) for i in range(rows)])
            return
        self._sums(
            code, row, column, [(i, j, _SUMS + i * self.columns + j) for i in range(rows) for j in range(self.columns)]
        )

    def _sums(self, code: Code, row: Index, column: Index, sums: Sequence[tuple[int, int, int]]) -> None:
        """Tiles of sums by row and column of tiles, and the register of each."""
        point = {self.dot.m.var: row, self.dot.n.var: column, self.dot.k.var: 0}
        for i, j, number in sums:
            if self.dot.fresh:
                self._instruction(code, "tilezero", number)
            else:
                self._move(code, "tileloadd", number, self.dot.accumulator, self._at(point, i, j))
        steps = self.dot.k.extent // self.step
        first = 0
        if self.dot.beside:
            most = max(store.domain[0].extent for store in self.dot.beside)
            each = pow2(-(-most // max(steps, 1)))
            first = -(-most // each)
            self._steps(code, point, sums, 0, first, each)
        self._steps(code, point, sums, first, steps, 0)
        for i, j, number in sums:
            self._move(code, "tilestored", number, self.dot.accumulator, self._at(point, i, j))

    def _steps(
        self,
        code: Code,
        point: Mapping[Symbol, Index],
        sums: Sequence[tuple[int, int, int]],
        first: int,
        end: int,
        beside: int,
    ) -> None:
        """Steps of k, each with so many rows of the stores beside the matmul."""
        if first == end:
            return
        step = symbol(code.fresh("kb"), 0, end - first - 1)
        variable = self.context.bind(step)
        inner = code.nested()
        self._step(inner, {**point, self.dot.k.var: ix.mul(ix.add(step, first), self.step)}, sums, step, beside)
        code.append(tir.loop(variable, self._number(end - first), inner.statements, dtype=self.context.index_type))

    def _step(
        self,
        code: Code,
        point: Mapping[Symbol, Index],
        sums: Sequence[tuple[int, int, int]],
        step: Index,
        beside: int,
    ) -> None:
        """One tile along k: each operand's tile is loaded just before its first use."""
        loaded: set[int] = set()
        for i, j, total in sums:
            for number, operand in ((_LEFT + i, self.dot.a), (_RIGHT + j, self.dot.b)):
                if number not in loaded:
                    self._move(code, self._load_of(operand), number, operand, self._at(point, i, j))
                    if operand is self.dot.b:
                        self._fetch(code, self._at(point, i, j))
                    loaded.add(number)
            self._instruction(code, _MULTIPLY[self.dot.a.dtype.name], total, _LEFT + i, _RIGHT + j)
            if beside and (i, j) == (0, 0):
                for store in self.dot.beside:
                    emit_pointwise(self.context, code, self.numbers, _rows_of(store, step, beside))

    def _fetch(self, code: Code, point: Mapping[Symbol, Index]) -> None:
        """Has the rows of a later tile of ``b`` brought to the cache, where the schedule asks for it."""
        load = self.dot.b
        prefetch_bytes = self.dot.registers.prefetch_bytes // load.dtype.itemsize
        if not prefetch_bytes:
            return
        first = indexing.substitute(self.flat[id(load)], point)
        for row in range(SIDE):
            flat = self.context.index(ix.add(first, ix.mul(self._row_stride(load), row)))
            code.append(tir.fetch(self.context.memory[load.buffer], tirx.Add(flat, self._number(prefetch_bytes))))

    def _load_of(self, operand: Load) -> str:
        streamed = {"": None, "a": self.dot.a, "b": self.dot.b}[self.dot.registers.streamed]
        return "tileloaddt1" if operand is streamed else "tileloadd"

    def _at(self, point: Mapping[Symbol, Index], i: int, j: int) -> Mapping[Symbol, Index]:
        m, n = self.dot.m.var, self.dot.n.var
        return {**point, m: ix.add(point[m], i * SIDE), n: ix.add(point[n], j * SIDE)}

    def _move(self, code: Code, name: str, number: int, load: Load, point: Mapping[Symbol, Index]) -> None:
        """Loads or stores the tile whose first element is at ``point``."""
        flat = indexing.substitute(self.flat[id(load)], point)
        memory = self.context.memory[load.buffer]
        pointer = tir.address_of(memory, self.context.index(flat))
        stride = tirx.Cast("int64", self.context.index(ix.mul(self._row_stride(load), load.dtype.itemsize)))
        self._instruction(code, name, number, point=(pointer, stride))

    def _instruction(self, code: Code, name: str, *tiles: int, point: tuple[Node, Node] | None = None) -> None:
        """A tile instruction, the result's number first, and address and stride where it moves a tile.

        It is written as assembly: LLVM does not know where tiles of its intrinsics are still in use behind a jump,
        and has renamed some.
        """
        function = "_".join(("fusec", name, *map(str, tiles)))
        registers = ", ".join(f"%tmm{number}" for number in reversed(tiles))
        at = "($0,$1,1)"
        operands = (
            registers if point is None else f"{registers}, {at}" if name == "tilestored" else f"{at}, {registers}"
        )
        takes, constraints = ("ptr %p, i64 %s", "r,r,~{memory}") if point is not None else ("", "~{memory}")
        self.context.imports.add(
            f"define linkonce_odr i32 @{function}({takes}) alwaysinline {{\n"
            f'  call void asm sideeffect "{name} {operands}", "{constraints}"({takes})\n'
            "  ret i32 0\n}\n"
        )
        code.append(tirx.Evaluate(tirx.call_extern("int32", function, *(point or ()))))

    def _row_stride(self, load: Load) -> Index:
        """Elements from one row of a tile to the next: along m, and for ``b`` along groups of k."""
        dot = self.dot
        if load is not dot.b:
            return self._slope(load, dot.m.var, 1)
        return self._slope(load, dot.k.var, grouped(dot))

    def _slope(self, load: Load, s: Symbol, step: int) -> Index:
        unit = symbol("unit", 0, SIDE - 1)
        start = dict.fromkeys((self.dot.m.var, self.dot.n.var, self.dot.k.var), 0)
        slope = indexing.slope(indexing.substitute(self.flat[id(load)], {**start, s: ix.mul(unit, step)}), unit)
        if slope is None:
            raise LoweringError(f"the rows of {load.buffer} are not evenly spaced; pack it first")
        return slope


def _rows_of(store: Store, part: Index, rows: int) -> Store:
    """The part of that number of a store, of so many of its first iterator's points."""
    first, *others = store.domain
    row = symbol(f"{first.var.name}p", 0, rows - 1)
    start = ix.mul(part, rows)
    table = {first.var: ix.add(start, row)}
    end = first.limit if first.limit is not None else first.extent
    limit = None if first.limit is None and first.extent % rows == 0 else ix.sub(end, start)
    inner = (it if it.limit is None else replace(it, limit=indexing.substitute(it.limit, table)) for it in others)
    index = tuple(indexing.substitute(i, table) for i in store.index)
    return replace(store, domain=(Iter(row, rows, limit), *inner), index=index, value=reindex(store.value, table))
