"""Scores divided by sums of their rows."""

from __future__ import annotations

import pytest
from rewriting import becomes, unchanged

from fusec.passes.normalizers import divide_results

S, ROW = "f32[2, 70, 80]", "f32[2, 70, 1]"


def graph(divisor: str, weights: str = f"%p = div(%s, %r) : {S}") -> str:
    return f"""graph @g(%q: f32[2, 70, 16], %k: f32[2, 80, 16], %v: f32[2, 80, 16]) {{
      %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : {S}
      {divisor}
      {weights}
      %o = dot(%p, %v) {{contract=[2]x[1], batch=[0]x[0]}} : f32[2, 70, 16]
      return %o
    }}"""


SIZES = f"""%a = abs(%s) : {S}
  %t = reduce_sum(%a) {{axes=[2]}} : f32[2, 70]
  %r = reshape(%t) : {ROW}"""
AT_LEAST = f"""%t = reduce_sum(%s) {{axes=[2]}} : f32[2, 70]
  %e = reshape(%t) : {ROW}
  %a = abs(%e) : {ROW}
  %r = maximum(%a, f32(1.0)) : {ROW}"""
MAY_BE_0 = f"""%t = reduce_sum(%s) {{axes=[2]}} : f32[2, 70]
  %r = reshape(%t) : {ROW}"""
OF_COLUMNS = f"""%a = abs(%s) : {S}
  %t = reduce_sum(%a) {{axes=[1]}} : f32[2, 80]
  %r = reshape(%t) : f32[2, 1, 80]"""


@pytest.mark.parametrize("divisor", [SIZES, AT_LEAST])
def test_the_result_is_divided(divisor: str) -> None:
    becomes(
        divide_results,
        graph(divisor),
        f"""graph @g(%q: f32[2, 70, 16], %k: f32[2, 80, 16], %v: f32[2, 80, 16]) {{
          %s = dot(%q, %k) {{contract=[2]x[2], batch=[0]x[0]}} : {S}
          {divisor}
          %o_undivided = dot(%s, %v) {{contract=[2]x[1], batch=[0]x[0]}} : f32[2, 70, 16]
          %o = div(%o_undivided, %r) : f32[2, 70, 16]
          return %o
        }}""",
        special=False,
    )


@pytest.mark.parametrize(
    "text",
    [
        graph(MAY_BE_0),
        graph(OF_COLUMNS),
        graph(SIZES, f"%d = div(%s, %r) : {S}\n%p = tanh(%d) : {S}"),
        graph(SIZES).replace("70", "40").replace("80", "40"),
    ],
)
def test_other_quotients_stay(text: str) -> None:
    """Of a sum that may be 0 though its terms are not, of columns, before other maps, and of few rows."""
    unchanged(divide_results, text)
