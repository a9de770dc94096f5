"""Attention on a CPU whose keys several tasks share, and the kernel that joins what they leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from attentions import beside_a_sink
from programs import Built, Run, build, check, check_built, random_inputs

from fusec.ir.parse import parse
from fusec.ir.types import contiguous_strides
from fusec.passes.families.attention.cpu import keys_seen
from fusec.passes.families.attention.schedule.cpu import AttentionSchedule
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.select import Selector, lower_with
from fusec.target.cpu import cpu_target

AVX512 = "cpu:x86-64-v4"


@dataclass
class Shared(Selector):
    """Has ``split`` tasks share the keys of each attention."""

    split: int = 3

    def lower(self, context: LoweringContext) -> LoweredGroup:
        schedule = self.candidates(context)[0]
        assert isinstance(schedule, AttentionSchedule)
        return lower_with(context, replace(schedule, keys=16, split=self.split))


def attention(change: str = "%z = copy(%s)", inputs: str = "", dtype: str = "f32", queries: int = 5) -> str:
    shape = f"[2, 3, {queries}, 70]"
    lines = "\n".join(line if " : " in line else f"{line} : {dtype}{shape}" for line in change.splitlines())
    return f"""graph @attention(%q: {dtype}[2, 3, {queries}, 16], %k: {dtype}[2, 3, 70, 16],
        %v: {dtype}[2, 3, 70, 9]{inputs}) {{
        %s = dot(%q, %k) {{contract=[3]x[3], batch=[0, 1]x[0, 1]}} : {dtype}{shape}
        {lines}
        %p = softmax(%z) {{axis=3}} : {dtype}{shape}
        %o = dot(%p, %v) {{contract=[3]x[2], batch=[0, 1]x[0, 1]}} : {dtype}[2, 3, {queries}, 9]
        return %o
    }}"""


SINK = beside_a_sink(queries=5)


@cache
def built(text: str, split: int, compiled: bool) -> Built:
    """One for all data."""
    return build(text, selector=Shared(cpu_target(), 2, {}, split), compiled=compiled)


def joined(text: str, inputs: object = None, *, split: int = 3, compiled: bool = True) -> Run:
    run = check_built(built(text, split, compiled), inputs, slack=4)  # type: ignore[arg-type]
    assert run.kernels == ["attention", "row"]
    return run


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("split", [2, 3, 4, 5])
def test_parts_of_the_keys(compiled, split):
    """With five parts of 16 keys the last has six, with four it has none beyond 64."""
    joined(attention(), split=split, compiled=compiled)


def test_rows_of_which_a_part_has_nothing():
    mask = np.ones((5, 70), np.bool_)
    mask[0], mask[1, :48], mask[2, 30:] = False, False, False
    text = attention("%z = select(%m, %s, f32(-inf))", ", %m: bool[5, 70]")
    (out,) = joined(text, [*random_inputs(parse(text))[:3], mask]).outputs
    assert np.isnan(out[:, :, 0]).all()
    assert np.isfinite(out[:, :, 1:]).all()


def test_biases_and_many_queries():
    joined(attention("%z = add(%s, %b)", ", %b: f32[3, 37, 70]", queries=37))


@pytest.mark.parametrize("split", [1, 2, 3])
def test_rows_without_a_finite_score(split):
    """Zeros from the library's attention, NaN from a softmax; values that are none stay."""
    text = """graph @g(%q: f32[3, 5, 16], %k: f32[3, 70, 16], %v: f32[3, 70, 9]) {
      %o = sdpa(%q, %k, %v) {causal=false, scale=0.3, grouped=false} : f32[3, 5, 9]
      return %o
    }"""
    q, k, v = random_inputs(parse(text))
    q[0], q[1, 3], k[..., 0] = abs(q[0]), 0, -np.inf
    q[2, :, 0] = [1, 0, -1, np.nan, 2]
    v[2, 66, 1] = np.nan
    if split == 1:
        (out,) = check(text, [q, k, v], slack=4).outputs
    else:
        (out,) = joined(text, [q, k, v], split=split).outputs
    assert (out[0] == 0).all()
    assert np.isnan(out[1, 3]).all()
    assert [np.isnan(row).sum() for row in out[2]] == [1, 9, 9, 9, 1]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("split", [2, 3, 4])
@pytest.mark.parametrize("kind", ["key", "infinite key", "value", "infinite value", "query", "bias"])
def test_numbers_that_are_none_in_one_part(split, kind):
    """Whichever task finds them: in the first part, in the last keys, and where parts meet."""
    text = attention("%z = add(%s, %b)", ", %b: f32[3, 5, 70]") if kind == "bias" else attention()
    arrays = random_inputs(parse(text))
    arrays[1][...] = abs(arrays[1])
    places = (0, 31, 32, 69)
    for h, place in enumerate(places):
        at = (h % 2, h // 2)
        if kind == "key":
            arrays[1][(*at, place, 3)] = np.nan
        elif kind == "infinite key":
            arrays[1][(*at, place, 3)] = np.inf if h % 2 else -np.inf
        elif kind == "value":
            arrays[2][(*at, place, 4)] = np.nan
        elif kind == "infinite value":
            arrays[2][(*at, place, 4)] = np.inf if h % 2 else -np.inf
        elif kind == "query":
            arrays[0][(*at, 2, 3)] = (np.nan, np.inf, -np.inf, 0)[h]
        else:
            arrays[3][h % 3, 2, place] = (np.nan, np.inf, -np.inf, np.nan)[h]
    (out,) = joined(text, arrays, split=split).outputs
    assert 0 < np.isfinite(out).sum() < out.size


def window(queries: int, past: int, width: int) -> str:
    """Query i sees ``width`` keys up to i + ``past``; in halves, so that it goes for all keys too."""
    lines = (
        ("i = iota() {axis=2}", "i64"),
        ("j = iota() {axis=3}", "i64"),
        (f"l = add(%i, i64({past}))", "i64"),
        ("d = sub(%l, %j)", "i64"),
        ("a = ge(%d, i64(0))", "bool"),
        (f"b = lt(%d, i64({width}))", "bool"),
        ("m = logical_and(%a, %b)", "bool"),
        ("z = select(%m, %s, f32(-inf))", "f32"),
    )
    return "\n".join(f"%{line} : {dtype}[2, 3, {queries}, 70]" for line, dtype in lines)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("split", [2, 3, 4])
@pytest.mark.parametrize(
    ("queries", "past", "width"), [(37, 33, 99), (37, 33, 20), (70, 0, 70), (70, 0, 7), (5, 65, 40), (130, -20, 30)]
)
def test_parts_of_the_keys_that_a_mask_leaves(split, queries, past, width):
    """Rows before the first key and rows behind the last have none, and so are NaN."""
    joined(attention(window(queries, past, width), queries=queries), split=split)


@pytest.mark.parametrize(
    ("queries", "past", "width", "longest"),
    [(64, 4032, 512, 576), (64, 4032, 9999, 4096), (2048, 0, 9999, 2048), (2048, 0, 256, 320), (100, 0, 9999, 128)],
)
def test_keys_seen(queries, past, width, longest):
    keys = past + queries
    text = attention(window(queries, past, width), queries=queries).replace("70", str(keys))
    (op,) = (o for o in lower(parse(text), "cpu").graph.ops if o.name == "fused")
    strides = {v: contiguous_strides(v.type.static_shape) for v in (*op.operands, *op.results)}
    assert keys_seen(LoweringContext(op, strides, "k")) == min(longest, keys)


def test_few_queries_share_the_keys_of_their_window():
    """Each task has an even part of them, wherever they lie."""
    near, far = (attention(window(64, 4032, n), queries=64).replace("70", "4096") for n in (900, 200))
    near, far = (text.replace("[2, 3,", "[1, 1,") for text in (near, far))
    run = check(near, slack=4, compiled=False, target=AVX512)
    assert run.kernels == ["attention", "row"]
    assert "for k0 in 512*part + 3072..min((512*part + 3584), 4033), step 64" in run.lowered.stages["tile"]
    assert check(far, slack=4, compiled=False, target=AVX512).kernels == ["attention"]


@pytest.mark.parametrize(("queries", "copied"), [(70, True), (20, False)])
def test_rows_far_apart_are_copied_for_many_queries(queries, copied):
    """Heads beside each other: in place the rows of a block of keys would fall on few sets of the cache."""
    n = queries
    text = f"""graph @g(%q: f32[{n}, 4, 16], %k: f32[70, 4, 16], %v: f32[70, 4, 8]) {{
      %q1 = permute(%q) {{permutation=[1, 0, 2]}} : f32[4, {n}, 16]
      %k1 = permute(%k) {{permutation=[1, 0, 2]}} : f32[4, 70, 16]
      %v1 = permute(%v) {{permutation=[1, 0, 2]}} : f32[4, 70, 8]
      %s = dot(%q1, %k1) {{contract=[2]x[2], batch=[0]x[0]}} : f32[4, {n}, 70]
      %p = softmax(%s) {{axis=2}} : f32[4, {n}, 70]
      %o = dot(%p, %v1) {{contract=[2]x[1], batch=[0]x[0]}} : f32[4, {n}, 8]
      return %o
    }}"""
    check(text, slack=4)
    tile = lower(parse(text), AVX512).stages["tile"]
    assert ("map key_block" in tile, "map value_block" in tile) == (copied, copied)


def test_doubles():
    joined(attention(dtype="f64"))


@pytest.mark.parametrize("size", [-np.inf, -80.0, 0.5, 80.0])
def test_one_part_has_the_sink(size):
    arrays = random_inputs(parse(SINK))
    arrays[3] = np.full((3, 1, 1), size, np.float32)
    joined(SINK, arrays)


def test_few_queries_of_few_heads_are_shared():
    text = attention().replace("70", "2048").replace("[2, 3,", "[1, 1,")
    run = check(text, slack=4, threads=4)
    assert run.kernels == ["attention", "row"]
    assert check(text, slack=4, threads=1).kernels == ["attention"]


def test_lanes_without_queries_hold_zeros():
    """They hold what was in memory before, and subnormal numbers take a hundred times as long on some CPUs."""
    run = check(attention(queries=2), slack=4)
    first, zeros = (line.strip() for line in run.lowered.stages["tile"].splitlines()[2:4])
    assert first.startswith("alloc queries")
    assert zeros.startswith("map queries[depth, qi] = 0.0")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("change", ["%z = copy(%s)", "%z = maximum(%s, f32(-1e30))"])
@pytest.mark.parametrize("step", [0.02, 0.5, 20.0, -20.0])
def test_maxima_that_grow(change, step):
    """From block to block by little, by as much as sums are brought to a new scale for, by a lot; or never again."""
    q, k, v = random_inputs(parse(attention()))
    q[...], k[...] = 0, 0
    q[:, :, ::2, 0], q[:, :, 1::2, 0], k[..., 0] = 1, 0.25, np.arange(70) * step
    joined(attention(change), [q, k, v], split=2)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "change", ["%z = copy(%s)", "%z = mul(%s, f32(0.3))", "%z = mul(%s, f32(-0.3))", "%z = mul(%s, f32(3.0))"]
)
@pytest.mark.parametrize("size", [1e4, 1e6, 1e15])
def test_scores_whose_product_with_a_factor_is_far_from_exact(change, size):
    """Two keys that share a row's maximum, in two parts of the keys, weigh the same; the others nothing."""
    q, k, v = random_inputs(parse(attention()))
    k[:, :, 65] = k[:, :, 3]
    q, k = q * np.float32(size), k * np.float32(size)
    joined(attention(change), [q, k, v], split=2)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("change", ["%z = mul(%s, f32(1e25))", "%c = mul(%s, f32(1e25))\n%z = mul(%c, f32(1e-25))"])
@pytest.mark.parametrize("compiled", [True, False])
def test_scores_that_overflow_by_a_factor_are_nan_as_written(change, compiled):
    q, k, v = random_inputs(parse(attention()))
    q[0], q[1] = np.abs(q[0]) * np.float32(1e14), 0
    k = np.abs(k)
    (out,) = joined(attention(change), [q, k, v], split=2, compiled=compiled).outputs
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1]).all()
