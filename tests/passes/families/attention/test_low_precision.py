"""Attention of bf16 in the units for it: AMX programs interpreted and emulated, vector ones compiled."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from amx import executed
from attentions import beside_a_sink
from fixed_schedule import Fixed
from programs import Built, Run, build, check_built, random_inputs

from fusec.errors import LoweringError
from fusec.ir.index import symbols_of
from fusec.ir.indexing import substitute
from fusec.ir.parse import parse
from fusec.ir.types import bf16, contiguous_strides
from fusec.passes.families.attention.schedule.cpu import LowPrecisionAttentionSchedule, low_precision_candidates
from fusec.passes.families.record import schedule_from_text, schedule_to_text
from fusec.passes.lower.context import LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.select import lower_with
from fusec.target.cpu import CpuTarget, cpu_target, host_cpu
from fusec.tile.nodes import RegisterTile, SoftmaxExp, statements

OF_TILES, OF_GROUPS = "cpu:sapphirerapids", "cpu:znver5"
TILES = LowPrecisionAttentionSchedule(
    64, 32, 64, 32, RegisterTile(32, 32, tiles=True), RegisterTile(16, 32, tiles=True)
)
GROUPS = LowPrecisionAttentionSchedule(64, 32, 64, 32, RegisterTile(6, 32), RegisterTile(5, 32))
needs_groups = pytest.mark.skipif(not cpu_target().multiplies(bf16), reason="no AVX512-BF16 here")
targets = pytest.mark.parametrize("target", [OF_TILES, pytest.param(OF_GROUPS, marks=needs_groups)])


def attention(
    queries: int, keys: int, depth: int, values: int, change: tuple[str, ...] = (), inputs: str = "", groups: int = 1
) -> str:
    """Two heads of two batches; of ``change`` each line leads on from %s towards %z."""
    score, heads = f"bf16[2, 2, {queries}, {keys}]", 2 // groups
    lines = "\n".join(f"{line} : {score}" for line in change or ("%z = mul(%s, bf16(0.25))",))
    shared = "%k1 = broadcast(%k) : bf16[2, 2, {0}, {1}]\n%v1 = broadcast(%v) : bf16[2, 2, {0}, {2}]"
    copies = shared.format(keys, depth, values) if groups > 1 else ""
    k, v = ("%k1", "%v1") if groups > 1 else ("%k", "%v")
    return f"""graph @attention(%q: bf16[2, 2, {queries}, {depth}], %k: bf16[2, {heads}, {keys}, {depth}],
        %v: bf16[2, {heads}, {keys}, {values}]{inputs}) {{
        {copies}
        %s = dot(%q, {k}) {{contract=[3]x[3], batch=[0, 1]x[0, 1]}} : {score}
        {lines}
        %p = softmax(%z) {{axis=3}} : {score}
        %o = dot(%p, {v}) {{contract=[3]x[2], batch=[0, 1]x[0, 1]}} : bf16[2, 2, {queries}, {values}]
        return %o
    }}"""


CAUSAL = (
    "%i = iota() {axis=2}",
    "%j = iota() {axis=3}",
    "%m = le(%j, %i)",
    "%c = mul(%s, bf16(0.25))",
    "%z = select(%m, %c, bf16(-inf))",
)


def causal(queries: int, keys: int, depth: int, values: int) -> str:
    text = attention(queries, keys, depth, values, CAUSAL)
    for line in ("%i = ", "%j = "):
        at = text.index(line)
        text = text[:at] + text[at:].replace("bf16", "i64", 1)
    at = text.index("%m = ")
    return text[:at] + text[at:].replace("bf16", "bool", 1)


@cache
def built(text: str, target: str, machine: CpuTarget, schedule: LowPrecisionAttentionSchedule) -> Built:
    """One for all data."""
    selector = Fixed(machine, 2, {}, schedule, None)
    disable = frozenset({"vectors"})  # one query, too
    return build(text, selector=selector, disable=disable, compiled=machine.runs_here, target=target)


def through(
    text: str, target: str, schedule: LowPrecisionAttentionSchedule | None = None, inputs: object = None
) -> Run:
    machine = cpu_target(target)
    chosen = schedule or (TILES if machine.multiplies_in_tiles(bf16) else GROUPS)
    run = check_built(built(text, target, machine, chosen), inputs, atol=2e-3)  # type: ignore[arg-type]
    assert run.kernels == (["attention", "row"] if chosen.shared else ["attention"])
    assert ("in tiles" in run.lowered.stages["tile"]) == chosen.scores.tiles
    assert "weigh" in run.lowered.stages["tile"]
    return run


SIZES = [(32, 32, 32, 16), (64, 64, 64, 64), (1, 2, 1, 1), (5, 3, 8, 2), (33, 70, 37, 20), (70, 130, 20, 33)]


@targets
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(target, size):
    through(attention(*size), target)


@targets
@pytest.mark.parametrize("size", [(64, 64, 32, 16), (70, 70, 20, 8), (33, 97, 16, 16), (130, 130, 32, 16)], ids=str)
def test_causal(target, size):
    run = through(causal(*size), target)
    if min(size[:2]) > 64:
        assert "if " in run.lowered.stages["tile"]  # blocks without the mask, and those on the diagonal


@pytest.mark.parametrize("size", [SIZES[1], SIZES[4], SIZES[5]], ids=str)
def test_emulated(amx_everywhere, size):
    before = executed()
    through(attention(*size), "cpu", TILES)
    through(causal(*size), "cpu", replace(TILES, queries=64, keys=64, scores=RegisterTile(32, 32, tiles=True)))
    assert executed() > before or amx_everywhere is host_cpu()


@targets
@pytest.mark.parametrize("size", [(2, 130, 32, 16), (40, 70, 20, 33)], ids=str)
def test_tasks_share_the_keys(target, size):
    chosen = replace(TILES if target == OF_TILES else GROUPS, shared=True)
    through(attention(*size), target, chosen)
    through(causal(size[1], *size[1:]), target, chosen)
    through(attention(*size, *LOWEST), target, chosen)


@targets
@pytest.mark.parametrize("shared", [False, True])
def test_sinks(target, shared):
    through(beside_a_sink("bf16", 40), target, replace(TILES if target == OF_TILES else GROUPS, shared=shared))


@pytest.mark.sweep(1)
@targets
@pytest.mark.parametrize("size", [(130, 130, 0), (70, 200, 130), (40, 300, 255), (130, 100, 10)], ids=str)
@pytest.mark.parametrize("width", [20, 90])
def test_tasks_share_the_keys_of_a_window(target, size, width):
    """Each has an even part of those that its queries see, wherever they lie; rows behind the last key have none."""
    queries, keys, past = size
    text = causal(queries, keys, 16, 16)
    shape = f"[2, 2, {queries}, {keys}]"
    test = f"""%f = add(%i, i64({past})) : i64{shape}
        %d = sub(%f, %j) : i64{shape}
        %g = ge(%d, i64(0)) : bool{shape}
        %h = lt(%d, i64({width})) : bool{shape}
        %m = logical_and(%g, %h)"""
    chosen = replace(TILES if target == OF_TILES else GROUPS, shared=True)
    through(text.replace("%m = le(%j, %i)", test), target, chosen)


LOWEST = (("%c = mul(%s, bf16(0.2))", "%z = maximum(%c, bf16(-1e30))"), "")
"""Scores that may be huge, as far as the expression tells."""

CHANGES = {
    "floor": LOWEST,
    "soft cap": (("%c = mul(%s, bf16(0.2))", "%t = tanh(%c)", "%z = mul(%t, bf16(5.0))"), ""),
    "bias": (("%c = mul(%s, bf16(0.2))", "%z = add(%c, %b)"), ", %b: bf16[2, 40, 70]"),
    "key bias": (("%z = sub(%s, %b)",), ", %b: bf16[2, 1, 1, 70]"),
    "mask": (("%z = select(%m, %s, bf16(-inf))",), ", %m: bool[2, 1, 40, 70]"),
    "lowest fill": (("%z = select(%m, bf16(-3.3895e38), %s)",), ", %m: bool[40, 70]"),
    "large": (("%z = mul(%s, bf16(64.0))",), ""),
    "negative": (("%z = mul(%s, bf16(-0.5))",), ""),
}


@targets
@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_the_scores(target, name):
    change, inputs = CHANGES[name]
    through(attention(40, 70, 16, 8, change, inputs), target)


@pytest.mark.parametrize("size", [(64, 64, 32, 16), (64, 96, 20, 33), (61, 70, 64, 8)], ids=str)
def test_a_task_fetches_what_the_next_one_reads(size):
    """Each line of its queries, keys and values; the last task its own again."""
    queries, keys, depth, values = size
    sides = {"scores": RegisterTile(32, 16, tiles=True), "values": RegisterTile(16, 16, tiles=True)}
    run = through(attention(*size), OF_TILES, replace(TILES, queries=16, chunk=96, **sides))
    weigh = next(s for s in statements(run.lowered.program.kernels[0].body) if isinstance(s, SoftmaxExp))
    wanted = {"q": (queries, depth), "k": (keys, depth), "v": (keys, values)}
    assert [load.buffer.name for load in weigh.prefetch] == list(wanted)
    steps = list(product(range(-(-queries // 16)), range(0, keys, 32), range(0, 32, 2)))
    for load in weigh.prefetch:
        outer, inner = load.index[:2], load.index[2:]
        batch, head = sorted({s for i in outer for s in symbols_of(i)}, key=str)
        following = [tuple(substitute(i, {batch: b, head: h}) for i in outer) for b in (0, 1) for h in (0, 1)]
        assert following == [(0, 1), (1, 0), (1, 1), (1, 1)]
        names = {s.name: s for i in inner for s in symbols_of(i)}
        places = ({names[n]: v for n, v in zip(("qs", "k0", "kj"), at, strict=True) if n in names} for at in steps)
        found = {tuple(substitute(i, place) for i in inner) for place in places}
        rows, columns = wanted[load.buffer.name]
        assert found == set(product(range(rows), range(0, columns, 32)))


def test_tasks_that_share_what_they_read_fetch_nothing():
    """Those of a head's queries read the same keys, and those that share keys other ones each."""
    one = attention(64, 64, 32, 16)
    assert "fetching" in through(one, OF_TILES).lowered.stages["tile"]
    for size, schedule in (((65, 64, 32, 16), TILES), ((64, 130, 32, 16), replace(TILES, shared=True))):
        assert "fetching" not in through(attention(*size), OF_TILES, schedule).lowered.stages["tile"]


@pytest.mark.parametrize("target", [OF_TILES, OF_GROUPS])
def test_any_number_of_heads(target):
    text = """graph @any<B in [1, 40]>(%q: bf16[B, 64, 32], %k: bf16[B, 64, 32], %v: bf16[B, 64, 32]) {
      %o = sdpa(%q, %k, %v) {causal=false, scale=0.3, grouped=false} : bf16[B, 64, 32]
      return %o
    }"""
    (kernel,) = lower(parse(text), target, check=True).program.kernels
    assert (kernel.kind, [b.name for b in kernel.parameters]) == ("attention", ["q", "k", "v", "o"])


@targets
def test_keys_of_groups_of_heads(target):
    through(attention(33, 70, 32, 16, groups=2), target)


@targets
def test_rows_that_are_masked_throughout_are_nan(target):
    mask = np.ones((2, 1, 40, 70), np.bool_)
    mask[1, 0, 7], mask[0, 0, 3, 5:] = False, False
    rng = np.random.default_rng(1)
    shapes = ((2, 2, 40, 16), (2, 2, 70, 16), (2, 2, 70, 8))
    inputs = [*(rng.standard_normal(s).astype(bf16.numpy) for s in shapes), mask]
    change, more = CHANGES["mask"]
    (out,) = through(attention(40, 70, 16, 8, change, more), target, inputs=inputs).outputs
    assert np.isnan(out[1, :, 7].astype(np.float32)).all()
    assert np.isnan(out.astype(np.float32)).sum() == 2 * 8


@targets
def test_numbers_that_are_none_stay_in_their_rows(target):
    """NaN and infinities among queries, keys and values, as the code as written has them."""
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal(s).astype(bf16.numpy) for s in ((2, 2, 40, 16), (2, 2, 70, 16), (2, 2, 70, 8)))
    q[0, 0, 3, 2], q[1, 0, 8, 0] = np.nan, np.inf
    k[0, 1, 66, 1], v[1, 1, 69, 7] = np.nan, np.inf
    (out,) = through(attention(40, 70, 16, 8), target, inputs=[q, k, v]).outputs
    wide = out.astype(np.float32)
    assert all(np.isnan(rows).all() for rows in (wide[0, 0, 3], wide[1, 0, 8], wide[0, 1]))
    assert np.isposinf(wide[1, 1, :, 7]).all()
    assert np.isfinite(wide[1, 1, :, :7]).all()
    assert np.isfinite(np.delete(wide[0, 0], 3, axis=0)).all()


@targets
@pytest.mark.parametrize("shared", [False, True])
def test_rows_without_a_finite_score(target, shared):
    """Zeros from the library's attention, NaN from a softmax; values that are none stay."""
    text = """graph @g(%q: bf16[2, 40, 16], %k: bf16[2, 130, 16], %v: bf16[2, 130, 8]) {
      %o = sdpa(%q, %k, %v) {causal=false, scale=0.3, grouped=false} : bf16[2, 40, 8]
      return %o
    }"""
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal(s).astype(bf16.numpy) for s in ((2, 40, 16), (2, 130, 16), (2, 130, 8)))
    q[...], k[:, :100, 0], k[1, :, 0], v[1, 120, 1] = abs(q), -np.inf, -np.inf, np.nan
    q[1, 3, 0] = 0
    chosen = replace(TILES if target == OF_TILES else GROUPS, shared=shared)
    (out,) = through(text, target, chosen, [q, k, v]).outputs
    wide = out.astype(np.float32)
    assert np.isfinite(wide[0]).all()
    assert (np.delete(wide[1], 3, axis=0)[:, [0, 2, 7]] == 0).all()
    assert np.isnan(wide[1, :, 1]).all()
    assert np.isnan(wide[1, 3]).all()


@targets
@pytest.mark.parametrize("shared", [False, True])
def test_rows_without_a_finite_score_of_a_softmax(target, shared):
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal(s).astype(bf16.numpy) for s in ((2, 2, 40, 16), (2, 2, 130, 16), (2, 2, 130, 8)))
    q[...], k[1, :, :, 0], k[:, :, :100, 0] = abs(q), -np.inf, -np.inf
    chosen = replace(TILES if target == OF_TILES else GROUPS, shared=shared)
    (out,) = through(attention(40, 130, 16, 8), target, chosen, [q, k, v]).outputs
    assert np.isfinite(out[0].astype(np.float32)).all()
    assert np.isnan(out[1].astype(np.float32)).all()


@pytest.mark.sweep(1)
@targets
@pytest.mark.parametrize("place", [0, 63, 64, 129])
@pytest.mark.parametrize("kind", ["key", "value"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_in_one_part(target, place, kind, number):
    """Whichever task finds them."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal(s).astype(bf16.numpy) for s in ((2, 2, 40, 16), (2, 2, 130, 16), (2, 2, 130, 8)))
    q[...] = abs(q)
    (k if kind == "key" else v)[0, 1, place, 3] = number
    chosen = replace(TILES if target == OF_TILES else GROUPS, shared=True)
    (out,) = through(attention(40, 130, 16, 8), target, chosen, [q, k, v]).outputs
    odd = ~np.isfinite(out.astype(np.float32))
    assert not odd[0, 0].any()
    assert not odd[1].any()
    wanted = 40 if kind == "value" else 0 if number == -np.inf else 40 * 8  # a value that is none stays in its column
    assert odd[0, 1].sum() == wanted


@targets
def test_scores_far_apart_and_equal(target):
    """Weights of 0 and 1, and of all alike."""
    q, k = np.zeros((2, 2, 33, 16), bf16.numpy), np.zeros((2, 2, 70, 16), bf16.numpy)
    v = np.arange(2 * 2 * 70 * 8).reshape(2, 2, 70, 8).astype(bf16.numpy)
    q[:, :, :16, 0], k[:, :, 41, 0] = 100, 100
    through(attention(33, 70, 16, 8), target, inputs=[q, k, v])


@targets
@pytest.mark.parametrize("step", [0.02, 0.3, 20.0, -20.0])
def test_maxima_that_grow(target, step):
    """From block to block by little, by as much as sums are brought to a new scale for, by a lot; or never again."""
    q, k = np.zeros((2, 2, 33, 16), bf16.numpy), np.zeros((2, 2, 200, 16), bf16.numpy)
    v = np.random.default_rng(0).standard_normal((2, 2, 200, 8)).astype(bf16.numpy)
    q[:, :, ::2, 0], q[:, :, 1::2, 0], k[..., 0] = 1, 0.25, np.arange(200) * step
    through(attention(33, 200, 16, 8, ("%z = mul(%s, bf16(1.0))",)), target, inputs=[q, k, v])


@targets
@pytest.mark.parametrize("task", [32, 64])
def test_rows_far_apart_are_copied_for_many_queries(target, task):
    """Heads beside each other: in place the rows of a block of keys would fall on few sets of the cache."""
    text = """graph @g(%q: bf16[70, 4, 32], %k: bf16[96, 4, 32], %v: bf16[96, 4, 16]) {
      %q1 = permute(%q) {permutation=[1, 0, 2]} : bf16[4, 70, 32]
      %k1 = permute(%k) {permutation=[1, 0, 2]} : bf16[4, 96, 32]
      %v1 = permute(%v) {permutation=[1, 0, 2]} : bf16[4, 96, 16]
      %s = dot(%q1, %k1) {contract=[2]x[2], batch=[0]x[0]} : bf16[4, 70, 96]
      %p = softmax(%s) {axis=2} : bf16[4, 70, 96]
      %o = dot(%p, %v1) {contract=[2]x[1], batch=[0]x[0]} : bf16[4, 70, 16]
      return %o
    }"""
    run = through(text, target, replace(TILES if target == OF_TILES else GROUPS, task=task, chunk=96))
    assert ("map key_rows" in run.lowered.stages["tile"]) == (task == 64)


@targets
def test_computed_operands(target):
    text = """graph @computed(%q: bf16[40, 64], %k: bf16[70, 32], %v: bf16[16, 70], %r: bf16[40, 32]) {
        %q1 = slice(%q) {starts=[0, 16], stops=[40, 48], steps=[1, 1]} : bf16[40, 32]
        %q2 = mul(%q1, %r) : bf16[40, 32]
        %k1 = add(%k, bf16(0.5)) : bf16[70, 32]
        %v1 = mul(%v, bf16(2.0)) : bf16[16, 70]
        %s = dot(%q2, %k1) {contract=[1]x[1]} : bf16[40, 70]
        %p = softmax(%s) {axis=1} : bf16[40, 70]
        %o = dot(%p, %v1) {contract=[1]x[1]} : bf16[40, 16]
        return %o
    }"""
    through(text, target)


@pytest.mark.parametrize("change", ["task", "chunk"])
def test_sizes_that_are_no_whole_blocks(change):
    graph = lower(parse(attention(*SIZES[1])), OF_TILES).graph
    (op,) = (o for o in graph.ops if o.name == "fused")
    strides = {v: contiguous_strides(v.type.static_shape) for v in (*op.operands, *op.results)}
    with pytest.raises(LoweringError, match="no whole blocks"):
        lower_with(LoweringContext(op, strides, "k"), replace(TILES, **{change: 48}))


def test_candidates():
    for target in (cpu_target(OF_TILES), cpu_target(OF_GROUPS)):
        for size in ((12, 1024, 1024, 64), (1, 1, 5000, 128), (4, 7, 9, 3), (64, 100, 300000, 64)):
            found = low_precision_candidates(*size, target, 2)
            assert found
            assert all(_fits(s, target) for s in found)
            assert schedule_from_text(schedule_to_text(found[0])) == found[0]


def _fits(s: LowPrecisionAttentionSchedule, target: CpuTarget) -> bool:
    step = 32 if target.multiplies_in_tiles(bf16) else 2
    return s.task % s.queries == 0 and s.chunk % s.keys == 0 and s.keys % step == 0


@pytest.mark.sweep(1)
@targets
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("size", [1e4, 1e6, 1e15])
def test_scores_whose_product_with_a_factor_is_far_from_exact(target, size, shared):
    """Of keys that share a row's maximum each weighs the same, and the others nothing."""
    text = attention(40, 70, 16, 8, ("%z = mul(%s, bf16(0.2))",))
    q, k, v = random_inputs(parse(text))
    k[:, :, 65] = k[:, :, 3]
    chosen = replace(TILES if target == OF_TILES else GROUPS, shared=shared)
    factor = np.asarray(size, q.dtype)
    through(text, target, chosen, [q * factor, k * factor, v])
