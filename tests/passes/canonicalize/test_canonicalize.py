"""The whole pass, on programs as frontends hand them on."""

from __future__ import annotations

import numpy as np
import pytest
from op_samples import CASES, SAMPLES, SIZES
from rewriting import computes_the_same

from fusec.ir.interpret import interpret
from fusec.ir.verify import verify
from fusec.passes.canonicalize import canonicalize

ENCODER = """
    graph @g(%x: f32[2, 8, 32], %mask: i64[2, 8], %w: f32[32, 32], %b: f32[32], %f: f32[64, 32], %g: f32[32, 64]) {
      %q = linear(%x, %w, %b) : f32[2, 8, 32]
      %q4 = reshape(%q) : f32[2, 8, 4, 8]
      %qh = permute(%q4) {permutation=[0, 2, 1, 3]} : f32[2, 4, 8, 8]
      %k = linear(%x, %w) : f32[2, 8, 32]
      %k4 = reshape(%k) : f32[2, 8, 4, 8]
      %kh = permute(%k4) {permutation=[0, 2, 1, 3]} : f32[2, 4, 8, 8]
      %kt = permute(%kh) {permutation=[0, 1, 3, 2]} : f32[2, 4, 8, 8]
      %s = matmul(%qh, %kt) : f32[2, 4, 8, 8]
      %sc = div(%s, f32(2.8284271247461903)) : f32[2, 4, 8, 8]
      %m4 = reshape(%mask) : i64[2, 1, 1, 8]
      %hidden = eq(%m4, i64(0)) : bool[2, 1, 1, 8]
      %sm = select(%hidden, f32(-1e+09), %sc) : f32[2, 4, 8, 8]
      %p = softmax(%sm) {axis=3} : f32[2, 4, 8, 8]
      %o = matmul(%p, %kh) : f32[2, 4, 8, 8]
      %op = permute(%o) {permutation=[0, 2, 1, 3]} : f32[2, 8, 4, 8]
      %oc = copy(%op) : f32[2, 8, 4, 8]
      %or = reshape(%oc) : f32[2, 8, 32]
      %h = add(%x, %or) : f32[2, 8, 32]
      %n = layer_norm(%h, %b, %b) {axes=[2], eps=1e-12} : f32[2, 8, 32]
      %u = linear(%n, %f) : f32[2, 8, 64]
      %a = gelu(%u) : f32[2, 8, 64]
      %d = linear(%a, %g) : f32[2, 8, 32]
      %y = add(%n, %d) : f32[2, 8, 32]
      return %y
    }
"""


def test_an_encoder_layer() -> None:
    graph = computes_the_same(canonicalize, ENCODER, special=False)
    assert all(op.definition.kind != "composite" for op in graph.ops)
    assert [op.result.name for op in graph.ops if op.name in ("permute", "copy")] == ["op"]
    assert [str(op.operands[0]) for op in graph.ops if op.name == "dot"] == ["%x", "%x", "%q4", "%p", "%n", "%a"]


def test_it_is_done_after_one_time() -> None:
    once = computes_the_same(canonicalize, ENCODER, special=False)
    assert canonicalize(once) is once


NESTED = ("extern", "fused")


@pytest.mark.parametrize(("name", "n"), [(name, n) for name, n in CASES if name not in NESTED])
def test_every_op_keeps_its_meaning(name: str, n: int) -> None:
    sample = SAMPLES[name][n]
    before = sample.graph(name)
    after = canonicalize(before)
    verify(after, "canonicalize")
    assert [v.type for v in after.outputs] == [v.type for v in before.outputs]
    assert all(op.definition.kind != "composite" for op in after.ops)
    for float64, tolerance in ((True, 1e-9), (False, 2e-2)):
        runs = [interpret(g, sample.arrays(), float64=float64, bindings=SIZES) for g in (before, after)]
        for a, b in zip(*runs, strict=True):
            np.testing.assert_allclose(b.astype(a.dtype), a, rtol=tolerance, atol=tolerance)
