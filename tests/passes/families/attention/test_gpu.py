"""Attention on a GPU: which rows share a block, how keys are shared out, and what the parts are joined to."""

from __future__ import annotations

import numpy as np
import pytest
from programs import check, random_inputs

from fusec.errors import LoweringError
from fusec.ir.graph import Graph
from fusec.ir.parse import parse
from fusec.ir.types import contiguous_strides
from fusec.passes.families.attention.schedule.gpu import GpuAttentionSchedule, attention_candidates
from fusec.passes.families.attention.schedule.size import AttentionSize
from fusec.passes.lower.context import LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.launch import Launch
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.runtime.program import Program
from fusec.target.gpu import gpu_target

TARGET = gpu_target("cuda:sm_90")


def sdpa(heads: int, key_heads: int, queries: int, keys: int, size: int = 64, values: int = 0) -> Graph:
    wide = values or size
    return parse(f"""graph @g(%q: f32[2, {heads}, {queries}, {size}], %k: f32[2, {key_heads}, {keys}, {size}],
      %v: f32[2, {key_heads}, {keys}, {wide}]) {{
        %o = sdpa(%q, %k, %v) {{causal=false, scale=none, grouped=true}} : f32[2, {heads}, {queries}, {wide}]
        return %o
    }}""")


def lowered(graph: Graph) -> Program:
    return lower(graph, "cuda:sm_90", check=True).program


def test_one_query_of_each_head_that_shares_keys_is_a_row_and_keys_are_shared_out() -> None:
    program = lowered(sdpa(8, 2, 1, 1000))
    first, last = program.kernels
    assert (first.kind, last.kind) == ("attention", "row")
    assert [p.shape for p in first.parameters[-3:]] == [(6, 2, 2, 1, 4), (6, 2, 2, 1, 4), (6, 2, 2, 1, 4, 64)]
    assert first.final is not None
    assert [program.slots[s].kind for s in program.steps[0].arguments[-3:]] == ["workspace"] * 3


def test_parts_are_joined_by_their_maxima() -> None:
    run = check(str(sdpa(8, 2, 1, 1000, size=16)), target=TARGET.name, slack=4)
    assert run.kernels == ["attention", "row"]


@pytest.mark.parametrize(("dtype", "more", "final"), [("bf16", "", "bf16"), ("f32", "", "f32"), ("bf16", "%w", "f32")])
def test_rows_own_numbers_ask_for_no_exact_functions(dtype: str, more: str, final: str) -> None:
    """What is made of the result in f32 does."""
    s = "[8, 512, 512]"
    (kernel,) = lowered(
        parse(f"""graph @g(%q: {dtype}[8, 512, 64], %k: {dtype}[8, 512, 64], %v: {dtype}[8, 512, 64]) {{
          %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : {dtype}{s}
          %x = cast(%s) : f32{s}
          %max = reduce_max(%x) {{axes=[2]}} : f32[8, 512]
          %m = reshape(%max) : f32[8, 512, 1]
          %d = sub(%x, %m) : f32{s}
          %e = exp(%d) : f32{s}
          %sum = reduce_sum(%e) {{axes=[2]}} : f32[8, 512]
          %t = reshape(%sum) : f32[8, 512, 1]
          %n = div(%e, %t) : f32{s}
          %p = cast(%n) : {dtype}{s}
          %o = dot(%p, %v) {{contract=[2]x[1], batch=[0]x[0]}} : {dtype}[8, 512, 64]
          %w = cast(%o) : f32[8, 512, 64]
          return %o, %max, %sum{f", {more}" if more else ""}
        }}""")
    ).kernels
    assert kernel.kind == "attention"
    assert kernel.final is not None
    assert kernel.final.name == final


def test_few_queries_of_one_head_alone() -> None:
    first, _ = lowered(sdpa(3, 3, 2, 1000)).kernels
    assert first.parameters[-1].shape[1:] == (2, 3, 2, 64)


def test_enough_blocks_are_not_split() -> None:
    (kernel,) = lowered(sdpa(64, 64, 1, 1000)).kernels
    assert kernel.kind == "attention"


def test_short_keys_are_not_split() -> None:
    (kernel,) = lowered(sdpa(8, 2, 1, 60)).kernels
    assert kernel.kind == "attention"


def test_many_queries_are_blocks_of_one_head() -> None:
    (kernel,) = lowered(sdpa(64, 8, 300, 300)).kernels
    assert kernel.parameters[-1].shape == (2, 8, 8, 300, 64)


@pytest.mark.parametrize("keys", [1, 100, 1000, 4096, 65536])
@pytest.mark.parametrize("heads", [0, 1, 8, 60, 132, 1000])
def test_every_part_of_the_keys_has_steps(heads: int, keys: int) -> None:
    size = AttentionSize(heads, 4, True, False, keys, 128, 128, 16)
    for s in attention_candidates(size, TARGET):
        steps = -(-keys // s.keys)
        assert s.queries >= 4
        assert 1 <= s.split <= 64
        assert (s.split - 1) * -(-steps // s.split) < steps


def masked(mask: str, *, add: bool) -> str:
    kind = "bf16" if add else "bool"
    scores = "add(%s, %b)" if add else "select(%b, %s, bf16(-inf))"
    operands = ", ".join(f"%{name}: bf16[64, 1024, 64]" for name in "qkv")
    return f"""graph @masked({operands}, %m: {kind}{mask}) {{
        %b = broadcast(%m) : {kind}[64, 1024, 1024]
        %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : bf16[64, 1024, 1024]
        %t = {scores} : bf16[64, 1024, 1024]
        %w = softmax(%t) {{axis=2}} : bf16[64, 1024, 1024]
        %o = dot(%w, %v) {{contract=[2]x[1], batch=[0]x[0]}} : bf16[64, 1024, 64]
        return %o
    }}"""


@pytest.mark.parametrize("add", [True, False])
def test_what_is_read_for_each_point_takes_longer_in_fragments_than_in_rows(add: bool) -> None:
    def seconds(mask: str) -> tuple[float, float]:
        (op,) = (o for o in lower(parse(masked(mask, add=add)), "cuda:sm_90").graph.ops if o.name == "fused")
        strides = {v: contiguous_strides(v.type.static_shape) for v in (*op.operands, *op.results)}
        found = GpuSelector(TARGET, cuda=True).candidates(LoweringContext(op, strides, "k"))
        cuda, triton = (next(s.seconds for s in found if s.language == kind) for kind in ("cuda", "triton"))
        return cuda, triton

    of_points, of_keys = seconds("[1024, 1024]"), seconds("[1, 1024]")
    assert of_points[0] > 1.5 * of_keys[0]
    assert of_points[1] > of_keys[1]
    assert of_points[0] > of_points[1]


def test_a_block_too_small_for_the_rows_that_share_keys_is_refused() -> None:
    graph = lower(sdpa(64, 2, 1, 1000), "cuda:sm_90").graph
    (op,) = (o for o in graph.ops if o.name == "fused")
    strides = {v: contiguous_strides(v.type.static_shape) for v in (*op.operands, *op.results)}
    with pytest.raises(LoweringError, match="32 rows that share their keys in a block of 16"):
        lower_with(LoweringContext(op, strides, "k"), GpuAttentionSchedule(16, 64, Launch(4, 2)))


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("size", [16, 32, 80, 128, 256, 512, 576])
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90", "hip:gfx942"])
def test_candidates_fit_shared_memory_and_registers(target: str, size: int, bits: int) -> None:
    card = gpu_target(target)
    padded = 1 << (size - 1).bit_length()
    found = attention_candidates(AttentionSize(8, 300, False, True, 300, size, size, bits), card)
    assert found or bits * size >= 16 * 576
    for s in found:
        held = s.queries * padded + s.launch.stages * s.keys * 2 * padded
        assert held * bits // 8 <= card.shared_memory
        assert s.queries * padded <= 128 * 32 * s.launch.warps


@pytest.mark.parametrize(
    ("size", "values", "reason"),
    [(64, 4096, "heads of 64 and 4096 elements do not fit a block"), (4096, 4096, "keys are 4096 wide")],
)
def test_heads_too_wide_for_a_block_are_attended_to_in_pieces(size: int, values: int, reason: str) -> None:
    program = lowered(sdpa(2, 2, 40, 40, size, values))
    assert "attention" not in [r.kind for r in program.reports]
    assert any(reason in d.reason for d in program.declined), program.declined


def test_long_rows_of_scores_are_no_reduction_of_their_own() -> None:
    program = lowered(sdpa(8, 2, 1, 65536))
    assert [k.kind for k in program.kernels] == ["attention", "row"]


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("size", [1e3, 3e4, 1e6, 1e15])
def test_scores_whose_product_with_a_factor_is_far_from_exact(size: float, queries: int) -> None:
    """A key of the first block and one of the last that share a row's maximum weigh the same; the others nothing."""
    graph = sdpa(2, 2, queries, 300, size=32)
    q, k, v = random_inputs(graph)
    k[:, :, 290] = k[:, :, 3]
    k[:, :, 150] = 0
    run = check(graph, [q * np.float32(size), k * np.float32(size), v], target=TARGET.name, slack=4, atol=1e-6)
    assert run.kernels[0] == "attention"


@pytest.mark.parametrize(("width", "kinds"), [(512, ["attention"]), (576, ["gemm", "row", "gemm"])])
def test_keys_that_no_block_holds_many_of_are_multiplied_by_themselves(width: int, kinds: list[str]) -> None:
    """Absorbed latent attention (MLA): heads share keys of 576, whose first 512 are the values."""
    graph = parse(f"""graph @f(%q: bf16[2, 16, {width}], %c: bf16[2, 96, {width}]) {{
  %s = dot(%q, %c) {{contract=[2]x[2], batch=[0]x[0]}} : bf16[2, 16, 96]
  %w = softmax(%s) {{axis=2}} : bf16[2, 16, 96]
  %v = slice(%c) {{starts=[0, 0, 0], stops=[2, 96, 512], steps=[1, 1, 1]}} : bf16[2, 96, 512]
  %o = dot(%w, %v) {{contract=[2]x[1], batch=[0]x[0]}} : bf16[2, 16, 512]
  return %o
}}""")
    found = [r.kind for r in lower(graph, "cuda:sm_90", check=True).program.kernels]
    assert [kind for kind in found if kind != "combine"] == kinds


@pytest.mark.parametrize(("table", "kinds"), [((512, 512), ["map", "attention"]), ((1, 64), ["attention"])])
def test_a_score_is_looked_up_in_a_wide_array_by_a_map(table: tuple[int, int], kinds: list[str]) -> None:
    rows, columns = table
    text = f"""graph @g(%q: bf16[8, 512, 64], %k: bf16[8, 512, 64], %v: bf16[8, 512, 64],
      %t: bf16[8, {rows}, {columns}]) {{
      %i = iota() {{axis=1}} : i64[512, 512]
      %j = iota() {{axis=0}} : i64[512, 512]
      %d = sub(%i, %j) : i64[512, 512]
      %low = maximum(%d, i64(0)) : i64[512, 512]
      %at = minimum(%low, i64({columns - 1})) : i64[512, 512]
      %all = broadcast(%at) : i64[8, 512, 512]
      %wide = broadcast(%t) : bf16[8, 512, {columns}]
      %b = gather_elements(%wide, %all) {{axis=2}} : bf16[8, 512, 512]
      %twice = add(%b, %b) : bf16[8, 512, 512]
      %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : bf16[8, 512, 512]
      %x = add(%s, %twice) : bf16[8, 512, 512]
      %w = softmax(%x) {{axis=2}} : bf16[8, 512, 512]
      %o = dot(%w, %v) {{contract=[2]x[1], batch=[0]x[0]}} : bf16[8, 512, 64]
      return %o
    }}"""
    assert [k.kind for k in lowered(parse(text)).kernels] == kinds
