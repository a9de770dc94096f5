# SPDX-License-Identifier: Apache-2.0
"""What plans for both kinds of attention kernels have in common: the order of heads, queries and keys, the scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusec.codegen.cuda.plan import PlanWriter
from fusec.codegen.cuda.scalars import bare
from fusec.codegen.cuda.score_plan import SCORE_NAMES, ScorePlan
from fusec.codegen.cuda.spelling import literal
from fusec.ir.index import product, symbols_of
from fusec.ir.indexing import most
from fusec.ir.types import f32
from fusec.tile.attention import columns_of
from fusec.tile.kernel import Kernel
from fusec.tile.templates import AttentionNest

_OWN_NAMES = """Plan Type plan fusec row column first_key values staged begin block head query_block first whole part
last finish send kDepth kValues kKeys kStages kScale kHeads kBlocks kStaged kSubtractsFirst kGuarded
kMaskedBefore kMaskedAfter heads blocks"""


class AttentionPlan(PlanWriter):
    """Writes ``struct Plan`` of an attention kernel. LoweringError for heads that tensor cores don't take.

    names: those of its header, besides the ones here. depth, values: columns of queries and of values. heads, blocks:
    how many heads there are, and blocks of queries of each. factors: as for :class:`ScorePlan`.
    """

    def __init__(
        self, kernel: Kernel, nest: AttentionNest, names: Iterable[str], *, pairs: bool = True, factors: bool = False
    ) -> None:
        self.nest = nest
        taken = [*names, *_OWN_NAMES.split(), *SCORE_NAMES.split()]
        accumulators = {nest.mean: "values[{}]"}
        super().__init__(kernel, taken, nest.query, nest.value, nest.stores, accumulators, pairs=pairs)
        self.depth, self.values = columns_of(nest.depth), columns_of(nest.value)
        self.heads, self.blocks = product(i.count for i in nest.heads), nest.query_block.count
        self.sized = not (isinstance(self.heads, int) and isinstance(self.blocks, int))
        self.symbols |= {nest.first_key: "first_key", nest.key.var: "offset", nest.query_block.var: "query_block"}
        for head in nest.heads:
            self.symbols[head.var] = self.names.unique(head.var.name) if head.extent > 1 else "0"
        self.scores = ScorePlan(self, nest, factors)

    def constants(self, sizes: str, flags: dict[str, bool]) -> None:
        """What the header's loops are told; ``sizes`` and ``flags`` are those of one kind of kernel alone."""
        nest, line = self.nest, self.writer.line
        flags = flags | {
            "kSubtractsFirst": self.scores.factor is None and any(loop.subtracts_first for loop in nest.loops),
            "kGuarded": nest.guarded,
            "kMaskedBefore": nest.whole > 0,
            "kMaskedAfter": nest.whole < len(nest.loops) - 1,
        }
        line(f"using Type = fusec::{nest.values.dtype.name};")
        kinds = dict.fromkeys(x.dtype for x in (nest.queries, nest.keys))
        if any(d.bits == 8 for d in kinds):
            line(f"using Scored = fusec::{'_'.join(d.name for d in kinds)};")
        line(f"static constexpr int kDepth = {self.depth}, kValues = {self.values}, kKeys = {nest.key.extent};")
        line(f"static constexpr int {sizes}, kStages = {self.kernel.stages};")
        heads, blocks = (-1, -1) if self.sized else (self.heads, self.blocks)
        line(f"static constexpr int kHeads = {heads}, kBlocks = {blocks};")
        line(f"static constexpr bool {', '.join(f'{k} = {str(v).lower()}' for k, v in flags.items())};")
        line(f"static constexpr float kScale = {literal(self.scores.scale, f32)};")

    def begin(self, side_by_side: int, rows: str = "") -> None:
        """Which head and which block of queries a block does, and the keys that it visits.

        side_by_side: heads done together where blocks have different numbers of keys; 0: one after another. rows: a
        member that gets how many queries of the block there are.
        """
        nest, line = self.nest, self.writer.line
        heads = [i for i in nest.heads if i.extent > 1]
        line(f"int {', '.join(['query_block', *(self.symbols[i.var] for i in heads)])};")
        line(f"int first, whole, part, last{f', {rows}' if rows else ''};")
        self.scores.members()
        line()
        if self.sized:
            for name, count in (("heads", self.heads), ("blocks", self.blocks)):
                line(f"int {name}() const {{ return {bare(self.index(count))}; }}")
        group = min(side_by_side, most(self.heads)) if self._uneven() else 0
        with self.writer.block("void begin(int block)"):
            found = f"<{group}>(block, heads(), blocks())" if self.sized else f"<kHeads, kBlocks, {group}>(block)"
            line(f"const HeadAndBlock at = head_and_block{found};")
            line("query_block = at.query_block;")
            for number, i in enumerate(heads):
                step = product(behind.count for behind in heads[number + 1 :])
                divided = f" / {self.index(step)}" if step != 1 else ""
                line(f"{self.symbols[i.var]} = at.head{divided} % {self.index(i.count)};")
            loops = nest.loops
            ends = (loops[0].start, loops[nest.whole].start, loops[nest.whole].stop, loops[-1].stop)
            for name, end in zip(("first", "whole", "part", "last"), ends, strict=True):
                line(f"{name} = {bare(self.index(end))};")
            if rows:
                there = nest.query.extent if nest.query.limit is None else nest.query.limit
                line(f"{rows} = {bare(self.index(there))};")
            with self.names.scope():
                self.scores.begin()

    def _uneven(self) -> bool:
        """Whether blocks of queries visit different numbers of keys."""
        block = self.nest.query_block.var
        return any(block in symbols_of(e) for loop in self.nest.loops for e in (loop.start, loop.stop))

    def finish(self, staged: Sequence[object]) -> None:
        """The member that takes two neighbours of a row."""
        self.writer.line()
        head = "void finish(int row, int column, const float (&values)[2], u32 (&staged)[1]) const"
        with self.writer.block(head), self.names.scope():
            self.results(staged)
