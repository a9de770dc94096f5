"""Weights out of a log-softmax."""

from __future__ import annotations

import numpy as np
import pytest
from programs import check, random_inputs

from fusec.ir.graph import Graph
from fusec.ir.parse import parse
from fusec.passes.canonicalize import canonicalize

ROWS = "f32[6, 40]"


def loss(shifted: str = "%x = sub(%y, %mk)", summed: str = "%x", last: str = "%w = exp(%l)") -> Graph:
    return parse(f"""graph @loss(%y: {ROWS}, %o: {ROWS}) {{
      %m = reduce_max(%y) {{axes=[1]}} : f32[6]
      %mk = reshape(%m) : f32[6, 1]
      {shifted} : {ROWS}
      %e = exp({summed}) : {ROWS}
      %s = reduce_sum(%e) {{axes=[1]}} : f32[6]
      %sk = reshape(%s) : f32[6, 1]
      %g = log(%sk) : f32[6, 1]
      %l = sub(%x, %g) : {ROWS}
      {last} : {ROWS}
      return %l, %w
    }}""")


def exponentials(graph: Graph) -> int:
    return sum(op.name == "exp" for op in canonicalize(graph).ops)


def test_one_exponential_is_left() -> None:
    assert exponentials(loss()) == 1


@pytest.mark.parametrize(
    "graph",
    [
        loss(shifted="%x = sub(%y, %o)"),
        loss(shifted="%x = sub(%o, %mk)"),
        loss(shifted="%x = neg(%y)"),
        loss(summed="%o"),
    ],
    ids=["another shift", "of other rows", "no shift", "another sum"],
)
def test_others_keep_theirs(graph: Graph) -> None:
    assert exponentials(graph) == 2


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize("value", [None, np.inf, -np.inf, np.nan, 3e38, -3e38])
def test_against_float64(target: str, value: float | None) -> None:
    arrays = random_inputs(loss())
    if value is not None:
        arrays[0][2, 7] = value
        arrays[0][3] = value
    with np.errstate(all="ignore"):
        check(str(loss()), arrays, target=target, slack=4)
