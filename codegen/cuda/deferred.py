# SPDX-License-Identifier: Apache-2.0
"""Where an epilogue can be cut in two: at values that fit beside the next tile's accumulators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from fusec.codegen.cuda.numbering import Numbering, children
from fusec.tile.nodes import Store
from fusec.tile.scalar import Apply, Buffer, Load, ScalarExpr, rewrite


@dataclass(frozen=True)
class DeferredEpilogue:
    """``values`` is computed from a tile's accumulators at once and held in ``slots``, of 16 bits each, or of 32 where
    they are ``whole``; ``rest`` stores what is computed from there, under the next tile's MMAs."""

    values: tuple[ScalarExpr, ...]
    slots: tuple[Buffer, ...]
    rest: tuple[Store, ...]
    whole: bool = False

    @property
    def words(self) -> int:
        """Of two neighbours."""
        return len(self.values) * (2 if self.whole else 1)


def whole_epilogue(stores: Sequence[Store], sums: Sequence[Load]) -> DeferredEpilogue:
    """All of the epilogue is deferred: the accumulators are held as they are."""
    slots = {x.buffer: Buffer(f"deferred_{k}", x.dtype, (), (), "tile") for k, x in enumerate(sums)}

    def held(e: ScalarExpr) -> ScalarExpr | None:
        return Load(slots[e.buffer], ()) if isinstance(e, Load) and e.buffer in slots else None

    rest = tuple(replace(s, value=rewrite(s.value, held)) for s in stores)
    return DeferredEpilogue(tuple(sums), tuple(slots.values()), rest, whole=True)


def deferred_epilogue(stores: Sequence[Store], accumulators: Collection[Buffer]) -> DeferredEpilogue | None:
    """The cut nearest the accumulators; None where more values than accumulators cross it, or one that is not
    rounded."""
    cut = _Cut(accumulators)
    rest = []
    for store in stores:
        value = cut.rest_of(store.value)
        if value is None and store.target.dtype.is_half:
            value = cut.put(Apply("cast", (store.value,), store.target.dtype))
        if value is None:
            return None
        rest.append(replace(store, value=value))
    if not 0 < len(cut.values) <= len(accumulators):
        return None
    return DeferredEpilogue(tuple(cut.values.values()), tuple(load.buffer for load in cut.loads.values()), tuple(rest))


class _Cut:
    def __init__(self, accumulators: Collection[Buffer]) -> None:
        self.accumulators = accumulators
        self.values: dict[int, Apply] = {}
        self.loads: dict[int, Load] = {}
        self.number = Numbering().number
        self.can: dict[int, bool] = {}
        self.reads: dict[int, bool] = {}

    def rest_of(self, e: ScalarExpr) -> ScalarExpr | None:
        """The value with what is deferred read instead; None where it reads an accumulator that nothing rounds."""
        return rewrite(e, self._change) if self._can_be_cut(e) else None

    def put(self, value: Apply) -> Load:
        number = self.number(value)
        if number not in self.values:
            self.values[number] = value
            name = f"deferred_{len(self.loads)}"
            self.loads[number] = Load(Buffer(name, value.dtype, (), (), "tile"), ())
        return self.loads[number]

    def _change(self, e: ScalarExpr) -> ScalarExpr | None:
        return self.put(e) if isinstance(e, Apply) and self._is_stored(e) else None

    def _reads_accumulators(self, e: ScalarExpr) -> bool:
        number = self.number(e)
        if number not in self.reads:
            here = isinstance(e, Load) and e.buffer in self.accumulators
            self.reads[number] = here or any(map(self._reads_accumulators, children(e)))
        return self.reads[number]

    def _can_be_cut(self, e: ScalarExpr) -> bool:
        number = self.number(e)
        if number not in self.can:
            leaf = isinstance(e, Load) and e.buffer in self.accumulators
            self.can[number] = not leaf and (self._rounds(e) or all(map(self._can_be_cut, children(e))))
        return self.can[number]

    def _rounds(self, e: ScalarExpr) -> bool:
        """A rounding, or one that may be left out: a ``copy`` where a library's call would round (``inline.py``)."""
        return isinstance(e, Apply) and e.op in ("cast", "copy") and e.dtype.is_half

    def _is_stored(self, e: Apply) -> bool:
        """Whether it is rounded here and what it is made of can't be cut before."""
        return self._rounds(e) and self._reads_accumulators(e) and not all(map(self._can_be_cut, e.args))
