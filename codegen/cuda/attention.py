# SPDX-License-Identifier: Apache-2.0
"""Attention for Hopper in CUDA C++: a plan for ``attention.cuh`` with the kernel's own score and epilogue in it."""

from __future__ import annotations

from fusec.codegen.cuda.attention_plan import AttentionPlan
from fusec.codegen.cuda.plan import ALIGNMENT, BOX, ROW_BYTES, Moved
from fusec.codegen.cuda.source import KernelSource
from fusec.errors import LoweringError
from fusec.ir.index import Index, minimum, mul
from fusec.ir.indexing import ceildiv
from fusec.target.gpu import GpuTarget
from fusec.tile.attention import fetched
from fusec.tile.fetch import fetch_of
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Load
from fusec.tile.templates import HopperAttention

_GROUP_ROWS = 64
_WARPGROUP = 128
_MOST_CONSUMERS = 3
_REGISTERS = {1: 210, 2: 210, 3: 150}
"""Of a consumer's thread, for scores, weights and results, by the number of consumers."""
_OWN_NAMES = "TensorMap Barrier attention to from full kConsumers kPingPong kPersistent"


def emit_hopper_attention(kernel: Kernel, template: HopperAttention, target: GpuTarget) -> KernelSource:
    """The kernel as CUDA C++. LoweringError where TMA can't move its operands, or it is no plain attention."""
    return _Emitter(kernel, template, target).emit()


class _Emitter(AttentionPlan):
    def __init__(self, kernel: Kernel, template: HopperAttention, target: GpuTarget) -> None:
        super().__init__(kernel, template.nest, _OWN_NAMES.split(), factors=True)
        self.target, self.pipeline = target, template.pipeline
        self.consumers = self.nest.query.extent // _GROUP_ROWS
        self._check(self.nest.query.extent, self.nest.key.extent)

    def _check(self, rows: int, keys: int) -> None:
        if rows % _GROUP_ROWS or not 1 <= self.consumers <= _MOST_CONSUMERS or keys % 16 or keys > 256:
            raise LoweringError(f"{self.kernel.name}: blocks of {rows} queries by {keys} keys")
        if keys // 2 + keys // 4 + self.values // 2 > _REGISTERS[self.consumers]:
            raise LoweringError(f"{self.kernel.name}: {keys} keys by {self.values} columns take too many registers")
        if self._shared() > self.target.shared_memory:
            raise LoweringError(f"{self.kernel.name} needs {self._shared()} bytes of shared memory")

    def emit(self) -> KernelSource:
        kernel, nest = self.kernel, self.nest
        queries = self._operand(nest.queries, nest.query, nest.depth)
        keys = self._operand(nest.keys, nest.key, nest.depth)
        values = self._operand(nest.values, nest.key, nest.value)
        outputs = self._outputs()
        staged = next((m for m in outputs if m is not None), None)
        self._constants(staged is not None)
        self.members()
        self.begin(0 if self.pipeline.persistent else self.pipeline.group)
        self._fetches("load_queries(char* to, Barrier& full, int column)", queries)
        self._fetches("load_keys(char* to, Barrier& full, int first_key, int column)", keys)
        self._fetches("load_values(char* to, Barrier& full, int first_key, int column)", values)
        self.scores.rows()
        self.scores.functions()
        self.finish(outputs)
        self._send(staged)
        threads = _WARPGROUP * (self.consumers + 1)
        return KernelSource(
            kernel.name,
            self.text("attention.cuh", "attention", threads),
            tuple(x.dtype.name for x in kernel.parameters),
            (self._blocks(), 1, 1),
            threads,
            self._shared(),
            tensor_maps=tuple(m.map for m in self.maps),
            shapes=tuple(sorted({nest.key.extent, self.values})),
            aligned=True,
            sizes=kernel.sizes,
        )

    # What is moved

    def _operand(self, operand: Load, rows: Iter, columns: Iter) -> Moved:
        """Boxes of 128 bytes of all the rows of a block."""
        box = (rows.extent, ROW_BYTES // operand.dtype.itemsize)
        return self.add_map(operand, fetched(operand, rows, columns), box, {columns.var: "column"})

    def _outputs(self) -> list[Moved | None]:
        """The first result of 16 bits leaves through shared memory, all others from registers."""
        found: list[Moved | None] = []
        for s in self.stores:
            load = Load(s.target, s.index)
            half = s.target.dtype.is_half
            fetch = fetch_of(load, (self.m, self.n)) if half and not any(found) else None
            if fetch is None or fetch.transposed:
                found.append(None)
                continue
            coordinates = {self.m.var: "row", self.n.var: "column"}
            found.append(self.add_map(load, fetch, (_GROUP_ROWS, BOX), coordinates))
        return found

    def _fetches(self, head: str, moved: Moved) -> None:
        self.writer.line()
        with self.writer.block(f"void {head} const"):
            self.writer.line(f"load_tile(to, {moved.name}, full, {self.coordinates(moved, {-1: 'column'})});")

    def _send(self, moved: Moved | None) -> None:
        self.writer.line()
        with self.writer.block("void send(const void* from, int row, int column) const"):
            if moved is not None:
                where = self.coordinates(moved, {-1: "column", -2: "row"})
                self.writer.line(f"store_tile({moved.name}, from, {where});")

    def _constants(self, staged: bool) -> None:
        ping_pong = self.pipeline.ping_pong and self.consumers > 1
        self.constants(
            f"kConsumers = {self.consumers}",
            {"kPingPong": ping_pong, "kPersistent": self.pipeline.persistent, "kStaged": staged},
        )
        self.writer.line()

    def _blocks(self) -> Index:
        pairs = mul(self.heads, ceildiv(self.blocks, 2))
        return minimum(self.target.sms, pairs) if self.pipeline.persistent else mul(self.heads, self.blocks)

    def _shared(self) -> int:
        """Bytes, as ``AttentionLayout`` counts them."""
        deep = -(-self.depth * self.nest.queries.dtype.itemsize // ROW_BYTES)
        wide = -(-self.values // BOX)
        queries = (deep + wide if self.pipeline.persistent else max(deep, wide)) * self.nest.query.extent
        return ALIGNMENT + (queries + self.kernel.stages * (deep + wide) * self.nest.key.extent) * ROW_BYTES
