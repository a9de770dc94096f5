"""Blocks of keys that a mask leaves nothing in are not visited; masks of data are never trusted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from programs import check, random_inputs

from fusec.ir.index import symbol
from fusec.ir.indexing import evaluate
from fusec.ir.parse import parse
from fusec.ir.types import DType, bf16, bool_, f32, i64
from fusec.passes.lower.mask import held_in_f32, key_range, live_conditions, may_be_huge, without_factor
from fusec.passes.pipeline import lower
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, reindex

AVX512 = "cpu:x86-64-v4"
Q, K = 150, 150
QUERY, KEY, BLOCK = symbol("q", 0, 999), symbol("k", 0, 999), symbol("qo", 0, 99)


def masked(condition: str, *, queries: int = Q, keys: int = K, fill: str = "-inf", more: str = "") -> str:
    """Attention whose scores stay where %c holds, %i and %j being the query's and the key's number."""
    return f"""graph @masked(%q: f32[2, {queries}, 8], %k: f32[2, {keys}, 8], %v: f32[2, {keys}, 8]{more}) {{
        %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : f32[2, {queries}, {keys}]
        %i = iota() {{axis=0}} : i64[{queries}, 1]
        %j = iota() {{axis=1}} : i64[1, {keys}]
        {condition}
        %z = select(%c, %s, f32({fill})) : f32[2, {queries}, {keys}]
        %p = softmax(%z) {{axis=2}} : f32[2, {queries}, {keys}]
        %o = dot(%p, %v) {{contract=[2]x[1], batch=[0]x[0]}} : f32[2, {queries}, 8]
        return %o
    }}"""


def key_loop(text: str, arrays: list[np.ndarray] | None = None) -> str:
    """The bounds of the loop over keys on a CPU with AVX-512, of a graph whose values are right on this one."""
    check(text, arrays, slack=4)
    return loop_bounds(text)


def loop_bounds(text: str) -> str:
    (found,) = re.findall(r"for k0 in (.*), step \d+", lower(parse(text), AVX512, threads=2).stages["tile"])
    return found


CAUSAL = f"%c = le(%j, %i) : bool[{Q}, {K}]"


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        (CAUSAL, "0..min((64*qo + 64), 150)"),
        (
            f"""%a = le(%j, %i) : bool[{Q}, {K}]
            %d = sub(%i, %j) : i64[{Q}, {K}]
            %b = lt(%d, i64(20)) : bool[{Q}, {K}]
            %c = logical_and(%a, %b) : bool[{Q}, {K}]""",
            "64*(max((64*qo - 1), 0) // 64)..min((64*qo + 64), 150)",
        ),
        (
            f"""%a = le(%j, %i) : bool[{Q}, {K}]
            %b = lt(%j, i64(70)) : bool[1, {K}]
            %c = logical_or(%a, %b) : bool[{Q}, {K}]""",
            "0..max((64*qo + 1), 128)",
        ),
        (
            f"""%d = sub(%i, %j) : i64[{Q}, {K}]
            %e = abs(%d) : i64[{Q}, {K}]
            %c = le(%e, i64(30)) : bool[{Q}, {K}]""",
            "64*(max((64*qo - 1), 0) // 64)..min((64*qo + 128), 150)",
        ),
        (f"%c = lt(%j, i64(60)) : bool[1, {K}]", "0..64"),
        (f"%c = ge(%j, i64(140)) : bool[1, {K}]", "128..129"),
    ],
    ids=["causal", "window", "prefix", "symmetric window", "first keys", "last keys"],
)
def test_empty_blocks_are_not_visited(condition: str, bounds: str) -> None:
    assert key_loop(masked(condition)) == bounds


def test_causal_with_more_keys_than_queries() -> None:
    condition = f"%d = add(%i, i64(100)) : i64[{Q}, 1]\n%c = le(%j, %d) : bool[{Q}, 250]"
    assert key_loop(masked(condition, keys=250)) == "0..min((64*qo + 192), 250)"


def test_a_finite_fill_masks_where_every_row_keeps_a_key() -> None:
    assert key_loop(masked(CAUSAL, fill="-3.4028235e38")) == "0..min((64*qo + 64), 150)"


def test_rows_without_a_key_are_the_mean_of_all_values_under_a_finite_fill() -> None:
    """exp(fill - fill) is 1 for every key, so no block may be left out."""
    condition = f"%x = sub(%i, i64(3)) : i64[{Q}, 1]\n%c = le(%j, %x) : bool[{Q}, {K}]"
    assert key_loop(masked(condition, fill="-1e30")) == "0..150"


def test_rows_without_a_key_are_nan_under_an_infinite_fill() -> None:
    condition = f"%x = sub(%i, i64(3)) : i64[{Q}, 1]\n%c = le(%j, %x) : bool[{Q}, {K}]"
    run = check(masked(condition), slack=4)
    assert loop_bounds(masked(condition)) == "0..min((64*qo + 64), 150)"
    assert np.isnan(run.outputs[0][:, :3]).all()


def test_scores_that_become_nan_under_another_mask_are_visited() -> None:
    """-inf * 0 is NaN for the keys that the second mask hides, and NaN plus -inf is NaN: the row is NaN in eager."""
    text = f"""graph @g(%q: f32[2, {Q}, 16], %k: f32[2, {K}, 16], %v: f32[2, {K}, 16]) {{
      %j = iota() {{axis=1}} : i64[1, {K}]
      %d = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : f32[2, {Q}, {K}]
      %c = lt(%j, i64(64)) : bool[1, {K}]
      %f = select(%c, %d, f32(-inf)) : f32[2, {Q}, {K}]
      %b = lt(%j, i64(64)) : bool[1, {K}]
      %n = cast(%b) : f32[1, {K}]
      %z = mul(%f, %n) : f32[2, {Q}, {K}]
      %h = select(%c, f32(0.0), f32(-inf)) : f32[1, {K}]
      %s = add(%z, %h) : f32[2, {Q}, {K}]
      %p = softmax(%s) {{axis=2}} : f32[2, {Q}, {K}]
      %o = dot(%p, %v) {{contract=[2]x[1], batch=[0]x[0]}} : f32[2, {Q}, 16]
      return %o
    }}"""
    run = check(text, slack=4)
    assert np.isnan(run.outputs[0]).all()


def test_a_mask_loaded_from_data_skips_nothing() -> None:
    text = masked("%c = copy(%m) : bool[150, 150]", more=", %m: bool[150, 150]")
    arrays = random_inputs(parse(text))
    arrays[3] = np.tri(150, dtype=np.bool_)
    assert key_loop(text, arrays).startswith("0..1")


def test_documents_from_data_skip_nothing() -> None:
    condition = f"""%x = reshape(%doc) : i64[{Q}, 1]
        %y = reshape(%doc) : i64[1, {K}]
        %c = eq(%x, %y) : bool[{Q}, {K}]"""
    text = masked(condition, more=f", %doc: i64[{Q}]")
    arrays = random_inputs(parse(text))
    arrays[3] = np.sort(arrays[3])
    assert key_loop(text, arrays).startswith("0..1")


def test_causal_documents_skip_what_the_causal_part_does() -> None:
    condition = f"""%x = reshape(%doc) : i64[{Q}, 1]
        %y = reshape(%doc) : i64[1, {K}]
        %b = eq(%x, %y) : bool[{Q}, {K}]
        %a = le(%j, %i) : bool[{Q}, {K}]
        %c = logical_and(%a, %b) : bool[{Q}, {K}]"""
    text = masked(condition, more=f", %doc: i64[{Q}]")
    assert key_loop(text) == "0..min((64*qo + 64), 150)"


# the analysis alone, against brute force


def _apply(op: str, *args: ScalarExpr) -> Apply:
    return Apply(op, args, bool_ if op in ("le", "lt", "ge", "eq", "logical_and", "logical_or") else i64)


def _number(n: int) -> Const:
    return Const(n, i64)


ROW, COLUMN = IndexValue(QUERY), IndexValue(KEY)
MASKS: dict[str, tuple[ScalarExpr, Callable[[int, int], bool]]] = {
    "causal": (_apply("le", COLUMN, ROW), lambda i, j: j <= i),
    "strictly causal": (_apply("lt", COLUMN, ROW), lambda i, j: j < i),
    "anticausal": (_apply("ge", COLUMN, ROW), lambda i, j: j >= i),
    "blocks": (
        _apply("eq", _apply("floordiv", ROW, _number(24)), _apply("floordiv", COLUMN, _number(24))),
        lambda i, j: i // 24 == j // 24,
    ),
    "every seventh": (_apply("eq", _apply("remainder", COLUMN, _number(7)), _number(0)), lambda i, j: j % 7 == 0),
    "window": (
        _apply("logical_and", _apply("le", COLUMN, ROW), _apply("lt", _apply("sub", ROW, COLUMN), _number(9))),
        lambda i, j: j <= i and i - j < 9,
    ),
    "prefix": (
        _apply("logical_or", _apply("le", COLUMN, ROW), _apply("lt", COLUMN, _number(21))),
        lambda i, j: j <= i or j < 21,
    ),
    "never": (_apply("lt", COLUMN, _number(0)), lambda i, j: False),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    ("queries", "keys"), [((50, 16), (50, 8)), ((37, 8), (90, 16)), ((90, 16), (37, 8)), ((1, 16), (5, 8))]
)
def test_every_key_that_counts_is_visited(name: str, queries: tuple[int, int], keys: tuple[int, int]) -> None:
    condition, holds = MASKS[name]
    score = Apply("select", (condition, Const(1.0, f32), Const(-float("inf"), f32)), f32)
    found = key_range(score, QUERY, KEY, queries, keys, BLOCK)
    for block in range(-(-queries[0] // queries[1])):
        start, stop = (evaluate(e, {"qo": block}) for e in (found.start, found.stop))
        assert start % keys[1] == 0
        rows = range(block * queries[1], min(queries[0], (block + 1) * queries[1]))
        needed = {j for i in rows for j in range(keys[0]) if holds(i, j)}
        visited = {j for j in range(start, keys[0]) if start + (j - start) // keys[1] * keys[1] < stop}
        assert needed <= visited, (block, start, stop)
        if found.full is not None:
            first, last = (evaluate(e, {"qo": block}) for e in found.full)
            assert all(holds(i, j) for i in rows for j in range(first, last)), (block, first, last)


RAW = Load(Buffer("score", f32, (), (), "tile"), ())


def _applied(op: str, *args: ScalarExpr, dtype: DType = bf16) -> Apply:
    return Apply(op, args, dtype)


def test_a_factor_is_found_under_the_roundings_of_a_library() -> None:
    wide = _applied("cast", RAW, dtype=f32)
    scaled = _applied("copy", _applied("mul", wide, Const(0.125, f32), dtype=f32))
    masked_ = _applied("select", Const(True, bool_), Const(-float("inf"), bf16), scaled)
    base, factor = without_factor(held_in_f32(_applied("cast", masked_, dtype=f32)))
    assert factor == 0.125
    assert base == Apply("select", (Const(True, bool_), Const(-float("inf"), bf16), RAW), bf16)


def test_a_factor_above_the_most_stays_in_the_base() -> None:
    large = _applied("mul", RAW, Const(8.0, f32), dtype=f32)
    assert without_factor(large, most=1.0) == (large, 1.0)
    assert without_factor(_applied("mul", large, Const(0.5, f32), dtype=f32), most=1.0) == (large, 0.5)
    capped = _applied("tanh", RAW, dtype=f32)
    assert without_factor(_applied("mul", capped, Const(50.0, f32), dtype=f32), most=1.0) == (capped, 50.0)
    small = _applied("div", RAW, Const(8.0, f32), dtype=f32)
    assert without_factor(_applied("mul", small, Const(4.0, f32), dtype=f32), most=1.0) == (RAW, 0.5)


def test_a_users_rounding_stands_between_a_factor_and_the_scores() -> None:
    scaled = _applied("mul", RAW, Const(0.125, f32), dtype=f32)
    rounded = _applied("cast", _applied("cast", scaled), dtype=f32)
    assert held_in_f32(rounded) == _applied("cast", scaled)
    assert without_factor(held_in_f32(rounded))[1] == 1.0


def test_a_mask_is_seen_through_a_positive_factor() -> None:
    condition = Apply("le", (IndexValue(KEY), IndexValue(QUERY)), bool_)
    below = Apply("select", (condition, RAW, Const(-float("inf"), f32)), f32)
    (live,) = live_conditions(Apply("mul", (below, Const(0.5, f32)), f32))
    assert (live.condition, live.wanted, live.exact) == (condition, True, True)
    low = Apply("select", (condition, RAW, Const(-1e30, f32)), f32)
    assert not live_conditions(Apply("mul", (low, Const(1e-10, f32)), f32))
    assert not live_conditions(Apply("mul", (below, Const(-0.5, f32)), f32))


@pytest.mark.parametrize(("more", "huge"), [(0.5, False), (-float("inf"), False), (-1e9, True), (-3e38, True)])
def test_a_fill_makes_finite_scores_huge(more: float, huge: bool) -> None:
    assert may_be_huge(Apply("select", (Const(True, bool_), RAW, Const(more, f32)), f32)) is huge


def test_a_bias_that_is_read_may_be_huge_and_one_of_indices_not() -> None:
    bias = Load(Buffer("bias", bf16, (9,), (1,)), (KEY,))
    assert may_be_huge(Apply("add", (RAW, bias), f32))
    assert not may_be_huge(Apply("add", (RAW, Apply("cast", (IndexValue(KEY),), f32)), f32))


def test_long_sequences_take_no_long_look() -> None:
    size = 1 << 20
    query, key, block = symbol("q", 0, size - 1), symbol("k", 0, size - 1), symbol("qo", 0, size // 2048 - 1)
    behind = Apply("le", (IndexValue(key), IndexValue(query)), bool_)
    score = Apply("select", (behind, RAW, Const(-1e38, f32)), f32)
    found = key_range(score, query, key, (size, 2048), (size, 64), block)
    assert evaluate(found.stop, {"qo": 3}) == 4 * 2048
    assert found.full is not None
    assert evaluate(found.full[1], {"qo": 3}) == 3 * 2048


def _index(op: str, *args: ScalarExpr, to: DType = i64) -> Apply:
    return Apply(op, args, to)


ROW, COLUMN = IndexValue(QUERY), IndexValue(KEY)
BEHIND, DISTANCE = _index("le", COLUMN, ROW, to=bool_), _index("sub", ROW, COLUMN)


def _less(a: ScalarExpr, b: int) -> Apply:
    return _index("lt", a, Const(b, i64), to=bool_)


def _either(a: ScalarExpr, b: ScalarExpr) -> Apply:
    return _index("logical_or", a, b, to=bool_)


def _also(a: ScalarExpr, b: ScalarExpr) -> Apply:
    return _index("logical_and", a, b, to=bool_)


KINDS: dict[str, tuple[ScalarExpr, Callable[[Any, Any], Any]]] = {
    "causal": (BEHIND, lambda i, j: j <= i),
    "ahead": (_index("le", COLUMN, _index("add", ROW, Const(75, i64)), to=bool_), lambda i, j: j <= i + 75),
    "window": (_also(BEHIND, _less(DISTANCE, 90)), lambda i, j: (j <= i) & (i - j < 90)),
    "not before": (_index("ge", COLUMN, ROW, to=bool_), lambda i, j: j >= i),
    "window after": (
        _also(_index("ge", COLUMN, ROW, to=bool_), _less(_index("sub", COLUMN, ROW), 90)),
        lambda i, j: (j >= i) & (j - i < 90),
    ),
    "both sides": (_less(_index("abs", DISTANCE), 70), lambda i, j: abs(i - j) < 70),
    "prefix": (_either(BEHIND, _less(COLUMN, 100)), lambda i, j: (j <= i) | (j < 100)),
    "sinks": (
        _either(_also(BEHIND, _less(DISTANCE, 50)), _less(COLUMN, 4)),
        lambda i, j: (j <= i) & (i - j < 50) | (j < 4),
    ),
    "keys": (_less(COLUMN, 130), lambda i, j: (j < 130) & (i >= 0)),
}


@pytest.mark.parametrize("queries", [16, 32, 64])
@pytest.mark.parametrize("keys", [16, 32, 64])
@pytest.mark.parametrize("extents", [(300, 300), (256, 320), (320, 256)])
@pytest.mark.parametrize("name", list(KINDS))
def test_nothing_kept_is_left_out_and_nothing_masked_is_taken_for_whole(
    name: str, extents: tuple[int, int], keys: int, queries: int
) -> None:
    condition, kept = KINDS[name]
    rows, columns = extents
    query, key, block = symbol("q", 0, rows - 1), symbol("k", 0, columns - 1), symbol("qo", 0, -(-rows // queries) - 1)
    score = reindex(Apply("select", (condition, RAW, Const(-float("inf"), f32)), f32), {QUERY: query, KEY: key})
    found = key_range(score, query, key, (rows, queries), (columns, keys), block)
    table = np.broadcast_to(kept(np.arange(rows)[:, None], np.arange(columns)[None, :]), (rows, columns))
    for b in range(-(-rows // queries)):
        part = table[b * queries : (b + 1) * queries]
        start, stop = (evaluate(bound, {"qo": b}) for bound in (found.start, found.stop))
        assert start % keys == 0
        assert not part[:, :start].any()
        assert not part[:, -(-stop // keys) * keys :].any()
        if found.full is not None:
            first, last = (evaluate(bound, {"qo": b}) for bound in found.full)
            assert first % keys == last % keys == 0
            assert start <= first <= last
            assert last <= max(-(-stop // keys) * keys, first)
            assert part[:, first:last].all()


@pytest.mark.parametrize("name", ["causal", "window", "not before", "both sides", "prefix", "keys"])
def test_usual_masks_have_whole_blocks(name: str) -> None:
    condition, _ = KINDS[name]
    query, key, block = symbol("q", 0, 511), symbol("k", 0, 511), symbol("qo", 0, 31)
    score = reindex(Apply("select", (condition, RAW, Const(-float("inf"), f32)), f32), {QUERY: query, KEY: key})
    found = key_range(score, query, key, (512, 16), (512, 16), block)
    assert found.full is not None
    assert evaluate(found.full[1], {"qo": 20}) > evaluate(found.full[0], {"qo": 20})
