"""Keys that a mask made of data leaves: every block of queries visits those alone, and the results stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import Run, build, check, check_built, random_inputs

from fusec.ir.index import symbol
from fusec.ir.parse import parse
from fusec.ir.types import bool_, f32, i64
from fusec.passes.families.attention.bounds import key_tests
from fusec.passes.families.attention.schedule.gpu import GpuAttentionSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.mask import Live
from fusec.passes.schedule.launch import Launch
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import GpuTarget, gpu_target
from fusec.tile.scalar import Apply, Buffer, IndexValue, Load

TARGET = gpu_target("cuda:sm_90")
N = 150


class InBlocks(GpuSelector):
    """Lowers attention in blocks of 16 queries and 16 keys."""

    def lower(self, context: LoweringContext) -> LoweredGroup:
        return lower_with(context, GpuAttentionSchedule(16, 16, Launch(4, 1)))  # type: ignore[return-value]


class InParts(GpuSelector):
    """Lowers attention in blocks of 16 queries and 16 keys, and parts of the keys."""

    def __init__(self, target: GpuTarget, *, parts: int) -> None:
        super().__init__(target)
        self.parts = parts

    def lower(self, context: LoweringContext) -> LoweredGroup:
        return lower_with(context, GpuAttentionSchedule(16, 16, Launch(4, 1), self.parts))  # type: ignore[return-value]


def masked(*lines: str, inputs: str = "%ids: i64[2, 150]", fill: str = "-inf") -> str:
    return "\n  ".join(
        (
            f"graph @g(%q: f32[2, {N}, 16], %k: f32[2, {N}, 16], %v: f32[2, {N}, 16], {inputs}) {{",
            f"%s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : f32[2, {N}, {N}]",
            f"%i = iota() {{axis=0}} : i64[{N}, 1]",
            f"%j = iota() {{axis=1}} : i64[1, {N}]",
            *lines,
            f"%z = select(%c, %s, f32({fill})) : f32[2, {N}, {N}]",
            f"%p = softmax(%z) {{axis=2}} : f32[2, {N}, {N}]",
            f"%o = dot(%p, %v) {{contract=[2]x[1], batch=[0]x[0]}} : f32[2, {N}, 16]",
            "return %o\n}",
        )
    )


SAME = (
    "%a = reshape(%ids) : i64[2, 150, 1]",
    "%b = reshape(%ids) : i64[2, 1, 150]",
    "%c = eq(%a, %b) : bool[2, 150, 150]",
)
CAUSAL = (*SAME[:2], "%e = eq(%a, %b) : bool[2, 150, 150]", "%l = le(%j, %i) : bool[150, 150]")
BOTH = (*CAUSAL, "%c = logical_and(%e, %l) : bool[2, 150, 150]")


def run(text: str, *data: Any) -> Run:
    arrays = [*random_inputs(parse(text))[:3], *data]
    return check(text, arrays, target=TARGET.name, selector=InBlocks(TARGET), slack=6, atol=2e-6)


def documents(*lengths: int) -> np.ndarray[Any, Any]:
    ids = np.repeat(np.arange(len(lengths)), lengths)
    return np.stack([ids, ids[::-1]]).astype(np.int64)


@pytest.mark.parametrize("lines", [SAME, BOTH])
@pytest.mark.parametrize("kind", ["sorted", "one", "shuffled", "single"])
def test_documents(lines: tuple[str, ...], kind: str) -> None:
    ids = documents(*{"one": [150], "single": [1] * 150}.get(kind, [40, 3, 57, 50]))
    if kind == "shuffled":
        ids = np.random.default_rng(0).permuted(ids, axis=1)
    assert "within first_key[]..past_key[]" in run(masked(*lines), ids).lowered.stages["tile"]


def test_blocks_of_other_documents_are_not_visited() -> None:
    """What is there does not reach the result, not even as 0 times NaN."""
    text = masked(*SAME)
    arrays = [*random_inputs(parse(text))[:3], documents(64, 86)]
    whole = check(text, arrays, target=TARGET.name, selector=InBlocks(TARGET), slack=6, atol=2e-6)
    arrays[2] = arrays[2].copy()
    arrays[2][0, :64] = np.nan
    from programs import run as run_only

    found = run_only(parse(text), arrays, target=TARGET.name, selector=InBlocks(TARGET))
    np.testing.assert_array_equal(found.outputs[0][0, 64:], whole.outputs[0][0, 64:])
    assert np.isnan(found.outputs[0][0, :64]).all()


def test_padding_and_lengths() -> None:
    keep = np.zeros((2, N), bool)
    keep[0, 37:91], keep[1, 149] = True, True
    kept = "%c = reshape(%keep) : bool[2, 1, 150]"
    assert "within" in run(masked(kept, inputs="%keep: bool[2, 150]"), keep).lowered.stages["tile"]
    short = ("%n = reshape(%length) : i64[2, 1, 1]", "%c = lt(%j, %n) : bool[2, 1, 150]")
    text = masked(*short, inputs="%length: i64[2]")
    assert "within" in run(text, np.asarray([3, 150])).lowered.stages["tile"]


@pytest.mark.parametrize("compare", ["lt", "le", "eq", "gt", "ge"])
@pytest.mark.parametrize("negated", [False, True])
def test_what_is_compared_with_a_key_itself_is_a_bound(compare: str, negated: bool) -> None:
    """No key is looked at for it, whatever the number, and whichever side it stands on; but for one that is hidden."""
    rows = "bool[2, 1, 150]"
    test = f"%e = {compare}(%n, %j) : {rows}" if negated else f"%e = {compare}(%j, %n) : {rows}"
    change = f"%c = logical_not(%e) : {rows}" if negated else f"%c = copy(%e) : {rows}"
    text = masked("%n = reshape(%length) : i64[2, 1, 1]", test, change, inputs="%length: i64[2]")
    selector = InParts(TARGET, parts=3 if negated else 1)
    made = build(text, target=TARGET.name, selector=selector, compiled=False)
    tile = made.lowered.stages["tile"]
    assert "within" in tile
    assert ("first_key[] <- " in tile) == (negated and compare == "eq")
    for lengths in ([0, 150], [-1, 33], [2**63 - 1, -(2**63)]):
        arrays = [*random_inputs(made.graph)[:3], np.asarray(lengths)]
        check_built(made, arrays, slack=6, atol=2e-6)


def test_bounds_and_what_is_looked_up() -> None:
    """Keys are looked at from the first to the last that their numbers leave."""
    both = ("%n = reshape(%length) : i64[2, 1, 1]", "%l = lt(%j, %n) : bool[2, 1, 150]", *SAME[:2])
    chosen = (*both, "%e = eq(%a, %b) : bool[2, 150, 150]", "%c = logical_and(%e, %l) : bool[2, 150, 150]")
    text = masked(*chosen, inputs="%ids: i64[2, 150], %length: i64[2]")
    found = run(text, documents(40, 3, 57, 50), np.asarray([47, 120]))
    tile = found.lowered.stages["tile"]
    assert "first_key_1[] <- " in tile
    assert "within first_key[]..past_key[]" in tile
    assert "within first_key_1[]..past_key_1[]" in tile


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_heads_that_share_keys_share_bounds(parts: int) -> None:
    """Parts of what a sequence has, not of what it may have."""
    text = """graph @g(%q: f32[2, 4, 3, 16], %k: f32[2, 2, 150, 16], %v: f32[2, 2, 150, 16], %length: i64[2]) {
      %g = reshape(%q) : f32[2, 2, 2, 3, 16]
      %s = dot(%g, %k) {contract=[4]x[3], batch=[0, 1]x[0, 1]} : f32[2, 2, 2, 3, 150]
      %j = iota() {axis=0} : i64[150]
      %i = iota() {axis=0} : i64[3, 1]
      %m = reshape(%length) : i64[2, 1, 1]
      %n = add(%m, %i) : i64[2, 3, 1]
      %c = lt(%j, %n) : bool[2, 3, 150]
      %t = reshape(%c) : bool[2, 1, 1, 3, 150]
      %z = select(%t, %s, f32(-inf)) : f32[2, 2, 2, 3, 150]
      %p = softmax(%z) {axis=4} : f32[2, 2, 2, 3, 150]
      %o = dot(%p, %v) {contract=[4]x[2], batch=[0, 1]x[0, 1]} : f32[2, 2, 2, 3, 16]
      return %o
    }"""
    made = build(text, target=TARGET.name, selector=InParts(TARGET, parts=parts), compiled=False)
    for lengths in ([150, 3], [0, 149]):
        check_built(made, [*random_inputs(made.graph)[:3], np.asarray(lengths)], slack=6, atol=2e-6)
    tile = made.lowered.stages["tile"]
    assert ("within part_first" if parts > 1 else "within first_key") in tile
    assert "qi:min(16, 6)" in tile


def test_rows_without_any_key_are_what_the_code_makes_of_them() -> None:
    found = run(masked("%c = reshape(%keep) : bool[2, 1, 150]", inputs="%keep: bool[2, 150]"), np.zeros((2, N), bool))
    assert np.isnan(found.outputs[0]).all()


def test_a_finite_fill_is_not_trusted() -> None:
    """A row of which every score is masked is the mean of all values."""
    text = masked("%c = reshape(%keep) : bool[2, 1, 150]", inputs="%keep: bool[2, 150]", fill="-1e38")
    found = run(text, np.zeros((2, N), bool))
    assert "within" not in found.lowered.stages["tile"]


QUERY, KEY = symbol("q", 0, 99), symbol("k", 0, 99)
IDS = Buffer("ids", i64, (100,), (1,), "parameter")
WEIGHTS = Buffer("w", f32, (100,), (1,), "parameter")


def test_what_is_told_of_keys() -> None:
    f, g = Load(IDS, (QUERY,)), Load(IDS, (KEY,))

    def told(op: str, a: Any, b: Any, wanted: bool = True) -> list[tuple[str, str]]:
        found = key_tests([Live(Apply(op, (a, b), bool_), wanted, True)], QUERY, KEY)
        assert all(t.key == g and t.query == f for t in found)
        return [(t.compare, t.extreme) for t in found]

    both = [("ge", "min"), ("le", "max")]
    assert told("eq", f, g) == told("eq", g, f) == told("ne", f, g, wanted=False) == both
    assert told("ne", f, g) == told("eq", f, g, wanted=False) == []
    assert told("lt", g, f) == told("gt", f, g) == told("le", f, g, wanted=False) == [("lt", "max")]
    assert told("ge", g, f) == told("le", f, g) == [("ge", "min")]


def test_what_is_told_of_several_heads_keys() -> None:
    head = symbol("h", 0, 3)
    own, keys = Load(Buffer("n", i64, (4,), (1,), "parameter"), (head,)), IndexValue(KEY)
    (alone,) = key_tests([Live(Apply("lt", (keys, own), bool_), True, True)], QUERY, KEY)
    assert alone.query is None
    (shared,) = key_tests([Live(Apply("lt", (keys, own), bool_), True, True)], QUERY, KEY, head)
    assert (shared.key, shared.compare, shared.extreme, shared.query) == (keys, "lt", "max", own)


def test_what_is_not_told() -> None:
    f, g = Load(IDS, (QUERY,)), Load(IDS, (KEY,))
    mixed = Load(Buffer("m", i64, (100, 100), (100, 1), "parameter"), (QUERY, KEY))
    real = Apply("lt", (Load(WEIGHTS, (KEY,)), Load(WEIGHTS, (QUERY,))), bool_)
    plain = Apply("lt", (IndexValue(KEY), IndexValue(QUERY)), bool_)
    for condition in (Apply("eq", (mixed, f), bool_), Apply("eq", (mixed, g), bool_), real, plain):
        assert key_tests([Live(condition, True, True)], QUERY, KEY) == []
    same = Apply("eq", (f, g), bool_)
    assert key_tests([Live(same, True, False)], QUERY, KEY) == []
    assert len(key_tests([Live(Apply("logical_and", (same, plain), bool_), True, True)], QUERY, KEY)) == 2
    assert key_tests([Live(Apply("logical_or", (same, plain), bool_), True, True)], QUERY, KEY) == []
