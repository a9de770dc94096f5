"""Which attentions have queries and keys of 8 bits, or of f16, after the pass."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from rewriting import unchanged

from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.eight_bit_attention import attend_in_8_bits
from fusec.passes.pipeline import lower
from fusec.target.gpu import gpu_target

HOPPER = partial(attend_in_8_bits, target=gpu_target("cuda:sm_90"))


def attention(depth: int = 64, rows: int = 96, wide: str = "f32", out: str = "bf16", q: str = "f8e4m3") -> str:
    s = f"{wide}[2, {rows}, 128]"
    row = f"{wide}[2, {rows}, 1]"
    return f"""graph @g(%q: {q}[2, {rows}, {depth}], %k: f8e4m3[2, 128, {depth}], %v: f8e4m3[2, 128, 32]) {{
      %qf = cast(%q) : {wide}[2, {rows}, {depth}]
      %kf = cast(%k) : {wide}[2, 128, {depth}]
      %vf = cast(%v) : {wide}[2, 128, 32]
      %s = dot(%qf, %kf) {{contract=[2]x[2], batch=[0]x[0]}} : {s}
      %t = mul(%s, {wide}(0.125)) : {s}
      %m = reduce_max(%t) {{axes=[2]}} : {wide}[2, {rows}]
      %n = reshape(%m) : {row}
      %d = sub(%t, %n) : {s}
      %e = exp(%d) : {s}
      %r = reduce_sum(%e) {{axes=[2]}} : {wide}[2, {rows}]
      %u = reshape(%r) : {row}
      %p = div(%e, %u) : {s}
      %o = dot(%p, %vf) {{contract=[2]x[1], batch=[0]x[0]}} : {wide}[2, {rows}, 32]
      %y = cast(%o) : {out}[2, {rows}, 32]
      return %y
    }}"""


def operands(graph: Graph) -> list[list[str]]:
    return [[v.type.dtype.name for v in op.operands] for op in graph.ops if op.name == "dot"]


def test_scores_are_of_8_bits_and_weights_of_16() -> None:
    assert operands(HOPPER(parse(attention()))) == [["f8e4m3", "f8e4m3"], ["f16", "f16"]]


@pytest.mark.parametrize("text", [attention(depth=80), attention(rows=16)], ids=["depth", "rows"])
def test_what_hoppers_kernel_does_not_take_is_of_f16(text: str) -> None:
    assert operands(HOPPER(parse(text))) == [["f16", "f16"], ["f16", "f16"]]


def test_other_gpus_multiply_f16() -> None:
    graph = attend_in_8_bits(parse(attention()), gpu_target("cuda:sm_80"))
    assert operands(graph) == [["f16", "f16"], ["f16", "f16"]]


def test_values_that_the_code_rounds_stay() -> None:
    graph = HOPPER(parse(attention(wide="bf16")))
    assert operands(graph) == [["f8e4m3", "f8e4m3"], ["bf16", "bf16"]]


@pytest.mark.parametrize(
    "text", [attention(out="f32").replace("%y = cast(%o) : f32[2, 96, 32]", ""), attention(q="bf16")]
)
def test_results_of_f32_and_other_queries_stay(text: str) -> None:
    unchanged(HOPPER, text.replace("return %y", "return %o") if "%y =" not in text else text)


def test_gpus_without_tensor_cores_of_halves_multiply_as_written() -> None:
    unchanged(partial(attend_in_8_bits, target=gpu_target("hip:gfx942")), attention())


@pytest.mark.parametrize("text", [attention(), attention(depth=80), attention(wide="bf16")])
def test_it_computes_the_same(text: str) -> None:
    graph = parse(text)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(v.type.static_shape).astype(v.type.dtype.numpy) for v in graph.inputs]
    (wanted,), (found,) = interpret(graph, given), interpret(HOPPER(graph), given)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=2**-6, atol=1e-2)


def test_it_is_one_kernel_and_a_cast_of_values() -> None:
    graph = lower(parse(attention()), "cuda:sm_90").graph
    kinds = [op.expect(FusedAttributes).kind for op in graph.ops if op.name == "fused"]
    assert kinds == ["map", "attention"]
