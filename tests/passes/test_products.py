from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from rewriting import becomes, computes_the_same, unchanged

from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.ir.types import DTYPES, DType, bf16, f16
from fusec.passes.pipeline import lower
from fusec.passes.products import lower_products


def _in(dtype: DType) -> partial[Graph]:
    return partial(lower_products, dtype=dtype)


def _text(graph: Graph) -> str:
    return str(graph)


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_operands_are_rounded_and_sums_are_not(name: str) -> None:
    before = """
    graph @g(%x: f32[4, 30], %w: f32[30, 8]) {
      %y = dot(%x, %w) {contract=[1]x[0]} : f32[4, 8]
      return %y
    }
    """
    after = f"""
    graph @g(%x: f32[4, 30], %w: f32[30, 8]) {{
      %y_{name} = cast(%x) : {name}[4, 30]
      %y_{name}_1 = cast(%w) : {name}[30, 8]
      %y = dot(%y_{name}, %y_{name}_1) {{contract=[1]x[0], dtype=f32}} : f32[4, 8]
      return %y
    }}
    """
    graph = lower_products(parse(before), DTYPES[name])
    assert _text(graph) == _text(parse(after))
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, np.float32) for s in ((4, 30), (30, 8)))
    half = DTYPES[name].numpy
    (found,) = interpret(graph, [x, w])
    np.testing.assert_allclose(found, x.astype(half).astype(np.float32) @ w.astype(half).astype(np.float32), rtol=1e-5)


def test_a_cast_stands_before_views_and_zeros_around() -> None:
    graph = lower_products(
        parse("""
        graph @g(%x: f32[4, 30], %w: f32[2, 4, 8]) {
          %t = exp(%x) : f32[4, 30]
          %p = permute(%t) {permutation=[1, 0]} : f32[30, 4]
          %q = pad(%p, f32(0.0)) {low=[1, 0], high=[1, 0]} : f32[32, 4]
          %s = slice(%w) {starts=[1, 0, 0], stops=[2, 4, 8], steps=[1, 1, 1]} : f32[1, 4, 8]
          %r = reshape(%s) : f32[4, 8]
          %y = dot(%q, %r) {contract=[1]x[0]} : f32[32, 8]
          return %y
        }
        """),
        bf16,
    )
    casts = [op.operands[0].name for op in graph.ops if op.name == "cast"]
    assert casts == ["t", "s"]  # of a part of an input no more than the part


def test_what_was_of_the_type_is_taken_as_it_was() -> None:
    becomes(
        _in(bf16),
        """
        graph @g(%h: bf16[4, 30], %v: bf16[30, 8]) {
          %x = cast(%h) : f32[4, 30]
          %w = cast(%v) : f32[30, 8]
          %y = dot(%x, %w) {contract=[1]x[0]} : f32[4, 8]
          return %y
        }
        """,
        """
        graph @g(%h: bf16[4, 30], %v: bf16[30, 8]) {
          %y = dot(%h, %v) {contract=[1]x[0], dtype=f32} : f32[4, 8]
          return %y
        }
        """,
    )


def test_groups_of_rows_too() -> None:
    graph = lower_products(
        parse("""
        graph @g(%x: f32[7, 8], %w: f32[2, 8, 4]) {
          %y = grouped_dot(%x, %w) {rhs_contract=1, sizes=[3, 4]} : f32[7, 4]
          return %y
        }
        """),
        f16,
    )
    assert [op.name for op in graph.ops] == ["cast", "cast", "grouped_dot"]
    assert graph.outputs[0].type.dtype.name == "f32"


@pytest.mark.parametrize(
    "line",
    [
        "%y = dot(%x, %x) {contract=[1]x[1], dtype=f64} : f64[4, 4]",
        "%y = reduce_sum(%x) {axes=[1]} : f32[4]",
        "%y = mul(%x, %x) : f32[4, 30]",
    ],
)
def test_others_are_left(line: str) -> None:
    unchanged(_in(bf16), f"graph @g(%x: f32[4, 30]) {{\n  {line}\n  return %y\n}}")


def test_products_of_f64_and_of_integers_are_left() -> None:
    for dtype in ("f64", "i32", "bf16"):
        line = f"%y = dot(%x, %x) {{contract=[1]x[1]}} : {dtype}[4, 4]"
        computes_the_same(_in(f16), f"graph @g(%x: {dtype}[4, 30]) {{\n  {line}\n  return %y\n}}")
        unchanged(_in(f16), f"graph @g(%x: {dtype}[4, 30]) {{\n  {line}\n  return %y\n}}")


BLOCK = """
graph @g(%x: f32[32, 64], %q: f32[64, 64], %k: f32[64, 64], %v: f32[64, 64], %o: f32[64, 64]) {
  %a = dot(%x, %q) {contract=[1]x[0]} : f32[32, 64]
  %b = dot(%x, %k) {contract=[1]x[0]} : f32[32, 64]
  %c = dot(%x, %v) {contract=[1]x[0]} : f32[32, 64]
  %ah = reshape(%a) : f32[32, 4, 16]
  %bh = reshape(%b) : f32[32, 4, 16]
  %ch = reshape(%c) : f32[32, 4, 16]
  %s = dot(%ah, %bh) {contract=[2]x[2], batch=[1]x[1]} : f32[4, 32, 32]
  %p = softmax(%s) {axis=2} : f32[4, 32, 32]
  %t = dot(%p, %ch) {contract=[2]x[0], batch=[0]x[1]} : f32[4, 32, 16]
  %u = permute(%t) {permutation=[1, 0, 2]} : f32[32, 4, 16]
  %m = reshape(%u) : f32[32, 64]
  %y = dot(%m, %o) {contract=[1]x[0]} : f32[32, 64]
  return %y
}
"""


@pytest.mark.parametrize("target", ["cpu:sapphirerapids", "cuda:sm_90", "cuda:sm_80"])
@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_casts_are_parts_of_the_kernels_that_would_be_without(target: str, precision: str) -> None:
    """Attention is found as before, and what one kernel hands to the next is stored in the half type."""
    as_written = lower(parse(BLOCK), target)
    rounded = lower(parse(BLOCK), target, precision=precision)  # type: ignore[arg-type]
    groups = [
        [op for op in found.graph.ops if isinstance(op.attributes, FusedAttributes)] for found in (as_written, rounded)
    ]
    kinds = [[op.expect(FusedAttributes).kind for op in of_each] for of_each in groups]
    assert kinds[1] == kinds[0] == ["gemm", "attention", "gemm"]
    assert all(v.type.dtype.name == precision for op in groups[1][:-1] for v in op.results)
    assert [v.type.dtype.name for v in groups[1][-1].results] == ["f32"]
    assert rounded.program.precision == precision
