"""Layers of boxes."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusec.page.layout import lay_out


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[float, float]], list[tuple[int, int]]]:
    count = draw(st.integers(1, 12))
    sizes = [(draw(st.floats(10, 200)), draw(st.floats(10, 90))) for _ in range(count)]
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    return sizes, draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_boxes_do_not_meet_and_edges_go_down(graph: tuple[list[tuple[float, float]], list[tuple[int, int]]]) -> None:
    sizes, edges = graph
    layout = lay_out(sizes, edges)
    for a, b in combinations(range(len(sizes)), 2):
        (ax, ay), (bx, by) = layout.at[a], layout.at[b]
        beside = ax + sizes[a][0] <= bx + 1e-6 or bx + sizes[b][0] <= ax + 1e-6
        assert beside or ay + sizes[a][1] <= by or by + sizes[b][1] <= ay
    for (a, b), bends in zip(edges, layout.bends, strict=True):
        assert layout.at[a][1] + sizes[a][1] < layout.at[b][1]
        assert bends[0][1] == pytest.approx(layout.at[a][1] + sizes[a][1])
        assert bends[-1][1] == layout.at[b][1]
        assert [y for _, y in bends] == sorted(y for _, y in bends)
    for (x, y), (width, height) in zip(layout.at, sizes, strict=True):
        assert x >= -1e-6
        assert x + width <= layout.width + 1e-6
        assert y >= 0
        assert y + height <= layout.height + 1e-6


def test_what_reads_nothing_stands_above_its_reader() -> None:
    layout = lay_out([(10, 10)] * 4, [(0, 1), (1, 3), (2, 3)])
    assert layout.at[2][1] == layout.at[1][1] > layout.at[0][1]


def test_an_edge_backwards() -> None:
    with pytest.raises(ValueError, match="later box"):
        lay_out([(1, 1)] * 2, [(1, 0)])
