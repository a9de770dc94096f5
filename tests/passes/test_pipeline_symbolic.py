"""Kernels of symbolic extents: one program against the graph's interpreter at many extents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fusec.build import Options, build
from fusec.errors import LoweringError
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.pipeline import lower
from fusec.runtime.program import Launch
from fusec.tile.interpret import run
from fusec.tile.verify import verify

GRAPHS: dict[str, tuple[str, list[dict[str, int]]]] = {
    "rows": (
        """
graph @rows<B in [1, 64], S in [1, 128]>(%x: f32[B, S, 96], %w: f32[96]) {
  %y = layer_norm(%x, %w, %w) {axes=[2], eps=1e-05} : f32[B, S, 96]
  %m = mean(%y) {axes=[1]} : f32[B, 96]
  return %y, %m
}""",
        [{"B": b, "S": s} for b, s in ((1, 1), (3, 7), (64, 2), (5, 33), (1, 128))],
    ),
    "lower_argreduce": (
        """
graph @lower_argreduce<B in [1, 64], S in [1, 128]>(%x: f32[B, S]) {
  %i = argmax(%x) {axis=1} : i64[B]
  %j = argmin(%x) {axis=0} : i64[S]
  return %i, %j
}""",
        [{"B": b, "S": s} for b, s in ((1, 1), (3, 7), (64, 2), (5, 33), (1, 128))],
    ),
    "attention": (
        """
graph @attention<B in [1, 8], S in [2, 300]>(%q: f32[B, S, 128], %k: f32[B, S, 128], %v: f32[B, S, 128]) {
  %q1 = reshape(%q) : f32[B, S, 2, 64]
  %k1 = reshape(%k) : f32[B, S, 2, 64]
  %v1 = reshape(%v) : f32[B, S, 2, 64]
  %q2 = permute(%q1) {permutation=[0, 2, 1, 3]} : f32[B, 2, S, 64]
  %k2 = permute(%k1) {permutation=[0, 2, 1, 3]} : f32[B, 2, S, 64]
  %v2 = permute(%v1) {permutation=[0, 2, 1, 3]} : f32[B, 2, S, 64]
  %o = sdpa(%q2, %k2, %v2) {causal=true} : f32[B, 2, S, 64]
  %p = permute(%o) {permutation=[0, 2, 1, 3]} : f32[B, S, 2, 64]
  %y = reshape(%p) : f32[B, S, 128]
  return %y
}""",
        [{"B": b, "S": s} for b, s in ((1, 2), (2, 130), (1, 64), (1, 65), (3, 17))],
    ),
    "attention to shared keys": (
        """
graph @decode<Q in [1, 8], S in [1, 2000]>(%q: f32[Q, 16], %k: f32[S, 16], %v: f32[S, 16]) {
  %s = dot(%q, %k) {contract=[1]x[1]} : f32[Q, S]
  %p = softmax(%s) {axis=1} : f32[Q, S]
  %o = dot(%p, %v) {contract=[1]x[0]} : f32[Q, 16]
  return %o
}""",
        [{"Q": q, "S": s} for q, s in ((1, 1), (3, 40), (8, 1000), (8, 1025), (5, 2000))],
    ),
    "products": (
        """
graph @products<B in [1, 8], S in [2, 200]>(%x: f32[B, S, 24], %y: f32[B, S, 24], %w: f32[24, 24]) {
  %z = dot(%x, %y) {contract=[2]x[2], batch=[0]x[0]} : f32[B, S, S]
  %f = reshape(%x) : f32[B*S, 24]
  %g = dot(%f, %w) {contract=[1]x[0]} : f32[B*S, 24]
  %h = reshape(%g) : f32[B, S, 24]
  %u = dot(%z, %h) {contract=[2]x[1], batch=[0]x[0]} : f32[B, S, 24]
  %t = permute(%u) {permutation=[0, 2, 1]} : f32[B, 24, S]
  %r = copy(%t) : f32[B, 24, S]
  return %z, %r
}""",
        [{"B": b, "S": s} for b, s in ((1, 2), (2, 200), (3, 129), (1, 65), (8, 17))],
    ),
    "weights where they lie": (
        """
graph @linear<M in [1, 70], N in [1, 50]>(%x: f32[M, 70], %w: f32[48, 70], %v: f32[N, 70], %u: f32[70, 32]) {
  %h = dot(%x, %w) {contract=[1]x[1]} : f32[M, 48]
  %g = dot(%x, %v) {contract=[1]x[1]} : f32[M, N]
  %f = dot(%x, %u) {contract=[1]x[0]} : f32[M, 32]
  return %h, %g, %f
}""",
        [{"M": m, "N": n} for m, n in ((1, 1), (2, 50), (6, 3), (7, 33), (64, 8), (70, 17))],
    ),
    "moves": (
        """
graph @moves<N in [1, 70]>(%x: f32[5, N], %y: f32[N]) {
  %c = concat(%x, %x) {axis=1} : f32[5, 2*N]
  %m = reduce_max(%c) {axes=[1]} : f32[5]
  %a = reduce_sum(%x) {axes=[0]} : f32[N]
  %t = permute(%x) {permutation=[1, 0]} : f32[N, 5]
  %b = add(%a, %y) : f32[N]
  %f = reshape(%t) : f32[5*N]
  %e = exp(%f) : f32[5*N]
  %p = pad(%x, f32(2.0)) {low=[0, 1], high=[0, 2]} : f32[5, N + 3]
  %n = extent() {factors=[N]} : f32[]
  %d = div(%p, %n) : f32[5, N + 3]
  return %m, %b, %e, %c, %d
}""",
        [{"N": n} for n in (1, 2, 3, 16, 17, 31, 64, 70)],
    ),
}


def arrays_for(graph: Any, extents: Mapping[str, int]) -> list[Any]:
    from fusec.ir.indexing import evaluate

    generator = np.random.default_rng(sum(extents.values()))
    shapes = [tuple(evaluate(d, extents) for d in v.type.shape) for v in graph.inputs]
    return [(generator.standard_normal(s) / 4).astype(np.float32) for s in shapes]


@pytest.mark.parametrize("name", GRAPHS)
def test_compiled(name: str) -> None:
    text, cases = GRAPHS[name]
    graph = parse(text)
    executable = build(graph, "numpy", Options("cpu", cache=False)).executable
    assert all(isinstance(step, Launch) for step in executable.program.steps if not hasattr(step, "cacheable"))
    for extents in cases:
        arrays = arrays_for(graph, extents)
        for found, wanted in zip(executable(*arrays), interpret(graph, arrays, float64=True), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5, err_msg=str(extents))


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_keep_to_their_buffers(name: str) -> None:
    """Each kernel in the tile IR's interpreter, which raises where a subscript leaves its buffer."""
    text, cases = GRAPHS[name]
    program = lower(parse(text), "cpu", threads=2, check=True).program
    for kernel in program.kernels:
        verify(kernel)
        for extents in cases[:2]:
            made = []
            for buffer in kernel.parameters:
                from fusec.ir.indexing import evaluate

                shape = tuple(evaluate(d, extents) for d in buffer.shape)
                made.append(np.full(shape, 0.25, buffer.dtype.numpy))
            if sum(a.size for a in made) < 40_000:
                run(kernel, made, extents)


def test_what_can_not_be_symbolic_is_named() -> None:
    text = """
graph @rows<N in [1, 70]>(%x: f32[N, 5], %i: i64[3]) {
  %c = gather(%x, %i) {axis=0} : f32[3, 5]        // model.py:7
  return %c
}"""
    with pytest.raises(LoweringError, match=r"model.py:7: gather reaches into an axis of symbolic extent N"):
        lower(parse(text), "cpu")
