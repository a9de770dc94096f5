"""Sums of rows of which it is known where they go: which positions are seen to be so, and that nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.parse import parse
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule
from fusec.passes.row_sums import sum_of_known_rows

ROWS = 12


@rule("scatter_add")
def known(r: Rewriter) -> Outcome:
    """scatter_add(x, i, y) ⇒ x + y[0] + y[1], where it is known which rows"""
    return sum_of_known_rows(r, *r.operands)


def sums(count: int, places: str) -> Graph:
    return parse(f"""graph @f(%x: f32[{count}, 2], %y: f32[{ROWS}, 2], %data: i64[{ROWS}]) {{
  %i = iota() {{axis=0}} : i64[{ROWS}]
{places}
  %z = scatter_add(%x, %p, %y) {{axis=0}} : f32[{count}, 2]
  return %z
}}""")


def check(graph: Graph) -> Any:
    after = rewrite(graph, (known,))
    count = after.inputs[0].type.static_shape[0]
    rng = np.random.default_rng(0)
    args = [rng.normal(size=(count, 2)), rng.normal(size=(ROWS, 2)), rng.integers(0, count, ROWS)]
    args = [a.astype(np.float32) if a.ndim > 1 else a for a in args]
    np.testing.assert_allclose(interpret(after, args)[0], interpret(graph, args)[0], rtol=1e-5, atol=1e-5)
    return [op.name for op in after.ops]


OF_A_TOKEN = "  %p = floordiv(%i, i64(3)) : i64[12]"
OF_A_CHOICE = "  %p = remainder(%i, i64(4)) : i64[12]"
BOTH = """  %a = floordiv(%i, i64(2)) : i64[12]
  %p = remainder(%a, i64(3)) : i64[12]"""
ITSELF = "  %p = add(%i, i64(0)) : i64[12]"


@pytest.mark.parametrize(("count", "places"), [(4, OF_A_TOKEN), (4, OF_A_CHOICE), (3, BOTH)])
def test_positions_that_are_known(count: int, places: str) -> None:
    names = check(sums(count, places))
    assert "scatter_add" not in names
    assert names.count("add") == ROWS // count


FEWER = "  %p = remainder(%i, i64(3)) : i64[12]"
UNEVEN = "  %p = floordiv(%i, i64(5)) : i64[12]"
DATA = "  %p = copy(%data) : i64[12]"


@pytest.mark.parametrize(
    ("count", "places"), [(4, FEWER), (5, OF_A_TOKEN), (3, UNEVEN), (4, DATA), (12, ITSELF), (6, OF_A_CHOICE)]
)
def test_other_positions_stay(count: int, places: str) -> None:
    assert "scatter_add" in check(sums(count, places))
