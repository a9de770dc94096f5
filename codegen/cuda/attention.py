"""Attention for Hopper in CUDA C++: a plan for ``attention.cuh`` with the kernel's own score and epilogue in it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from fusec.codegen.cuda.plan import ALIGNMENT, BOX, ROW_BYTES, Moved, PlanWriter
from fusec.codegen.cuda.scalars import bare
from fusec.codegen.cuda.score_plan import SCORE_NAMES, ScorePlan
from fusec.codegen.cuda.source import KernelSource
from fusec.codegen.cuda.spelling import literal
from fusec.errors import LoweringError
from fusec.ir.index import symbols_of
from fusec.ir.types import f32
from fusec.target.gpu import GpuTarget
from fusec.tile.attention import Operand, attention_roles, columns_of
from fusec.tile.fetch import fetch_of
from fusec.tile.nodes import Iter, Kernel, Store
from fusec.tile.scalar import Apply, Buffer, Load, ScalarExpr, rewrite

_GROUP_ROWS = 64
_WARPGROUP = 128
_MOST_CONSUMERS = 3
_REGISTERS = {1: 210, 2: 210, 3: 150}
"""Of a consumer's thread, for scores, weights and results, by the number of consumers."""
_OWN_NAMES = """Plan Type TensorMap Barrier attention plan fusec to from full row column first_key values staged
begin block head turn first whole part last kDepth kValues kKeys kConsumers kStages kTurns kScale
kHeads kBlocks kWalks kLazy kStaged kSubtractsFirst"""


def emit_hopper_attention(kernel: Kernel, target: GpuTarget) -> KernelSource:
    """The kernel as CUDA C++. LoweringError where bulk copies can't move its operands, or it is no plain attention."""
    return _Emitter(kernel, target).emit()


class _Emitter(PlanWriter):
    def __init__(self, kernel: Kernel, target: GpuTarget) -> None:
        assert kernel.pipeline is not None
        self.roles = roles = attention_roles(kernel)
        self.mean = Buffer("mean", f32, (), (), "tile")
        stores = [replace(s, value=self._over_mean(s)) for s in roles.stores]
        super().__init__(
            kernel,
            [*_OWN_NAMES.split(), *SCORE_NAMES.split()],
            roles.query,
            roles.value,
            stores,
            {self.mean: "values[{}]"},
        )
        self.target, self.pipeline = target, kernel.pipeline
        self.depth, self.values = columns_of(roles.depth), columns_of(roles.value)
        self.consumers = roles.query.extent // _GROUP_ROWS
        self.symbols |= {roles.first_key: "first_key", roles.key.var: "place", roles.turn.var: "turn"}
        for head in roles.heads:
            self.symbols[head.var] = self.names.unique(head.var.name) if head.extent > 1 else "0"
        self.scores = ScorePlan(self, roles)
        self._check(roles.query.extent, roles.key.extent)

    def _check(self, rows: int, keys: int) -> None:
        if rows % _GROUP_ROWS or not 1 <= self.consumers <= _MOST_CONSUMERS or keys % 16 or keys > 256:
            raise LoweringError(f"{self.kernel.name}: blocks of {rows} queries by {keys} keys")
        if keys // 2 + keys // 4 + self.values // 2 > _REGISTERS[self.consumers]:
            raise LoweringError(f"{self.kernel.name}: {keys} keys by {self.values} columns take too many registers")
        if self._shared() > self.target.shared_memory:
            raise LoweringError(f"{self.kernel.name} needs {self._shared()} bytes of shared memory")

    def _over_mean(self, s: Store) -> ScalarExpr:
        """The epilogue over the weighted mean of values, in place of its numerator and denominator."""
        result, total = self.roles.result, self.roles.total

        def change(node: ScalarExpr) -> ScalarExpr | None:
            if not isinstance(node, Apply) or node.op != "div":
                return None
            over, under = node.args
            if isinstance(over, Load) and isinstance(under, Load) and (over.buffer, under.buffer) == (result, total):
                return Load(self.mean, ())
            return None

        return rewrite(s.value, change)

    def emit(self) -> KernelSource:
        kernel, roles = self.kernel, self.roles
        queries = self._operand(roles.queries, roles.query.extent, roles.depth)
        keys = self._operand(roles.keys, roles.key.extent, roles.depth)
        values = self._operand(roles.values, roles.key.extent, roles.value)
        outputs = self._outputs()
        staged = next((m for m in outputs if m is not None), None)
        self._constants(staged is not None)
        self.members()
        self._places()
        self._fetches("load_queries(char* to, Barrier& full, int column)", queries)
        self._fetches("load_keys(char* to, Barrier& full, int first_key, int column)", keys)
        self._fetches("load_values(char* to, Barrier& full, int first_key, int column)", values)
        self.scores.rows()
        self.scores.functions()
        self._finish(outputs)
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
            shapes=tuple(sorted({roles.key.extent, self.values})),
            aligned=True,
        )

    # What is moved

    def _operand(self, operand: Operand, rows: int, columns: Iter) -> Moved:
        """Boxes of 64 columns of all the rows of a block."""
        return self.add_map(operand.load, operand.fetch, (rows, BOX), {columns.var: "column"})

    def _outputs(self) -> list[Moved | None]:
        """The first result of 16 bits leaves through shared memory, all others from registers."""
        found: list[Moved | None] = []
        for s in self.stores:
            load = Load(s.target, s.index)
            half = s.target.dtype.is_float and s.target.dtype.bits == 16
            fetch = fetch_of(load, (self.m, self.n)) if half and not any(found) else None
            if fetch is None or fetch.turned:
                found.append(None)
                continue
            places = {self.m.var: "row", self.n.var: "column"}
            found.append(self.add_map(load, fetch, (_GROUP_ROWS, BOX), places))
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

    # The plan

    def _constants(self, staged: bool) -> None:
        roles, line = self.roles, self.writer.line
        heads = prod(i.extent for i in roles.heads)
        flags = {
            "kTurns": self.pipeline.turns and self.consumers == 2,
            "kWalks": self.pipeline.walks,
            "kStaged": staged,
            "kLazy": self.scores.depends_on_products_alone,
            "kSubtractsFirst": any(loop.subtracts_first for loop in roles.loops),
            "kMaskedBefore": roles.whole > 0,
            "kMaskedAfter": roles.whole < len(roles.loops) - 1,
        }
        line(f"using Type = fusec::{roles.queries.load.dtype.name};")
        line(f"static constexpr int kDepth = {self.depth}, kValues = {self.values}, kKeys = {roles.key.extent};")
        line(f"static constexpr int kConsumers = {self.consumers}, kStages = {self.kernel.stages};")
        line(f"static constexpr int kHeads = {heads}, kBlocks = {roles.turn.extent};")
        line(f"static constexpr bool {', '.join(f'{k} = {str(v).lower()}' for k, v in flags.items())};")
        line(f"static constexpr float kScale = {literal(self.scores.scale, f32)};")
        line()

    def _places(self) -> None:
        """Which head and which block of queries a block does, and the keys that it walks over."""
        roles, line = self.roles, self.writer.line
        heads = [i for i in roles.heads if i.extent > 1]
        line(f"int {', '.join(['turn', *(self.symbols[i.var] for i in heads)])};")
        line("int first, whole, part, last;")
        self.scores.members()
        line()
        count = prod(i.extent for i in heads)
        group = min(self.pipeline.group, count) if self._uneven() and not self.pipeline.walks else 0
        with self.writer.block("void begin(int block)"):
            line(f"const HeadAndTurn at = head_and_turn<kHeads, kBlocks, {group}>(block);")
            line("turn = at.turn;")
            step = count
            for i in heads:
                step //= i.extent
                line(f"{self.symbols[i.var]} = at.head{f' / {step}' if step > 1 else ''} % {i.extent};")
            loops = roles.loops
            ends = (loops[0].start, loops[roles.whole].start, loops[roles.whole].stop, loops[-1].stop)
            for name, end in zip(("first", "whole", "part", "last"), ends, strict=True):
                line(f"{name} = {bare(self.index(end))};")
            with self.names.scope():
                self.scores.begin()

    def _uneven(self) -> bool:
        """Whether blocks of queries walk over different numbers of keys."""
        turn = self.roles.turn.var
        return any(turn in symbols_of(e) for loop in self.roles.loops for e in (loop.start, loop.stop))

    def _finish(self, outputs: list[Moved | None]) -> None:
        self.writer.line()
        head = "void finish(int row, int column, const float (&values)[2], u32 (&staged)[1]) const"
        with self.writer.block(head), self.names.scope():
            self.results(outputs)

    def _blocks(self) -> int:
        heads, turns = prod(i.extent for i in self.roles.heads), self.roles.turn.extent
        return min(self.target.units, heads * -(-turns // 2)) if self.pipeline.walks else heads * turns

    def _shared(self) -> int:
        """Bytes, as ``AttentionLayout`` counts them."""
        deep, wide = -(-self.depth // BOX), -(-self.values // BOX)
        queries = (deep + wide if self.pipeline.walks else max(deep, wide)) * self.roles.query.extent
        return ALIGNMENT + (queries + self.kernel.stages * (deep + wide) * self.roles.key.extent) * ROW_BYTES
