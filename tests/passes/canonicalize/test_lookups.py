"""Lookups by positions that count along the axes are views."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fusec
from fusec.ir.parse import parse
from fusec.passes.canonicalize import canonicalize
from fusec.passes.dce import dce

FLAT = """
graph @g<B in [2, 8], S in [2, 64]>(%m: f32[B, S]) {{
  %i = iota() {{axis=0}} : i64[B]
  %b = reshape(%i) : i64[B, 1, 1]
  %k = iota() {{axis=0}} : i64[S]
  %n = extent() {{factors=[{factor}]}} : i64[]
  %flat = reshape(%m) : f32[(B*S)]
  %row = mul(%b, %n) : i64[B, 1, 1]
  %at = add(%row, %k) : i64[B, 1, S]
  %y = gather(%flat, %at) {{axis=0}} : f32[B, 1, S]
  return %y
}}
"""


def test_rows_and_columns_of_a_flat_array() -> None:
    text = """
        graph @g<B in [2, 8], S in [2, 64]>(%m: f32[B, S]) {
          %y = reshape(%m) : f32[B, 1, S]
          return %y
        }
        """
    assert str(dce(canonicalize(parse(FLAT.format(factor="S"))))) == str(parse(text))


@pytest.mark.parametrize("factor", ["B", "2*S"])
def test_another_step_is_left(factor: str) -> None:
    assert "gather" in str(canonicalize(parse(FLAT.format(factor=factor))))


def other(m):  # type: ignore[no-untyped-def]
    i, j = torch.arange(m.shape[0]), torch.arange(m.shape[1])
    shifted = m[i[:, None], (j - 1)[None, :]]
    return (
        m[i[None, :, None], j[:, None, None]],
        m[i[:, None], j[None]] + shifted,
        m[:, j[:2]],
        m.T[j],
        m[i[:, None], j // 2],
    )


@pytest.mark.parametrize("shape", [(3, 5), (4, 4), (1, 6)])
def test_results_are_eager_s(shape: tuple[int, int]) -> None:
    m = torch.arange(float(np.prod(shape))).reshape(shape)
    for found, wanted in zip(fusec.jit(other, fallback="error")(m), other(m), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def masked(x, padding):  # type: ignore[no-untyped-def]
    rows, keys = torch.arange(x.shape[0]), torch.arange(x.shape[1])
    return x + padding[rows[:, None, None, None], keys].to(x.dtype)[:, 0, 0]


def test_a_padding_mask_of_any_length() -> None:
    shape = ("B:1..4", "S:2..9")
    compiled = fusec.compile(masked, fusec.TensorSpec(shape, "float32"), fusec.TensorSpec(shape, "bool"))
    for rows, length in ((1, 2), (3, 7), (4, 9)):
        x, padding = torch.randn(rows, length), torch.rand(rows, length) < 0.5
        torch.testing.assert_close(compiled(x, padding), masked(x, padding))
