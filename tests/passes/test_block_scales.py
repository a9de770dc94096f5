"""Which matmuls of scaled 8-bit floats may scale their sums, and whose operands are made for each of them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from rewriting import unchanged

from fusec.ir.attributes import DotAttributes
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.block_scales import scaled_apart
from fusec.passes.eight_bits import multiply_in_8_bits
from fusec.passes.pipeline import lower
from fusec.target.gpu import gpu_target

HOPPER = partial(multiply_in_8_bits, target=gpu_target("cuda:sm_90"))


def scaled(
    rows: str = "f32[96, 2, 1]",
    columns: str = "f32[1, 1, 2, 1]",
    *,
    wide: str = "f32",
    out: str = "bf16",
    n: int = 128,
    parts: tuple[int, int] = (1, 128),
) -> str:
    """Scales of shapes that broadcast: against 2 parts of K of each row, and against ``parts`` of columns besides."""
    return f"""graph @g(%x: f8e4m3[96, 256], %s: {rows}, %w: f8e4m3[{n}, 256], %t: {columns}) {{
      %xf = cast(%x) : {wide}[96, 256]
      %xr = reshape(%xf) : {wide}[96, 2, 128]
      %xm = mul(%xr, %s) : {wide}[96, 2, 128]
      %a = reshape(%xm) : {wide}[96, 256]
      %wf = cast(%w) : {wide}[{n}, 256]
      %wr = reshape(%wf) : {wide}[{parts[0]}, {parts[1]}, 2, 128]
      %wm = mul(%wr, %t) : {wide}[{parts[0]}, {parts[1]}, 2, 128]
      %b = reshape(%wm) : {wide}[{n}, 256]
      %h = dot(%a, %b) {{contract=[1]x[1]}} : {wide}[96, {n}]
      %y = cast(%h) : {out}[96, {n}]
      return %y
    }}"""


def is_scaled(text: str) -> bool:
    (dot,) = (op for op in HOPPER(parse(text)).ops if op.name == "dot")
    return dot.expect(DotAttributes).scaled


@pytest.mark.parametrize(
    "text",
    [
        scaled(),
        scaled("f32[]", "f32[]"),
        scaled("f32[96, 1, 1]", "f32[1, 128, 1, 1]"),
        scaled("f32[96, 2, 1]", "f32[16, 1, 2, 1]", parts=(16, 8)),
        scaled("f32[1, 2, 1]", "f32[]"),
    ],
    ids=["blocks", "tensors", "rows and columns", "eights", "blocks of a tensor"],
)
def test_what_sums_can_be_scaled_by(text: str) -> None:
    assert is_scaled(text)


@pytest.mark.parametrize(
    "text",
    [
        scaled("f32[96, 2, 128]"),
        scaled("f32[96, 1, 128]"),
        scaled(columns="f32[1, 128, 2, 1]"),
        scaled("f32[96, 2, 1]", "f32[32, 1, 2, 1]", parts=(32, 4)),
        scaled(out="f16"),
        scaled(n=64, parts=(1, 64)),
    ],
    ids=["elements", "depths", "columns along k", "fours", "f16", "few columns"],
)
def test_what_they_can_not(text: str) -> None:
    assert not is_scaled(text)


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_100", "hip:gfx942"])
def test_other_gpus_multiply_as_written(target: str) -> None:
    unchanged(partial(multiply_in_8_bits, target=gpu_target(target)), scaled())


def test_scales_of_16_bits_round_the_operands() -> None:
    text = scaled("bf16[96, 2, 1]", "bf16[1, 1, 2, 1]", wide="bf16")
    assert not is_scaled(text)


SHARED = """graph @g(%x: f8e4m3[96, 256], %s: f32[96, 1], %w: f8e4m3[128, 256], %v: f8e4m3[80, 256]) {
  %xf = cast(%x) : f32[96, 256]
  %a = mul(%xf, %s) : f32[96, 256]
  %wf = cast(%w) : f32[128, 256]
  %vf = cast(%v) : f32[80, 256]
  %h = dot(%a, %wf) {contract=[1]x[1]} : f32[96, 128]
  %g = dot(%a, %vf) {contract=[1]x[1]} : f32[96, 80]
  %y = cast(%h) : bf16[96, 128]
  %z = cast(%g) : bf16[96, 80]
  return %y, %z
}"""


def test_each_matmul_has_its_own_operands() -> None:
    marked = HOPPER(parse(SHARED))
    apart = scaled_apart(marked)
    left = [op.operands[0] for op in apart.ops if op.name == "dot"]
    assert len(set(left)) == 2
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(v.type.static_shape).astype(v.type.dtype.numpy) for v in apart.inputs]
    for found, wanted in zip(interpret(apart, given), interpret(marked, given), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_an_operand_that_one_matmul_has_stays() -> None:
    graph = HOPPER(parse(scaled()))
    assert scaled_apart(graph) is graph


def groups(graph: Graph) -> list[set[str]]:
    fused = [op.attributes for op in graph.ops if isinstance(op.attributes, FusedAttributes)]
    return [{op.name for op in attributes.body.ops} for attributes in fused]


@pytest.mark.parametrize(("text", "count"), [(scaled(), 1), (SHARED, 2)], ids=["one", "two"])
def test_operands_are_made_in_the_kernel(text: str, count: int) -> None:
    found = groups(lower(parse(text), "cuda:sm_90").graph)
    assert len(found) == count
    assert all({"dot", "mul", "cast"} <= names for names in found)


def test_a_matmul_of_one_of_several_results() -> None:
    """As a layer is behind attention by the library, whose call gives more than its output."""
    text = """graph @g(%x: f32[256, 128], %w: f32[256, 128]) {
      %v, %i = extern(%x) {target="aten.sort", arguments="(($0,), {})"} : f32[256, 128], i64[256, 128]
      %y = dot(%v, %w) {contract=[1]x[1]} : f32[256, 256]
      %z = cast(%y) : bf16[256, 256]
      return %z, %i
    }"""
    assert [k.kind for k in lower(parse(text), "cuda:sm_90").program.kernels] == ["gemm"]
