"""Sums of windows are kernels of their own on a GPU, whatever reduces them."""

from __future__ import annotations

import re

import pytest
from programs import check

from fusec.ir.parse import parse
from fusec.passes.pipeline import lower


def depthwise(dtype: str, then: str, results: str) -> str:
    seen = "f32[2, 14, 14, 16, 3, 3]"
    return f"""graph @g(%x: {dtype}[2, 16, 16, 16], %w: {dtype}[16, 3, 3], %b: f32[16]) {{
  %u = windows(%x) {{axis=1, size=3}} : {dtype}[2, 14, 16, 16, 3]
  %v = windows(%u) {{axis=2, size=3}} : {dtype}[2, 14, 14, 16, 3, 3]
  %c = cast(%v) : {seen}
  %d = cast(%w) : f32[16, 3, 3]
  %m = mul(%c, %d) : {seen}
  %s = reduce_sum(%m) {{axes=[4, 5]}} : f32[2, 14, 14, 16]
  %t = add(%s, %b) : f32[2, 14, 14, 16]
  %r = cast(%t) : {dtype}[2, 14, 14, 16]
  %y = silu(%r) : {dtype}[2, 14, 14, 16]
{then}
  return {results}
}}"""


MEAN = """  %f = cast(%y) : f32[2, 14, 14, 16]
  %z = mean(%f) {axes=[1, 2]} : f32[2, 16]"""
NORM = """  %f = cast(%y) : f32[2, 14, 14, 16]
  %z = softmax(%f) {axis=3} : f32[2, 14, 14, 16]"""


@pytest.mark.parametrize(("then", "results"), [(MEAN, "%z, %y"), (NORM, "%z"), (MEAN, "%z")])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_what_reduces_a_sum_of_windows_reads_it_from_memory(dtype: str, then: str, results: str) -> None:
    text = depthwise(dtype, then, results)
    if dtype == "f32":
        text = re.sub(r"%f = cast\(%y\)", "%f = mul(%y, f32(1.0))", re.sub(r"cast\(", "copy(", text))
    run = check(text, target="cuda:sm_90")
    assert run.kernels[-2:] == ["map", "row"], run.lowered.stages["fuse"]


def test_the_reduction_widens_what_it_reads() -> None:
    """What goes through memory is silu's result in bf16, not once more in f32."""
    fused = lower(parse(depthwise("bf16", MEAN, "%z, %y")), "cuda:sm_90").stages["fuse"]
    (made,) = re.findall(r"fused\((.*?)\) row", fused)
    assert "%y" in made or "silu" in made, fused
    assert re.search(r"\) row @\w+\(%\w+: bf16", fused), fused


def test_rows_of_windows_that_are_no_sum_are_reduced_as_they_are() -> None:
    text = """graph @g(%x: f32[40, 400]) {
        %w = windows(%x) {axis=1, size=200} : f32[40, 201, 200]
        %e = mul(%w, f32(0.5)) : f32[40, 201, 200]
        %y = reduce_sum(%e) {axes=[2]} : f32[40, 201]
        return %y
    }"""
    assert check(text, target="cuda:sm_90").kernels == ["row"]


def padded(size: int) -> str:
    """A sum of windows with weights, and a copy of it with its channels before its places."""
    reach, seen = 8 + size - 1, f"f32[2, 8, 8, 16, {size}, {size}]"
    return f"""graph @g(%x: f32[2, 8, 8, 16], %w: f32[16, {size}, {size}], %b: f32[16]) {{
  %p = pad(%x, f32(0.0)) {{low=[0, {size // 2}, {size // 2}, 0], high=[0, {size // 2}, {size // 2}, 0]}} :
    f32[2, {reach}, {reach}, 16]
  %u = windows(%p) {{axis=1, size={size}}} : f32[2, 8, {reach}, 16, {size}]
  %v = windows(%u) {{axis=2, size={size}}} : {seen}
  %m = mul(%v, %w) : {seen}
  %s = reduce_sum(%m) {{axes=[4, 5]}} : f32[2, 8, 8, 16]
  %t = add(%s, %b) : f32[2, 8, 8, 16]
  %c = permute(%t) {{permutation=[0, 3, 1, 2]}} : f32[2, 16, 8, 8]
  %y = copy(%c) : f32[2, 16, 8, 8]
  return %y
}}"""


@pytest.mark.parametrize(("size", "is_apart"), [(7, True), (3, False)])
def test_a_sum_of_many_windows_is_made_as_images_lie_and_copied_after(size: int, is_apart: bool) -> None:
    """On a CPU, where lanes that lie as the copy does would read each element by itself."""
    text = padded(size).replace(" :\n    f32", " : f32")
    check(text)
    bodies = [op.attributes.body for op in lower(parse(text), "cpu").graph.ops if op.name == "fused"]
    (last,) = (body for body in bodies if body.outputs[0].type.static_shape == (2, 16, 8, 8))
    assert ("add" in {op.name for op in last.ops}) != is_apart
