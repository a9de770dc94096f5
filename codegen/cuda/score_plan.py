# SPDX-License-Identifier: Apache-2.0
"""What a plan for ``attention.cuh`` says of scores, as the user made them: a part once a block, a row, or a key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from math import inf

from fusec.codegen.cuda.numbering import Numbering
from fusec.codegen.cuda.plan import PlanWriter
from fusec.codegen.cuda.scalars import Scalars, bare
from fusec.codegen.cuda.scores import (
    as_indices,
    bounds_of_keys,
    compared_to_key,
    constants_of,
    folded,
    over_offsets,
    spread,
)
from fusec.codegen.cuda.spelling import literal
from fusec.ir.index import Index, Symbol, bounds, symbol
from fusec.ir.types import f32
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, reads_memory, rewrite
from fusec.tile.templates import AttentionNest

SCORE_NAMES = "Row at raw number offset changed score_masked score_whole factor plain scaled"


class ScorePlan:
    """Writes the members that scores need: constants of a block, ``struct Row`` and ``at``, and the scores' functions.

    masked, whole: which of the loops' scores each function computes. factor: what holds a number that data say of a
    block, by which alone products are multiplied; looked for where the header takes one (``factors``).
    """

    def __init__(self, plan: PlanWriter, nest: AttentionNest, factors: bool = False) -> None:
        self.plan, self.nest = plan, nest
        self.whole = nest.whole
        self.masked = next((n for n in range(len(nest.loops)) if n != nest.whole), nest.whole)
        self.limit = next((loop.limit for loop in nest.loops if loop.limit is not None), None)
        self.scale = nest.loops[nest.whole].scale
        key, row = nest.key.var, nest.query.var
        self.offset = Buffer("offset", f32, (), (), "tile")
        self.tiles = {self.offset, *(loop.raw for loop in nest.loops)}
        scores = [self._cheaper(loop.score) for loop in nest.loops]
        self.constants = self._held("steady", scores, (row, key, nest.first_key))
        scores = [_over(self.constants, s) for s in scores]
        self.factor, scores = self._without_factor(scores) if factors else (None, scores)
        self.of_rows = self._held("same", scores, (key,))
        scores = [_over(self.of_rows, s) for s in scores]
        self.bounds = self._bounds(scores)
        self.scores = [rewrite(s, self._over_bounds) for s in scores]

    def _cheaper(self, score: ScalarExpr) -> ScalarExpr:
        key = self.nest.key.var
        by_offset = over_offsets(compared_to_key(as_indices(score), key), key, self.offset)
        return spread(folded(by_offset), key, self.offset, self.tiles)

    def _held(self, name: str, scores: Sequence[ScalarExpr], varying: Collection[Symbol]) -> dict[ScalarExpr, Buffer]:
        """Parts that are computed before the scores, and what holds them; nothing is loaded beyond the last row."""
        odd = self.nest.query.limit is not None and self.nest.query.var not in varying
        found = dict.fromkeys(part for s in scores for part in constants_of(s, varying, self.tiles))
        parts = [p for p in found if _is_made(p) and not (odd and reads_memory(p))]
        return {part: Buffer(self.plan.names.unique(name), part.dtype, (), (), "tile") for part in parts}

    def _without_factor(self, scores: list[ScalarExpr]) -> tuple[Buffer | None, list[ScalarExpr]]:
        """The constant of a block that all products are multiplied by, and the scores without it."""
        found: set[Buffer] = set()
        made: list[ScalarExpr] = []
        for loop, score in zip(self.nest.loops, scores, strict=True):
            held = {b for b in self.constants.values() if b.dtype is f32}
            without = _product_alone(score, loop.raw, held, found) if loop.factor == 1.0 else None
            if without is None:
                return None, scores
            made.append(without)
        return (found.pop(), made) if len(found) == 1 else (None, scores)

    def _bounds(self, scores: Sequence[ScalarExpr]) -> dict[Index, Symbol]:
        """What keys are compared to, and the symbol that stands for it."""
        found = dict.fromkeys(b for s in scores for b in bounds_of_keys(s, self.nest.key.var))
        limits = [self.limit] if self.limit is not None and not isinstance(self.limit, int) else []
        return {b: symbol(self.plan.names.unique("bound"), *bounds(b)) for b in dict.fromkeys([*found, *limits])}

    def _over_bounds(self, e: ScalarExpr) -> ScalarExpr | None:
        if isinstance(e, IndexValue) and e.index in self.bounds:
            return IndexValue(self.bounds[e.index], e.dtype)
        return None

    # The plan

    def members(self) -> None:
        if self.constants:
            self.plan.writer.line(f"float {', '.join(b.name for b in self.constants.values())};")
        if self.factor is not None:
            self.plan.writer.line("float factor;")
            self.plan.writer.line("bool plain;")

    def begin(self) -> None:
        """Sets what all of a block's scores have in common."""
        scalars = self._scalars({}, self.plan.symbols, list(self.constants))
        for part, held in self.constants.items():
            self.plan.writer.line(f"{held.name} = {bare(scalars.value(part))};")
        if self.factor is not None:
            name = self.factor.name
            self.plan.writer.line(f"plain = {name} >= 0x1p-60f && {name} <= 0x1p40f;")
            self.plan.writer.line(f"factor = plain ? {name} * kScale : kScale;")

    def rows(self) -> None:
        """What the scores of a row have in common in a block of keys; ``first_key`` is the key at offset 0."""
        line = self.plan.writer.line
        floats = ", ".join(b.name for b in self.of_rows.values())
        integers = ", ".join(["row", "first_key", *(s.name for s in self.bounds.values())])
        line()
        with self.plan.writer.block("struct Row", "};"):
            line(f"int {integers};")
            if floats:
                line(f"float {floats};")
        line()
        with self.plan.writer.block("Row at(int row, int first_key) const"), self.plan.names.scope():
            known = {b: b.name for b in self.constants.values()}
            scalars = self._scalars(known, self.plan.symbols, list(self.of_rows))
            values = ["row", "first_key", *(bare(self.plan.index(b)) for b in self.bounds)]
            values += [bare(scalars.value(part)) for part in self.of_rows]
            line(f"return {{{', '.join(values)}}};")

    def functions(self) -> None:
        """A score of a block that the mask touches, or that lies at the end, and one of all other blocks."""
        if self.factor is not None:
            self.plan.writer.line()
            with self.plan.writer.block("float scaled(float raw) const"):
                self.plan.writer.line(f"return raw * {self.factor.name};")
        self._function("score_masked", self.masked, self.limit)
        self._function("score_whole", self.whole, self.nest.loops[self.whole].limit)

    def _function(self, name: str, number: int, limit: Index | None) -> None:
        """The score of a row at an offset: of a key within a block, counted from the row's ``first_key``."""
        line, loop, score = self.plan.writer.line, self.nest.loops[number], self.scores[number]
        nest = self.nest
        symbols = self.plan.symbols | {nest.query.var: "at.row", nest.first_key: "at.first_key"}
        symbols |= {s: f"at.{s.name}" for s in self.bounds.values()}
        line()
        with (
            self.plan.writer.block(f"float {name}(float raw, const Row& at, int offset, float number) const"),
            self.plan.names.scope(),
        ):
            beyond = None if limit is None else f"offset >= {bare(self._limit(limit, symbols))}"
            last = self.plan.m.limit
            if reads_memory(score):
                if beyond is not None:
                    line(f"if ({beyond}) return -infinity;")
                    beyond = None
                if last is not None:
                    line(f"if (at.row >= {bare(self.plan.index(last))}) return raw;")
            known = {loop.raw: "raw", self.offset: "number", **{b: b.name for b in self.constants.values()}}
            known |= {b: f"at.{b.name}" for b in self.of_rows.values()}
            value = _guarded(score)
            if value is not score and isinstance(value, Apply):
                scalars = self._scalars(known, symbols, [value])
                line(f"const float changed = {bare(scalars.value(value))};")
                changed = Buffer("changed", f32, (), (), "tile")
                known[changed] = "changed"
                score = rewrite(score, lambda n: Load(changed, ()) if n is value else None)
            text = self._scalars(known, symbols, [score]).value(score)
            if loop.scale != self.scale:
                text = f"{text} * {literal(loop.scale / self.scale, f32)}"
            line(f"return {bare(text) if beyond is None else f'{beyond} ? -infinity : {text}'};")

    def _limit(self, limit: Index, symbols: Mapping[Symbol, str]) -> str:
        return symbols[self.bounds[limit]] if limit in self.bounds else str(limit)

    def _scalars(
        self, known: Mapping[Buffer, str], symbols: Mapping[Symbol, str], roots: Sequence[ScalarExpr]
    ) -> Scalars:
        plan = self.plan
        index = plan.speller(symbols)
        return Scalars(plan.style, plan.names, plan.reader(known, index), index, plan.writer.line, roots)


def _over(held: Mapping[ScalarExpr, Buffer], score: ScalarExpr) -> ScalarExpr:
    number = Numbering().number
    loaded = {number(part): Load(buffer, ()) for part, buffer in held.items()}
    return rewrite(score, lambda node: loaded.get(number(node)))


def _product_alone(score: ScalarExpr, raw: Buffer, held: Set[Buffer], found: set[Buffer]) -> ScalarExpr | None:
    """``raw * held``, or a mask of it that hides by -inf, as the same of ``raw``; what holds the factor is found."""
    match score:
        case Apply("mul", (Load(a), Load(b))) if raw in (a, b) and not held.isdisjoint((a, b)):
            found |= held & {a, b}
            return Load(raw, ())
        case Apply("select", (condition, shown, Const(value))) if value == -inf:
            inner = _product_alone(shown, raw, held, found)
            return None if inner is None else Apply("select", (condition, inner, score.args[2]), score.dtype)
        case Apply("select", (condition, Const(value), shown)) if value == -inf:
            inner = _product_alone(shown, raw, held, found)
            return None if inner is None else Apply("select", (condition, score.args[1], inner), score.dtype)
    return None


def _is_made(e: ScalarExpr) -> bool:
    """Not a tile's element alone, which is held already."""
    return not isinstance(e, Load) or e.buffer.space == "parameter"


def _guarded(score: ScalarExpr) -> ScalarExpr:
    """What a mask leaves of a score: computed before the mask is looked at, which takes no branch."""
    while isinstance(score, Apply) and score.op == "select":
        unmasked = [a for a in score.args[1:] if not (isinstance(a, Const) and a.value == -inf)]
        if len(unmasked) != 1:
            return score
        (score,) = unmasked
    return score
