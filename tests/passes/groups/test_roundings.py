"""A value in half precision that another kernel reads has the same digits for its own kernel."""

from __future__ import annotations

import pytest
import torch
from programs import check

import fusec
from fusec.ir.parse import parse
from fusec.ir.print import print_graph
from fusec.passes.fuse import fuse


def graph(result: str, dtype: str = "bf16", made: str = "mul(%x, %x)") -> str:
    return f"""graph @g(%x: {dtype}[8, 16], %w: {dtype}[16, 4]) {{
  %h = {made} : {dtype}[8, 16]
  %wide = cast(%h) : f64[8, 16]
  %r = reduce_sum(%wide) {{axes=[1]}} : f64[8]
  %y = dot(%h, %w) {{contract=[1]x[0]}} : {dtype}[8, 4]
  return {result}
}}"""


MATMULS = """graph @g(%x: bf16[16, 32], %w: bf16[32, 48], %u: bf16[48, 16]) {
  %y = dot(%x, %w) {contract=[1]x[0]} : bf16[16, 48]
  %v = cast(%y) : f32[16, 48]
  %q = exp(%v) : f32[16, 48]
  %z = dot(%y, %u) {contract=[1]x[0]} : bf16[16, 16]
  return %q, %z
}"""


def fused(text: str) -> str:
    return print_graph(fuse(parse(text)))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_the_other_readers_see_what_is_stored(dtype: str) -> None:
    text = fused(graph("%r, %y", dtype))
    assert f"%h_stored = cast(%h) : {dtype}[8, 16]" in text
    assert "%wide = cast(%h_stored)" in text
    assert "return %r, %h" in text or "return %h, %r" in text


@pytest.mark.parametrize(
    "text",
    [
        graph("%r, %h").replace("dot(%h, %w)", "dot(%x, %w)"),
        graph("%r, %y", "f32"),
        graph("%r, %y", made="neg(%x)"),
        graph("%r, %y", made="cast(%x)"),
    ],
    ids=["read by no kernel", "not of half precision", "exact", "a rounding"],
)
def test_nothing_else_is_rounded(text: str) -> None:
    assert "_stored" not in fused(text)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize("text", [graph("%r, %y"), MATMULS], ids=["a map", "a matmul"])
def test_kernels_compute_it(text: str, target: str) -> None:
    check(text, target=target)


def test_equal_numbers_cancel() -> None:
    """The sum over one key is that key: the scores and their logarithm of a sum come out of two kernels."""

    def weights(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        s = q @ k.mT
        p = torch.exp(s - torch.logsumexp(s, -1, keepdim=True))
        return p @ v, p

    q, k, v = (torch.randn(1, 1, n, 24, dtype=torch.bfloat16) for n in (8, 1, 1))
    y, p = fusec.jit(weights)(q, k, v)
    assert p.eq(1).all()
    assert y.eq(v).all()
