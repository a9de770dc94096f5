"""Matmuls of 8 bits in pieces: which there are, and that they compute what the group computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.ir.types import contiguous_strides
from fusec.passes.families.gemm.eight_bits import eight_bits_first
from fusec.passes.lower.context import LoweringContext
from fusec.passes.lower.pieces import Pieces
from fusec.passes.pipeline import lower

ALONG, INSIDE, WIDE = "operands along K first", "operands in f16", "operands in f16 first"


def product(left: str, right: str, contract: str, kind: str = "f8e4m3") -> str:
    """96 rows, 80 columns."""
    sums = "i32" if kind == "i8" else "f32"
    return f"""graph @g(%x: {kind}[{left}], %w: {kind}[{right}], %s: f32[80]) {{
      %h = dot(%x, %w) {{contract={contract}, dtype={sums}}} : {sums}[96, 80]
      %f = cast(%h) : f32[96, 80]
      %p = mul(%f, %s) : f32[96, 80]
      %y = cast(%p) : bf16[96, 80]
      return %y
    }}"""


CASES = {
    "along K": (product("96, 256", "80, 256", "[1]x[1]"), [INSIDE, WIDE]),
    "columns side by side": (product("96, 256", "256, 80", "[1]x[0]"), [ALONG, INSIDE, WIDE]),
    "rows side by side": (product("256, 96", "80, 256", "[0]x[1]"), [ALONG, INSIDE, WIDE]),
    "neither": (product("256, 96", "256, 80", "[0]x[0]"), [ALONG, INSIDE, WIDE]),
    "bytes along K": (product("96, 256", "80, 256", "[1]x[1]", "i8"), []),
    "bytes otherwise": (product("96, 256", "256, 80", "[1]x[0]", "i8"), [ALONG]),
    "two axes": (product("96, 8, 32", "8, 32, 80", "[1, 2]x[0, 1]"), [ALONG, INSIDE, WIDE]),
    "of one left operand": (
        """graph @g(%x: f8e4m3[256, 96], %g: f8e4m3[256, 80], %u: f8e4m3[256, 80]) {
          %a = dot(%x, %g) {contract=[0]x[0], dtype=f32} : f32[96, 80]
          %b = dot(%x, %u) {contract=[0]x[0], dtype=f32} : f32[96, 80]
          %s = mul(%a, %b) : f32[96, 80]
          %y = cast(%s) : bf16[96, 80]
          return %y
        }""",
        [ALONG, INSIDE, WIDE],
    ),
    "of 16 bits": (
        """graph @g(%x: bf16[96, 256], %w: bf16[256, 80]) {
          %y = dot(%x, %w) {contract=[1]x[0]} : bf16[96, 80]
          return %y
        }""",
        [],
    ),
}


def context_of(text: str) -> LoweringContext:
    graph = lower(parse(text), "cuda:sm_90").graph
    (op,) = (o for o in graph.ops if isinstance(o.attributes, FusedAttributes))
    strides = {v: contiguous_strides(v.type.static_shape) for v in (*op.operands, *op.results)}
    return LoweringContext(op, strides, "group")


@pytest.mark.parametrize("name", CASES)
def test_which_pieces_there_are(name: str) -> None:
    text, wanted = CASES[name]
    assert [a.text for a in eight_bits_first(context_of(text))] == wanted


@pytest.mark.parametrize("name", [name for name, (_, wanted) in CASES.items() if wanted])
def test_pieces_compute_what_the_group_computes(name: str) -> None:
    context = context_of(CASES[name][0])
    rng = np.random.default_rng(0)
    given = [(rng.standard_normal(v.type.static_shape) * 4).astype(v.type.dtype.numpy) for v in context.body.inputs]
    wanted = interpret(context.body, given)
    for alternative in eight_bits_first(context):
        pieces = alternative.lower(context)
        assert isinstance(pieces, Pieces)
        for a, b in zip(run(pieces, context.body, given), wanted, strict=True):
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=2**-7, atol=0.1)


def run(pieces: Pieces, body: Graph, given: list[Any]) -> list[Any]:
    known = dict(zip(body.inputs, given, strict=True))
    for op in pieces.ops:
        assert isinstance(op.attributes, FusedAttributes)
        results = interpret(op.attributes.body, [known[v] for v in op.operands])
        known.update(zip(op.results, results, strict=True))
    return [known[v] for v in body.outputs]


def test_the_matmul_of_laid_out_operands_has_them_along_k() -> None:
    context = context_of(CASES["neither"][0])
    pieces = eight_bits_first(context)[0].lower(context)
    assert isinstance(pieces, Pieces)
    kinds = [op.attributes.kind for op in pieces.ops if isinstance(op.attributes, FusedAttributes)]
    assert kinds == ["map", "map", "gemm"]
    gemm = pieces.ops[-1]
    strides = {v: contiguous_strides(v.type.static_shape) for v in (*gemm.operands, *gemm.results)}
    assert [a.text for a in eight_bits_first(LoweringContext(gemm, strides, "group"))] == [INSIDE, WIDE]
