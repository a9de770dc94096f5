# SPDX-License-Identifier: Apache-2.0
"""Attention by mma.sync: a plan for ``mma_attention.cuh`` with the kernel's own score in it."""

from __future__ import annotations

from dataclasses import replace

from fusec.codegen.cuda.attention_plan import AttentionPlan
from fusec.codegen.cuda.indices import spell_index
from fusec.codegen.cuda.rows import InRows, in_rows
from fusec.codegen.cuda.scalars import bare
from fusec.codegen.cuda.source import KernelSource
from fusec.errors import LoweringError
from fusec.ir.index import Index, Symbol, mul, sub, symbol
from fusec.ir.stepping import step_of
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Iter, Store
from fusec.tile.scalar import Load, offset_of, reindex
from fusec.tile.templates import MmaAttention

_HEADS = 8
_EIGHT = 8
"""Neighbours of a row that leave together."""
_REGISTERS = 216
"""Of a thread, for scores, results and queries that stay."""
_OWN_NAMES = "Queries Keys Values mma_attention eight rows query key value kQueries kWarps InRows"


def emit_mma_attention(kernel: Kernel, template: MmaAttention, target: GpuTarget) -> KernelSource:
    """The kernel as CUDA C++. LoweringError for what is no plain attention, or does not fit."""
    source = _Emitter(kernel, template, target, vectors=True).emit()
    plain = replace(kernel, name=f"{kernel.name}_unaligned")
    return replace(source, unaligned=_Emitter(plain, template, target, vectors=False).emit())


class _Emitter(AttentionPlan):
    def __init__(self, kernel: Kernel, template: MmaAttention, target: GpuTarget, *, vectors: bool) -> None:
        super().__init__(kernel, template.nest, _OWN_NAMES.split(), pairs=vectors)
        self.vectors = vectors
        nest = self.nest
        self.queries, self.keys = nest.query.extent, nest.key.extent
        rows = self.queries // kernel.warps
        if self.queries % (16 * kernel.warps) or self.keys % 16:
            raise LoweringError(f"{kernel.name}: blocks of {self.queries} queries by {self.keys} keys")
        if rows // 16 * (self.keys + self.values) // 2 > _REGISTERS:
            raise LoweringError(f"{kernel.name}: {self.keys} keys by {self.values} columns take too many registers")
        if self._shared() > target.shared_memory:
            raise LoweringError(f"{kernel.name} needs {self._shared()} bytes of shared memory")
        self.together = max(1, min(2, target.shared_memory // self._shared(), 8 // kernel.warps))
        whole = nest.key.extent
        if nest.key.limit is not None:
            whole = int(nest.key.limit + nest.first_key)  # type: ignore[arg-type]
        self.key = Iter(symbol("key", 0, max(whole - 1, 0)), whole)

    def emit(self) -> KernelSource:
        kernel, nest = self.kernel, self.nest
        query = self._operand(nest.queries, nest.query, Iter(nest.depth.var, self.depth))
        key = self._operand(self._of_key(nest.keys), self.key, Iter(nest.depth.var, self.depth))
        value = self._operand(self._of_key(nest.values), self.key, Iter(nest.value.var, self.values))
        staged = self._leaves_in_eights()
        self._constants((query, key, value), staged is not None)
        self.members()
        self.begin(_HEADS, "rows")
        names = {nest.query.var: "row", self.key.var: "row", nest.depth.var: "column", nest.value.var: "column"}
        for name, operand in (("query", query), ("key", key), ("value", value)):
            self._element(name, operand, names)
        self.scores.rows()
        self.scores.functions()
        self.finish([s is staged for s in self.stores])
        self._send(staged)
        return KernelSource(
            kernel.name,
            self.text("mma_attention.cuh", "mma_attention", 32 * kernel.warps, together=self.together),
            tuple(x.dtype.name for x in kernel.parameters),
            (mul(self.heads, self.blocks), 1, 1),
            32 * kernel.warps,
            self._shared(),
            aligned=self.vectors,
        )

    # Operands

    def _of_key(self, load: Load) -> Load:
        """In the key's index among all, not that in its block."""
        back: dict[Symbol, Index] = {self.nest.key.var: sub(self.key.var, self.nest.first_key)}
        found = reindex(load, back)
        assert isinstance(found, Load)
        return found

    def _operand(self, load: Load, rows: Iter, columns: Iter) -> InRows:
        """Rows of queries, keys or values; columns that are no neighbours in memory are read one by one."""
        found = in_rows(load, rows, columns, vectors=self.vectors)
        return replace(found, transposed=False, stride=-1, vector=0) if found.transposed else found

    def _constants(self, operands: tuple[InRows, InRows, InRows], staged: bool) -> None:
        self.constants(f"kQueries = {self.queries}, kWarps = {self.kernel.warps}", {"kStaged": staged})
        for name, operand in zip(("Queries", "Keys", "Values"), operands, strict=True):
            rows = -1 if name == "Queries" and self.m.limit is not None else operand.free.extent
            line = f"using {name} = InRows<{rows}, {operand.inner.extent}, {operand.stride}, {operand.vector}>;"
            self.writer.line(line)
        self.writer.line()

    def _element(self, name: str, operand: InRows, names: dict[Symbol, str]) -> None:
        load = operand.value
        assert isinstance(load, Load)
        flat = offset_of(load.buffer, load.index)
        if flat is None:
            raise LoweringError(f"{load.buffer} read at loaded subscripts")
        buffer = self.buffers[load.buffer]
        text = bare(spell_index(flat, {**self.symbols, **names}))
        self.writer.line()
        kind = "const Type*" if operand.vector else "Type"
        with self.writer.block(f"{kind} {name}(int row, int column) const"):
            self.writer.line(f"return {self.address(buffer, text) if operand.vector else f'{buffer}[{text}]'};")

    # The results

    def _leaves_in_eights(self) -> Store | None:
        """The first result of 16 bits of which eight neighbours of a row are 16 bytes at a multiple of that."""
        for s in self.stores if self.vectors else ():
            flat = offset_of(s.target, s.index) if s.target.dtype.is_half else None
            step = step_of(flat, self.n.var, _EIGHT) if flat is not None else None
            if step is not None and step.along == 1 and step.multiple % _EIGHT == 0:
                return s
        return None

    def _send(self, staged: Store | None) -> None:
        self.writer.line()
        with self.writer.block("void send(int row, int column, const Vec<u32, 4>& eight) const"):
            if staged is None:
                return
            flat = offset_of(staged.target, staged.index)
            assert flat is not None
            self.leave_outside(0)
            where = self.address(self.buffers[staged.target], self.index(flat))
            self.writer.line(f"store(reinterpret_cast<u32*>({where}), eight);")

    def _shared(self) -> int:
        """Bytes, as ``MmaAttention`` in ``mma_attention.cuh`` counts them."""
        deep, wide = _pitch(self.depth), _pitch(self.values)
        return self.queries * deep + self.kernel.stages * self.keys * (deep + wide)


def _pitch(columns: int) -> int:
    return 64 if columns <= 32 else -(-columns // 64) * 128
