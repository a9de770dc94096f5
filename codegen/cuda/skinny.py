# SPDX-License-Identifier: Apache-2.0
"""Matmuls of few vectors with a computed operand: a plan for ``skinny_gemm.cuh``, whose warps make it in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fusec.codegen.cuda.half_pairs import HalfPairs
from fusec.codegen.cuda.indices import spell_index
from fusec.codegen.cuda.lane_values import WORD, Condition, LaneValues, Member, gathered
from fusec.codegen.cuda.plan import PlanWriter
from fusec.codegen.cuda.scalars import Scalars, bare
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import memory_type
from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, add, bounds
from fusec.target.gpu import GpuTarget
from fusec.tile.expand import tile_stores
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Buffer, Load, ScalarExpr
from fusec.tile.templates import SkinnyGemm, TemplateOperand

_PART = 8
"""Neighbours along K of a lane in two MMAs."""
_APART = (1, 2, 4)
"""How far apart the two of a pair may be along K."""
_TABLE_BYTES = 4096
"""Of arrays that blocks copy to shared memory where their elements are found at loaded subscripts."""
_ALIGNMENT = 16
_OWN_NAMES = """Plan Type Fixed Line Vector batch line vector at block eighth part row_tile column_tile row column
values staged fixed found pairs fetch_fixed fetch_line fetch_vector line_pairs vector_pairs finish stage skinny_gemm
kWarpLines kVectors kLineGroups kDepthGroups kSplit kLane kAhead kLines kAllVectors kK kBatches kDots kLinesAcross
kTables kPart kRing
kCopied vector_at element load_words bits_of in_shared add_pairs subtract_pairs multiply_pairs memory"""


def emit_skinny_gemm(kernel: Kernel, template: SkinnyGemm, target: GpuTarget) -> KernelSource:
    """The kernel as CUDA C++ for a target. LoweringError for operands and results that it can't say."""
    plain = replace(kernel, name=f"{kernel.name}_unaligned")
    source, unaligned = (
        replace(_Emitter(k, template, vectors=k is kernel).emit(), overlaps=target.overlaps) for k in (kernel, plain)
    )
    return replace(source, unaligned=unaligned)


@dataclass(frozen=True)
class _Side:
    """An operand's values on the lanes of a block, for each dot; where and under which names it is read."""

    values: LaneValues
    lanes: list[list[ScalarExpr]]
    named: dict[Symbol, str]


class _Emitter(PlanWriter):
    def __init__(self, kernel: Kernel, template: SkinnyGemm, *, vectors: bool) -> None:
        self.nest = nest = template.nest
        self.side, self.shares, self.vectors = template.side, template.shares, vectors
        accumulators = {total.buffer: f"values[{p}][{{}}]" for p, total in enumerate(nest.sums)}
        stores = tile_stores(nest)
        super().__init__(
            kernel, _OWN_NAMES.split(), nest.row.inner, nest.column.inner, stores, accumulators, pairs=vectors
        )
        self.dtype = nest.left.dtype
        self.symbols |= {nest.batch.var: "batch", nest.row_tiles.var: "row_tile", nest.column_tiles.var: "column_tile"}
        self.line, self.vector = (nest.row, nest.column) if self.side == 0 else (nest.column, nest.row)
        rights = list(nest.rights)
        lines, others = ([nest.left], rights) if self.side == 0 else (rights, [nest.left])
        self.lines = self._over_lanes(lines, self.shares.lane, self.line.whole, "line")
        self.others = self._over_lanes(others, _PART, self.vector.whole, "vector")
        found = [e for side in (self.lines, self.others) for dot in side.lanes for e in dot]
        self.tables, self.table_bytes = self._tables(found)

    def emit(self) -> KernelSource:
        kernel, shares = self.kernel, self.shares
        apart = min(_APART, key=self._cost)
        self._constants()
        self.members()
        self._stage()
        fixed = [m for m in self.lines.values.members if self.lines.values.stays(m)]
        moving = [m for m in self.lines.values.members if m not in fixed]
        self._fetch("Fixed", "fetch_fixed", "int batch, int line", fixed, self.lines)
        self._fetch("Line", "fetch_line", "int batch, int line, int block", moving, self.lines)
        self._fetch(
            "Vector", "fetch_vector", "int batch, int vector, int block", self.others.values.members, self.others
        )
        texts = {m.buffer: f"fixed.{m.buffer.name}" for m in fixed}
        self._line_pairs(texts | {m.buffer: f"found.{m.buffer.name}" for m in moving}, apart)
        self._vector_pairs({m.buffer: f"found.{m.buffer.name}" for m in self.others.values.members}, apart)
        self._vector_at()
        self._finish()
        return KernelSource(
            kernel.name,
            self.text("skinny_gemm.cuh", "skinny_gemm", 32 * kernel.warps, shares.split, shares.together),
            tuple(x.dtype.name for x in kernel.parameters),
            (self.nest.tiles * shares.split, 1, 1),
            32 * kernel.warps,
            self._shared(),
            cluster=(shares.split, 1, 1),
            aligned=self.vectors,
        )

    def _over_lanes(self, operands: Sequence[TemplateOperand], lanes: int, free: Iter, name: str) -> _Side:
        depth = self.nest.depth.whole
        values = LaneValues(depth.var, lanes)
        for _ in range(2):  # once to see which elements are read
            found = [[values.at(x.element, lane) for lane in range(lanes)] for x in operands]
            values.settle()
        if any(isinstance(s, int) and s < 0 for m in values.members for s in m.source.strides):
            raise LoweringError("an operand that lies backwards")
        return _Side(values, found, {self.nest.batch.var: "batch", free.var: name, values.block: "block"})

    def _constants(self) -> None:
        line, nest, s = self.writer.line, self.nest, self.shares
        line(f"using Type = {memory_type(self.dtype)};")
        line(f"static constexpr int kWarpLines = {s.lines}, kVectors = {s.vectors};")
        groups = f"kLineGroups = {s.line_groups}, kDepthGroups = {s.depth_groups}, kSplit = {s.split}"
        line(f"static constexpr int {groups}, kLane = {s.lane}, kAhead = {s.ahead};")
        whole = f"kLines = {self.line.whole.extent}, kAllVectors = {self.vector.whole.extent}"
        line(f"static constexpr int {whole}, kK = {nest.depth.whole.extent}, kBatches = {nest.batch.extent};")
        line(f"static constexpr int kDots = {len(nest.sums)}, kRing = {s.ring}, kTables = {self.table_bytes};")
        flags = self.side == 1, self._copied is not None
        across, copied = (str(flag).lower() for flag in flags)
        line(f"static constexpr bool kLinesAcross = {across}, kCopied = {copied};")
        line()

    # Small arrays in shared memory

    def _tables(self, values: Sequence[ScalarExpr]) -> tuple[dict[Buffer, int], int]:
        """Where arrays that are read at loaded subscripts lie in shared memory, and how much they take."""
        tables: dict[Buffer, int] = {}
        end = 0
        for buffer in gathered(values):
            size = buffer.extent * buffer.dtype.itemsize
            if size > 0 and end + size <= _TABLE_BYTES:
                tables[buffer] = end
                end = -(-(end + size) // _ALIGNMENT) * _ALIGNMENT
        return tables, end

    def _stage(self) -> None:
        self.writer.line()
        with self.writer.block("void stage() const"):
            self.writer.line("extern __shared__ __align__(128) char memory[];")
            for buffer, start in self.tables.items():
                kind, name = memory_type(buffer.dtype), self.buffers[buffer]
                with self.writer.block(f"for (int i = threadIdx.x; i < {buffer.extent}; i += blockDim.x)"):
                    self.writer.line(f"reinterpret_cast<{kind}*>(memory + {start})[i] = {name}[i];")

    # What is read

    def _fetch(self, kind: str, function: str, parameters: str, members: Sequence[Member], side: _Side) -> None:
        line = self.writer.line
        line()
        with self.writer.block(f"struct {kind}", "};"):
            for m in members:
                line(f"u32 {m.buffer.name}[{m.words}];")
        with self.writer.block(f"{kind} {function}({parameters}) const"):
            line(f"{kind} found;")
            for m in members:
                if m.when is None:
                    self._read_member(m, side)
                    continue
                with self.writer.block(f"if ({self._condition(m.when, side)})"):
                    self._read_member(m, side)
            line("return found;")

    def _condition(self, when: Condition, side: _Side) -> str:
        condition, holds = when
        spelled = Scalars(
            self.style, self.names, lambda load: "", lambda e: spell_index(e, side.named), self.writer.line, [condition]
        )
        return f"{'' if holds else '!'}{spelled.value(condition)}"

    def _read_member(self, m: Member, side: _Side) -> None:
        """Words of memory; elements one by one where addresses don't allow more, or where some may lie outside."""
        line = self.writer.line
        start = add(m.first, m.low)
        lowest, highest = bounds(start)[0], bounds(add(m.first, m.high))[1]
        inside = lowest is not None and lowest >= 0 and highest is not None and highest < m.source.extent
        width = m.width if self.vectors else m.source.dtype.itemsize
        where, name = self._offset(start, side), self.buffers[m.source]
        if width < WORD:
            self._read_elements(m, side, inside)
        elif inside:
            self._read_words(m, width, f"{name} + {where}")
        else:
            with self.writer.block(f"if ({where} >= 0 && {where} + {m.count} <= {m.source.extent})"):
                self._read_words(m, width, f"{name} + {where}")
            with self.writer.block("else"):
                self._read_elements(m, side, inside)
        line("")

    def _read_words(self, m: Member, width: int, address: str) -> None:
        once = str(m.words >= _ALIGNMENT // WORD and m.source is not self._smallest).lower()
        for first in range(0, m.words, width // WORD):
            at = f" + {first}" if first else ""
            read = f"load_words<{width // WORD}, {once}>"
            self.writer.line(f"{read}(found.{m.buffer.name}{at}, reinterpret_cast<const u32*>({address}){at});")

    @property
    def _smallest(self) -> Buffer | None:
        """What the vectors are, which many blocks read."""
        members = self.others.values.members
        return members[0].source if members else None

    def _read_elements(self, m: Member, side: _Side, inside: bool) -> None:
        item, name = m.source.dtype.itemsize, self.buffers[m.source]
        for word in range(m.words):
            parts = []
            for i in range(word * WORD // item, min(m.count, -(-(word + 1) * WORD // item))):
                where = self._offset(add(m.first, m.low + i), side)
                value = f"bits_of({name}[{where}])"
                if item > WORD:
                    half = word * WORD % item * 8
                    value = f"u32(reinterpret_cast<const u64&>({name}[{where}]) >> {half})"
                if not inside:
                    value = f"({where} >= 0 && {where} < {m.source.extent} ? {value} : 0u)"
                shift = i * item * 8 % 32
                parts.append(f"{value} << {shift}" if shift and item < WORD else value)
            self.writer.line(f"found.{m.buffer.name}[{word}] = {' | '.join(parts)};")

    def _offset(self, e: Index, side: _Side) -> str:
        text = spell_index(e, side.named)
        return text if text.isidentifier() or text.isdigit() else f"({bare(text)})"

    @property
    def _copied(self) -> Member | None:
        """What eight neighbours of a vector are in memory, where that is 16 bytes that are copied as they are."""
        members = self.others.values.members
        fits = len(members) == 1 and members[0].words * WORD == members[0].width == _ALIGNMENT and self.vectors
        return members[0] if fits and members[0].when is None else None

    def _vector_at(self) -> None:
        member = self._copied
        if member is None:
            return
        self.writer.line()
        kind = memory_type(member.source.dtype)
        with self.writer.block(f"const {kind}* vector_at(int batch, int vector, int block) const"):
            where = self._offset(add(member.first, member.low), self.others)
            self.writer.line(f"return {self.buffers[member.source]} + {where};")

    # Pairs

    def _line_pairs(self, words: dict[Buffer, str], apart: int) -> None:
        head = "const Fixed& fixed, const Line& found, int batch, int line, int block"
        self.writer.line()
        self.writer.line("template <int kPart>")
        with self.writer.block(f"void line_pairs({head}, u32 (&pairs)[kDots][4]) const"):
            for part in range(self.shares.lane // _PART):
                with self.writer.block(f"if constexpr (kPart == {part})"), self.names.scope():
                    self._pairs(self.lines, part, words, apart, self.writer.line, "pairs[{0}][{1}]")

    def _vector_pairs(self, words: dict[Buffer, str], apart: int) -> None:
        self.writer.line()
        head = "const Vector& found, int batch, int vector, int block, u32 (&pairs)[4]"
        with self.writer.block(f"void vector_pairs({head}) const"), self.names.scope():
            self._pairs(self.others, 0, words, apart, self.writer.line, "pairs[{1}]")

    def _cost(self, apart: int) -> float:
        """Instructions of eight elements of each operand whose pairs are so far apart."""
        with self.names.scope():
            lines = self._pairs(self.lines, 0, {}, apart, lambda text: None, "")
            return lines + 0.25 * self._pairs(self.others, 0, {}, apart, lambda text: None, "")

    def _pairs(
        self, side: _Side, part: int, words: dict[Buffer, str], apart: int, line: Callable[[str], None], into: str
    ) -> float:
        """Writes four pairs of each dot; gives back what they cost."""
        lanes = [dot[part * _PART : (part + 1) * _PART] for dot in side.lanes]
        roots = [e for dot in lanes for e in dot]
        scalars = Scalars(
            self.style,
            self.names,
            lambda load: made.floats.get(load.buffer) or self._read(load, words, scalars),
            lambda e: spell_index(e, side.named),
            line,
            roots,
        )
        made = HalfPairs(self.dtype, lambda load: words.get(load.buffer, "words"), scalars, self.names, line)
        for number, dot in enumerate(lanes):
            order = [i for i in range(_PART) if i % (2 * apart) < apart]
            for q, i in enumerate(order):
                line(f"{into.format(number, q)} = {made.pair(dot[i], dot[i + apart])};")
        return made.cost

    def _read(self, load: Load, words: dict[Buffer, str], scalars: Scalars) -> str:
        kind = memory_type(load.dtype)
        if load.buffer.space == "tile":
            text = f"element<{kind}>({words.get(load.buffer, 'words')}, {load.index[0]})"
        elif load.buffer in self.tables:
            text = f"in_shared<{kind}>({self.tables[load.buffer]})[{scalars.gathered(load)}]"
        else:
            text = f"{self.buffers[load.buffer]}[{scalars.gathered(load)}]"
        return f"float({text})" if load.dtype.is_half else text

    # The whole

    def _finish(self) -> None:
        head = "int batch, int row_tile, int column_tile, int row, int column"
        head += f", const float (&values)[{len(self.nest.sums)}][2], u32 (&staged)[1]"
        self.writer.line()
        with self.writer.block(f"void finish({head}) const"), self.names.scope():
            self.results([False] * len(self.stores))

    def _shared(self) -> int:
        """Bytes, as ``SkinnyGemm`` in ``skinny_gemm.cuh`` counts them."""
        s = self.shares
        lines, parts = s.lines * s.line_groups, s.lane // _PART
        sums = s.vectors * (lines + 4) if self.side == 1 else lines * (s.vectors + 2)
        step = 64 * s.vectors * parts
        return self.table_bytes + s.depth_groups * max(4 * len(self.nest.sums) * sums, s.ring * step)
