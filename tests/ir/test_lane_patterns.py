from __future__ import annotations

import pytest

from fusec.ir import index as ix
from fusec.ir.index import Index, symbol
from fusec.ir.indexing import evaluate
from fusec.ir.lane_patterns import lane_pattern

K, R = symbol("k", 0, 255), symbol("r", 0, 9)


@pytest.mark.parametrize(
    ("e", "span"),
    [
        (ix.floordiv(K, 2), 8),
        (ix.floordiv(K, 4), 4),
        (ix.floordiv(K, 128), 1),
        (ix.add(ix.mul(R, 128), ix.floordiv(K, 2)), 8),
        (ix.mod(K, 2), 2),
        (ix.mod(K, 64), 16),
        (ix.mod(K, 16), 16),
        (ix.mul(ix.floordiv(K, 2), 4), 0),
    ],
)
def test_first_and_steps_are_the_index(e: Index, span: int) -> None:
    found = lane_pattern(e, K, 16)
    assert found is not None
    assert found.span == span
    for k in range(256):
        first = evaluate(found.first, {found.block.name: k // 16, "r": 3})
        assert first + found.steps[k % 16] == evaluate(e, {"k": k, "r": 3})


@pytest.mark.parametrize("e", [ix.floordiv(K, 3), ix.floordiv(ix.add(K, R), 2), ix.mod(K, 24)])
def test_lanes_that_differ_from_block_to_block_have_none(e: Index) -> None:
    assert lane_pattern(e, K, 16) is None


def test_a_symbol_without_an_end_or_shorter_than_the_lanes_has_none() -> None:
    assert lane_pattern(ix.floordiv(symbol("n"), 2), symbol("n"), 16) is None
    short = symbol("s", 0, 6)
    assert lane_pattern(ix.floordiv(short, 2), short, 16) is None
