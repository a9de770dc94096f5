"""Rows sorted by group: stable, with ends and places, of few rows and in blocks."""

from __future__ import annotations

import numpy as np
import pytest

from fusec.ir.attributes import GatherAttributes
from fusec.ir.builder import Builder
from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret
from fusec.ir.types import TensorType, i64
from fusec.ir.verify import verify
from fusec.passes.rewrite import Outcome, Rewriter, rewrite, rule
from fusec.passes.row_order import MOST_COMPARED, rows_by_group


def sorts(rows: int, groups: int, field: str) -> Graph:
    """A graph from groups' numbers to the order, the ends or the places."""

    @rule("neg")
    def part(r: Rewriter) -> Outcome:
        """neg(x) ⇒ a part of the order of x, of its ends each row's own"""
        (number,) = r.operands
        found = rows_by_group(r, number, groups, gpu=True)
        made = getattr(found, field)
        if field == "ends":
            own = r.emit("minimum", number, r.constant(groups - 1, number))
            made = r.emit("gather", made, own, attributes=GatherAttributes(0))
        return made if made.type.dtype is i64 else r.cast(made, i64)

    builder = Builder("sort")
    number = builder.input(TensorType(i64, (rows,)), "number")
    made = rewrite(builder.finish([builder.emit("neg", number)]), (part,))
    verify(made)
    return made


@pytest.mark.parametrize("groups", [1, 5])
@pytest.mark.parametrize("rows", [1, 13, MOST_COMPARED, MOST_COMPARED + 1, 5000, 8192])
def test_order(rows: int, groups: int) -> None:
    number = np.random.default_rng(rows).integers(0, groups + 1, rows)
    order = np.argsort(number, kind="stable")
    np.testing.assert_array_equal(interpret(sorts(rows, groups, "order"), [number])[0], order)
    places = interpret(sorts(rows, groups, "places"), [number])[0]
    np.testing.assert_array_equal(places[order], np.arange(rows))
    ends = interpret(sorts(rows, groups, "ends"), [number])[0]
    own = np.minimum(number, groups - 1)
    np.testing.assert_array_equal(ends, np.searchsorted(number[order], own, side="right"))


@pytest.mark.parametrize("number", [np.zeros(6000), np.full(6000, 3), np.arange(6000) % 4, np.full(6000, 2)])
def test_groups_that_are_empty_or_all(number: np.ndarray) -> None:
    number = number.astype(np.int64)
    order = interpret(sorts(6000, 3, "order"), [number])[0]
    np.testing.assert_array_equal(order, np.argsort(number, kind="stable"))
