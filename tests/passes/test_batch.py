"""The axis of a batch followed through graphs, and graphs made for fewer elements of it."""

from __future__ import annotations

import numpy as np
import pytest

from fusec.errors import LoweringError
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.ir.verify import verify
from fusec.passes.batch import batch_axes, with_batch

PRODUCTS = """graph @f(%x: f32[6, 4, 5], %w: f32[6, 5, 3], %b: f32[3]) {
  %h = matmul(%x, %w) : f32[6, 4, 3]
  %s = add(%h, %b) : f32[6, 4, 3]
  %t = permute(%s) {permutation=[0, 2, 1]} : f32[6, 3, 4]
  %m = reduce_max(%t) {axes=[2]} : f32[6, 3]
  return %t, %m
}"""
SHARED = """graph @f(%x: f32[6, 8], %w: f32[8, 6]) {
  %h = matmul(%x, %w) : f32[6, 6]
  %p = softmax(%h) {axis=1} : f32[6, 6]
  %r = reshape(%p) : f32[6, 2, 3]
  %i = iota() {axis=1} : f32[6, 2, 3]
  %y = mul(%r, %i) : f32[6, 2, 3]
  return %y
}"""
BROADCAST = """graph @f(%x: f32[6, 4], %v: f32[4]) {
  %w = exp(%v) : f32[4]
  %b = broadcast(%w) : f32[6, 4]
  %c = concat(%x, %b) {axis=1} : f32[6, 8]
  %s = slice(%c) {starts=[0, 2], stops=[6, 8], steps=[1, 1]} : f32[6, 6]
  return %s
}"""


@pytest.mark.parametrize("text", [PRODUCTS, SHARED, BROADCAST])
def test_parts_are_parts_of_the_whole(text: str) -> None:
    graph = parse(text)
    axes = batch_axes(graph)
    part = with_batch(graph, axes, 2)
    verify(part, "with_batch")
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(v.type.static_shape).astype(np.float32) for v in graph.inputs]
    whole = interpret(graph, given)
    for start in (0, 2, 4):
        sliced = [a[start : start + 2] if v in axes else a for a, v in zip(given, graph.inputs, strict=True)]
        for found, wanted in zip(interpret(part, sliced), whole, strict=True):
            np.testing.assert_array_equal(found, wanted[start : start + 2])


def test_inputs_without_the_batch_are_left_alone() -> None:
    graph = parse(SHARED)
    x, w = graph.inputs
    assert batch_axes(graph)[x] == 0
    assert w not in batch_axes(graph)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("%m = reduce_sum(%x) {axes=[0]} : f32[4]\n %y = sub(%x, %m) : f32[6, 4]", "mixes"),
        ("%y = softmax(%x) {axis=0} : f32[6, 4]", "mixes"),
        ("%t = permute(%x) {permutation=[1, 0]} : f32[4, 6]\n %y = matmul(%x, %t) : f32[6, 6]", "two axes"),
        ("%y = permute(%x) {permutation=[1, 0]} : f32[4, 6]", "along axis 1"),
        ("%y = reshape(%x) : f32[24]", "mixes"),
        ("%y = reduce_sum(%x) {axes=[0, 1]} : f32[]", "no axis"),
        ("%y = slice(%x) {starts=[5, 0], stops=[-1, 4], steps=[-1, 1]} : f32[6, 4]", "mixes"),
        ("%y = iota() {axis=1} : f32[6, 4]", "no argument"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    graph = parse(f"graph @f(%x: f32[6, 4]) {{\n {text}\n return %y\n}}")
    with pytest.raises(LoweringError, match=reason):
        batch_axes(graph)
